//! Values of flags: from text to a number or choice in its range, or what was expected instead. The parser of the
//! command line adds the flag's name.
use crate::settings::PROFILE_SETTINGS;
use engine::sampler::{BIAS_MAX, LOGPROBS_MAX, PENALTY_MAX, REPETITION_MAX, REPETITION_MIN};
use memory::{CacheSize, MemoryError};
use models::Dense;
use ops::Activations;
use std::ops::RangeInclusive;
use store::cache::CachePolicy;
use store::cache::policy::PolicyError;
use text::chat::Effort;

/// Numbers with commas between them.
#[derive(Clone, Debug)]
pub(crate) struct List(pub(crate) Vec<u32>);

/// Token ids and what is added to their logits.
#[derive(Clone, Debug)]
pub(crate) struct Biases(pub(crate) Vec<(u32, f32)>);

/// Sizes of the cache of experts.
#[derive(Clone, Debug)]
pub(crate) struct CacheSizes(pub(crate) Vec<CacheSize>);

/// Policies of that cache.
#[derive(Clone, Debug)]
pub(crate) struct Policies(pub(crate) Vec<CachePolicy>);

/// Settings that `tune` tries, in the order in which it does.
#[derive(Clone, Debug)]
pub(crate) struct Tunable(pub(crate) Vec<&'static str>);

/// None: the plan chooses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DenseChoice(pub(crate) Option<Dense>);

/// A device that can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceChoice {
    /// Vectors and threads.
    Cpu,
    /// The definition.
    Oracle,
}

impl DeviceChoice {
    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            DeviceChoice::Cpu => "cpu",
            DeviceChoice::Oracle => "oracle",
        }
    }
}

/// `1,2,3`
pub(crate) fn list(text: &str) -> Result<List, String> {
    if text.trim().is_empty() {
        return Err("the list is empty; write numbers with commas: 1,2,3".into());
    }
    let number = |(index, part): (usize, &str)| {
        let found = if part.trim().is_empty() { "empty".to_owned() } else { format!("`{part}`") };
        part.trim().parse().map_err(|_| {
            format!(
                "item {} is {found}, expected a whole number from 0 to 4294967295; write numbers with commas: 1,2,3",
                index + 1
            )
        })
    };
    text.split(',').enumerate().map(number).collect::<Result<_, _>>().map(List)
}

/// `16,40x,8GB`
pub(crate) fn slots(text: &str) -> Result<CacheSizes, String> {
    let size = |part: &str| {
        let part = part.trim();
        let experts = if part.bytes().all(|byte| byte.is_ascii_digit()) { "x" } else { "" };
        format!("{part}{experts}").parse().map_err(|error: MemoryError| error.to_string())
    };
    text.split(',').map(size).collect::<Result<_, _>>().map(CacheSizes)
}

/// `threads,readers`
pub(crate) fn tunable(text: &str) -> Result<Tunable, String> {
    let named: Vec<&str> = text.split(',').map(str::trim).collect();
    if let Some(other) = named.iter().find(|name| !PROFILE_SETTINGS.contains(name)) {
        let all = PROFILE_SETTINGS.join(", ");
        return Err(format!(
            "`{other}` is no setting that is tried; write names with commas between them, of {all}"
        ));
    }
    Ok(Tunable(PROFILE_SETTINGS.into_iter().filter(|name| named.contains(name)).collect()))
}

/// `all` or `lru,lfu:64`
pub(crate) fn policies(text: &str) -> Result<Policies, String> {
    if text == "all" {
        return Ok(Policies(CachePolicy::ALL.to_vec()));
    }
    let policy = |part: &str| part.trim().parse().map_err(|error: PolicyError| error.to_string());
    text.split(',').map(policy).collect::<Result<_, _>>().map(Policies)
}

/// `5=2.5,17=-100`
pub(crate) fn biases(text: &str) -> Result<Biases, String> {
    let bias = |part: &str| {
        let (id, value) = part.split_once('=')?;
        let value: f32 = value.trim().parse().ok()?;
        let valid = (-BIAS_MAX..=BIAS_MAX).contains(&value);
        Some((id.trim().parse().ok()?, value)).filter(|_| valid)
    };
    let biases = text.split(',').zip(1..).map(|(part, item)| {
        bias(part).ok_or_else(|| {
            format!(
                "item {item} is `{part}`, expected a token id and a number from -100 to 100 such as 5=2.5; write items \
                 with commas: 5=2.5,17=-100"
            )
        })
    });
    biases.collect::<Result<_, _>>().map(Biases)
}

fn number_in(text: &str, range: RangeInclusive<u32>) -> Result<u32, String> {
    let number = text.parse().ok().filter(|n| range.contains(n));
    number.ok_or_else(|| format!("expected a whole number from {} to {}", range.start(), range.end()))
}

/// At least 1.
pub(crate) fn count(text: &str) -> Result<u32, String> {
    number_in(text, 1..=u32::MAX)
}

/// At least 1; the model says how many at most.
pub(crate) fn limited(text: &str) -> Result<u32, String> {
    number_in(text, 1..=u32::MAX).map_err(|_| "expected a whole number from 1 to this model's limit".into())
}

/// Of draws.
pub(crate) fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("expected a whole number from 0 to {}", u64::MAX))
}

/// At least 0.
pub(crate) fn whole(text: &str) -> Result<u32, String> {
    number_in(text, 0..=u32::MAX)
}

/// Tokens computed together; the engine has the same limit.
pub(crate) fn chunk(text: &str) -> Result<u32, String> {
    number_in(text, 1..=engine::plan::CHUNK_MAX)
}

/// Threads: more than any desktop has is a slip of the finger.
pub(crate) fn threads(text: &str) -> Result<u32, String> {
    number_in(text, 1..=256)
}

fn float_where(text: &str, expected: &str, valid: impl Fn(f32) -> bool) -> Result<f32, String> {
    let number = text.parse().ok().filter(|n: &f32| valid(*n));
    number.ok_or_else(|| format!("expected a number {expected}"))
}

/// The largest temperature: logits divided by more are all alike.
pub(crate) const TEMPERATURE_MAX: f32 = 100.0;

/// From 0 to 100.
pub(crate) fn temperature(text: &str) -> Result<f32, String> {
    float_where(text, "from 0 to 100", |n| (0.0..=TEMPERATURE_MAX).contains(&n))
}

/// Above 0, at most 1.
pub(crate) fn share(text: &str) -> Result<f32, String> {
    float_where(text, "above 0, at most 1", |n| n > 0.0 && n <= 1.0)
}

/// From 0 to 1.
pub(crate) fn share_or_zero(text: &str) -> Result<f32, String> {
    float_where(text, "from 0 to 1", |n| (0.0..=1.0).contains(&n))
}

/// Of ids that have come.
pub(crate) fn repetition(text: &str) -> Result<f32, String> {
    float_where(text, "from 0.01 to 100", |n| (REPETITION_MIN..=REPETITION_MAX).contains(&n))
}

/// Of ids that have come, by presence or frequency.
pub(crate) fn penalty(text: &str) -> Result<f32, String> {
    float_where(text, "from -2 to 2", |n| (-PENALTY_MAX..=PENALTY_MAX).contains(&n))
}

/// Likeliest ids beside a token.
pub(crate) fn logprobs(text: &str) -> Result<u32, String> {
    number_in(text, 0..=LOGPROBS_MAX)
}

/// Of measurements.
pub(crate) fn repeats(text: &str) -> Result<u32, String> {
    number_in(text, 1..=100)
}

/// Repeats of one value of a setting: fewer than four tell no spread.
pub(crate) fn tune_repeats(text: &str) -> Result<u32, String> {
    number_in(text, 4..=100)
}

/// Memory that is gone through.
pub(crate) fn bench_bytes(text: &str) -> Result<u64, String> {
    let expected = "expected bytes from 16MB to 1TB, such as 1GB or 512MiB";
    bytes_within(text, 16_000_000..=1_000_000_000_000, expected)
}

/// Memory of a machine.
pub(crate) fn memory(text: &str) -> Result<u64, String> {
    bytes_within(text, 1 << 28..=u64::MAX, "expected bytes from 256MiB on, such as 64GB")
}

/// Bytes a second of a drive.
pub(crate) fn rate(text: &str) -> Result<u64, String> {
    let expected = "expected bytes a second from 1MB/s on, such as 7GB/s or 500MB/s";
    let bytes = text.strip_suffix("/s").ok_or_else(|| expected.to_owned())?;
    bytes_within(bytes, 1_000_000..=u64::MAX, expected)
}

/// Bytes with a unit, as those of a cache, whose shares and numbers of experts mean nothing here.
fn bytes_within(text: &str, range: RangeInclusive<u64>, expected: &str) -> Result<u64, String> {
    let of_cache = text.trim_end().ends_with(['%', 'x', 'X']);
    match text.parse() {
        Ok(CacheSize::Bytes(bytes)) if range.contains(&bytes) => Ok(bytes),
        Err(MemoryError::CacheSize { reason, .. }) if !of_cache => Err(format!("{reason}; {expected}")),
        _ => Err(expected.to_owned()),
    }
}

/// Numbers of tokens, each once.
pub(crate) fn lengths(text: &str) -> Result<List, String> {
    numbers_in(text, 1..=1_000_000)
}

/// Numbers of inputs, each once.
pub(crate) fn bench_rows(text: &str) -> Result<List, String> {
    numbers_in(text, 1..=engine::plan::CHUNK_MAX)
}

/// Shares of guesses that are right, in thousandths.
#[derive(Clone, Debug)]
pub(crate) struct Precisions(pub(crate) Vec<u16>);

/// Each from 0 to 1.
pub(crate) fn precisions(text: &str) -> Result<Precisions, String> {
    let one = |share: &str| {
        let thousandths = 1000.0 * share.trim().parse::<f64>().ok()?;
        let whole = thousandths.round();
        ((0.0..=1000.0).contains(&whole) && (thousandths - whole).abs() < 1e-6).then_some(whole as u16)
    };
    let all: Option<Vec<u16>> = text.split(',').map(one).collect();
    let mut all = all.ok_or("expected numbers from 0 to 1 with three digits at most, such as 1,0.6,0")?;
    all.sort_unstable_by(|a, b| b.cmp(a));
    all.dedup();
    Ok(Precisions(all))
}

fn numbers_in(text: &str, range: RangeInclusive<u32>) -> Result<List, String> {
    let mut all = list(text)?;
    if let Some(number) = all.0.iter().find(|number| !range.contains(*number)) {
        let (least, most) = (range.start(), range.end());
        return Err(format!("{number} is not from {least} to {most}; write numbers with commas: 1,32"));
    }
    all.0.sort_unstable();
    all.0.dedup();
    Ok(all)
}

/// By name.
pub(crate) fn activations(text: &str) -> Result<Activations, String> {
    let all = [Activations::Int15, Activations::Exact, Activations::Int8];
    let found = all.into_iter().find(|a| a.name() == text);
    found.ok_or_else(|| "expected int15, exact or int8".into())
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Switch(pub(crate) bool);

impl Switch {
    /// As it is written.
    pub(crate) fn name(self) -> &'static str {
        if self.0 { "on" } else { "off" }
    }
}

/// By name.
pub(crate) fn residency(text: &str) -> Result<models::Residency, String> {
    let all = [models::Residency::Ram, models::Residency::Mapped];
    all.into_iter().find(|residency| residency.name() == text).ok_or_else(|| "expected ram or mapped".into())
}

/// By name.
pub(crate) fn switch(text: &str) -> Result<Switch, String> {
    match text {
        "on" => Ok(Switch(true)),
        "off" => Ok(Switch(false)),
        _ => Err("expected on or off".into()),
    }
}

/// By name, or `auto`.
pub(crate) fn dense(text: &str) -> Result<DenseChoice, String> {
    if text == "auto" {
        return Ok(DenseChoice(None));
    }
    let found = Dense::ALL.into_iter().find(|d| d.name() == text);
    found.map(|d| DenseChoice(Some(d))).ok_or_else(|| "expected auto, bf16, int8 or int4".into())
}

/// By name.
pub(crate) fn effort(text: &str) -> Result<Effort, String> {
    Effort::named(text).ok_or_else(|| "expected low, high or max".into())
}

/// By name.
pub(crate) fn access(text: &str) -> Result<store::Access, String> {
    if text == "mmap" {
        return Err("where reading a mapped file fails the system sends a signal instead of an error with a name; these \
                    exist: direct, buffered, uring"
            .into());
    }
    if text == "uring" && !cfg!(target_os = "linux") {
        return Err("io_uring is part of Linux; these exist here: direct, buffered".into());
    }
    let found = store::Access::ALL.into_iter().find(|access| access.name() == text);
    found.ok_or_else(|| "there is no such way; these exist: direct, buffered, uring".into())
}

/// By name.
pub(crate) fn device(text: &str) -> Result<DeviceChoice, String> {
    let found = [DeviceChoice::Cpu, DeviceChoice::Oracle].into_iter().find(|device| device.name() == text);
    found.ok_or_else(|| "there is no such device; these exist: cpu, oracle".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunable_settings_are_tried_in_their_order() {
        assert_eq!(tunable("readers, threads,readers").unwrap().0, ["threads", "readers"]);
        for text in ["", "seed", "threads,,io", "threads;io"] {
            assert!(tunable(text).unwrap_err().contains("threads, io, readers"), "{text}");
        }
        assert!(tune_repeats("3").unwrap_err().contains("4 to 100"));
    }

    #[test]
    fn precisions_are_thousandths_from_the_largest_on() {
        assert_eq!(precisions("0, 0.6,1,0.600").unwrap().0, [1000, 600, 0]);
        for text in ["", "1.1", "-0.1", "0.0005", "1,,0", "x", "nan"] {
            assert!(precisions(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_machine_is_described_in_bytes() {
        assert_eq!((memory("64GB").unwrap(), memory("256MiB").unwrap()), (64_000_000_000, 1 << 28));
        assert_eq!((rate("7GB/s").unwrap(), rate("1.5 MB/s").unwrap()), (7_000_000_000, 1_500_000));
        let expected = "expected bytes from 256MiB on, such as 64GB";
        for bad in ["0%", "25%", "all", "0x", "40x", "1.5X", "255MiB"] {
            assert_eq!(memory(bad).unwrap_err(), expected, "{bad}");
        }
        for (bad, why) in [
            ("64", "the unit is missing"),
            ("64G", "\"g\" is not a unit (did you mean GB or GiB?)"),
            ("-1GB", "it does not start with a number"),
            ("", "it does not start with a number"),
            ("99999999TiB", "it is more than any machine can address"),
        ] {
            assert_eq!(memory(bad).unwrap_err(), format!("{why}; {expected}"), "{bad}");
        }
        for bad in ["7GB", "7", "7/s", "0.9MB/s", "25%/s", "40x/s", "all/s", "/s", "7GB/h"] {
            let error = rate(bad).unwrap_err();
            assert!(
                error.ends_with("expected bytes a second from 1MB/s on, such as 7GB/s or 500MB/s"),
                "{bad}"
            );
            assert!(!error.contains("cache") && !error.contains("experts"), "{error}");
        }
        assert!(rate("7/s").unwrap_err().starts_with("the unit is missing; expected bytes a second"));
    }

    #[test]
    fn ranges_are_closed_where_they_say_so() {
        assert_eq!(temperature("0").unwrap(), 0.0);
        assert_eq!(share("1").unwrap(), 1.0);
        assert_eq!(share_or_zero("0").unwrap(), 0.0);
        for bad in ["0", "-0.1", "1.01", "nan", "inf", "", "x"] {
            assert!(share(bad).is_err(), "{bad}");
        }
        for bad in ["-1", "100.5", "inf", "nan"] {
            assert!(temperature(bad).is_err(), "{bad}");
        }
        assert!(count("0").is_err() && count("1").is_ok() && threads("257").is_err());
        assert!(
            chunk("0").unwrap_err().contains("1 to 4096") && chunk("4097").unwrap_err().contains("1 to 4096")
        );
        assert!(seed("18446744073709551615").is_ok());
        for bad in ["-1", "18446744073709551616", "x"] {
            assert!(seed(bad).unwrap_err().contains("0 to 18446744073709551615"), "{bad}");
        }
    }

    #[test]
    fn biases_are_ids_and_numbers() {
        assert_eq!(biases("5=2.5, 17 = -100").unwrap().0, [(5, 2.5), (17, -100.0)]);
        for (bad, word) in [
            ("", "item 1 is ``"),
            ("5", "item 1 is `5`"),
            ("5=1,", "item 2 is ``"),
            ("5=1,x=2", "item 2 is `x=2`"),
            ("-5=1", "item 1 is `-5=1`"),
            ("5=nan", "item 1"),
            ("5=100.5", "-100 to 100"),
            ("4294967296=1", "item 1"),
        ] {
            assert!(biases(bad).unwrap_err().contains(word), "{bad}");
        }
        assert!(repetition("0.009").is_err() && repetition("100").is_ok());
        assert!(penalty("-2").is_ok() && penalty("2.01").is_err() && penalty("nan").is_err());
        assert!(logprobs("20").is_ok() && logprobs("21").unwrap_err().contains("0 to 20"));
    }

    #[test]
    fn lists_are_numbers_and_commas() {
        assert_eq!(list("3, 1,2").unwrap().0, [3, 1, 2]);
        for (bad, word) in [
            ("", "the list is empty"),
            (" ", "the list is empty"),
            ("1,,2", "item 2 is empty"),
            ("1,2,3,", "item 4 is empty"),
            ("1;2", "item 1 is `1;2`"),
            ("5,-1", "item 2 is `-1`"),
            ("4294967296", "item 1 is"),
        ] {
            assert!(list(bad).unwrap_err().contains(word), "{bad}");
        }
    }
}
