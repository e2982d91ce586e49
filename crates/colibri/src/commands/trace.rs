//! `colibri trace`: rows that enter and leave the parts of chosen layers, to a file.
use crate::args::TraceArgs;
use crate::errors::Failure;
use crate::load::{self, Model};
use crate::report::{self, Pace};
use crate::target::Target;
use crate::tensor_file::{self, TensorFile};
use crate::values::List;
use crate::work::{Demand, PARTS, Planned, Wanted, parts};
use models::{Input, Logits, Tap};
use serde_json::json;
use std::process::ExitCode;

/// What goes in at the bottom.
enum Source {
    Ids(Vec<u32>),
    Rows(Vec<f32>),
}

impl Source {
    fn new(args: &TraceArgs, model: &Model) -> Result<Self, Failure> {
        match &args.inputs {
            None => Ok(Source::Ids(load::prompt(&args.prompt, model)?)),
            Some(path) => Ok(Source::Rows(tensor_file::read_rows(path, model.family.config.width)?)),
        }
    }

    fn rows(&self, width: usize) -> usize {
        match self {
            Source::Ids(ids) => ids.len(),
            Source::Rows(values) => values.len() / width,
        }
    }

    /// The first `rows` rows: no later one reaches them.
    fn input(&self, rows: usize, width: usize) -> Input<'_> {
        match self {
            Source::Ids(ids) => Input::Ids(&ids[..rows]),
            Source::Rows(values) => Input::Rows(&values[..rows * width]),
        }
    }
}

/// Runs it.
pub(crate) fn run(args: &TraceArgs) -> Result<ExitCode, Failure> {
    let target = Target::new(&args.out, &args.model.model)?;
    let model = load::open(&args.model)?;
    let source = Source::new(args, &model)?;
    let width = model.family.config.width as usize;
    let rows = source.rows(width);
    let all_layers = model.family.config.layers();
    let layers = chosen("--layers", args.layers.as_ref(), all_layers, "layers")?;
    let positions = chosen("--positions", args.positions.as_ref(), rows as u32, "positions")?;
    let (Some(last_layer), Some(last_position)) = (layers.last(), positions.last()) else {
        return Err(Failure::Usage("the prompt is empty: at least one token is needed".into()));
    };
    let count = last_layer + 1;
    let request = load::request(&args.engine, (count < all_layers).then_some(count), 1);
    let wanted = Wanted { logits: Logits::None, taps: &layers, positions: Some(&positions) };
    let mut demand = Demand::new(request, rows).taking(wanted, &model.family.config);
    if let Source::Rows(values) = &source {
        demand = demand.holding("rows of --inputs", values.len() as u64 * 4);
    }
    let planned = Planned::new(&model, &args.engine, demand)?;

    let place = target.path().display().to_string();
    let names = layers.iter().flat_map(|layer| PARTS.map(|part| format!("layer{layer}.{part}")));
    let matrices: Vec<_> = names.map(|name| (name, [positions.len(), width])).collect();
    let mut metadata = report::file_metadata(&planned.settings);
    metadata.insert("positions".into(), json!(positions).to_string());
    // Before the work, which may take long: that a place cannot be written to is better known now.
    let mut file = TensorFile::create(target, &matrices, metadata)?;
    let mut work = planned.load()?;
    let mut session = work.session()?;
    let input = source.input(*last_position as usize + 1, width);
    let pace = work.feed(&mut session, input, wanted, &mut |range, output| {
        for (row, position) in positions.iter().enumerate().filter(|(_, p)| range.contains(p)) {
            for tap in &output.taps {
                write(&mut file, row, tap, (position - range.start) as usize * width, width)?;
            }
        }
        Ok(())
    })?;
    file.finish()?;
    let stats = work.stats(pace, Pace::default());
    if args.output.json {
        let settings = &work.settings;
        report::print_json(&json!({
            "file": place, "layers": layers, "positions": positions, "settings": settings, "stats": stats,
        }))?;
    } else {
        let (layers, positions) =
            (report::counted(layers.len(), "layer"), report::counted(positions.len(), "position"));
        report::tell(&format!("wrote {layers} at {positions} to {place}"));
        report::tell(&stats.summary());
    }
    Ok(ExitCode::SUCCESS)
}

fn write(file: &mut TensorFile, row: usize, tap: &Tap, start: usize, width: usize) -> Result<(), Failure> {
    for (part, values) in PARTS.iter().zip(parts(tap)) {
        file.write(&format!("layer{}.{part}", tap.layer), row, &values[start..start + width])?;
    }
    Ok(())
}

/// The numbers given, ascending and each once, or all there are.
fn chosen(flag: &str, list: Option<&List>, count: u32, what: &str) -> Result<Vec<u32>, Failure> {
    let Some(list) = list else { return Ok((0..count).collect()) };
    if let Some(number) = list.0.iter().find(|n| **n >= count) {
        return Err(Failure::Usage(format!(
            "{flag}: there is no {number} among the {count} {what}, counted from 0"
        )));
    }
    let mut numbers = list.0.clone();
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}
