//! Runs a kernel on the machine of a level. It knows no kernel.
use super::Kernel;
#[cfg(target_arch = "aarch64")]
use super::neon::{Neon, NeonDot};
use super::portable::Portable;
use crate::level::Level;

/// Runs the kernel with the instructions of the level.
///
/// # Panics
/// If the processor has not the level.
#[inline]
pub(crate) fn run<K: Kernel>(level: Level, kernel: K) -> K::Output {
    assert!(level.is_available(), "{} was asked of a processor that has not got it", level.name());
    match level {
        Level::Portable => kernel.run(Portable),
        // SAFETY: the processor has the level, asked above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { x86::avx2(kernel) },
        // SAFETY: the processor has the level, asked above.
        #[cfg(target_arch = "x86_64")]
        Level::AvxVnni => unsafe { x86::avx_vnni(kernel) },
        // SAFETY: the processor has the level, asked above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { x86::avx512(kernel) },
        // SAFETY: the processor has the level, asked above.
        #[cfg(target_arch = "aarch64")]
        Level::Neon => kernel.run(unsafe { Neon::new() }),
        // SAFETY: the processor has the level, asked above.
        #[cfg(target_arch = "aarch64")]
        Level::NeonDot => kernel.run(unsafe { NeonDot::new() }),
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::x86::{Avx2, Avx512, AvxVnni};
    use super::Kernel;

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn avx2<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: this function is called only where the processor has them.
        kernel.run(unsafe { Avx2::new() })
    }

    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    pub(super) fn avx_vnni<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: this function is called only where the processor has them.
        kernel.run(unsafe { AvxVnni::new() })
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) fn avx512<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: this function is called only where the processor has them.
        kernel.run(unsafe { Avx512::new() })
    }
}
