//! `colibri bench`: how fast this machine, every matrix product of the model and its steps are, beside what would be
//! possible at most; and two such measurements compared.
mod choices;
mod compare;
mod facts;
mod record;
mod steps;
mod table;

use crate::args::{BenchArgs, What};
use crate::errors::Failure;
use crate::load::{self, Model};
use crate::probe::disk::Disk;
use crate::probe::facts::MachineFacts;
use crate::probe::floor::{FloorBound, PeakRates};
use crate::probe::kernels::{self, Desk, Kernel};
use crate::probe::machine::{Limit, LimitArm, Machine, Pages};
use crate::probe::samples::{Sample, Spread, in_turn};
use crate::probe::tokens::Tokens;
use crate::records::Records;
use crate::work::{Demand, Planned, Work};
use crate::{interrupt, profile, report};
use engine::{Limits, PlanError, show_bytes};
use models::Dense;
use ops::Traced;
use record::{Record, Row, VERSION};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use steps::{Arm, DECODE_CONTEXT, Guessed, Steps, Task};
use store::Access;

/// Bytes below which reading may be answered by a processor's cache.
const BYTES_ENOUGH: u64 = 1_000_000_000;

/// Runs it.
pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode, Failure> {
    if let Some(files) = &args.compare {
        choices::refused(args, None)?;
        return compared(args, &files[0], &files[1]);
    }
    let model = load::open(&args.model)?;
    let idle = choices::refused(args, Some(args.what))?;
    let mut bench = Bench::new(args, &model, idle)?;
    if args.what.includes(What::Machine) {
        bench.machine()?;
    }
    if args.what.includes(What::Kernels) {
        bench.kernels()?;
    }
    let tasks = bench.tasks();
    if !tasks.is_empty() {
        bench.steps(tasks)?;
    }
    let failed = bench.failed;
    let record = bench.finish();
    if args.output.json {
        report::print_json(&json!(record))?;
    } else {
        report::print(&table::table(&record))?;
    }
    Ok(failed.unwrap_or(ExitCode::SUCCESS))
}

fn compared(args: &BenchArgs, a: &Path, b: &Path) -> Result<ExitCode, Failure> {
    let comparison = compare::compare(&compare::read(a)?, &compare::read(b)?, args.anyway)?;
    if args.output.json {
        report::print_json(&comparison.json)?;
    } else {
        report::print(&comparison.text)?;
    }
    Ok(if comparison.slower == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What takes turns: a limit, or what is compared with it.
enum Turn<T> {
    Limit(LimitArm),
    Own(T),
}

/// A measurement on its way to a record.
struct Bench<'a> {
    args: &'a BenchArgs,
    model: &'a Model,
    threads: usize,
    /// Bytes to go through, whole pages.
    bytes: u64,
    cancel: &'static AtomicBool,
    /// The disk of the model, until the machine takes it.
    disk: Option<Disk>,
    record: Record,
    /// Something that was to be written beside is not whole.
    failed: Option<ExitCode>,
}

impl<'a> Bench<'a> {
    fn new(args: &'a BenchArgs, model: &'a Model, mut notes: Vec<String>) -> Result<Self, Failure> {
        profile::check(model, &args.engine)?;
        let threads = load::threads(&args.engine);
        let disk = match Disk::of(&model.checkpoint, Access::Direct)? {
            Ok(disk) => Some(disk),
            Err(reason) => {
                notes.push(reason.to_owned());
                None
            }
        };
        notes.extend(disk.as_ref().and_then(Disk::note).map(str::to_owned));
        if args.bytes < BYTES_ENOUGH {
            notes.push(format!(
                "--bytes {}: less than 1 GB may lie in the processor's cache, figures of reading are then too high",
                show_bytes(args.bytes)
            ));
        }
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        if threads > cores {
            notes.push(format!("--threads {threads}: more than the {cores} cores that this process may use"));
        }
        let settings = facts::settings(args, model, threads);
        let record = Record {
            bench: VERSION,
            what: args.what.name().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            machine: MachineFacts::of_machine()?,
            model: facts::model(model),
            settings,
            limits: BTreeMap::new(),
            rows: Vec::new(),
            profiles: Vec::new(),
            disturbed: false,
            notes,
        };
        let (bytes, cancel) = (args.bytes / 4096 * 4096, interrupt::stoppable());
        Ok(Bench { args, model, threads, bytes, cancel, disk, record, failed: None })
    }

    /// The limits by threads.
    fn machine(&mut self) -> Result<(), Failure> {
        self.has_room(Machine::bytes(self.bytes))?;
        let mut machine = Machine::new(self.bytes, self.disk.take())?;
        let mut counts: Vec<usize> =
            std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n < self.threads).collect();
        counts.push(self.threads);
        let mut turns: Vec<Turn<()>> =
            counts.iter().flat_map(|threads| LimitArm::on(*threads)).map(Turn::Limit).collect();
        if machine.disk.is_some() {
            let mut readers = vec![1, self.args.engine.readers as usize];
            readers.dedup();
            turns.extend(
                readers.into_iter().map(|threads| Turn::Limit(LimitArm { limit: Limit::Disk, threads })),
            );
        }
        let (limits, _) =
            self.measured(&mut machine, turns, |(), _| unreachable!("there are only limits"))?;
        for &threads in &counts {
            self.add_limits("machine", &limits, threads);
        }
        for (arm, spread) in limits.iter().filter(|(arm, _)| arm.limit == Limit::Disk) {
            let name = format!("disk, {}", report::counted(arm.threads, "reader"));
            self.record.rows.push(Row::limit("machine", name, arm.unit(), spread.clone(), None));
        }
        self.add_rates("machine", &limits);
        self.disk = machine.disk;
        Ok(())
    }

    /// Every matrix product by itself.
    fn kernels(&mut self) -> Result<(), Failure> {
        let options =
            models::LoadOptions { dense: self.dense()?, ..load::request(&self.args.engine, None, 1).options };
        self.record.settings.insert("dense".into(), options.dense.name().into());
        let step = engine::ops_of_step(&self.model.checkpoint, &self.model.family, &options, 1)?;
        let kernels = Kernel::all(&kernels::shapes(&step), &choices::rows(self.args), self.bytes);
        self.has_room(Machine::bytes(self.bytes) + Desk::bytes(&kernels, self.bytes))?;
        let mut machine = Machine::new(self.bytes, None)?;
        let mut desk = Desk::new(load::device(&self.args.engine)?, &kernels, self.bytes, self.threads)?;
        let turns = LimitArm::on(self.threads).into_iter().map(Turn::Limit);
        let turns = turns.chain(kernels.into_iter().map(Turn::Own)).collect();
        let (limits, own) =
            self.measured(&mut machine, turns, |kernel: &mut Kernel, _| desk.measure(kernel))?;
        let rates = self.add_rates("kernels", &limits);
        for (kernel, spread) in own {
            let (name, piece) = (kernel.name(), kernel.piece(&desk));
            let row = Row::work("kernels", name, "product", spread, piece, &rates);
            self.record.rows.push(Row { how: kernel.how(), ..row });
        }
        Ok(())
    }

    /// How dense matrices are packed: as asked, or as a plan for this machine would.
    fn dense(&mut self) -> Result<Dense, Failure> {
        if let Some(dense) = self.args.engine.dense() {
            return Ok(dense);
        }
        let request = load::request(&self.args.engine, None, 1);
        match engine::plan(&self.model.checkpoint, &self.model.family, &request, Limits::of_machine()?) {
            Ok(plan) => Ok(plan.options.dense),
            Err(PlanError::DoesNotFit(_)) => {
                self.record
                    .notes
                    .push("the model does not fit into memory; its products are measured as int4".into());
                Ok(Dense::Int4)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The steps that were asked for.
    fn tasks(&self) -> Vec<Task> {
        let args = self.args;
        let mut tasks = Vec::new();
        let tokens = choices::tokens(args);
        let decode = |part, behind, guesses| Task::Decode { part, behind, tokens, guesses };
        if args.what.includes(What::Decode) {
            let given = choices::precisions(args).into_iter().map(Guessed::Right);
            let nothing = args.guess_precision.as_ref().map(|_| Guessed::Nothing);
            let all = [Guessed::AsSet].into_iter().chain(nothing).chain(given);
            tasks.extend(all.map(|guesses| decode("decode", DECODE_CONTEXT, guesses)));
        }
        if args.what.includes(What::Prefill) {
            tasks.extend(choices::lengths(args).into_iter().map(|tokens| Task::Prefill { tokens }));
        }
        if args.what.includes(What::Context) {
            tasks.extend(
                choices::contexts(args).into_iter().map(|behind| decode("context", behind, Guessed::AsSet)),
            );
        }
        tasks
    }

    /// Steps of the loaded model.
    fn steps(&mut self, mut tasks: Vec<Task>) -> Result<(), Failure> {
        let (args, model) = (self.args, self.model);
        let tokens = Tokens::new(model, args.text.as_deref())?;
        let longest = self.fitting(&mut tasks)?;
        let mut request = load::request(&args.engine, None, 1);
        request.context.get_or_insert(longest);
        request.sequences = tasks.len() as u32;
        let demand = Demand::new(request, 0)
            .holding("memory that reading is measured with", Machine::bytes(self.bytes))
            .recording(&args.records);
        let planned = Planned::new(model, &args.engine, demand)?;
        for (name, value) in json!(planned.settings).as_object().into_iter().flatten() {
            self.record.settings.insert(name.clone(), value.clone());
        }
        let streamed = planned.plan.is_streamed();
        if args.guess_precision.is_some() && !streamed {
            return Err(Failure::Usage(
                "--guess-precision has no effect: no experts come and go; give a smaller --expert-cache"
                    .into(),
            ));
        }
        let device = Traced::new(load::device(&args.engine)?);
        let trace = device.trace();
        let mut records = Records::create(&args.records, &args.model.model, model)?;
        let mut work = planned.load_on(Box::new(device))?;
        records.begin(&mut work.engine)?;
        let disk = if streamed { self.disk.take() } else { None };
        let mut machine = Machine::new(self.bytes, disk)?;
        let Work { engine, cancel, .. } = &mut work;
        let experts = model.family.config.experts;
        let mut steps = Steps { engine, trace, tokens, threads: self.threads, experts, cancel };
        let mut turns: Vec<Turn<Arm>> = LimitArm::on(self.threads).into_iter().map(Turn::Limit).collect();
        if machine.disk.is_some() {
            let threads = args.engine.readers as usize;
            turns.push(Turn::Limit(LimitArm { limit: Limit::Disk, threads }));
        }
        for task in tasks {
            let mut arm = Arm::new(task);
            steps.prepare(&mut arm, args.repeats)?;
            turns.push(Turn::Own(arm));
        }
        let (limits, mut own) = self.measured(&mut machine, turns, |arm: &mut Arm, _| steps.measure(arm))?;
        for (arm, _) in &mut own {
            steps.look(arm)?;
        }
        self.failed = records.end(steps.engine);
        let rates = self.rates(&limits);
        for (arm, spread) in own {
            let row = arm.row(spread, &rates, streamed);
            self.record.limits.insert(row.part.clone(), rates);
            if row.part == "decode" && arm.is_as_set() {
                self.record.profiles.push(arm.profile(&rates));
            }
            self.record.rows.push(row);
        }
        Ok(())
    }

    /// Leaves out what this model's or the asked context is too short for; the positions that the rest needs.
    fn fitting(&mut self, tasks: &mut Vec<Task>) -> Result<u32, Failure> {
        let most = self.args.engine.context.unwrap_or(self.model.family.config.context);
        let repeats = self.args.repeats;
        let needed = |task: &Task| task.positions(repeats);
        let long: Vec<Task> = tasks.iter().filter(|task| needed(task) > most.into()).copied().collect();
        tasks.retain(|task| needed(task) <= most.into());
        for task in long {
            self.record.notes.push(format!(
                "left out: {}: it needs {} positions, there are {most}; --context, --repeats and --tokens set them",
                task.name(),
                needed(&task)
            ));
        }
        let longest = tasks.iter().map(needed).max();
        longest.map(|longest| longest as u32).ok_or_else(|| {
            Failure::Usage(format!(
                "nothing to measure fits into a context of {most} positions: {}",
                self.record.notes.last().cloned().unwrap_or_default()
            ))
        })
    }

    /// Refuses to take more memory than there is.
    fn has_room(&self, bytes: u64) -> Result<(), Failure> {
        let usable = Limits::of_machine()?.usable();
        if bytes <= usable {
            return Ok(());
        }
        Err(Failure::Usage(format!(
            "--bytes {}: measuring takes {}, {} can be used; give a smaller --bytes, or fewer --rows",
            show_bytes(self.bytes),
            show_bytes(bytes),
            show_bytes(usable)
        )))
    }

    /// Measures in turn; the spreads of the limits and of the others.
    #[expect(clippy::type_complexity, reason = "two lists of pairs are plain to read")]
    fn measured<T>(
        &self,
        machine: &mut Machine,
        mut turns: Vec<Turn<T>>,
        mut own: impl FnMut(&mut T, &AtomicBool) -> Result<Sample, Failure>,
    ) -> Result<(Vec<(LimitArm, Spread)>, Vec<(T, Spread)>), Failure> {
        let samples = in_turn(&mut turns, self.args.repeats, self.cancel, |turn| match turn {
            Turn::Limit(arm) => machine.measure(*arm),
            Turn::Own(arm) => own(arm, self.cancel),
        })?;
        let (mut limits, mut others) = (Vec::new(), Vec::new());
        for (turn, samples) in turns.into_iter().zip(samples) {
            match turn {
                Turn::Limit(arm) => limits.push((arm, Spread::of(&samples))),
                Turn::Own(arm) => others.push((arm, Spread::of(&samples))),
            }
        }
        Ok((limits, others))
    }

    /// The rates of a part, noted for it.
    fn add_rates(&mut self, part: &str, limits: &[(LimitArm, Spread)]) -> PeakRates {
        let rates = self.rates(limits);
        self.record.limits.insert(part.to_owned(), rates);
        rates
    }

    fn rates(&self, limits: &[(LimitArm, Spread)]) -> PeakRates {
        let rate = |wanted: Wanted, threads: usize| {
            let best = fastest(limits, wanted, threads)?;
            Some(1e9 / best.1.median)
        };
        let of = |wanted| rate(wanted, self.threads).unwrap_or(f64::INFINITY);
        PeakRates {
            threads: self.threads,
            read_bytes: of(is_read),
            floats: of(|limit| limit == Limit::Floats),
            byte_products: of(|limit| limit == Limit::Products),
            disk_bytes: rate(|limit| limit == Limit::Disk, self.args.engine.readers as usize),
        }
    }

    /// The rows of limits on so many threads.
    fn add_limits(&mut self, part: &str, limits: &[(LimitArm, Spread)], threads: usize) {
        let kinds: [(&str, Wanted); 3] = [
            ("memory, reading", is_read),
            ("f32 multiply-adds", |limit| limit == Limit::Floats),
            ("products of bytes", |limit| limit == Limit::Products),
        ];
        for (name, wanted) in kinds {
            if let Some((arm, spread)) = fastest(limits, wanted, threads) {
                let name = format!("{name}, {}", report::counted(threads, "thread"));
                self.record.rows.push(Row::limit(part, name, arm.unit(), spread.clone(), how(arm.limit)));
            }
        }
    }

    fn finish(mut self) -> Record {
        let disturbed = self.record.rows.iter().filter(|row| row.seconds.disturbed).count();
        self.record.disturbed = disturbed > 0;
        for (of_disk, why) in [
            (true, "experts came from the system's memory of files and not from the disk"),
            (
                false,
                "the limits were measured too low, so all ratios are too high; measure again with more --repeats or --bytes",
            ),
        ] {
            let is_above = |row: &&Row| {
                let by_disk = row.floor.is_some_and(|floor| floor.bound == FloorBound::Disk);
                row.ratio.is_some_and(|ratio| ratio > 1.0) && by_disk == of_disk
            };
            let above: Vec<&str> =
                self.record.rows.iter().filter(is_above).map(|row| row.name.as_str()).collect();
            if let Some(first) = above.first() {
                let rows = report::counted(above.len(), "row");
                self.record.notes.push(format!("{rows} took less than the floor ({first}, ...): {why}"));
            }
        }
        if disturbed > 0 {
            self.record.notes.push(format!(
                "{disturbed} of {} rows are marked with !: most of their repeats were disturbed, other programs had the \
                 cores or the system paged; end those programs and measure again",
                self.record.rows.len()
            ));
        }
        self.record
    }
}

/// Tells limits of one kind.
type Wanted = fn(Limit) -> bool;

fn is_read(limit: Limit) -> bool {
    matches!(limit, Limit::Read { .. })
}

/// The fastest of the limits of one kind on so many threads.
fn fastest(limits: &[(LimitArm, Spread)], wanted: Wanted, threads: usize) -> Option<&(LimitArm, Spread)> {
    let of_kind = limits.iter().filter(|(arm, _)| wanted(arm.limit) && arm.threads == threads);
    of_kind.min_by(|a, b| a.1.median.total_cmp(&b.1.median))
}

/// How memory was read, where that was a choice.
fn how(limit: Limit) -> Option<String> {
    let Limit::Read { pages, ahead } = limit else { return None };
    let pages = if pages == Pages::Large { "large" } else { "small" };
    Some(match ahead {
        0 => format!("{pages} pages, nothing asked for ahead"),
        _ => format!("{pages} pages, asked for {ahead} bytes ahead"),
    })
}
