//! Attention residuals (AttnRes): a softmax over depth in place of a residual stream.
use crate::{LoadError, Loader};
use ops::{Ops, Tensor};

/// The scores' weight vector and the norm's epsilon.
pub struct ResidualMix {
    weight: Tensor,
    eps: f32,
}

impl ResidualMix {
    /// Loads `{name}_norm` and `{name}_proj`; scores need only their product, which is exact in f32 for bf16.
    ///
    /// # Errors
    /// The loader's.
    pub fn load(loader: &mut Loader<'_>, name: &str, width: u32, eps: f32) -> Result<Self, LoadError> {
        let n = u64::from(width);
        let norm = loader.values(&format!("{name}_norm.weight"), &[&[n]], width as usize)?;
        let proj = loader.values(&format!("{name}_proj.weight"), &[&[1, n], &[n]], width as usize)?;
        let weight: Vec<f32> = norm.iter().zip(&proj).map(|(n, p)| n * p).collect();
        Ok(ResidualMix { weight: loader.place("norms", name, (1, width), &weight)?, eps })
    }

    /// The norm's epsilon, the same for all norms of the model's width.
    #[must_use]
    pub fn eps(&self) -> f32 {
        self.eps
    }

    /// The mix of the snapshots so far and the running row.
    pub fn forward(&self, ops: &mut Ops, snapshots: &Snapshots, running: Tensor) -> Tensor {
        ops.residual_mix(running, snapshots.rows, snapshots.count, self.weight, self.eps)
    }
}

/// Snapshots of one step, oldest first, each as many rows as the step.
pub struct Snapshots {
    rows: Tensor,
    count: u32,
}

impl Snapshots {
    /// Room for `most` snapshots.
    pub fn new(ops: &mut Ops, most: u32, like: Tensor) -> Self {
        Snapshots { rows: ops.scratch(most * like.rows, like.cols), count: 0 }
    }

    /// Whether none is taken yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Keeps a copy of the rows.
    pub fn push(&mut self, ops: &mut Ops, rows: Tensor) {
        ops.copy_into(self.rows.rows_at(self.count * rows.rows, rows.rows), rows);
        self.count += 1;
    }
}
