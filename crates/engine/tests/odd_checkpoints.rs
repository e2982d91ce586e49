//! Checkpoints that spell the tiny model differently, or lack or bend a tensor: the same numbers, or an error that
//! names the tensor.
mod common;

use common::readers;
use common::{Setup, alone, some_ids, tiny};
use models::{Family, LoadError, LoadOptions};
use serde_json::{Value, json};
use std::path::Path;
use store::Checkpoint;
use store::testing::{self, PlainTensor};

/// A change of a copy of the model.
type Change = fn(&Copy);
/// The name of a tensor, and a change of it.
type TensorChange = (&'static str, fn(&mut PlainTensor));

#[test]
fn other_families_are_named() {
    for (config, named) in [
        (json!({"model_type": "llama"}), "`llama` is not a family that runs here; these are: kimi_k3"),
        (json!({"model_type": "kimi_linear", "hidden_size": 2304}), "`kimi_linear`"),
        (
            json!({"model_type": "llama", "attn_res_block_size": 4, "routed_expert_hidden_size": 96}),
            "`llama` is not a family",
        ),
        (json!({"model_type": "kimi_k3", "tie_word_embeddings": "yes"}), "`mla_use_nope` is missing"),
        (json!({}), "`(absent)`"),
        (
            json!({"model_type": "kimi_k3", "text_config": "none"}),
            "`text_config` is \"none\"; expected an object",
        ),
        (json!({"model_type": "kimi_k3"}), "`mla_use_nope` is missing"),
    ] {
        let model = Copy::new();
        testing::edit_json(&model.file("config.json"), |c| *c = config.clone()).unwrap();
        let error = Family::recognise(&model.open()).err().unwrap().to_string();
        assert!(error.contains(named), "{config}: {error}");
    }
}

#[test]
fn a_head_that_is_said_to_be_tied_and_not_is_refused() {
    for (above, named) in [
        (json!(true), "`text_config.tie_word_embeddings` is false; expected true, as"),
        (json!("yes"), "`tie_word_embeddings` is \"yes\"; expected true or false"),
    ] {
        let model = Copy::new();
        testing::edit_json(&model.file("config.json"), |c| c["tie_word_embeddings"] = above.clone()).unwrap();
        let error = Family::recognise(&model.open()).err().unwrap().to_string();
        assert!(error.contains(named), "{error}");
    }
}

/// More experts than there are tensors: refused by the first that is missing, before room is made for any.
#[test]
fn a_config_that_claims_too_much_is_refused_early() {
    let model = Copy::new();
    model.set("num_hidden_layers", 4096.into());
    model.set("num_experts", 65535.into());
    testing::edit_json(&model.file("config.json"), |c| {
        let layers: Vec<u32> = (1..=4096).filter(|l| ![4, 8, 9].contains(l)).collect();
        c["text_config"]["linear_attn_config"]["kda_layers"] = layers.into();
    })
    .unwrap();
    let checkpoint = model.open();
    let family = Family::recognise(&checkpoint).unwrap();
    let error = family.catalog(&checkpoint, None).err().unwrap().to_string();
    assert!(error.contains("layers.1.block_sparse_moe.experts.32.w1.weight_packed"), "{error}");
}

/// A copy of the tiny model that may be changed.
struct Copy(tempfile::TempDir);

const SHARD_OF_LAYER_0: &str = "model-00001-of-000012.safetensors";

impl Copy {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        testing::copy_model(&common::data("k3-tiny"), directory.path()).unwrap();
        Copy(directory)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.path().join(name)
    }

    fn open(&self) -> Checkpoint {
        Checkpoint::open(&[self.path().to_owned()]).unwrap()
    }

    /// Changes a key of `text_config`.
    fn set(&self, key: &str, value: Value) {
        testing::edit_json(&self.file("config.json"), |c| c["text_config"][key] = value).unwrap();
    }

    /// Changes every tensor whose name ends so.
    fn tensors(&self, ending: &str, change: impl Fn(&mut PlainTensor)) {
        let mut changed = 0;
        for name in testing::shard_names(self.path()).unwrap() {
            testing::edit_shard(&self.file(&name), |tensors| {
                for tensor in tensors.iter_mut().filter(|t| t.name.ends_with(ending)) {
                    change(tensor);
                    changed += 1;
                }
            })
            .unwrap();
        }
        assert!(changed > 0, "no tensor ends in {ending}");
    }

    /// The logits of a few tokens.
    fn logits(&self) -> Vec<u32> {
        logits(&self.open())
    }
}

fn logits(checkpoint: &Checkpoint) -> Vec<u32> {
    let setup = Setup::new();
    let reader = readers::plain(checkpoint);
    let mut engine =
        common::engine_with(checkpoint, &setup.request, setup.device, engine::Streaming::new(reader, 2));
    alone(&mut engine, &some_ids(6, 3))
}

fn widen(tensor: &mut PlainTensor) {
    assert_eq!(tensor.dtype, "BF16");
    tensor.dtype = "F32".into();
    tensor.bytes = tensor.bytes.chunks(2).flat_map(|b| [0, 0, b[0], b[1]]).collect();
}

/// Cuts an f32 tensor's numbers to what bf16 holds, and stores them so or as they were.
fn narrow(tensor: &mut PlainTensor, stored: bool) {
    assert_eq!(tensor.dtype, "F32");
    let halves = tensor.bytes.chunks(4).map(|b| [b[2], b[3]]);
    if stored {
        tensor.dtype = "BF16".into();
        tensor.bytes = halves.flatten().collect();
    } else {
        tensor.bytes = halves.flat_map(|h| [0, 0, h[0], h[1]]).collect();
    }
}

/// Keeps the first `count` numbers of an `A_log`, or appends zeros, under another shape.
fn reshape(tensor: &mut PlainTensor, shape: &[u64]) {
    let count: u64 = shape.iter().product();
    tensor.bytes.resize(count as usize * 4, 0);
    tensor.shape = shape.to_vec();
}

#[test]
fn other_spellings_are_the_same_model() {
    let original = logits(&tiny());
    let spellings: [(&str, Change); 9] = [
        ("flat config", |m| {
            testing::edit_json(&m.file("config.json"), |c| *c = c["text_config"].take()).unwrap();
        }),
        ("no prefix", |m| testing::rename_prefix(m.path(), "language_model.", "").unwrap()),
        ("one file", |m| testing::merge_shards(m.path()).unwrap()),
        ("A_log of the heads alone", |m| m.tensors("A_log", |t| reshape(t, &[8]))),
        ("A_log in four dimensions", |m| m.tensors("A_log", |t| reshape(t, &[1, 1, 8, 1]))),
        ("A_log with other padding", |m| m.tensors("A_log", |t| reshape(t, &[20]))),
        ("norms in f32", |m| m.tensors("layernorm.weight", widen)),
        ("attention in f32", |m| m.tensors("self_attn.q_proj.weight", widen)),
        ("router and latent projections in f32", |m| {
            m.tensors("block_sparse_moe.gate.weight", widen);
            m.tensors("routed_expert_down_proj.weight", widen);
        }),
    ];
    for (what, change) in spellings {
        let model = Copy::new();
        change(&model);
        common::assert_same(&model.logits(), &original, what);
    }
}

#[test]
fn pairs_of_spellings_are_the_same_model() {
    let pairs: [(&str, [Change; 2]); 3] = [
        (
            "o_norm as bf16 or f32",
            [
                |m| m.tensors("o_norm.weight", |t| narrow(t, true)),
                |m| {
                    m.tensors("o_norm.weight", |t| narrow(t, false));
                },
            ],
        ),
        (
            "tied, or a head equal to the embedding",
            [
                |m| {
                    m.set("tie_word_embeddings", true.into());
                    testing::edit_json(&m.file("config.json"), |c| c["tie_word_embeddings"] = true.into())
                        .unwrap();
                    testing::remove_tensor(m.path(), "language_model.lm_head.weight").unwrap();
                },
                |m| {
                    let shard =
                        m.file(&testing::shard_of(m.path(), "language_model.lm_head.weight").unwrap());
                    let tensors = testing::read_shard(&shard).unwrap();
                    let table =
                        tensors.into_iter().find(|t| t.name.ends_with("embed_tokens.weight")).unwrap();
                    m.tensors("lm_head.weight", |t| t.bytes.clone_from(&table.bytes));
                },
            ],
        ),
        (
            "pruned to 16 experts, the others' tensors left or removed",
            [prune, |m| {
                prune(m);
                for layer in 1..9 {
                    for expert in 16..32 {
                        drop_expert(m, layer, expert);
                    }
                }
            }],
        ),
    ];
    let original = logits(&tiny());
    for (what, [one, other]) in pairs {
        let (a, b) = (Copy::new(), Copy::new());
        one(&a);
        other(&b);
        let numbers = a.logits();
        common::assert_same(&numbers, &b.logits(), what);
        assert!(numbers != original, "{what}: the change changes something");
    }
}

/// Keeps the first 16 experts in the config and in the routers.
fn prune(model: &Copy) {
    model.set("num_experts", 16.into());
    let half = |t: &mut PlainTensor| {
        t.shape[0] /= 2;
        t.bytes.truncate(t.bytes.len() / 2);
    };
    model.tensors("block_sparse_moe.gate.weight", half);
    model.tensors("e_score_correction_bias", half);
}

fn drop_expert(model: &Copy, layer: u32, expert: u32) {
    let prefix = format!("language_model.model.layers.{layer}.block_sparse_moe.experts.{expert}.");
    let shard = testing::shard_of(model.path(), &format!("{prefix}w1.weight_packed")).unwrap();
    testing::edit_shard(&model.file(&shard), |tensors| tensors.retain(|t| !t.name.starts_with(&prefix)))
        .unwrap();
    testing::edit_index(model.path(), |map| map.retain(|name, _| !name.starts_with(&prefix))).unwrap();
}

/// What loading says that only looks.
fn refusal(checkpoint: &Checkpoint) -> Option<String> {
    let look = || -> Result<(), LoadError> {
        let family = Family::recognise(checkpoint)?;
        family.load(checkpoint, None, &LoadOptions::default(), &mut |_| {})?;
        family.catalog(checkpoint, None)?;
        Ok(())
    };
    look().err().map(|error| error.to_string())
}

/// Every tensor of one KDA layer, one MLA layer, one expert and the ends of the model is missed by its name.
#[test]
fn every_missing_tensor_is_named() {
    let model = Copy::new();
    let wanted = |name: &str| {
        let expert = name.contains(".experts.") && !name.contains(".experts.31.");
        let layer = !name.contains(".layers.") || name.contains("layers.0.") || name.contains("layers.3.");
        name.starts_with("language_model.") && layer && !expert
    };
    let names: Vec<String> = tiny().names().filter(|name| wanted(name)).map(str::to_owned).collect();
    assert!(names.len() > 50, "{names:?}");
    for name in names {
        let shard = testing::shard_of(model.path(), &name).unwrap();
        let kept = [shard.as_str(), "model.safetensors.index.json"]
            .map(|f| (f, std::fs::read(model.file(f)).unwrap()));
        testing::remove_tensor(model.path(), &name).unwrap();
        let error = refusal(&model.open()).unwrap_or_else(|| panic!("{name} is not missed"));
        assert!(error.contains(&name), "{name}: {error}");
        for (file, bytes) in kept {
            std::fs::write(model.file(file), bytes).unwrap();
        }
    }
    assert_eq!(refusal(&model.open()), None);
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let changes: [TensorChange; 5] = [
        ("layers.0.self_attn.A_log", |t| reshape(t, &[7])),
        ("layers.0.self_attn.o_norm.weight", |t| t.dtype = "I32".into()),
        ("layers.3.self_attn.kv_b_proj.weight", |t| t.shape.reverse()),
        ("layers.4.block_sparse_moe.experts.5.w1.weight_scale", |t| t.shape.reverse()),
        ("layers.4.block_sparse_moe.experts.5.w2.weight_packed", |t| t.dtype = "I8".into()),
    ];
    for (name, change) in changes {
        let model = Copy::new();
        model.tensors(name, change);
        let error = refusal(&model.open()).unwrap_or_else(|| panic!("{name} fits"));
        assert!(error.contains(name), "{name}: {error}");
    }
}

/// A weight that is no number is named with its place, whatever it is for and however it is kept.
#[test]
fn a_weight_that_is_not_finite_is_named() {
    let infinite: [(&str, usize, &[u8]); 6] = [
        ("self_attn.k_proj.weight", (5 * 192 + 7) * 2, &[0x80, 0x7F]),
        ("self_attn.f_a_proj.weight", 2, &[0x80, 0xFF]),
        ("input_layernorm.weight", 4, &[0xC0, 0x7F]),
        ("self_attn.dt_bias", 8, &[0, 0, 0x80, 0x7F]),
        ("self_attn.A_log", 0, &[0, 0, 0x80, 0x7F]),
        ("self_attn.q_conv1d.weight", 12, &[1, 0, 0x80, 0xFF]),
    ];
    for (name, place, bytes) in infinite {
        let model = Copy::new();
        testing::edit_shard(&model.file(SHARD_OF_LAYER_0), |tensors| {
            let weight = tensors.iter_mut().find(|t| t.name.ends_with(name)).unwrap();
            weight.bytes[place..place + bytes.len()].copy_from_slice(bytes);
        })
        .unwrap();
        let checkpoint = model.open();
        let family = Family::recognise(&checkpoint).unwrap();
        for dense in models::Dense::ALL {
            let options = LoadOptions { dense, ..LoadOptions::default() };
            let mut device = ops::Oracle::new(1).unwrap();
            let loaded = family.load(&checkpoint, Some(&mut device), &options, &mut |_| {});
            let error = loaded.err().unwrap().to_string();
            assert!(error.contains(&format!("language_model.model.layers.0.{name}")), "{error}");
            let here = match bytes.len() {
                2 => format!("element {}", place / 2),
                _ => format!("element {}", place / 4),
            };
            assert!(error.contains(&here) || error.contains("row 5, column 7"), "{error}");
        }
    }
}
