//! The tensors of a model's folder seen as layers, and what the configuration says about their shapes.

use std::collections::{BTreeMap, BTreeSet};

use crate::affine::Affine;
use crate::config::{Config, LARGEST_SIZE, Quantization};
use crate::error::LibraryError;
use crate::weights::Dtype;
use crate::weights::folder::Weights;
use crate::weights::read::TensorInfo;

/// Of those below, the ones that have nothing but what llama has.
const LLAMA_ALONE: [&str; 2] = ["llama", "mistral"];
/// How many names an error lists.
const NAMES_SHOWN: usize = 4;
/// Architectures whose tensors are named and shaped as llama's are.
const LLAMA_FAMILY: [&str; 5] = ["llama", "mistral", "qwen2", "qwen3", "smollm3"];

/// The logical shape of a weight and how it is quantized.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layer {
    /// Unpacked.
    pub(crate) shape: Vec<u64>,
    pub(crate) affine: Option<Affine>,
}

/// Takes weight, scales and biases together, checking that they fit each other and the configuration.
pub(crate) fn layers(
    config: &Config,
    weights: &Weights,
    quantization: Option<&Quantization>,
) -> Result<BTreeMap<String, Layer>, LibraryError> {
    let mut layers = BTreeMap::new();
    for (file, tensor) in weights.iter() {
        if is_part_of_quantized(weights, &tensor.name) {
            continue;
        }
        let path = tensor.name.strip_suffix(".weight").unwrap_or(&tensor.name);
        let scales = weights.find(&format!("{path}.scales"));
        let layer = match (scales, quantization) {
            (None, _) => Layer { shape: tensor.shape.clone(), affine: None },
            (Some((_, scales)), Some(quantization)) => {
                let affine = quantization.of(path).ok_or_else(|| LibraryError::Config {
                    path: config.path.clone(),
                    reason: format!("quantization says that {path} is dense, but it has scales; fetch it again"),
                })?;
                let biases = weights.find(&format!("{path}.biases")).map(|found| found.1);
                let shape = unpacked(tensor, scales, biases, affine).ok_or_else(|| LibraryError::Shape {
                    path: file.path.clone(),
                    tensor: tensor.name.clone(),
                    found: tensor.shape.clone(),
                    expected: expected_packed(scales, affine),
                })?;
                Layer { shape, affine: Some(affine) }
            }
            (Some(_), None) => {
                return Err(LibraryError::Config {
                    path: config.path.clone(),
                    reason: format!(
                        "the weights are quantized ({path}.scales), but it has no quantization; fetch it again"
                    ),
                });
            }
        };
        layers.insert(tensor.name.clone(), layer);
    }
    Ok(layers)
}

/// Whether a tensor is the scales or the biases of a quantized weight.
pub(crate) fn is_part_of_quantized(weights: &Weights, name: &str) -> bool {
    [".scales", ".biases"].iter().any(|suffix| {
        name.strip_suffix(suffix).is_some_and(|path| {
            weights.find(&format!("{path}.weight")).is_some() && weights.find(&format!("{path}.scales")).is_some()
        })
    })
}

fn expected_packed(scales: &TensorInfo, affine: Affine) -> Vec<u64> {
    let mut shape = scales.shape.clone();
    if let Some(groups) = shape.last_mut() {
        *groups = groups.saturating_mul(u64::from(affine.group_size * affine.bits)) / 32;
    }
    shape
}

/// The logical shape, if the three parts belong together.
fn unpacked(weight: &TensorInfo, scales: &TensorInfo, biases: Option<&TensorInfo>, affine: Affine) -> Option<Vec<u64>> {
    let fits = weight.dtype == Dtype::U32
        && scales.dtype.is_dense_weight()
        && weight.shape == expected_packed(scales, affine)
        && biases.is_some_and(|biases| biases.shape == scales.shape && biases.dtype == scales.dtype);
    let mut shape = scales.shape.clone();
    let columns = shape.last_mut()?;
    *columns = columns.saturating_mul(u64::from(affine.group_size));
    fits.then_some(shape)
}

/// Number of weights.
pub(crate) fn parameters(layers: &BTreeMap<String, Layer>) -> u64 {
    layers.values().map(|layer| layer.shape.iter().product::<u64>()).sum()
}

/// Checks names and shapes against the configuration, for the architectures that are built like llama.
pub(crate) fn check_shapes(
    config: &Config,
    weights: &Weights,
    layers: &BTreeMap<String, Layer>,
) -> Result<(), LibraryError> {
    let model_type = config.model_type()?;
    if !LLAMA_FAMILY.contains(&model_type) {
        return Ok(());
    }
    let hidden = config.needed("hidden_size")?;
    let heads = config.needed("num_attention_heads")?;
    let key_value_heads = config.integer("num_key_value_heads").unwrap_or(heads);
    let head = config.integer("head_dim").unwrap_or(hidden / heads);
    let intermediate = config.needed("intermediate_size")?;
    let vocabulary = config.needed("vocab_size")?;
    if key_value_heads == 0 || heads % key_value_heads != 0 || head == 0 || head > LARGEST_SIZE {
        return Err(LibraryError::Config {
            path: config.path.clone(),
            reason: format!(
                "{heads} heads cannot share {key_value_heads} key-value heads of {head} elements; fetch it again"
            ),
        });
    }
    let folder = config.path.parent().unwrap_or(&config.path);
    let check = |name: &str, expected: &[u64]| match layers.get(name) {
        None => Err(LibraryError::MissingTensor {
            path: folder.to_owned(),
            tensor: name.to_owned(),
            architecture: model_type.to_owned(),
        }),
        Some(layer) if layer.shape != expected => Err(LibraryError::Shape {
            path: weights.find(name).map_or_else(|| config.path.clone(), |found| found.0.path.clone()),
            tensor: name.to_owned(),
            found: layer.shape.clone(),
            expected: expected.to_vec(),
        }),
        Some(_) => Ok(()),
    };
    let is_plain = LLAMA_ALONE.contains(&model_type);
    let mut known = BTreeSet::new();
    let mut check = |name: String, expected: &[u64]| {
        check(&name, expected)?;
        known.insert(name);
        Ok::<(), LibraryError>(())
    };
    let says = |field: &str| config.field(field).and_then(serde_json::Value::as_bool).unwrap_or(false);
    let (attention_bias, mlp_bias) = (says("attention_bias"), says("mlp_bias"));
    check("model.embed_tokens.weight".into(), &[vocabulary, hidden])?;
    check("model.norm.weight".into(), &[hidden])?;
    for layer in 0..config.needed("num_hidden_layers")? {
        let prefix = format!("model.layers.{layer}");
        for (name, rows, columns) in [
            ("self_attn.q_proj", heads * head, hidden),
            ("self_attn.k_proj", key_value_heads * head, hidden),
            ("self_attn.v_proj", key_value_heads * head, hidden),
            ("self_attn.o_proj", hidden, heads * head),
            ("mlp.gate_proj", intermediate, hidden),
            ("mlp.up_proj", intermediate, hidden),
            ("mlp.down_proj", hidden, intermediate),
        ] {
            check(format!("{prefix}.{name}.weight"), &[rows, columns])?;
            let bias = format!("{prefix}.{name}.bias");
            let is_due = if name.starts_with("mlp") { mlp_bias } else { attention_bias };
            // Relatives of llama have biases whatever these two fields say.
            if if is_plain { is_due } else { layers.contains_key(&bias) } {
                check(bias, &[rows])?;
            }
        }
        check(format!("{prefix}.input_layernorm.weight"), &[hidden])?;
        check(format!("{prefix}.post_attention_layernorm.weight"), &[hidden])?;
    }
    let tied = config.field("tie_word_embeddings").and_then(serde_json::Value::as_bool);
    if tied == Some(false) || layers.contains_key("lm_head.weight") {
        check("lm_head.weight".into(), &[vocabulary, hidden])?;
    }
    let unknown: Vec<&String> = layers.keys().filter(|name| !known.contains(*name) && !is_computed(name)).collect();
    if is_plain && !unknown.is_empty() {
        return Err(LibraryError::UnexpectedTensors {
            path: folder.to_owned(),
            architecture: model_type.to_owned(),
            names: unknown.iter().take(NAMES_SHOWN).map(|name| (*name).clone()).collect(),
            count: unknown.len(),
        });
    }
    Ok(())
}

/// Old checkpoints carry rope's inverse frequencies, which follow from the configuration.
pub(crate) fn is_computed(name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq")
}
