//! The machine as this process sees it: system, processor, memory. Knows no model.
use super::Finding;
use crate::cores::Cores;
use engine::{Limits, show_bytes};
use serde::Serialize;
use sysinfo::{CpuRefreshKind, System};

/// Figures of the machine; what the system does not tell is None.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    system: Option<String>,
    kernel: Option<String>,
    target: String,
    processor: Option<String>,
    cores: Option<usize>,
    logical_processors: Option<usize>,
    /// That this process may use: what affinity and the quota of its control group leave.
    usable_processors: Option<usize>,
    /// Threads that compute unless `--threads` is given.
    compute_threads: usize,
    /// What of the usable processors these leave out, in words.
    left_out: Option<String>,
    instructions: Vec<&'static str>,
    memory: Memory,
    open_files_limit: Option<usize>,
}

#[derive(Debug, Serialize)]
#[expect(clippy::struct_field_names, reason = "they are names in JSON, which say their unit")]
struct Memory {
    /// Of the machine.
    machine_bytes: Option<u64>,
    /// The limit of the control group, if there is one.
    group_limit_bytes: Option<u64>,
    available_bytes: Option<u64>,
    /// What a plan may take of it.
    usable_bytes: Option<u64>,
    swap_used_bytes: Option<u64>,
}

impl Machine {
    /// Asks the system.
    pub(crate) fn look() -> (Self, Vec<Finding>) {
        let mut findings = Vec::new();
        let mut system = System::new().ok();
        if let Some(system) = &mut system {
            system.refresh_memory();
            system.refresh_cpu_list(CpuRefreshKind::nothing());
        }
        let processors = system.as_ref().map_or(&[][..], System::cpus);
        let brand = processors.first().map(|processor| processor.brand().trim().to_owned());
        let cores = Cores::look();
        let machine = Machine {
            system: System::long_os_version().ok(),
            kernel: System::kernel_version().ok(),
            target: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
            processor: brand.filter(|brand| !brand.is_empty()),
            cores: System::physical_core_count().ok().filter(|cores| *cores > 0),
            logical_processors: Some(processors.len()).filter(|count| *count > 0),
            usable_processors: cores.usable,
            compute_threads: cores.threads,
            left_out: cores.left_out(),
            instructions: instructions(),
            memory: memory(system.as_ref(), &mut findings),
            open_files_limit: System::open_files_limit().ok(),
        };
        findings.splice(0..0, [machine.system_finding(), machine.processor_finding()]);
        (machine, findings)
    }

    /// Whether so many shards can be open at once.
    pub(crate) fn files_finding(&self, shards: usize) -> Option<Finding> {
        let limit = self.open_files_limit?;
        let needed = shards + OTHER_FILES;
        let text = format!("{limit} files may be open at once; {shards} shards need {needed}");
        (limit < needed)
            .then(|| Finding::problem("files", text, format!("raise the limit: ulimit -n {needed}")))
    }

    fn system_finding(&self) -> Finding {
        let known = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".to_owned());
        let text = format!("{}, kernel {}, {}", known(&self.system), known(&self.kernel), self.target);
        Finding::ok("system", text)
    }

    fn processor_finding(&self) -> Finding {
        let count = |number: Option<usize>| number.map_or("unknown".to_owned(), |number| number.to_string());
        let text = format!(
            "{}; {} cores, {} threads, of which this process may use {} and computes on {}{}; {}",
            self.processor.as_deref().unwrap_or("unknown"),
            count(self.cores),
            count(self.logical_processors),
            count(self.usable_processors),
            self.compute_threads,
            self.left_out.as_ref().map_or(String::new(), |what| format!(" ({what} left out)")),
            if self.instructions.is_empty() {
                "no wide instructions".to_owned()
            } else {
                self.instructions.join(" ")
            },
        );
        let slow = cfg!(target_arch = "x86_64")
            && !["avx2", "fma"].iter().all(|name| self.instructions.contains(name));
        if slow {
            return Finding::warning(
                "processor",
                text,
                "without AVX2 and FMA arithmetic is many times slower; use a newer machine",
            );
        }
        match (self.logical_processors, self.usable_processors) {
            (Some(all), Some(usable)) if usable < all => Finding::warning(
                "processor",
                text,
                "if more may be used, widen the affinity (taskset) or the quota of the container",
            ),
            _ => Finding::ok("processor", text),
        }
    }
}

/// Files that are open beside shards: streams, the terminal, config, log.
const OTHER_FILES: usize = 32;

fn memory(system: Option<&System>, findings: &mut Vec<Finding>) -> Memory {
    let machine_bytes = system.map(System::total_memory).filter(|bytes| *bytes > 0);
    let swap_used_bytes = system.map(System::used_swap);
    let limits = match Limits::of_machine() {
        Ok(limits) => limits,
        Err(error) => {
            findings.push(Finding::problem("memory", error.to_string(), "nothing can be planned without it"));
            return Memory {
                machine_bytes,
                group_limit_bytes: None,
                available_bytes: None,
                usable_bytes: None,
                swap_used_bytes,
            };
        }
    };
    let group = Some(limits.total).filter(|total| machine_bytes.is_some_and(|machine| *total < machine));
    let text = format!(
        "{}{}, {} available, of which {} may be planned ({} stay free for everything else)",
        show_bytes(machine_bytes.unwrap_or(limits.total)),
        group.map_or(String::new(), |bytes| format!(", limited to {} by a control group", show_bytes(bytes))),
        show_bytes(limits.available),
        show_bytes(limits.usable()),
        show_bytes(limits.reserve()),
    );
    findings.push(if limits.usable() == 0 {
        Finding::problem("memory", text, "end other programs, or raise the limit of the control group")
    } else {
        Finding::ok("memory", text)
    });
    Memory {
        machine_bytes,
        group_limit_bytes: group,
        available_bytes: Some(limits.available),
        usable_bytes: Some(limits.usable()),
        swap_used_bytes,
    }
}

macro_rules! detected {
    ($detect:ident: $($name:tt)*) => {
        [$(($name, std::arch::$detect!($name))),*].into_iter().filter(|(_, is)| *is).map(|(name, _)| name).collect()
    };
}

/// Instruction sets that matter here and are there.
#[cfg(target_arch = "x86_64")]
fn instructions() -> Vec<&'static str> {
    detected!(is_x86_feature_detected: "avx2" "fma" "f16c" "avxvnni" "avx512f" "avx512bw" "avx512vl" "avx512vnni" "avx512bf16")
}

/// Instruction sets that matter here and are there.
#[cfg(target_arch = "aarch64")]
fn instructions() -> Vec<&'static str> {
    detected!(is_aarch64_feature_detected: "neon" "fp16" "dotprod" "bf16" "i8mm" "sve")
}

/// None is used.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn instructions() -> Vec<&'static str> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Standing;

    #[test]
    fn this_machine_is_described() {
        let (machine, findings) = Machine::look();
        let topics: Vec<&str> = findings.iter().map(|finding| finding.topic).collect();
        assert_eq!(topics, ["system", "processor", "memory"]);
        assert!(machine.usable_processors.is_some() && machine.memory.available_bytes.is_some());
        let files = Machine { open_files_limit: Some(100), ..machine };
        assert_eq!(files.files_finding(100).unwrap().standing, Standing::Problem);
        assert!(files.files_finding(68).is_none());
    }

    #[test]
    fn fewer_processors_than_there_are_is_a_warning() {
        let (machine, _) = Machine::look();
        let fast = if cfg!(target_arch = "x86_64") { vec!["avx2", "fma"] } else { Vec::new() };
        let some = Machine {
            logical_processors: Some(16),
            usable_processors: Some(2),
            compute_threads: 1,
            left_out: Some("1 second thread".to_owned()),
            instructions: fast,
            ..machine
        };
        assert_eq!(some.processor_finding().standing, Standing::Warning);
        let text = some.processor_finding().text;
        let said = "16 threads, of which this process may use 2 and computes on 1 (1 second thread left out)";
        assert!(text.contains(said), "{text}");
        let all = Machine { usable_processors: Some(16), ..some };
        assert_eq!(all.processor_finding().standing, Standing::Ok);
        if cfg!(target_arch = "x86_64") {
            let slow = Machine { instructions: vec!["avx2"], ..all };
            assert!(slow.processor_finding().advice.unwrap().contains("AVX2"));
        }
    }
}
