//! How much memory the experts may take, as people write it. It does not know how many experts a model has.

use crate::{MemoryError, SlabPlan};
use std::fmt;
use std::str::FromStr;

/// The size of the cache of experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CacheSize {
    /// So many bytes: `8GB`, `512MiB`, `1.5GB`.
    Bytes(u64),
    /// A share of the machine's memory in percent, above 0 and at most 100: `25%`, `12.5%`.
    PercentOfMemory(f64),
    /// So many experts: `40x`.
    Slots(u32),
    /// Every expert of the model: `all`.
    All,
}

impl CacheSize {
    /// The slab for experts of `payload_bytes` bytes, of which the model has `experts`, on a machine with `memory_bytes`
    /// bytes. Bytes are rounded down to whole slots, but never to none; there are never more slots than experts.
    ///
    /// # Errors
    /// Those of [`SlabPlan::new`].
    pub fn plan(self, payload_bytes: u64, experts: u32, memory_bytes: u64) -> Result<SlabPlan, MemoryError> {
        let slots = match self {
            Self::Slots(slots) => slots,
            Self::All => experts,
            Self::Bytes(_) | Self::PercentOfMemory(_) => {
                let slot_bytes = SlabPlan::new(1, payload_bytes)?.slot_bytes();
                let whole = self.bytes(memory_bytes).map_or(0, |bytes| bytes / slot_bytes);
                u32::try_from(whole).unwrap_or(u32::MAX).max(1)
            }
        };
        SlabPlan::new(slots.min(experts), payload_bytes)
    }

    /// The bytes it comes to on a machine with `memory_bytes` bytes; `None` if it counts experts. One slot is planned even
    /// if it takes more.
    #[must_use]
    pub fn bytes(self, memory_bytes: u64) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::PercentOfMemory(percent) => Some((memory_bytes as f64 * percent / 100.0) as u64),
            Self::Slots(_) | Self::All => None,
        }
    }
}

/// Units of bytes. `GB` is a power of 1000, `GiB` of 1024, as the standards have it; upper and lower case are the same.
const UNITS: [(&str, u64); 9] = [
    ("b", 1),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];

impl FromStr for CacheSize {
    type Err = MemoryError;

    fn from_str(text: &str) -> Result<Self, MemoryError> {
        parse(text).map_err(|reason| MemoryError::CacheSize { text: text.to_owned(), reason })
    }
}

/// Splits a number from its unit; the error says what is wrong.
fn parse(text: &str) -> Result<CacheSize, String> {
    let lower = text.trim().to_ascii_lowercase();
    if lower == "all" {
        return Ok(CacheSize::All);
    }
    let digits = lower.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(lower.len());
    let (number, unit) = (&lower[..digits], lower[digits..].trim_start());
    if number.is_empty() {
        return Err("it does not start with a number".to_owned());
    }
    match unit {
        "" => Err("the unit is missing".to_owned()),
        "%" => percent(number),
        "x" => slots(number),
        _ => bytes(number, unit),
    }
}

fn decimal(number: &str) -> Result<f64, String> {
    number.parse().map_err(|_| format!("{number:?} is not a number"))
}

fn percent(number: &str) -> Result<CacheSize, String> {
    let percent = decimal(number)?;
    if percent > 0.0 && percent <= 100.0 {
        Ok(CacheSize::PercentOfMemory(percent))
    } else {
        Err("the share must be above 0% and at most 100%".to_owned())
    }
}

fn slots(number: &str) -> Result<CacheSize, String> {
    match number.parse() {
        Ok(0) => Err("at least one expert is needed".to_owned()),
        Ok(slots) => Ok(CacheSize::Slots(slots)),
        Err(_) => Err(format!("{number:?} is not a whole number of experts below 2^32")),
    }
}

fn bytes(number: &str, unit: &str) -> Result<CacheSize, String> {
    let Some((_, factor)) = UNITS.into_iter().find(|(name, _)| *name == unit) else {
        // `8G` is how other programs have it, but not whether it is a power of 1000 or of 1024.
        let meant = UNITS.iter().any(|(name, _)| *name == format!("{unit}b") && unit.len() == 1);
        let letter = unit.to_ascii_uppercase();
        let meant = if meant { format!(" (did you mean {letter}B or {letter}iB?)") } else { String::new() };
        return Err(format!("{unit:?} is not a unit{meant}"));
    };
    let bytes = decimal(number)? * factor as f64;
    if bytes < 1.0 {
        Err("it comes to less than one byte".to_owned())
    } else if bytes >= u64::MAX as f64 {
        Err("it is more than any machine can address".to_owned())
    } else {
        Ok(CacheSize::Bytes(bytes as u64))
    }
}

impl fmt::Display for CacheSize {
    /// In the form that is parsed, with bytes in full.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(formatter, "{bytes}B"),
            Self::PercentOfMemory(percent) => write!(formatter, "{percent}%"),
            Self::Slots(slots) => write!(formatter, "{slots}x"),
            Self::All => write!(formatter, "all"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_understood() {
        for (text, size) in [
            ("8GB", CacheSize::Bytes(8_000_000_000)),
            ("512MiB", CacheSize::Bytes(512 << 20)),
            (" 1.5 gb ", CacheSize::Bytes(1_500_000_000)),
            ("100b", CacheSize::Bytes(100)),
            ("2TiB", CacheSize::Bytes(2 << 40)),
            ("25%", CacheSize::PercentOfMemory(25.0)),
            ("12.5 %", CacheSize::PercentOfMemory(12.5)),
            ("100%", CacheSize::PercentOfMemory(100.0)),
            ("40x", CacheSize::Slots(40)),
            ("ALL", CacheSize::All),
        ] {
            assert_eq!(text.parse::<CacheSize>().unwrap(), size, "{text}");
            assert_eq!(size.to_string().parse::<CacheSize>().unwrap(), size, "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused_with_the_reason() {
        for (text, reason) in [
            ("", "does not start with a number"),
            ("GB", "does not start with a number"),
            ("-8GB", "does not start with a number"),
            ("8", "unit is missing"),
            ("8 parrots", "\"parrots\" is not a unit;"),
            ("8G", "\"g\" is not a unit (did you mean GB or GiB?)"),
            ("8gi", "\"gi\" is not a unit;"),
            ("1.2.3GB", "\"1.2.3\" is not a number"),
            ("0%", "above 0%"),
            ("101%", "at most 100%"),
            ("0x", "at least one expert"),
            ("1.5x", "whole number"),
            ("4294967296x", "whole number"),
            ("0.1b", "less than one byte"),
            ("99999999999TB", "more than any machine"),
        ] {
            let error = text.parse::<CacheSize>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
            assert!(error.starts_with(&format!("cache size {text:?}")), "{error}");
        }
    }

    #[test]
    fn sizes_become_slots() {
        let (payload, experts, memory) = (60_000, 10, 20 * 65_536);
        let slots = |size: CacheSize| size.plan(payload, experts, memory).map(|plan| plan.slots());
        assert_eq!(slots(CacheSize::Bytes(3 * 65_536 + 5)).unwrap(), 3);
        assert_eq!(slots(CacheSize::PercentOfMemory(25.0)).unwrap(), 5);
        assert_eq!(slots(CacheSize::PercentOfMemory(100.0)).unwrap(), 10);
        assert_eq!(slots(CacheSize::Slots(4)).unwrap(), 4);
        assert_eq!(slots(CacheSize::Slots(40)).unwrap(), 10);
        assert_eq!(slots(CacheSize::All).unwrap(), 10);
        assert_eq!(slots(CacheSize::Bytes(u64::MAX)).unwrap(), 10);
        assert!(CacheSize::All.plan(payload, 0, memory).is_err());
    }

    #[test]
    fn less_than_one_slot_is_one_slot() {
        let memory = 20 * 65_536;
        for size in [CacheSize::PercentOfMemory(4.0), CacheSize::Bytes(1), CacheSize::Bytes(65_535)] {
            assert!(size.bytes(memory).unwrap() < 65_536);
            assert_eq!(size.plan(60_000, 10, memory).unwrap().slots(), 1, "{size}");
        }
        assert_eq!(CacheSize::PercentOfMemory(4.0).bytes(memory), Some(52_428));
        assert_eq!((CacheSize::Slots(3).bytes(memory), CacheSize::All.bytes(memory)), (None, None));
    }
}
