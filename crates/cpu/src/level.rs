//! Which instructions the processor has. Every level gives the same bits; a lower one can be asked for in tests.
//! It knows no kernel.

/// A set of instructions that kernels are written for, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// What the compiler's target has. Without fused multiply-adds in hardware it is slow beyond use, and equal.
    Portable,
    /// x86-64 with AVX2, FMA and F16C: processors since 2013.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// The same with AVX-VNNI, dot products of bytes: Intel's desktops since 2021, AMD's since 2024.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    /// x86-64 with AVX-512 F, BW, DQ, VL and VNNI: servers since 2019, AMD's desktops since 2022.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AArch64: all have 128-bit vectors with fused multiply-adds.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// The same with dot products of bytes: Apple's M1 and later, servers since 2019.
    #[cfg(target_arch = "aarch64")]
    NeonDot,
}

impl Level {
    /// The highest that this processor has.
    #[must_use]
    pub fn best() -> Self {
        Self::available().last().unwrap_or(Level::Portable)
    }

    /// All that this processor has, lowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|level| level.is_available())
    }

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Level::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "AVX2",
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => "AVX-VNNI",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "AVX-512",
            #[cfg(target_arch = "aarch64")]
            Level::Neon => "NEON",
            #[cfg(target_arch = "aarch64")]
            Level::NeonDot => "NEON with dot products",
        }
    }

    /// Whether this processor (and its system) has it.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            Level::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => Level::Avx2.is_available() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                Level::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "aarch64")]
            Level::Neon => true,
            #[cfg(target_arch = "aarch64")]
            Level::NeonDot => std::arch::is_aarch64_feature_detected!("dotprod"),
        }
    }

    #[cfg(target_arch = "x86_64")]
    const ALL: &[Self] = &[Level::Portable, Level::Avx2, Level::AvxVnni, Level::Avx512];
    #[cfg(target_arch = "aarch64")]
    const ALL: &[Self] = &[Level::Portable, Level::Neon, Level::NeonDot];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    const ALL: &[Self] = &[Level::Portable];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_rise_to_the_best() {
        let levels: Vec<Level> = Level::available().collect();
        assert_eq!(levels[0], Level::Portable);
        assert!(levels.is_sorted() && levels.last() == Some(&Level::best()));
    }

    /// Who knows the processor names its level, as `cargo xtask arm` does.
    #[test]
    fn the_best_level_is_the_processors() {
        let best = Level::best();
        if let Ok(expected) = std::env::var("COLIBRI_TEST_BEST_LEVEL") {
            assert_eq!(best.name(), expected);
        }
        assert!(
            best.is_available() && Level::ALL.iter().all(|level| *level <= best || !level.is_available())
        );
    }
}
