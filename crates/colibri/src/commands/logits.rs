//! `colibri logits`: the logits of every position of a prompt, to a file.
use crate::args::LogitsArgs;
use crate::errors::Failure;
use crate::load;
use crate::report::{self, Pace};
use crate::target::Target;
use crate::tensor_file::TensorFile;
use crate::work::{Demand, Planned, Wanted};
use models::{Input, Logits};
use serde_json::json;
use std::process::ExitCode;

/// Runs it.
pub(crate) fn run(args: &LogitsArgs) -> Result<ExitCode, Failure> {
    let target = Target::new(&args.out, &args.model.model)?;
    let model = load::open(&args.model)?;
    let ids = load::prompt(&args.prompt, &model)?;
    let request = load::request(&args.engine, args.layers.layers, 1);
    let wanted = Wanted { logits: Logits::All, taps: &[], positions: None };
    let demand = Demand::new(request, ids.len()).taking(wanted, &model.family.config);
    let planned = Planned::new(&model, &args.engine, demand)?;
    let place = target.path().display().to_string();
    let shape = [ids.len(), model.family.config.vocabulary as usize];
    let metadata = report::file_metadata(&planned.settings);
    // Before the work, which may take long: that a place cannot be written to is better known now.
    let mut file = TensorFile::create(target, &[("logits".into(), shape)], metadata)?;
    let mut work = planned.load()?;
    let mut session = work.session()?;
    let pace = work.feed(&mut session, Input::Ids(&ids), wanted, &mut |range, output| {
        file.write("logits", range.start as usize, &output.logits)
    })?;
    file.finish()?;
    let stats = work.stats(pace, Pace::default());
    if args.output.json {
        let settings = &work.settings;
        report::print_json(&json!({"file": place, "prompt_ids": ids, "settings": settings, "stats": stats}))?;
    } else {
        report::tell(&format!("wrote logits {shape:?} to {place}"));
        report::tell(&stats.summary());
    }
    Ok(ExitCode::SUCCESS)
}
