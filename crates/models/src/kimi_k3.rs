//! Kimi K3: KDA and gated `NoPE` MLA layers, attention residuals in place of a residual stream, experts in a latent
//! space. Sources: the release's config and tensors; the order of the arithmetic is in `docs/numerics.md`.
//!
//! Reads in the order in which data flows: what a token goes through is what [`KimiK3::layers`] says.
mod config;
pub mod names;

use crate::batch::PartError;
use crate::clock::Section;
use crate::delta_attention::DeltaAttention;
use crate::latent_attention::LatentAttention;
use crate::loader::Embedding;
use crate::mlp::Mlp;
use crate::moe::{LatentSpace, Moe, NextLayer};
use crate::residual_mix::{ResidualMix, Snapshots};
use crate::state::StateLayout;
use crate::step::{Place, Step};
use crate::{LoadError, LoadOptions, Loader, Model, StateField, StepError};
pub use config::{KimiK3Config, is_kimi_k3, text_part};
use ops::{Activations, Buffer, Expert, ExpertMatrices, Matrix, Ops, Packing, Tensor};
use store::catalog::{Catalog, CatalogBuilder, ExpertId, ExpertLayout, PieceSpec};
use store::{Checkpoint, Dtype};

/// The model: its weights' handles and sizes.
pub struct KimiK3 {
    config: KimiK3Config,
    embedding: Embedding,
    layers: Vec<Layer>,
    last_mix: ResidualMix,
    last_norm: Tensor,
    head: Matrix,
    state: StateLayout,
    activations: Activations,
}

struct Layer {
    attention_mix: ResidualMix,
    attention_norm: Tensor,
    attention: Attention,
    mlp_mix: ResidualMix,
    mlp_norm: Tensor,
    mlp: LayerMlp,
}

enum Attention {
    Delta(DeltaAttention),
    Latent(LatentAttention),
}

enum LayerMlp {
    Dense(Mlp),
    Moe(Box<Moe>),
}

impl Model for KimiK3 {
    fn layers(&self, step: &mut Step<'_, '_>, x: Tensor) -> Result<Option<Tensor>, StepError> {
        let most = (self.layers.len() as u32).div_ceil(self.config.snapshot_every);
        let mut snapshots = Snapshots::new(step.ops, most, x);
        // The running row outlives a layer; everything else a layer makes does not.
        let hidden = step.ops.scratch(x.rows, x.cols);
        step.ops.copy_into(hidden, x);
        for (i, layer) in self.layers.iter().enumerate() {
            if !step.any_alive() {
                return Ok(None);
            }
            tracing::trace!(layer = i, rows = x.rows, "a layer begins");
            let mark = step.ops.mark();
            let snapshot = (i as u32).is_multiple_of(self.config.snapshot_every);
            let next = self.layers.get(i + 1);
            let left = layer.forward(step, (i as u32, next), hidden, &mut snapshots, snapshot)?;
            step.ops.copy_into(hidden, left);
            step.ops.release(mark);
        }
        let last = self.last_mix.forward(step.ops, &snapshots, hidden);
        Ok(Some(step.ops.rms_norm(last, self.last_norm, self.config.eps)))
    }

    fn head(&self, ops: &mut Ops, last: Tensor) -> Tensor {
        ops.mat_mul(last, self.head, self.activations)
    }

    fn embed(&self, id: u32, rows: &mut Vec<f32>) -> Result<(), PartError> {
        let vocabulary = self.config.vocabulary;
        if id >= vocabulary {
            return Err(PartError::UnknownToken { id, vocabulary });
        }
        self.embedding.row(id, rows).map_err(|source| PartError::Embedding { id, source })
    }

    fn width(&self) -> u32 {
        self.config.width
    }

    fn vocabulary(&self) -> u32 {
        self.config.vocabulary
    }

    fn state_layout(&self) -> &StateLayout {
        &self.state
    }

    fn state_fields(&self) -> Vec<StateField> {
        let field = |layer: &Layer| match &layer.attention {
            Attention::Delta(delta) => {
                let (state, windows) = delta.fields();
                StateField::Delta { state, windows }
            }
            Attention::Latent(latent) => StateField::Latent(latent.field()),
        };
        self.layers.iter().map(field).collect()
    }
}

impl Layer {
    fn forward(
        &self,
        step: &mut Step<'_, '_>,
        (index, next): (u32, Option<&Layer>),
        entering: Tensor,
        snapshots: &mut Snapshots,
        snapshot: bool,
    ) -> Result<Tensor, StepError> {
        step.begin_layer(index);
        step.enter(Section::Attention);
        let hidden = if snapshots.is_empty() {
            entering
        } else {
            self.attention_mix.forward(step.ops, snapshots, entering)
        };
        if snapshot {
            snapshots.push(step.ops, entering);
        }
        let normed = step.ops.rms_norm(hidden, self.attention_norm, self.eps());
        step.tap(index, Place::AttentionInput, normed)?;
        let attended = match &self.attention {
            Attention::Delta(delta) => delta.forward(step, normed),
            Attention::Latent(latent) => latent.forward(step, normed),
        };
        step.tap(index, Place::AttentionOutput, attended)?;
        // At a snapshot the sum starts again from the attention's output.
        let running = if snapshot { attended } else { step.ops.add(attended, entering) };
        // What was only recorded would be computed, and counted, under the next section.
        step.ops.submit()?;

        step.enter(Section::Moe);
        let normed = self.mlp_input(step.ops, snapshots, running);
        step.tap(index, Place::MlpInput, normed)?;
        let next = next.and_then(|next| next.guessed(snapshots, running));
        let out = match &self.mlp {
            LayerMlp::Dense(mlp) => {
                let guess = step.experts.guess((step.ops, step.clock), next)?;
                let out = mlp.forward(step.ops, normed);
                step.experts.read_guessed((step.ops, step.clock), guess)?;
                out
            }
            LayerMlp::Moe(moe) => moe.forward(step, normed, next)?,
        };
        step.tap(index, Place::MlpOutput, out)?;
        let left = step.ops.add(out, running);
        step.tap(index, Place::Hidden, left)?;
        step.ops.submit()?;
        Ok(left)
    }

    fn mlp_input(&self, ops: &mut Ops, snapshots: &Snapshots, running: Tensor) -> Tensor {
        let mixed = self.mlp_mix.forward(ops, snapshots, running);
        ops.rms_norm(mixed, self.mlp_norm, self.eps())
    }

    /// What the layer before can tell of this one's router: its input lacks that layer's MLP and this one's attention.
    fn guessed<'a>(&'a self, snapshots: &'a Snapshots, running: Tensor) -> Option<NextLayer<'a>> {
        let LayerMlp::Moe(moe) = &self.mlp else { return None };
        Some(NextLayer { moe, input: Box::new(move |ops| self.mlp_input(ops, snapshots, running)) })
    }

    fn eps(&self) -> f32 {
        self.mlp_mix.eps()
    }
}

/// The prefix of all names: `language_model.` in the release, none in some re-exports.
///
/// # Errors
/// The store's, for the first norm of layer 0, if neither is there.
pub fn prefix(checkpoint: &Checkpoint) -> Result<&'static str, LoadError> {
    const PROBE: &str = "model.layers.0.input_layernorm.weight";
    for prefix in [names::PREFIX, ""] {
        if checkpoint.has(&format!("{prefix}{PROBE}")) {
            return Ok(prefix);
        }
    }
    Ok(checkpoint.find(&format!("{}{PROBE}", names::PREFIX)).map(|_| names::PREFIX)?)
}

impl KimiK3 {
    /// Loads the first `options.layers` layers, or looks whether all is there.
    ///
    /// # Errors
    /// The loader's.
    pub fn load(
        loader: &mut Loader<'_>,
        config: &KimiK3Config,
        options: &LoadOptions,
    ) -> Result<Self, LoadError> {
        let (width, vocabulary) = (config.width, config.vocabulary);
        let mut state = StateLayout::default();
        let count = options.layers.map_or(config.layers(), |n| n.min(config.layers()));
        let mut layers = Vec::new();
        for i in 0..count {
            layers.push(Layer::load(loader, &mut state, i, config, options)?);
        }
        let table = "model.embed_tokens.weight";
        let head = if config.tied { table } else { "lm_head.weight" };
        Ok(KimiK3 {
            embedding: Embedding::find(loader, table, vocabulary, width)?,
            last_mix: ResidualMix::load(loader, "model.output_attn_res", width, config.eps)?,
            last_norm: loader.gain("model.norm.weight", width)?,
            head: loader.dense("head", head, vocabulary, width)?,
            layers,
            state,
            activations: options.activations,
            config: config.clone(),
        })
    }
}

impl Layer {
    fn load(
        loader: &mut Loader<'_>,
        state: &mut StateLayout,
        index: u32,
        config: &KimiK3Config,
        options: &LoadOptions,
    ) -> Result<Self, LoadError> {
        let (width, eps, activations) = (config.width, config.eps, options.activations);
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let attention_name = name("self_attn");
        let place = (index, attention_name.as_str());
        let attention = if config.delta_layers[index as usize] {
            Attention::Delta(DeltaAttention::load(loader, state, place, width, &config.delta, activations)?)
        } else {
            Attention::Latent(LatentAttention::load(
                loader,
                state,
                place,
                width,
                &config.latent,
                activations,
            )?)
        };
        let mlp = if index < config.first_moe_layer {
            let unit = (config.activation, activations);
            LayerMlp::Dense(Mlp::load(loader, "dense mlp", &name("mlp"), (width, config.dense_inner), unit)?)
        } else {
            LayerMlp::Moe(Box::new(load_moe(loader, index, config, options)?))
        };
        Ok(Layer {
            attention_mix: ResidualMix::load(loader, &name("self_attention_res"), width, eps)?,
            attention_norm: loader.gain(&name("input_layernorm.weight"), width)?,
            attention,
            mlp_mix: ResidualMix::load(loader, &name("mlp_res"), width, eps)?,
            mlp_norm: loader.gain(&name("post_attention_layernorm.weight"), width)?,
            mlp,
        })
    }
}

fn load_moe(
    loader: &mut Loader<'_>,
    index: u32,
    config: &KimiK3Config,
    options: &LoadOptions,
) -> Result<Moe, LoadError> {
    let (width, latent, experts) = (config.width, config.expert_width, config.experts);
    let name = |part: &str| format!("model.layers.{index}.block_sparse_moe.{part}");
    let bias = [u64::from(experts)];
    let shared_inner = config.shared_experts * config.expert_inner;
    let unit = (config.activation, options.activations);
    let norm = if config.expert_norm {
        Some((loader.gain(&name("routed_expert_norm.weight"), latent)?, config.eps))
    } else {
        None
    };
    Ok(Moe {
        layer: index,
        router: loader.exact("router", &name("gate.weight"), experts, width)?,
        bias: Some(loader.numbers(
            "router",
            &name("gate.e_score_correction_bias"),
            (1, experts),
            &[&bias],
        )?),
        ranks: config.ranks,
        routing: ops::Routing { keep: options.expert_top_p, ..config.routing },
        latent: Some(LatentSpace {
            down: loader.dense("latent", &name("routed_expert_down_proj.weight"), latent, width)?,
            norm,
            up: loader.dense("latent", &name("routed_expert_up_proj.weight"), width, latent)?,
        }),
        shared: match shared_inner {
            0 => None,
            inner => {
                Some(Mlp::load(loader, "shared experts", &name("shared_experts"), (width, inner), unit)?)
            }
        },
        expert: Expert {
            experts: expert_matrices(&expert_layout(config)?, config),
            activation: config.activation,
            activations: options.activations,
        },
        activations: options.activations,
    })
}

/// gate, down and up by their names in the checkpoint, in the release's order of bytes.
const EXPERT_MATRICES: [&str; 3] = ["w1", "w2", "w3"];

/// The six pieces of an expert.
fn expert_layout(config: &KimiK3Config) -> Result<ExpertLayout, LoadError> {
    let (inner, width) = (u64::from(config.expert_inner), u64::from(config.expert_width));
    let mut pieces = Vec::new();
    for name in EXPERT_MATRICES {
        let (rows, cols) = if name == "w2" { (width, inner) } else { (inner, width) };
        for (part, row_bytes, forbidden) in
            [("packed", cols / 2, None), ("scale", cols / 32, Some(ops::packing::mxfp4::SCALE_NAN))]
        {
            let name = format!("{name}.weight_{part}");
            pieces.push(PieceSpec { name, bytes: rows * row_bytes, row_bytes, forbidden });
        }
    }
    Ok(ExpertLayout::new(pieces)?)
}

fn expert_matrices(layout: &ExpertLayout, config: &KimiK3Config) -> ExpertMatrices {
    let matrix = |piece: usize, rows, cols| Matrix {
        buffer: Buffer(0),
        codes: layout.offset(piece),
        scales: layout.offset(piece + 1),
        rows,
        cols,
        packing: Packing::Mxfp4,
    };
    let (inner, width) = (config.expert_inner, config.expert_width);
    ExpertMatrices {
        gate: matrix(0, inner, width),
        down: matrix(2, width, inner),
        up: matrix(4, inner, width),
    }
}

/// Where the experts of the first `layers` layers lie; None if none of these has experts.
///
/// # Errors
/// The store's, for a tensor that is missing or has another shape.
pub fn expert_catalog(
    checkpoint: &Checkpoint,
    prefix: &str,
    config: &KimiK3Config,
    layers: u32,
) -> Result<Option<Catalog>, LoadError> {
    if layers <= config.first_moe_layer {
        return Ok(None);
    }
    let layout = expert_layout(config)?;
    let tensors = expert_tensors(layout.pieces(), prefix, config, layers);
    // Room is made for tensors that are there, not for what a config claims: of too many claimed, one is missing.
    let claimed = u64::from(layers - config.first_moe_layer) * u64::from(config.experts);
    if claimed > checkpoint.tensor_count() as u64 {
        for (_, piece, name) in tensors {
            checkpoint.entry_any(&name, &[Dtype::U8], &[&shape_of(piece)])?;
        }
        unreachable!("more experts than tensors, and none is missing");
    }
    let mut builder = CatalogBuilder::new(
        layout.clone(),
        config.first_moe_layer as u16..layers as u16,
        config.experts as u16,
    );
    for (id, piece, name) in tensors {
        let entry = checkpoint.entry_any(&name, &[Dtype::U8], &[&shape_of(piece)])?;
        builder.place(id, &piece.name, entry.file.0, entry.offset)?;
    }
    Ok(Some(builder.finish()?))
}

/// The names of all routed experts' tensors, expert by expert in the order of a slot.
///
/// # Errors
/// Sizes that no expert can have.
pub fn all_expert_tensors(prefix: &str, config: &KimiK3Config) -> Result<Vec<(ExpertId, String)>, LoadError> {
    let layout = expert_layout(config)?;
    let tensors = expert_tensors(layout.pieces(), prefix, config, config.layers());
    Ok(tensors.map(|(id, _, name)| (id, name)).collect())
}

/// Every routed expert's pieces with the names of their tensors.
fn expert_tensors<'a>(
    pieces: &'a [PieceSpec],
    prefix: &'a str,
    config: &KimiK3Config,
    layers: u32,
) -> impl Iterator<Item = (ExpertId, &'a PieceSpec, String)> {
    let experts = config.experts;
    let all = (config.first_moe_layer..layers).flat_map(move |layer| (0..experts).map(move |e| (layer, e)));
    all.flat_map(move |(layer, expert)| {
        pieces.iter().map(move |piece| {
            let id = ExpertId { layer: layer as u16, expert: expert as u16 };
            let name =
                format!("{prefix}model.layers.{layer}.block_sparse_moe.experts.{expert}.{}", piece.name);
            (id, piece, name)
        })
    })
}

fn shape_of(piece: &PieceSpec) -> [u64; 2] {
    [piece.bytes / piece.row_bytes, piece.row_bytes]
}
