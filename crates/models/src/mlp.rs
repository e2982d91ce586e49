//! The gated MLP: dense layers, shared experts.
use crate::{LoadError, Loader};
use ops::{Activation, Activations, Matrix, Ops, Tensor};

/// `down(activation(gate x, up x))`
pub struct Mlp {
    gate: Matrix,
    up: Matrix,
    down: Matrix,
    activation: Activation,
    activations: Activations,
}

impl Mlp {
    /// Loads `{name}.gate_proj`, `.up_proj` \[inner, width\] and `.down_proj` \[width, inner\].
    ///
    /// # Errors
    /// The loader's.
    pub fn load(
        loader: &mut Loader<'_>,
        kind: &'static str,
        name: &str,
        (width, inner): (u32, u32),
        (activation, activations): (Activation, Activations),
    ) -> Result<Self, LoadError> {
        Ok(Mlp {
            gate: loader.dense(kind, &format!("{name}.gate_proj.weight"), inner, width)?,
            up: loader.dense(kind, &format!("{name}.up_proj.weight"), inner, width)?,
            down: loader.dense(kind, &format!("{name}.down_proj.weight"), width, inner)?,
            activation,
            activations,
        })
    }

    /// x \[T, width\] to \[T, width\].
    pub fn forward(&self, ops: &mut Ops, x: Tensor) -> Tensor {
        let gate = ops.mat_mul(x, self.gate, self.activations);
        let up = ops.mat_mul(x, self.up, self.activations);
        let inner = ops.glu(gate, up, self.activation);
        ops.mat_mul(inner, self.down, self.activations)
    }
}
