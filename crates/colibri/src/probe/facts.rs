//! What tells this machine from another one: for records that are compared and for settings that hold on one machine only.
use crate::errors::Failure;
use cpu::Level;
use memory::machine;
use serde::{Deserialize, Serialize};
use sysinfo::{CpuRefreshKind, RefreshKind, System};

/// What tells machines apart; nothing of who owns one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct MachineFacts {
    pub(crate) processor: String,
    pub(crate) architecture: String,
    /// The instructions that kernels use.
    pub(crate) instructions: String,
    /// That this process may use.
    pub(crate) cores: usize,
    pub(crate) memory_bytes: u64,
    pub(crate) system: String,
}

impl MachineFacts {
    /// This machine.
    ///
    /// # Errors
    /// How much memory there is cannot be learned.
    pub(crate) fn of_machine() -> Result<Self, Failure> {
        let wanted = RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing());
        // What the system does not tell is no reason not to measure.
        let system = System::new_with_specifics(wanted).ok();
        let processor = system.and_then(|all| all.cpus().first().map(|cpu| cpu.brand().trim().to_owned()));
        let processor = processor.filter(|name| !name.is_empty());
        let name = System::name().unwrap_or_else(|_| std::env::consts::OS.to_owned());
        let version = System::kernel_version().unwrap_or_default();
        Ok(MachineFacts {
            processor: processor.unwrap_or_else(|| "unknown processor".into()),
            architecture: std::env::consts::ARCH.to_owned(),
            instructions: Level::best().name().to_owned(),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            memory_bytes: machine::total_memory()?,
            system: format!("{name} {version}").trim().to_owned(),
        })
    }
}
