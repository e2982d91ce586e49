//! A model's step on a device that computes nothing: what it needs, and which ops it is made of. Knows no memory and no
//! plan.
use crate::plan::PlanError;
use models::step::{self, Workplace};
use models::{Capacity, Clock, Experts, Family, Input, LoadOptions, Logits, Model, Part, StatePool};
use ops::{Buffer, Ids, Op, Ops, Rehearsal, Tensor, Usage};
use std::sync::PoisonError;
use store::Checkpoint;

/// A step to rehearse.
#[derive(Clone, Copy)]
pub(crate) struct Rehearsed {
    /// Its rows.
    pub(crate) rows: u32,
    /// Whether experts to come are guessed in it.
    pub(crate) guesses: bool,
    /// Rows with logits.
    pub(crate) logits: Logits,
}

impl Rehearsed {
    /// The step that needs most: guesses, and the logits of all rows.
    pub(crate) fn full(rows: u32) -> Self {
        Rehearsed { rows, guesses: true, logits: Logits::All }
    }
}

/// Runs a step; what it needed.
pub(crate) fn rehearse(
    model: &dyn Model,
    family: &Family,
    step: Rehearsed,
    mut ops: Ops,
) -> Result<Usage, PlanError> {
    let Rehearsed { rows, guesses, logits } = step;
    tracing::trace!(rows, "a step is rehearsed");
    let capacity = Capacity { context: rows, sequences: 1, positions: rows };
    let mut pool = StatePool::new(ops.device(), model.state_layout().clone(), [0; 32], capacity)?;
    let mut state = pool.create(ops.device())?;
    let config = &family.config;
    let table = Ids(Tensor::new(Buffer(0), 0, config.experts, 2));
    let mut experts = Experts::rehearsal(table, guesses);
    let values = vec![0.0; rows as usize * model.width() as usize];
    let part =
        Part { input: Input::Rows(&values), position: 0, state: &mut state, logits, taps: &[], cancel: None };
    let mut clock = Clock::default();
    let place = Workplace { ops: &mut ops, experts: &mut experts, pool: &mut pool, clock: &mut clock };
    step::run(model, place, &mut [part])?;
    Ok(ops.usage())
}

/// The ops of a step of `rows` rows with the logits of the last one, in order. Their handles name nothing; shapes and
/// packings are the model's, with all experts resident.
///
/// # Errors
/// What is missing in the checkpoint.
pub fn ops_of_step(
    checkpoint: &Checkpoint,
    family: &Family,
    options: &LoadOptions,
    rows: u32,
) -> Result<Vec<Op>, PlanError> {
    let (model, _) = family.load(checkpoint, None, options, &mut |_| {})?;
    let (device, kept) = Rehearsal::keeping();
    let step = Rehearsed { rows, guesses: false, logits: Logits::Last };
    rehearse(&*model, family, step, Ops::rehearsal_on(device))?;
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(std::mem::take(&mut kept))
}
