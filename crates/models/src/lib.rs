//! Model families and the blocks they share. A family is one file that reads like its paper; a block (attention of a
//! kind, the MLP, experts) is written once. The crate knows no tokenizer, no request and no server.
//!
//! ```
//! use models::{Family, LoadOptions};
//! use store::Checkpoint;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/k3-tiny");
//! let checkpoint = Checkpoint::open(&[DIRECTORY.into()])?;
//! let family = Family::recognise(&checkpoint)?;
//! assert_eq!((family.name(), family.config.layers()), ("kimi_k3", 9));
//! // Without a device, loading only looks: it checks every name and shape and counts the bytes.
//! let (model, tally) = family.load(&checkpoint, None, &LoadOptions::default(), &mut |_| {})?;
//! assert_eq!((model.width(), model.vocabulary()), (192, 4096));
//! assert!(tally.bytes() > 5_000_000);
//! # Ok(())
//! # }
//! ```
//!
//! `engine` runs what is loaded here.
pub mod batch;
mod clock;
pub mod config;
pub mod delta_attention;
pub mod kimi_k3;
pub mod latent_attention;
pub mod loader;
mod look_ahead;
pub mod mlp;
pub mod moe;
pub mod residual_mix;
pub mod state;
pub mod step;

pub use batch::{Input, Logits, Output, Part, PartError, Tap};
pub use clock::{Clock, Section, StepTimes, Wait, WaitFor, Work};
pub use config::ConfigError;
pub use delta_attention::DeltaConfig;
pub use latent_attention::LatentConfig;
pub use loader::{Dense, DenseMatrix, Embedding, Loader, Residency, Tally};
pub use look_ahead::{GuessSource, LookAhead, LookAheadStatistics};
pub use moe::Experts;
pub use state::{Capacity, Health, State, StateError, StateLayout, StatePool};

use kimi_k3::{KimiK3, KimiK3Config};
use ops::{Activations, DeviceError, Ops, Tensor};
use step::Step;
use store::catalog::{Catalog, CatalogError};
use store::{Checkpoint, ExpertId, StoreError};

/// A model whose weights are on a device.
pub trait Model: Send {
    /// Runs hidden rows \[T, width\] through all layers; the rows that the head meets, or None if no part of the step
    /// counts any more.
    ///
    /// # Errors
    /// A failure of the device.
    fn layers(&self, step: &mut Step<'_, '_>, x: Tensor) -> Result<Option<Tensor>, StepError>;

    /// Logits \[T, vocabulary\] of such rows.
    fn head(&self, ops: &mut Ops, last: Tensor) -> Tensor;

    /// Appends the embedding row of a token.
    ///
    /// # Errors
    /// Unknown token, or its row cannot be read.
    fn embed(&self, id: u32, rows: &mut Vec<f32>) -> Result<(), PartError>;

    /// Numbers in a hidden row.
    fn width(&self) -> u32;

    /// Ids are below this.
    fn vocabulary(&self) -> u32;

    /// What a sequence keeps.
    fn state_layout(&self) -> &StateLayout;

    /// Which fields of the state belong to which layer.
    fn state_fields(&self) -> Vec<StateField>;
}

/// The fields of one layer in a [`StateLayout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateField {
    /// KDA.
    Delta {
        /// \[heads * key, value\]
        state: usize,
        /// Inputs of q, k and v, oldest first: \[channels, taps - 1\].
        windows: [usize; 3],
    },
    /// MLA: index among the latent caches.
    Latent(usize),
}

/// How a model is loaded. All fields but [`residency`](LoadOptions::residency) change its results, and are printed with them.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadOptions {
    /// What activations become before they meet packed weights.
    pub activations: Activations,
    /// How matrices that tolerate it are stored.
    pub dense: Dense,
    /// The first layers only.
    pub layers: Option<u32>,
    /// Lossy: drop picks past this share of the weight; 1 keeps all.
    pub expert_top_p: f32,
    /// Where matrices lie.
    pub residency: Residency,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            activations: Activations::Int15,
            dense: Dense::Bf16,
            layers: None,
            expert_top_p: 1.0,
            residency: Residency::Ram,
        }
    }
}

/// Why a model cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Its config.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Its files.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its experts' places.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A weight that is no number.
    #[error(
        "{tensor}: element {element} is {value}; weights are finite, so the file is damaged: fetch it again"
    )]
    NotFinite {
        /// The tensor's full name.
        tensor: String,
        /// Its place in the tensor, rows one after the other.
        element: u64,
        /// What it is.
        value: f32,
    },
    /// Dense weights that are packed in another way than was asked for.
    #[error(
        "this container holds its dense weights packed to {found}, and --dense {asked} was asked for: leave --dense away, or \
         make another container from the model it was made from, with `colibri convert SRC DST --dense {asked}`"
    )]
    PackedOtherwise {
        /// The packing that is there.
        found: String,
        /// The one that was asked for.
        asked: &'static str,
    },
    /// Weights that are to stay in their files and do not lie there as they are computed with.
    #[error(
        "--dense-residency mapped takes weights where they lie, and here they do not lie as --dense {asked} needs them: give it a \
         container, which `colibri convert {makes} SRC DST` makes, or take --dense-residency ram"
    )]
    NotAsNeeded {
        /// How they were to be stored.
        asked: &'static str,
        /// The flags that make them so.
        makes: &'static str,
    },
    /// A weight that cannot be packed.
    #[error("{tensor}: {reason}")]
    Weight {
        /// The tensor's full name.
        tensor: String,
        /// Which weight, and why.
        reason: ops::packing::PackError,
    },
}

/// Why a whole step failed.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// More rows than there is room for; nothing was computed, no state has changed.
    #[error(
        "a step of {rows} rows was asked for, {most} were planned; feed fewer tokens at a time or raise --chunk"
    )]
    TooManyRows {
        /// Rows of all parts.
        rows: u64,
        /// Rows of the plan.
        most: u32,
    },
}

/// Bytes at the start of each dense tensor that go into the identity.
const SAMPLE_BYTES: u64 = 4096;

/// A checkpoint of a family that runs here, looked at but not loaded.
pub struct Family {
    /// Its config.
    pub config: KimiK3Config,
    prefix: &'static str,
}

impl Family {
    /// Recognises the family and reads its config.
    ///
    /// # Errors
    /// The config's.
    pub fn recognise(checkpoint: &Checkpoint) -> Result<Self, LoadError> {
        let config = checkpoint.config();
        if !kimi_k3::is_kimi_k3(config) {
            let (text, _) = kimi_k3::text_part(config);
            let found = text.get("model_type").or_else(|| config.get("model_type"));
            let found = found.and_then(|v| v.as_str()).unwrap_or("(absent)").to_owned();
            return Err(ConfigError::UnknownFamily { found, known: kimi_k3::names::FAMILY.into() }.into());
        }
        Ok(Family { config: KimiK3Config::read(config)?, prefix: kimi_k3::prefix(checkpoint)? })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        kimi_k3::names::FAMILY
    }

    /// The routed expert that a tensor of this name belongs to.
    #[must_use]
    pub fn expert_of(&self, name: &str) -> Option<ExpertId> {
        kimi_k3::names::role(&self.config, name).expert
    }

    /// The layer that a tensor of this name belongs to; None for what lies outside of all layers.
    #[must_use]
    pub fn layer_of(&self, name: &str) -> Option<u32> {
        kimi_k3::names::layer(name)
    }

    /// The tensors of all routed experts, layer by layer and expert by expert; those of one in the order in which a
    /// slot holds them.
    ///
    /// # Errors
    /// Sizes that no expert can have.
    pub fn expert_tensors(&self) -> Result<Vec<(ExpertId, String)>, LoadError> {
        kimi_k3::all_expert_tensors(self.prefix, &self.config)
    }

    /// How dense weights of this checkpoint can be stored, from the most exact on: a container in which they are packed
    /// leaves no choice.
    ///
    /// # Errors
    /// [`LoadError::PackedOtherwise`] if the one that was `asked` for is not among them, [`LoadError::NotAsNeeded`] if
    /// weights that are to be mapped would have to be packed first.
    pub fn dense_choices(
        &self,
        checkpoint: &Checkpoint,
        asked: Option<Dense>,
        residency: Residency,
    ) -> Result<Vec<Dense>, LoadError> {
        let held = checkpoint.container().map(|container| Dense::named(&container.dense));
        if residency == Residency::Mapped {
            let as_needed = held.flatten().filter(|held| asked.is_none_or(|asked| asked == *held));
            let makes = match asked {
                Some(Dense::Bf16) => "--dense bf16",
                Some(Dense::Int8) => "--thin --dense int8",
                Some(Dense::Int4) | None => "--thin --dense int4",
            };
            let not = LoadError::NotAsNeeded { asked: asked.map_or("auto", Dense::name), makes };
            return as_needed.map(|held| vec![held]).ok_or(not);
        }
        let Some(container) = checkpoint.container() else { return Ok(Dense::ALL.to_vec()) };
        let choices = match Dense::named(&container.dense) {
            Some(Dense::Bf16) => Dense::ALL.to_vec(),
            held => held.into_iter().collect(),
        };
        if choices.is_empty() || asked.is_some_and(|asked| !choices.contains(&asked)) {
            let (found, asked) = (container.dense.clone(), asked.map_or("auto", Dense::name));
            return Err(LoadError::PackedOtherwise { found, asked });
        }
        Ok(choices)
    }

    /// Names the model by its config and the first bytes of its dense tensors: that tells it from another one of the same sizes
    /// (a fine-tuned one), but not every damage. A container has the identity of what it was made from.
    ///
    /// # Errors
    /// What cannot be read.
    pub fn identity(&self, checkpoint: &Checkpoint) -> Result<String, LoadError> {
        if let Some(container) = checkpoint.container() {
            return Ok(container.source.clone());
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(checkpoint.config_bytes());
        for (name, entry) in checkpoint.under("") {
            // One expert stands for all of its layer: a checkpoint has hundreds of thousands of their tensors.
            if self.expert_of(name).is_none_or(|id| id.expert == 0) {
                let mut sample = vec![0; entry.bytes.min(SAMPLE_BYTES) as usize];
                checkpoint.read_range(entry, 0, &mut sample)?;
                hasher.update(name.as_bytes()).update(&sample);
            }
        }
        Ok(hasher.finalize().to_hex().to_string())
    }

    /// Loads the model onto a device, or only looks and counts without one.
    ///
    /// # Errors
    /// What is missing or wrong.
    pub fn load(
        &self,
        checkpoint: &Checkpoint,
        device: Option<&mut dyn ops::Device>,
        options: &LoadOptions,
        done: &mut dyn FnMut(u64),
    ) -> Result<(Box<dyn Model>, Tally), LoadError> {
        self.dense_choices(checkpoint, Some(options.dense), options.residency)?;
        let load = |loader: &mut Loader<'_>| KimiK3::load(loader, &self.config, options);
        let how = (options.dense, options.residency);
        let (model, tally) = Loader::run(checkpoint, device, how, self.prefix, done, load)?;
        Ok((Box::new(model), tally))
    }

    /// Where its routed experts lie.
    ///
    /// # Errors
    /// The first tensor that is missing or wrong.
    pub fn catalog(
        &self,
        checkpoint: &Checkpoint,
        layers: Option<u32>,
    ) -> Result<Option<Catalog>, LoadError> {
        let all = self.config.layers();
        kimi_k3::expert_catalog(checkpoint, self.prefix, &self.config, layers.map_or(all, |n| n.min(all)))
    }
}
