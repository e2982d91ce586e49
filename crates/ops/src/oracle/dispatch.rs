//! Runs a piece of code compiled for the widest fused multiply-add the processor has.
//!
//! `f32::mul_add` is exact everywhere, but without the instruction the library's version is some 20 times slower.
//! The instruction set changes speed only: each function here runs the same code, and LLVM may not reorder
//! floating-point arithmetic.

/// Runs `body`; everything it calls must be inlined into it to profit.
#[inline]
pub fn with_fma<R>(body: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("fma")
        {
            // SAFETY: the features the function is compiled for were detected on this processor just above.
            return unsafe { avx512(body) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the features the function is compiled for were detected on this processor just above.
            return unsafe { avx2(body) };
        }
    }
    body() // AArch64 always has fma; an x86-64 without it takes the slow and equal way
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
fn avx512<R>(body: impl FnOnce() -> R) -> R {
    body()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2<R>(body: impl FnOnce() -> R) -> R {
    body()
}
