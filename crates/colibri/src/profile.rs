//! Whether a profile is for this model on this machine: what carries over to another is the model's routing, not how fast
//! drives, cores and memory are. Knows no setting.
use crate::args::EngineArgs;
use crate::errors::Failure;
use crate::load::Model;
use crate::probe::facts::MachineFacts;
use crate::settings::{MachineName, Subject};
use engine::show_bytes;

/// Memory that differs by less is the same: the system keeps a little more or less for itself after an update.
const MEMORY_ALIKE: f64 = 0.02;

/// This model on this machine.
///
/// # Errors
/// What cannot be read of the model, or learned of the machine.
pub(crate) fn subject(model: &Model) -> Result<Subject, Failure> {
    let MachineFacts { processor, cores, memory_bytes, .. } = MachineFacts::of_machine()?;
    let machine = MachineName { processor, cores: cores as u64, memory_bytes };
    Ok(Subject { model: model.family.identity(&model.checkpoint)?, machine })
}

/// Refuses the profile in force if it is for another model or another machine.
///
/// # Errors
/// That, or that it cannot be read.
pub(crate) fn check(model: &Model, args: &EngineArgs) -> Result<(), Failure> {
    let Some(path) = args.profile() else { return Ok(()) };
    if model.checkpoint.absent().is_some() {
        return Err(Failure::Usage(format!(
            "--profile {}: whether it is of this model cannot be told while shards are missing; leave the profile away \
             (--profile off)",
            path.display()
        )));
    }
    match difference(&Subject::read(path)?, &subject(model)?) {
        None => Ok(()),
        Some(why) => Err(Failure::Usage(format!(
            "--profile {}: {why}; run `colibri tune` for this model on this machine, or leave the profile away",
            path.display()
        ))),
    }
}

/// What is another one, if something is.
fn difference(profile: &Subject, this: &Subject) -> Option<String> {
    if profile.model != this.model {
        return Some(format!(
            "it is of another model: its identity is {}, that of this one {}",
            profile.model, this.model
        ));
    }
    let (a, b) = (&profile.machine, &this.machine);
    let memory = (a.memory_bytes as f64 - b.memory_bytes as f64).abs();
    if a.processor == b.processor && a.cores == b.cores && memory <= MEMORY_ALIKE * b.memory_bytes as f64 {
        return None;
    }
    let words = |machine: &MachineName| {
        let MachineName { processor, cores, memory_bytes } = machine;
        format!("{processor}, {cores} cores that may be used, {}", show_bytes(*memory_bytes))
    };
    Some(format!("it is of another machine: {}; this one is {}", words(a), words(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_another_one_is_named() {
        let this = Subject {
            model: "ab".into(),
            machine: MachineName { processor: "Fast".into(), cores: 8, memory_bytes: 64_000_000_000 },
        };
        let with = |change: fn(&mut Subject)| {
            let mut other = this.clone();
            change(&mut other);
            difference(&other, &this)
        };
        assert_eq!(with(|_| ()), None);
        assert_eq!(with(|other| other.machine.memory_bytes += 1_000_000_000), None);
        for (change, words) in [
            ((|other| other.model = "cd".into()) as fn(&mut Subject), &["another model", "cd", "ab"]),
            (|other| other.machine.processor = "Slow".into(), &["another machine", "Slow", "Fast"]),
            (|other| other.machine.cores = 4, &["another machine", "4 cores", "8 cores"]),
            (|other| other.machine.memory_bytes /= 2, &["another machine", "32.00 GB", "64.00 GB"]),
        ] {
            let said = with(change).unwrap();
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
        }
    }
}
