//! `llama` files: Llama, Mistral, SmolLM2, MiniCPM5, TinyLlama and others of the same build.
//!
//! Two things differ from the checkpoint that such a file was made from. The rows of q and k are interleaved, because
//! ggml rotates neighbouring elements where MLX rotates the two halves of a head. And Llama 3's rope scaling is stored
//! as its result, one factor per frequency (`rope_freqs.weight`), from which the configuration must be found again.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt as _;

use serde_json::{Map, Value, json};

use super::{Architecture, Layout, Target};
use crate::config::LARGEST_SIZE;
use crate::error::{IoContext as _, LibraryError};
use crate::gguf::tensor_type::TensorType;
use crate::gguf::value::json_float;
use crate::gguf::{GgufFile, GgufTensor};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "llama", model_type: "llama", layout };

const ROPE_FREQUENCIES: &str = "rope_freqs.weight";
const DEFAULT_ROPE_BASE: f32 = 10_000.0;

/// The sizes of a model, in Hugging Face's terms.
struct Sizes {
    layers: u64,
    hidden: u64,
    intermediate: u64,
    heads: u64,
    key_value_heads: u64,
    head: u64,
    vocabulary: u64,
}

fn layout(file: &GgufFile) -> Result<Layout, LibraryError> {
    let sizes = sizes(file)?;
    let mut notes = Vec::new();
    let (targets, biases) = targets(file, &sizes, &mut notes)?;
    let config = config(file, &sizes, &biases)?;
    Ok(Layout { config, targets, notes })
}

fn key(name: &str) -> String {
    format!("llama.{name}")
}

fn needed(file: &GgufFile, name: &str) -> Result<u64, LibraryError> {
    let name = key(name);
    file.integer(&name)
        .filter(|number| (1..=LARGEST_SIZE).contains(number))
        .ok_or_else(|| LibraryError::malformed(&file.path, format!("its metadata lacks a usable {name}")))
}

fn unsupported(file: &GgufFile, feature: String, remedy: &str) -> LibraryError {
    LibraryError::UnsupportedFeature { path: file.path.clone(), feature, remedy: remedy.to_owned() }
}

fn sizes(file: &GgufFile) -> Result<Sizes, LibraryError> {
    if let Some(experts) = file.integer(&key("expert_count")).filter(|experts| *experts > 0) {
        let feature = format!("a mixture of {experts} experts (Mixtral)");
        return Err(unsupported(file, feature, "import a dense model of the llama family"));
    }
    if let Some(heads) = file.array(&key("attention.head_count_kv")).or(file.array(&key("attention.head_count"))) {
        let feature = format!("head counts that differ by layer ({} entries)", heads.len());
        return Err(unsupported(file, feature, "import a model with the same head counts in all layers"));
    }
    let hidden = needed(file, "embedding_length")?;
    let heads = needed(file, "attention.head_count")?;
    let key_value_heads = file.integer(&key("attention.head_count_kv")).unwrap_or(heads);
    let head = file.integer(&key("attention.key_length")).unwrap_or(hidden / heads);
    if key_value_heads == 0
        || heads % key_value_heads != 0
        || head == 0
        || !head.is_multiple_of(2)
        || head > LARGEST_SIZE
    {
        return Err(LibraryError::malformed(
            &file.path,
            format!("{heads} heads, {key_value_heads} key-value heads of {head} elements cannot be"),
        ));
    }
    let values = file.integer(&key("attention.value_length")).unwrap_or(head);
    if values != head {
        let feature = format!("values of {values} elements beside keys of {head}");
        return Err(unsupported(file, feature, "import a model with equal lengths"));
    }
    let rotated = file.integer(&key("rope.dimension_count")).unwrap_or(head);
    if rotated != head {
        let feature = format!("rope over {rotated} of {head} elements of a head");
        return Err(unsupported(file, feature, "import a model whose heads are rotated in full"));
    }
    let embedding = tensor(file, "token_embd.weight")?;
    Ok(Sizes {
        layers: needed(file, "block_count")?,
        hidden,
        intermediate: needed(file, "feed_forward_length")?,
        heads,
        key_value_heads,
        head,
        vocabulary: embedding.rows(),
    })
}

fn tensor<'a>(file: &'a GgufFile, name: &str) -> Result<&'a GgufTensor, LibraryError> {
    file.tensors.get(name).ok_or_else(|| LibraryError::MissingTensor {
        path: file.path.clone(),
        tensor: name.to_owned(),
        architecture: "llama".into(),
    })
}

/// Which linear layers have biases.
struct Biases {
    attention: bool,
    feed_forward: bool,
}

/// One linear layer of a block: its GGUF name, its MLX name, its shape, and the heads its rows are interleaved by.
type Linear = (&'static str, &'static str, [u64; 2], Option<u64>);

fn targets(file: &GgufFile, sizes: &Sizes, notes: &mut Vec<String>) -> Result<(Vec<Target>, Biases), LibraryError> {
    let (queries, keys) = (sizes.heads * sizes.head, sizes.key_value_heads * sizes.head);
    let (hidden, intermediate) = (sizes.hidden, sizes.intermediate);
    let attention: [Linear; 4] = [
        ("attn_q", "self_attn.q_proj", [queries, hidden], Some(sizes.heads)),
        ("attn_k", "self_attn.k_proj", [keys, hidden], Some(sizes.key_value_heads)),
        ("attn_v", "self_attn.v_proj", [keys, hidden], None),
        ("attn_output", "self_attn.o_proj", [hidden, queries], None),
    ];
    let feed_forward: [Linear; 3] = [
        ("ffn_gate", "mlp.gate_proj", [intermediate, hidden], None),
        ("ffn_up", "mlp.up_proj", [intermediate, hidden], None),
        ("ffn_down", "mlp.down_proj", [hidden, intermediate], None),
    ];
    let has_bias = |group: &[Linear]| {
        group
            .iter()
            .any(|linear| (0..sizes.layers).any(|n| file.tensors.contains_key(&format!("blk.{n}.{}.bias", linear.0))))
    };
    let biases = Biases { attention: has_bias(&attention), feed_forward: has_bias(&feed_forward) };

    let mut plan = Plan { file, used: BTreeSet::new(), targets: Vec::new(), zeros: 0 };
    plan.weight("token_embd.weight", "model.embed_tokens.weight".into(), &[sizes.vocabulary, hidden], None)?;
    for layer in 0..sizes.layers {
        let (from, to) = (format!("blk.{layer}"), format!("model.layers.{layer}"));
        plan.vector(&format!("{from}.attn_norm.weight"), format!("{to}.input_layernorm.weight"), hidden, None)?;
        plan.vector(&format!("{from}.ffn_norm.weight"), format!("{to}.post_attention_layernorm.weight"), hidden, None)?;
        for (group, with_bias) in [(&attention[..], biases.attention), (&feed_forward[..], biases.feed_forward)] {
            for (source, name, shape, heads) in group {
                plan.weight(&format!("{from}.{source}.weight"), format!("{to}.{name}.weight"), shape, *heads)?;
                if with_bias {
                    plan.bias(&format!("{from}.{source}.bias"), format!("{to}.{name}.bias"), shape[0], *heads)?;
                }
            }
        }
    }
    plan.vector("output_norm.weight", "model.norm.weight".into(), hidden, None)?;
    if file.tensors.contains_key("output.weight") {
        plan.weight("output.weight", "lm_head.weight".into(), &[sizes.vocabulary, hidden], None)?;
    }
    plan.used.insert(ROPE_FREQUENCIES.into());
    // Old converters stored the inverse frequencies of each layer; the engine computes them.
    let is_old_rope = |name: &str| name.starts_with("blk.") && name.ends_with(".attn_rot_embd.weight");
    if let Some(name) = file.tensors.keys().find(|name| !plan.used.contains(*name) && !is_old_rope(name)) {
        return Err(unsupported(
            file,
            format!("tensor \"{name}\", which is no part of a plain llama model"),
            "import another file of this model",
        ));
    }
    if plan.zeros > 0 {
        notes.push(format!("{} biases that the file leaves out were written as zeros", plan.zeros));
    }
    Ok((plan.targets, biases))
}

/// Collects targets and checks that each has its source, in the right shape.
struct Plan<'a> {
    file: &'a GgufFile,
    used: BTreeSet<String>,
    targets: Vec<Target>,
    zeros: usize,
}

impl Plan<'_> {
    fn add(&mut self, source: &str, name: String, shape: &[u64], heads: Option<u64>) -> Result<(), LibraryError> {
        let found = tensor(self.file, source)?;
        if found.shape != shape {
            return Err(LibraryError::Shape {
                path: self.file.path.clone(),
                tensor: source.to_owned(),
                found: found.shape.clone(),
                expected: shape.to_vec(),
            });
        }
        self.used.insert(source.to_owned());
        self.targets.push(Target {
            source: Some(source.to_owned()),
            name,
            shape: shape.to_vec(),
            quantizable: shape.len() == 2,
            rope_heads: heads,
        });
        Ok(())
    }

    fn weight(&mut self, source: &str, name: String, shape: &[u64; 2], heads: Option<u64>) -> Result<(), LibraryError> {
        self.add(source, name, shape, heads)
    }

    fn vector(&mut self, source: &str, name: String, length: u64, heads: Option<u64>) -> Result<(), LibraryError> {
        self.add(source, name, &[length], heads)
    }

    /// A bias; where only some layers of a group have one, the others get zeros: the configuration has one switch.
    fn bias(&mut self, source: &str, name: String, length: u64, heads: Option<u64>) -> Result<(), LibraryError> {
        if self.file.tensors.contains_key(source) {
            return self.vector(source, name, length, heads);
        }
        self.zeros += 1;
        self.targets.push(Target { source: None, name, shape: vec![length], quantizable: false, rope_heads: None });
        Ok(())
    }
}

fn config(file: &GgufFile, sizes: &Sizes, biases: &Biases) -> Result<Map<String, Value>, LibraryError> {
    let epsilon = file.float(&key("attention.layer_norm_rms_epsilon")).ok_or_else(|| {
        LibraryError::malformed(&file.path, "its metadata lacks llama.attention.layer_norm_rms_epsilon")
    })?;
    let config = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "intermediate_size": sizes.intermediate,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.key_value_heads,
        "head_dim": sizes.head,
        "hidden_act": "silu",
        "rms_norm_eps": json_float(epsilon),
        "vocab_size": sizes.vocabulary,
        "max_position_embeddings": needed(file, "context_length")?,
        "rope_theta": json_float(file.float(&key("rope.freq_base")).unwrap_or(DEFAULT_ROPE_BASE)),
        "rope_scaling": rope_scaling(file, sizes)?,
        "attention_bias": biases.attention,
        "mlp_bias": biases.feed_forward,
        "tie_word_embeddings": !file.tensors.contains_key("output.weight"),
    });
    match config {
        Value::Object(fields) => Ok(fields),
        _ => Ok(Map::new()),
    }
}

/// `rope_scaling` of config.json: null, linear, yarn or llama3.
fn rope_scaling(file: &GgufFile, sizes: &Sizes) -> Result<Value, LibraryError> {
    if file.tensors.contains_key(ROPE_FREQUENCIES) {
        let factors = rope_factors(file, sizes)?;
        let base = file.float(&key("rope.freq_base")).unwrap_or(DEFAULT_ROPE_BASE);
        return llama3_scaling(&factors, f64::from(base), sizes.head).ok_or_else(|| {
            unsupported(
                file,
                format!("rope factors ({ROPE_FREQUENCIES}) that do not follow Llama 3's formula"),
                "import the model's safetensors instead",
            )
        });
    }
    let factor = file.float(&key("rope.scaling.factor")).or(file.float(&key("rope.scale_linear")));
    let original = file.integer(&key("rope.scaling.original_context_length"));
    match (file.text(&key("rope.scaling.type")), factor) {
        (Some("none") | None, None) | (Some("none"), Some(_)) => Ok(Value::Null),
        (None | Some("linear"), Some(1.0)) => Ok(Value::Null),
        (None | Some("linear"), Some(factor)) => {
            Ok(json!({ "rope_type": "linear", "type": "linear", "factor": json_float(factor) }))
        }
        (Some("yarn"), Some(factor)) => Ok(json!({
            "rope_type": "yarn",
            "type": "yarn",
            "factor": json_float(factor),
            "original_max_position_embeddings": original.unwrap_or(needed(file, "context_length")?),
        })),
        (Some(other), _) => Err(unsupported(
            file,
            format!("the rope scaling \"{other}\" (factor {factor:?})"),
            "import the model's safetensors instead",
        )),
    }
}

fn rope_factors(file: &GgufFile, sizes: &Sizes) -> Result<Vec<f64>, LibraryError> {
    let tensor = tensor(file, ROPE_FREQUENCIES)?;
    if tensor.shape != [sizes.head / 2] || tensor.kind != TensorType::F32 {
        return Err(LibraryError::Shape {
            path: file.path.clone(),
            tensor: ROPE_FREQUENCIES.into(),
            found: tensor.shape.clone(),
            expected: vec![sizes.head / 2],
        });
    }
    let mut bytes = vec![0; tensor.bytes as usize];
    file.file.read_exact_at(&mut bytes, tensor.offset).at("read", &file.path)?;
    Ok(bytes.chunks_exact(4).map(|word| f64::from(f32::from_le_bytes([word[0], word[1], word[2], word[3]]))).collect())
}

/// Finds the parameters of Llama 3's rope scaling that give these factors (Hugging Face `_compute_llama3_parameters`).
///
/// Wavelengths above `original / low` are slowed by `factor`, those below `original / high` are kept, and between them
/// `1 / f` is linear in `original / wavelength`. Only ratios of the three numbers matter, so `low` is taken as 1, which
/// is what every published model has.
fn llama3_scaling(factors: &[f64], base: f64, head: u64) -> Option<Value> {
    let factor = factors.iter().copied().fold(f64::NAN, f64::max);
    if !(factor.is_finite() && factor > 1.0) {
        return factors.iter().all(|factor| *factor == 1.0).then_some(Value::Null);
    }
    let inverse_wavelength = |index: usize| base.powf(-2.0 * index as f64 / head as f64) / std::f64::consts::TAU;
    let fits = |high: f64, original: f64| {
        factors.iter().enumerate().all(|(index, found)| {
            let smooth = ((original * inverse_wavelength(index) - 1.0) / (high - 1.0)).clamp(0.0, 1.0);
            let expected = 1.0 / ((1.0 - smooth) / factor + smooth);
            (found / expected - 1.0).abs() < 1e-4
        })
    };
    let mut candidates = vec![(4.0, 8192.0)];
    candidates.extend(fitted(factors, factor, inverse_wavelength));
    let &(high, original) = candidates.iter().find(|(high, original)| *high > 1.0 && fits(*high, *original))?;
    Some(json!({
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": high,
        "original_max_position_embeddings": original.round() as u64,
    }))
}

/// The line through the first and the last factor of the middle band, as (high, original).
fn fitted(factors: &[f64], factor: f64, inverse_wavelength: impl Fn(usize) -> f64) -> Option<(f64, f64)> {
    let middle: Vec<usize> =
        (0..factors.len()).filter(|&n| factors[n] > 1.0 + 1e-6 && factors[n] < factor - 1e-6).collect();
    let (&first, &last) = (middle.first()?, middle.last()?);
    let smooth = |n: usize| (1.0 / factors[n] - 1.0 / factor) / (1.0 - 1.0 / factor);
    let slope = (smooth(first) - smooth(last)) / (inverse_wavelength(first) - inverse_wavelength(last));
    let offset = slope * inverse_wavelength(first) - smooth(first);
    (slope.is_finite() && offset > 0.0).then(|| (1.0 + 1.0 / offset, (slope / offset).round()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn factors(factor: f64, high: f64, original: f64, base: f64, head: u64) -> Vec<f64> {
        (0..head as usize / 2)
            .map(|n| {
                let wavelength = std::f64::consts::TAU * base.powf(2.0 * n as f64 / head as f64);
                if wavelength < original / high {
                    1.0
                } else if wavelength > original {
                    factor
                } else {
                    let smooth = (original / wavelength - 1.0) / (high - 1.0);
                    f64::from((1.0 / ((1.0 - smooth) / factor + smooth)) as f32)
                }
            })
            .collect()
    }

    #[test]
    fn the_rope_scaling_of_llama_3_is_found_again() {
        let found = llama3_scaling(&factors(32.0, 4.0, 8192.0, 500_000.0, 64), 500_000.0, 64).unwrap();
        assert_eq!(found["factor"], 32.0);
        assert_eq!(found["high_freq_factor"], 4.0);
        assert_eq!(found["original_max_position_embeddings"], 8192);
    }

    #[test]
    fn another_training_length_is_fitted() {
        let found = llama3_scaling(&factors(8.0, 4.0, 4096.0, 500_000.0, 128), 500_000.0, 128).unwrap();
        assert_eq!(found["original_max_position_embeddings"], 4096);
        assert!((found["high_freq_factor"].as_f64().unwrap() - 4.0).abs() < 1e-3);
    }

    #[test]
    fn factors_that_follow_another_formula_are_not_guessed() {
        let mut factors = factors(8.0, 4.0, 8192.0, 500_000.0, 128);
        factors[3] = 5.0;
        assert_eq!(llama3_scaling(&factors, 500_000.0, 128), None);
        assert_eq!(llama3_scaling(&[1.0; 64], 500_000.0, 128), Some(Value::Null));
    }
}
