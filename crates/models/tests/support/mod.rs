//! What must hold of every config that is accepted, for the seeded test and the fuzz target. Knows no file.

use models::kimi_k3::KimiK3Config;

/// No size of a tensor is larger; guards products of two of them.
const SIZE_MAX: u64 = 1 << 20;

/// Fails if sizes do not fit together, or are so large that sizes of tensors could overflow.
///
/// # Panics
/// With the name of what is wrong.
pub(crate) fn assert_consistent(config: &KimiK3Config) {
    let layers = config.layers();
    assert!((1..=4096).contains(&layers) && config.delta_layers.len() as u64 == u64::from(layers), "layers");
    assert!(config.first_moe_layer <= layers, "first_moe_layer");
    assert!((1..=4096).contains(&config.snapshot_every), "snapshot_every");
    assert!((1..=1 << 24).contains(&config.vocabulary) && config.context >= 1, "vocabulary, context");
    let widths = [config.width, config.expert_inner, config.expert_width, config.dense_inner];
    assert!(widths.iter().all(|&width| width % 32 == 0 && u64::from(width) <= SIZE_MAX), "{widths:?}");
    assert!(widths[..3].iter().all(|&width| width > 0), "{widths:?}");
    assert_eq!(config.dense_inner > 0, config.first_moe_layer > 0, "dense_inner");
    assert!(
        1 <= config.ranks && config.ranks <= config.experts && config.experts <= 65535,
        "ranks of experts"
    );
    assert!(u64::from(config.shared_experts) * u64::from(config.expert_inner) <= 64 * SIZE_MAX, "shared");
    assert!(config.eps > 0.0 && config.eps < 1.0 && config.routing.scale.is_finite(), "eps, scale");
    let delta = &config.delta;
    assert!(delta.heads >= 1 && delta.head_dim >= 1 && delta.taps >= 2, "{delta:?}");
    assert!(u64::from(delta.heads) * u64::from(delta.head_dim) <= SIZE_MAX, "{delta:?}");
    let latent = &config.latent;
    let head = [latent.nope + latent.rope, latent.nope + latent.value, latent.kv_rank];
    assert!(latent.heads >= 1 && latent.nope >= 1 && latent.value >= 1 && latent.q_rank >= 1, "{latent:?}");
    let fits = |size: &u32| u64::from(latent.heads) * u64::from(*size) <= SIZE_MAX;
    assert!(head.iter().all(fits) && latent.kv_rank >= 1, "{latent:?}");
}
