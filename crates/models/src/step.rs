//! One step: embeddings in, layers, logits out, and for each part the decision to commit.
//! It knows what a model offers ([`Model`]) and nothing of any family.
use crate::batch::{self, Input, Logits, Output, Part, PartError, Standing, Tap};
use crate::clock::{Clock, Section};
use crate::moe::Experts;
use crate::state::{Health, State, StateError, StatePool};
use crate::{Model, StepError};
use ops::{DeviceError, Ids, LatentCache, Ops, Pending, Tensor};

/// All that a layer may use.
pub struct Step<'s, 'p> {
    /// The recorder.
    pub ops: &'s mut Ops,
    /// Routed experts.
    pub experts: &'s mut Experts,
    /// Where time goes.
    pub clock: &'s mut Clock,
    pub(crate) parts: Vec<Standing<'p>>,
    states: Vec<&'s mut State>,
    pool: &'s StatePool,
    taps: Taps,
}

impl Step<'_, '_> {
    /// Calls `body` for every part with its rows of the step: first row, count, position of the first.
    pub fn for_each_part(&mut self, mut body: impl FnMut(&mut Ops, PartRows<'_>)) {
        for (part, state) in self.parts.iter().zip(&self.states) {
            let rows = PartRows {
                start: part.start,
                rows: part.rows,
                position: part.position,
                state,
                pool: self.pool,
            };
            body(self.ops, rows);
        }
    }

    /// What is submitted from now on counts for this section.
    pub fn enter(&mut self, section: Section) {
        self.clock.enter(self.ops, section);
    }

    /// The sections that follow belong to this layer.
    pub fn begin_layer(&mut self, layer: u32) {
        self.clock.begin_layer(Some(layer));
    }

    /// Whether any part still counts; looks at the cancel flags.
    pub fn any_alive(&mut self) -> bool {
        batch::any_alive(&mut self.parts)
    }

    /// Keeps rows of a layer for the parts that asked for them.
    ///
    /// # Errors
    /// The device's.
    pub fn tap(&mut self, layer: u32, place: Place, rows: Tensor) -> Result<(), DeviceError> {
        self.taps.keep(self.ops, layer, place, rows)
    }
}

/// One part's rows in the tensors of the step, and its state.
pub struct PartRows<'a> {
    start: u32,
    rows: u32,
    /// Position of its first row.
    pub position: u32,
    state: &'a State,
    pool: &'a StatePool,
}

impl PartRows<'_> {
    /// Its rows of a tensor with one row a token.
    #[must_use]
    pub fn of(&self, t: Tensor) -> Tensor {
        t.rows_at(self.start, self.rows)
    }

    /// Its rows of a tensor with one row a token and head.
    #[must_use]
    pub fn of_heads(&self, t: Tensor, heads: u32) -> Tensor {
        t.rows_at(self.start * heads, self.rows * heads)
    }

    /// A recurrent field of its state.
    #[must_use]
    pub fn fixed(&self, index: usize) -> Tensor {
        self.pool.fixed_field(self.state, index)
    }

    /// A latent cache of its state.
    #[must_use]
    pub fn latent(&self, index: usize) -> LatentCache {
        self.pool.latent_field(self.state, index)
    }
}

/// What is kept of a layer; see [`Tap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// [`Tap::attention_input`]
    AttentionInput,
    /// [`Tap::attention_output`]
    AttentionOutput,
    /// [`Tap::mlp_input`]
    MlpInput,
    /// [`Tap::mlp_output`]
    MlpOutput,
    /// [`Tap::hidden`]
    Hidden,
    /// [`Tap::picks`]
    Picks,
    /// [`Tap::weights`]
    Weights,
}

struct Taps {
    layers: Vec<u32>,
    kept: Vec<(u32, Place, Pending, usize)>,
}

impl Taps {
    fn keep(&mut self, ops: &mut Ops, layer: u32, place: Place, rows: Tensor) -> Result<(), DeviceError> {
        if self.layers.contains(&layer) {
            let pending = ops.read_later(rows)?;
            self.kept.push((layer, place, pending, rows.cols as usize));
        }
        Ok(())
    }

    /// Takes what was kept; for each part the layers it asked for.
    fn deliver(
        &mut self,
        ops: &mut Ops,
        parts: &[Standing<'_>],
        wanted: &[&[u32]],
    ) -> Result<Vec<Vec<Tap>>, DeviceError> {
        let fresh = |layers: &&[u32]| layers.iter().map(|&layer| Tap { layer, ..Tap::default() }).collect();
        let mut taps: Vec<Vec<Tap>> = wanted.iter().map(fresh).collect();
        while let Some((layer, place, pending, cols)) = self.kept.pop() {
            let ids = place == Place::Picks;
            let (floats, picks) =
                if ids { (Vec::new(), ops.take_ids(pending)?) } else { (ops.take(pending)?, Vec::new()) };
            for (part, taps) in parts.iter().zip(&mut taps) {
                let range = part.start as usize * cols..(part.start + part.rows) as usize * cols;
                let Some(tap) = taps.iter_mut().find(|t| t.layer == layer) else { continue };
                match place {
                    Place::AttentionInput => tap.attention_input = floats[range].to_vec(),
                    Place::AttentionOutput => tap.attention_output = floats[range].to_vec(),
                    Place::MlpInput => tap.mlp_input = floats[range].to_vec(),
                    Place::MlpOutput => tap.mlp_output = floats[range].to_vec(),
                    Place::Hidden => tap.hidden = floats[range].to_vec(),
                    Place::Weights => tap.weights = floats[range].to_vec(),
                    Place::Picks => tap.picks = picks[range].to_vec(),
                }
            }
        }
        Ok(taps)
    }

    /// Takes what nobody wants any more, so that the device does not keep it.
    fn forget(&mut self, ops: &mut Ops) {
        for (.., pending, _) in self.kept.drain(..) {
            // The step has failed for another reason, which is the one to tell.
            let _ = ops.take(pending);
        }
    }
}

/// What a step needs besides the batch.
pub struct Workplace<'w> {
    /// The recorder and its device.
    pub ops: &'w mut Ops,
    /// Routed experts.
    pub experts: &'w mut Experts,
    /// The memory of the states.
    pub pool: &'w mut StatePool,
    /// Where time goes.
    pub clock: &'w mut Clock,
}

/// Rows whose logits are computed at a time: bounds the arena where every row of a chunk is wanted.
pub const LOGIT_ROWS: u32 = 16;

/// Runs all parts through the model. Each part succeeds and its state moves on, or fails and its state is as before or
/// marked for rebuild; the others do not notice.
///
/// # Errors
/// A failure of the device concerns all parts; their states are marked for rebuild.
pub fn run(
    model: &dyn Model,
    place: Workplace<'_>,
    batch: &mut [Part<'_>],
) -> Result<Vec<Result<Output, PartError>>, StepError> {
    let outcome = run_batch(model, place, batch);
    if outcome.is_err() {
        for part in batch.iter_mut() {
            part.state.spoil();
        }
    }
    outcome
}

fn run_batch(
    model: &dyn Model,
    place: Workplace<'_>,
    batch: &mut [Part<'_>],
) -> Result<Vec<Result<Output, PartError>>, StepError> {
    let Workplace { ops, experts, pool, clock } = place;
    let width = model.width() as usize;
    let mut refused: Vec<Option<PartError>> = Vec::new();
    let mut rows = Vec::new();
    let (mut parts, mut states, mut wanted, mut taps) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for part in batch.iter_mut() {
        let before = rows.len();
        let error = admit(model, ops, pool, part, &mut rows)?;
        let refusal = error.is_some();
        refused.push(error);
        if refusal {
            rows.truncate(before);
            continue;
        }
        let (start, count) = ((before / width) as u32, ((rows.len() - before) / width) as u32);
        let Part { position, cancel, .. } = *part;
        parts.push(Standing { start, rows: count, position, error: None, cancel });
        wanted.push(part.logits);
        taps.push(part.taps);
        states.push(&mut *part.state);
    }
    let mut outputs = Vec::new();
    if !parts.is_empty() {
        let layers = taps.iter().copied().flatten().copied().collect();
        let taps_kept = Taps { layers, kept: Vec::new() };
        let mut step = Step { ops, experts, clock, parts, states, pool, taps: taps_kept };
        let mark = step.ops.mark();
        step.clock.begin(step.ops);
        step.experts.begin();
        let outcome = admitted(model, &mut step, &rows, &wanted, &taps);
        // Also after a failure: the next step needs the whole arena, and no op of this one.
        step.ops.discard();
        step.taps.forget(step.ops);
        step.ops.release(mark);
        step.clock.finish(step.ops);
        outputs = outcome.or_else(|error| all_lost(&mut step).ok_or(error))?;
    }
    let mut outputs = outputs.into_iter();
    let mut next = || outputs.next().expect("every part that was admitted has an outcome");
    Ok(refused.into_iter().map(|refusal| refusal.map_or_else(&mut next, Err)).collect())
}

/// Checks a part and adds its rows; the reason if it cannot run.
fn admit(
    model: &dyn Model,
    ops: &mut Ops,
    pool: &mut StatePool,
    part: &mut Part<'_>,
    rows: &mut Vec<f32>,
) -> Result<Option<PartError>, StepError> {
    if part.state.health() == Health::NeedsRebuild {
        return Ok(Some(PartError::NeedsRebuild));
    }
    let stands = part.state.position();
    if part.position != stands {
        return Ok(Some(PartError::Position { asked: part.position, stands }));
    }
    if let Some(&layer) = part.taps.iter().max() {
        let last = model.state_fields().len() as u32 - 1;
        if layer > last {
            return Ok(Some(PartError::UnknownLayer { layer, last }));
        }
    }
    let before = rows.len();
    match part.input {
        Input::Ids(ids) => {
            for &id in ids {
                if let Err(error) = model.embed(id, rows) {
                    return Ok(Some(error));
                }
            }
        }
        Input::Rows(values) if values.len() % model.width() as usize != 0 => {
            return Ok(Some(PartError::Width { numbers: values.len(), width: model.width() }));
        }
        Input::Rows(values) => {
            rows.extend(values);
        }
    }
    let count = ((rows.len() - before) / model.width() as usize) as u32;
    if count == 0 {
        return Ok(Some(PartError::Empty));
    }
    let positions = stands.saturating_add(count);
    match pool.grow(ops.device(), part.state, positions) {
        Ok(()) => Ok(None),
        Err(StateError::Device(error)) => Err(error.into()),
        Err(StateError::Full { wanted, reason }) => Ok(Some(PartError::ContextFull { wanted, reason })),
        Err(error) => Ok(Some(PartError::ContextFull { wanted: positions, reason: error.to_string() })),
    }
}

fn admitted(
    model: &dyn Model,
    step: &mut Step<'_, '_>,
    rows: &[f32],
    wanted: &[Logits],
    taps: &[&[u32]],
) -> Result<Vec<Result<Output, PartError>>, StepError> {
    let count = (rows.len() / model.width() as usize) as u32;
    let x = step.ops.input(count, model.width(), rows)?;
    let last = model.layers(step, x)?;
    step.clock.begin_layer(None);
    step.enter(Section::Head);
    let logits = match last {
        Some(last) => logits(model, step, last, wanted)?,
        None => vec![Vec::new(); wanted.len()],
    };
    let taps = step.taps.deliver(step.ops, &step.parts, taps)?;
    // A step whose parts were all cancelled ends without having waited for its last submission.
    let last = step.ops.device().last();
    if step.ops.device().done(last)? {
        step.experts.retire(last);
    }
    if let Some(lost) = weights_lost(step) {
        step.parts.iter_mut().for_each(|part| part.error = Some(lost()));
    }
    let parts = std::mem::take(&mut step.parts);
    let mut outputs = Vec::new();
    for (((part, state), logits), taps) in parts.into_iter().zip(&mut step.states).zip(logits).zip(taps) {
        outputs.push(match part.error {
            None => {
                state.commit(part.rows);
                Ok(Output { logits, taps })
            }
            Some(error) => {
                state.spoil();
                Err(error)
            }
        });
    }
    Ok(outputs)
}

/// What parts of a step get if weights could not be read where they are mapped: nothing that was computed counts, whatever else
/// was noticed.
fn weights_lost(step: &mut Step<'_, '_>) -> Option<impl Fn() -> PartError + use<>> {
    let fault = step.ops.device().fault()?;
    Some(move || PartError::Weights { file: fault.file.clone(), offset: fault.offset })
}

/// The end of a step that the device could not finish because of such weights.
fn all_lost(step: &mut Step<'_, '_>) -> Option<Vec<Result<Output, PartError>>> {
    let lost = weights_lost(step)?;
    step.states.iter_mut().for_each(|state| state.spoil());
    Some(step.states.iter().map(|_| Err(lost())).collect())
}

/// Logits of the rows that want them, and the check that every row is finite.
fn logits(
    model: &dyn Model,
    step: &mut Step<'_, '_>,
    last: Tensor,
    wanted: &[Logits],
) -> Result<Vec<Vec<f32>>, StepError> {
    let finite = step.ops.finite(last);
    check_rows(step, finite, "after the last layer")?;
    let mut all = Vec::new();
    for (i, wanted) in wanted.iter().enumerate() {
        let part = &step.parts[i];
        let (first, count) = match wanted {
            Logits::None => (part.start, 0),
            Logits::Last => (part.start + part.rows - 1, 1),
            Logits::All => (part.start, part.rows),
        };
        let (first, end) = if part.error.is_some() { (first, first) } else { (first, first + count) };
        // A vocabulary that is only claimed, by a config without its shards, must not decide how much memory is taken.
        let is_rehearsal = step.experts.is_rehearsal();
        let kept = if is_rehearsal { 0 } else { (end - first) as usize };
        let mut values = Vec::with_capacity(kept * model.vocabulary() as usize);
        for start in (first..end).step_by(LOGIT_ROWS as usize) {
            let mark = step.ops.mark();
            let logits = model.head(step.ops, last.rows_at(start, LOGIT_ROWS.min(end - start)));
            if is_rehearsal {
                step.ops.submit()?;
            } else {
                values.extend(step.ops.read(logits)?);
            }
            step.ops.release(mark);
        }
        let bad = values.iter().position(|v| !v.is_finite());
        if let Some(at) = bad {
            let row = first + (at / model.vocabulary() as usize) as u32;
            batch::fail_not_finite(&mut step.parts, row, "logits");
        }
        all.push(values);
    }
    Ok(all)
}

fn check_rows(step: &mut Step<'_, '_>, finite: Ids, place: &str) -> Result<(), StepError> {
    let flags = step.ops.read_ids(finite)?;
    for (row, _) in flags.iter().enumerate().filter(|(_, flag)| **flag == 0) {
        batch::fail_not_finite(&mut step.parts, row as u32, place);
    }
    Ok(())
}
