//! What a step will take, before it is run: its ops by what a machine can do in a second, and reads by what has to wait for
//! what. Pure arithmetic: it measures nothing, reads no file and knows no model.
//!
//! A layer with routed experts asks for them when its router has run. From then on its reads and what needs no expert
//! (shared experts, latent projections), and experts as they arrive, go on at once; all else waits. So without
//! guesses a step takes
//!
//! `sum over layers of (attention + router + max(reads, shared and routed experts)) + head`,
//!
//! and with nothing but right guesses `max(all reads, all computing)`: what is between depends on the guesses.
//!
//! Mapped weights that have no room in memory are read while they are computed with. At best that is hidden behind computing, as
//! far as the drive is idle; at worst computing waits for all of it.
mod traffic;

use ops::{Activations, Op, Packing, Picked, Work};
pub use traffic::{HitSource, Traffic, by_chance, from_traces, rows_of_chunks};

/// What a machine does in a second.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// Bytes read from memory.
    pub memory_bytes: f64,
    /// Operations in f32.
    pub floats: f64,
    /// Products of bytes.
    pub byte_products: f64,
    /// Matrix products as they are measured; a kind that is not here is taken at the rates above.
    pub products: Vec<ProductRate>,
}

/// How fast matrix products of one kind are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProductRate {
    /// How the weights are stored.
    pub packing: Packing,
    /// Inputs that meet a matrix at once.
    pub inputs: u32,
    /// Multiply-adds a second.
    pub multiply_adds: f64,
}

impl Rates {
    /// Multiply-adds a second of such products with so many inputs: between two measured numbers in proportion to
    /// their logarithms, beyond them as at the nearest.
    fn product(&self, packing: Packing, inputs: f64) -> Option<f64> {
        let of_kind = self.products.iter().filter(|rate| rate.packing == packing);
        let (mut below, mut above): (Option<&ProductRate>, Option<&ProductRate>) = (None, None);
        for rate in of_kind {
            let measured = f64::from(rate.inputs);
            if measured <= inputs && below.is_none_or(|best| rate.inputs > best.inputs) {
                below = Some(rate);
            }
            if measured >= inputs && above.is_none_or(|best| rate.inputs < best.inputs) {
                above = Some(rate);
            }
        }
        match (below, above) {
            (Some(below), Some(above)) if below.inputs < above.inputs => {
                let log = |inputs: f64| inputs.ln();
                let (low, high) = (log(below.inputs.into()), log(above.inputs.into()));
                let part = (log(inputs) - low) / (high - low);
                Some(below.multiply_adds + part * (above.multiply_adds - below.multiply_adds))
            }
            (below, above) => below.or(above).map(|rate| rate.multiply_adds),
        }
    }

    fn arithmetic(&self, work: &Work) -> f64 {
        work.floats as f64 / self.floats + work.byte_products as f64 / self.byte_products
    }

    fn memory(&self, work: &Work) -> f64 {
        work.bytes() as f64 / self.memory_bytes
    }

    /// Seconds of an op: of a product by the measured rate of its kind, otherwise the longer of its bytes through memory and its
    /// operations.
    fn seconds(&self, op: &Op, picked: Picked, work: &Work) -> f64 {
        let inputs = match *op {
            Op::MatMul { x, .. } => f64::from(x.rows),
            Op::HeadMatMul { x, heads, .. } => f64::from(x.rows) / f64::from(heads.max(1)),
            Op::Experts { .. } => picked.rows as f64 / picked.experts.max(1) as f64,
            _ => 0.0,
        };
        let packing = op.matrices().first().map(|matrix| matrix.packing);
        let measured = packing.and_then(|packing| self.product(packing, inputs.max(1.0)));
        match measured {
            Some(rate) => work.multiply_adds as f64 / rate,
            None => self.memory(work).max(self.arithmetic(work)),
        }
    }
}

/// The kinds of matrix product in a step: packing, activations and the largest matrix of the kind, rows and columns.
#[must_use]
pub fn product_kinds(step: &[Op]) -> Vec<(Packing, Activations, (u32, u32))> {
    let mut kinds: Vec<(Packing, Activations, (u32, u32))> = Vec::new();
    for op in step {
        let (Op::MatMul { activations, .. } | Op::Experts { activations, .. }) = *op else { continue };
        for matrix in op.matrices() {
            let is_float = matches!(matrix.packing, Packing::F32 | Packing::Bf16);
            let activations = if is_float { Activations::Exact } else { activations };
            let size = (matrix.rows, matrix.cols);
            let numbers = |(rows, cols): (u32, u32)| u64::from(rows) * u64::from(cols);
            match kinds.iter_mut().find(|(packing, ..)| *packing == matrix.packing) {
                None => kinds.push((matrix.packing, activations, size)),
                Some((_, _, largest)) if numbers(size) > numbers(*largest) => *largest = size,
                Some(_) => {}
            }
        }
    }
    kinds
}

/// What is computed from one wait for experts to the next, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Stage {
    /// Up to the router: nothing can be read meanwhile, unless it is guessed.
    before: f64,
    /// From the router to the last expert.
    beside: f64,
}

/// What computing a step takes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepTime {
    stages: Vec<Stage>,
    /// After the last layer with experts.
    after: f64,
    /// Its bytes through memory, at the memory's rate.
    memory: f64,
    /// Its operations, at the processor's peak.
    arithmetic: f64,
}

/// What there is too little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The disk's rate.
    Disk,
    /// The memory's rate.
    Memory,
    /// The processor's arithmetic.
    Arithmetic,
    /// None of them by itself: reads wait for routers and layers for reads.
    Waits,
}

impl Bound {
    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Bound::Disk => "disk",
            Bound::Memory => "memory",
            Bound::Arithmetic => "arithmetic",
            Bound::Waits => "waits",
        }
    }
}

/// How reading and computing go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Together {
    /// The disk is idle while anything is computed.
    InTurn,
    /// A layer's reads begin when its router has run.
    Dependent,
    /// All that a layer needs was guessed before.
    Guessed,
}

/// Seconds of the drive that a step's reads take.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DriveSeconds {
    /// Of experts, as much in every layer.
    pub experts: f64,
    /// Of mapped weights, while something is computed.
    pub hidden: f64,
    /// Of mapped weights, while computing waits for them.
    pub exposed: f64,
}

impl DriveSeconds {
    /// All together.
    #[must_use]
    pub fn all(&self) -> f64 {
        self.experts + self.hidden + self.exposed
    }
}

/// A busy resource that is this much of the time is the bound.
const BUSY: f64 = 0.9;

impl StepTime {
    /// Of the ops of a step with `behind` tokens before it, which asks for `picked` experts in a layer.
    #[must_use]
    pub fn of(step: &[Op], behind: u32, picked: Picked, rates: &Rates) -> Self {
        let mut time = StepTime::default();
        let mut stage = Stage::default();
        let mut is_routed = false;
        for &op in step {
            let mut op = op;
            if let Op::AttendLatent { position, .. } = &mut op {
                *position += behind;
            }
            let work = op.work(picked);
            let seconds = rates.seconds(&op, picked, &work);
            time.memory += rates.memory(&work);
            time.arithmetic += rates.arithmetic(&work);
            if is_routed {
                stage.beside += seconds;
            } else {
                stage.before += seconds;
            }
            match op {
                Op::Route { .. } => is_routed = true,
                Op::Experts { .. } => {
                    time.stages.push(std::mem::take(&mut stage));
                    is_routed = false;
                }
                _ => {}
            }
        }
        time.after = stage.before + stage.beside;
        time
    }

    /// Seconds of all computing.
    #[must_use]
    pub fn compute(&self) -> f64 {
        self.stages.iter().map(|stage| stage.before + stage.beside).sum::<f64>() + self.after
    }

    /// Seconds of the step with such reads.
    #[must_use]
    pub fn seconds(&self, reads: DriveSeconds, together: Together) -> f64 {
        let DriveSeconds { experts, hidden, exposed } = reads;
        let each = experts / self.stages.len().max(1) as f64;
        let with_experts = match together {
            Together::InTurn => self.compute() + experts,
            Together::Dependent => {
                let stage = |stage: &Stage| stage.before + stage.beside.max(each);
                self.stages.iter().map(stage).sum::<f64>() + self.after
            }
            Together::Guessed => self.compute().max(experts),
        };
        with_experts.max(experts + hidden) + exposed
    }

    /// What bounds it then.
    #[must_use]
    pub fn bound(&self, reads: DriveSeconds, together: Together) -> Bound {
        let (all, compute, reads) = (self.seconds(reads, together), self.compute(), reads.all());
        if reads >= compute && reads >= BUSY * all {
            Bound::Disk
        } else if compute < BUSY * all {
            Bound::Waits
        } else if self.memory >= self.arithmetic {
            Bound::Memory
        } else {
            Bound::Arithmetic
        }
    }
}

/// Bytes of mapped weights that a step reads again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappedReads {
    /// At least.
    pub least: u64,
    /// At most.
    pub most: u64,
}

/// The tokens of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepTokens {
    /// Computed in it, on average.
    pub rows: f64,
    /// Before these.
    pub behind: u32,
}

impl StepTokens {
    /// Rows of the step that stands for all of them: a step has a whole number.
    #[must_use]
    pub fn whole_rows(&self) -> u32 {
        self.rows.round().max(1.0) as u32
    }
}

/// The routed experts that a step picks from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoutedExperts {
    /// Layers that have them.
    pub layers: u32,
    /// How many a token picks in each.
    pub ranks: u32,
    /// Bytes of one.
    pub bytes_each: u64,
}

impl RoutedExperts {
    /// Bytes of all that such traffic asks for: so much is read where none has a slot.
    #[must_use]
    pub fn bytes_asked(&self, traffic: Traffic) -> f64 {
        f64::from(self.layers) * traffic.experts * self.bytes_each as f64
    }

    /// Bytes of those that have no slot.
    #[must_use]
    pub fn bytes_read(&self, traffic: Traffic) -> f64 {
        self.bytes_asked(traffic) * (1.0 - traffic.hit_rate)
    }
}

/// What a step of a plan reads and takes.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// Its tokens.
    pub tokens: StepTokens,
    /// What it picks from.
    pub experts: RoutedExperts,
    /// What each of these layers asks for.
    pub traffic: Traffic,
    /// Mapped weights that it reads again.
    pub mapped: MappedReads,
    /// What computing takes; None where no rates are known.
    pub time: Option<StepTime>,
}

impl Prediction {
    /// Of the ops of a step with the whole rows of its tokens.
    #[must_use]
    pub fn of(
        step: &[Op],
        tokens: StepTokens,
        experts: RoutedExperts,
        traffic: Traffic,
        mapped: MappedReads,
        rates: Option<&Rates>,
    ) -> Self {
        let picked = Picked {
            experts: (traffic.experts.round() as u64).max(1),
            rows: u64::from(tokens.whole_rows()) * u64::from(experts.ranks),
        };
        let time = rates.map(|rates| StepTime::of(step, tokens.behind, picked, rates));
        Prediction { tokens, experts, traffic, mapped, time }
    }

    /// Bytes that it reads at most, with its hits.
    #[must_use]
    pub fn bytes_most(&self) -> f64 {
        self.experts.bytes_read(self.traffic) + self.mapped.most as f64
    }

    /// The reads of the step at so many bytes a second: the least, hidden as far as can be, and the most, all of mapped weights
    /// waited for.
    #[must_use]
    pub fn reads(&self, rate: f64) -> [DriveSeconds; 2] {
        let experts = self.experts.bytes_read(self.traffic) / rate;
        let [least, most] = [self.mapped.least, self.mapped.most].map(|bytes| bytes as f64 / rate);
        [
            DriveSeconds { experts, hidden: least, exposed: 0.0 },
            DriveSeconds { experts, hidden: 0.0, exposed: most },
        ]
    }
}

#[cfg(test)]
mod tests;
