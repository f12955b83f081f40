//! What a model will take in memory, before it is loaded.

use crate::{LoadError, LoadOptions};
use linnet_compute::{Checkpoint, KvLayout, KvQuantization};
use linnet_models::ModelError;
use std::path::Path;

/// Tokens of conversation that a model is expected to hold where no room was set aside: a long chat, or an agent's prefix.
const WORKING_TOKENS: usize = 8192;

/// Bytes of one number of keys and values that are not quantized.
const PLAIN_BYTES: u64 = 2;

/// Bytes of scale and bias of a group of quantized numbers.
const GROUP_BYTES: u64 = 4;

/// What a model will take in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// Bytes of its weights.
    pub weights: u64,
    /// Bytes of keys and values.
    pub kv: u64,
}

impl MemoryEstimate {
    /// Bytes in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.kv)
    }
}

/// Computes what the model in `folder` will take when it is loaded with `options`; only headers are read.
///
/// Keys and values are counted for the room that `options` set aside, else for one context of at most 8192 tokens: they
/// take memory only as tokens arrive, and few conversations fill a context of 128k.
///
/// # Errors
/// When the folder is no model that could be loaded.
pub fn estimate_memory(folder: &Path, options: &LoadOptions) -> Result<MemoryEstimate, LoadError> {
    let shape = linnet_models::shape(folder)?;
    let weights = Checkpoint::open(folder).map_err(ModelError::from)?.bytes() as u64;
    let kv_tokens = options.kv_tokens.unwrap_or_else(|| shape.context_length.min(WORKING_TOKENS));
    let kv = kv_bytes(&shape.kv_layout, kv_tokens, options.kv_quantization);
    let kv = match (options.kv_tokens, options.kv_bytes) {
        (None, Some(bytes)) => bytes as u64,
        _ => kv,
    };
    Ok(MemoryEstimate { weights, kv })
}

/// Bytes of the keys and values of one sequence of `tokens`; layers with a window keep only that.
fn kv_bytes(layout: &KvLayout, tokens: usize, quantization: Option<KvQuantization>) -> u64 {
    let layers = layout.layers.iter().map(|layer| {
        let held = layer.window.map_or(tokens, |window| tokens.min(window)) as u64;
        let numbers = (2 * layer.kv_heads * layer.head_dim) as u64;
        let per_token = match quantization.map(|wish| wish.for_heads(layer.head_dim)) {
            None => numbers * PLAIN_BYTES,
            Some(KvQuantization { bits, group_size, .. }) => {
                numbers * u64::from(bits) / 8 + numbers.div_ceil(group_size.max(1) as u64) * GROUP_BYTES
            }
        };
        held.saturating_mul(per_token)
    });
    layers.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use linnet_compute::LayerKv;

    #[test]
    fn windows_and_bits_are_counted_as_they_are_held() {
        let layer = |window| LayerKv { kv_heads: 2, head_dim: 64, window };
        let layout = KvLayout { layers: vec![layer(None), layer(Some(100))] };
        let quantization = |bits| Some(KvQuantization { bits, group_size: 64, start: 0 });
        // Keys and values of two heads of 64: 256 numbers per token and layer.
        for (tokens, quantization, expected) in [
            (50, None, 2 * 50 * 512),
            (1000, None, 1000 * 512 + 100 * 512),
            (1000, quantization(8), 1100 * (256 + 16)),
            (1000, quantization(4), 1100 * (128 + 16)),
            (0, None, 0),
        ] {
            assert_eq!(kv_bytes(&layout, tokens, quantization), expected, "{tokens} tokens, {quantization:?}");
        }
        assert!(kv_bytes(&layout, usize::MAX, None) > 1 << 60, "does not wrap around");
    }

    #[test]
    fn a_folder_without_a_model_is_an_error_and_no_estimate_of_nothing() {
        let error = estimate_memory(Path::new("no/such/folder"), &LoadOptions::default()).unwrap_err();
        assert!(error.to_string().contains("config.json"), "{error}");
    }
}
