//! Runs a piece of code compiled for the widest fused multiply-add the processor has.
//!
//! `f32::mul_add` is exact everywhere, but without the instruction the library's version is some 20 times slower.
//! The instruction set changes speed only: each function here runs the same code, and LLVM may not reorder
//! floating-point arithmetic.

/// Work that wants fused multiply-adds. A trait and no closure, because a closure of some size is compiled as a
/// function of its own, without the instructions (measured: 4 to 20 times slower).
pub trait Kernel {
    /// What it gives.
    type Output;

    /// Does the work. This and all arithmetic it calls is to be `#[inline(always)]`: only what is inlined is
    /// compiled for the instructions.
    fn run(self) -> Self::Output;
}

/// Runs a kernel with the widest fused multiply-add the processor has.
#[inline]
pub fn with_fma<K: Kernel>(kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    match Level::found() {
        // SAFETY: the features the function is compiled for were detected on this processor.
        Level::Avx512 => unsafe { avx512(kernel) },
        // SAFETY: the features the function is compiled for were detected on this processor.
        Level::Avx2 => unsafe { avx2(kernel) },
        Level::Portable => kernel.run(), // slow, and equal
    }
    #[cfg(not(target_arch = "x86_64"))]
    kernel.run() // AArch64 always has fma
}

/// What an x86-64 processor has, lowest first.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Portable,
    Avx2,
    Avx512,
}

#[cfg(target_arch = "x86_64")]
impl Level {
    /// The highest that this processor has (and, in tests, that the thread allows).
    #[inline]
    fn found() -> Self {
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl");
        let found = match (avx2, avx512) {
            (true, true) => Level::Avx512,
            (true, false) => Level::Avx2,
            (false, _) => Level::Portable,
        };
        #[cfg(test)]
        let found = found.min(tests::HIGHEST.get());
        found
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
fn avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run()
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::Level;
    use crate::Oracle;
    use crate::cases::{Size, list};
    use std::cell::Cell;

    thread_local! {
        /// The highest level that this thread may use.
        pub(super) static HIGHEST: Cell<Level> = const { Cell::new(Level::Avx512) };
    }

    /// All numbers of all small cases, computed on this thread with nothing above `highest`.
    fn results(highest: Level) -> Vec<(String, Vec<u32>)> {
        HIGHEST.set(highest);
        let results = list(Size::Small).into_iter().map(|recipe| {
            let case = recipe.build(0);
            let numbers = case.run(&mut Oracle::new(1).unwrap()).unwrap();
            // Which NaN comes out is not defined.
            let number = |bits: u32| if f32::from_bits(bits).is_nan() { f32::NAN.to_bits() } else { bits };
            (recipe.name().to_owned(), numbers.into_iter().map(number).collect())
        });
        let results = results.collect();
        HIGHEST.set(Level::Avx512);
        results
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let portable = results(Level::Portable);
        for level in [Level::Avx2, Level::Avx512] {
            for (found, expected) in results(level).iter().zip(&portable) {
                assert!(found == expected, "{level:?} and portable code differ in {}", expected.0);
            }
        }
    }

    #[test]
    fn the_limit_of_a_thread_holds() {
        HIGHEST.set(Level::Portable);
        assert_eq!(Level::found(), Level::Portable);
        HIGHEST.set(Level::Avx512);
    }
}
