//! The Llama family: Llama 1 to 3, Mistral, SmolLM2, MiniCPM5 and others that share its block.
//!
//! Written after mlx-lm 0.32.2's `mlx_lm/models/llama.py`, operation for operation.

use crate::{
    LanguageModel, ModelConfig, ModelShape,
    error::Result,
    loader::Loader,
    rope_config::{RopeFields, rope_spec},
};
use linnet_compute::{Activation, AttentionSpec, Backend, KvLayout, LayerKv};
use serde::Deserialize;
use serde_json::Value;

/// The fields of `config.json`, with mlx-lm's defaults.
#[derive(Debug, Clone, Deserialize)]
struct LlamaConfig {
    hidden_size: usize,
    num_hidden_layers: usize,
    intermediate_size: usize,
    num_attention_heads: usize,
    rms_norm_eps: f32,
    vocab_size: usize,
    head_dim: Option<usize>,
    max_position_embeddings: Option<usize>,
    num_key_value_heads: Option<usize>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    rope_theta: Option<f64>,
    #[serde(default)]
    rope_traditional: bool,
    rope_scaling: Option<Value>,
    rope_parameters: Option<Value>,
    #[serde(default = "default_tie")]
    tie_word_embeddings: bool,
    layer_types: Option<Vec<String>>,
    sliding_window: Option<usize>,
}

fn default_tie() -> bool {
    true
}

/// No model has as many layers; each takes memory before its weights are looked for.
const LARGEST_LAYER_COUNT: usize = 1 << 14;

/// A context length for configurations that name none.
const DEFAULT_CONTEXT: usize = 4096;

/// The model.
pub(crate) struct Llama<B: Backend> {
    embed_tokens: B::Matrix,
    layers: Vec<Block<B>>,
    norm: B::Vector,
    lm_head: Option<B::Matrix>,
    rope: B::Rope,
    epsilon: f32,
    vocabulary_size: usize,
    context_length: usize,
    kv_layout: KvLayout,
}

struct Block<B: Backend> {
    input_layernorm: B::Vector,
    qkv_proj: [B::Matrix; 3],
    o_proj: B::Matrix,
    post_attention_layernorm: B::Vector,
    gate_up_proj: [B::Matrix; 2],
    down_proj: B::Matrix,
    attention: AttentionSpec,
}

/// What the configuration alone says of the family's size.
pub(crate) fn shape(config: &ModelConfig) -> Result<ModelShape> {
    config.read::<LlamaConfig>()?.shape(config)
}

impl LlamaConfig {
    fn shape(&self, config: &ModelConfig) -> Result<ModelShape> {
        let (kv_heads, head_dim) = self.kv_heads(config)?;
        check_sizes(config, self, kv_heads, head_dim)?;
        let windows = layer_windows(config, self)?;
        Ok(ModelShape {
            context_length: self.max_position_embeddings.unwrap_or(DEFAULT_CONTEXT),
            kv_layout: KvLayout {
                layers: windows.into_iter().map(|window| LayerKv { kv_heads, head_dim, window }).collect(),
            },
        })
    }

    /// How many heads keys and values have, and elements per head.
    fn kv_heads(&self, config: &ModelConfig) -> Result<(usize, usize)> {
        let heads = self.num_attention_heads;
        let kv_heads = self.num_key_value_heads.unwrap_or(heads);
        if heads == 0 || kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(config.invalid(&format!("{heads} attention heads cannot share {kv_heads} key-value heads")));
        }
        let head_dim = self.head_dim.filter(|&dim| dim > 0).unwrap_or(self.hidden_size / heads);
        Ok((kv_heads, head_dim))
    }
}

/// Loads the family.
pub(crate) fn load<B: Backend>(loader: &Loader<'_, B>) -> Result<Box<dyn LanguageModel<B>>> {
    let config: LlamaConfig = loader.config().read()?;
    let shape = config.shape(loader.config())?;
    let (kv_heads, head_dim) = config.kv_heads(loader.config())?;
    let fields = RopeFields {
        theta: config.rope_theta,
        scaling: config.rope_scaling.as_ref(),
        parameters: config.rope_parameters.as_ref(),
        traditional: config.rope_traditional,
        max_position_embeddings: config.max_position_embeddings,
    };
    let rope = rope_spec(loader.config(), head_dim, fields)?;

    let mut layers = Vec::with_capacity(shape.kv_layout.layers.len());
    for (layer, kv) in shape.kv_layout.layers.iter().enumerate() {
        layers.push(load_block(loader, &config, layer, kv.window, kv_heads, head_dim)?);
    }
    loader.leave_out(|name| name.contains("self_attn.rotary_emb.inv_freq"));
    let lm_head = if config.tie_word_embeddings {
        loader.leave_out(|name| name == "lm_head.weight");
        None
    } else {
        Some(loader.matrix("lm_head", config.vocab_size, config.hidden_size)?)
    };
    Ok(Box::new(Llama::<B> {
        embed_tokens: loader.matrix("model.embed_tokens", config.vocab_size, config.hidden_size)?,
        norm: loader.norm("model.norm", config.hidden_size)?,
        rope: loader.backend().rope(&rope, head_dim)?,
        epsilon: config.rms_norm_eps,
        vocabulary_size: config.vocab_size,
        context_length: shape.context_length,
        kv_layout: shape.kv_layout,
        layers,
        lm_head,
    }))
}

fn check_sizes(file: &ModelConfig, config: &LlamaConfig, kv_heads: usize, head_dim: usize) -> Result<()> {
    file.check_sizes(&[
        ("hidden_size", config.hidden_size),
        ("intermediate_size", config.intermediate_size),
        ("num_attention_heads", config.num_attention_heads),
        ("num_key_value_heads", kv_heads),
        ("head_dim", head_dim),
        ("vocab_size", config.vocab_size),
        ("max_position_embeddings", config.max_position_embeddings.unwrap_or(DEFAULT_CONTEXT)),
        ("sliding_window", config.sliding_window.filter(|&window| window > 0).unwrap_or(1)),
    ])?;
    let layers = config.num_hidden_layers;
    if layers > LARGEST_LAYER_COUNT {
        return Err(file.invalid(&format!("num_hidden_layers is {layers}, more than {LARGEST_LAYER_COUNT}")));
    }
    Ok(())
}

/// Each layer's sliding window, if it has one.
fn layer_windows(file: &ModelConfig, config: &LlamaConfig) -> Result<Vec<Option<usize>>> {
    let Some(types) = &config.layer_types else { return Ok(vec![None; config.num_hidden_layers]) };
    if types.len() != config.num_hidden_layers {
        let reason = format!("{} layer_types for {} layers", types.len(), config.num_hidden_layers);
        return Err(file.invalid(&reason));
    }
    types
        .iter()
        .map(|kind| match (kind.as_str(), config.sliding_window) {
            ("full_attention", _) => Ok(None),
            ("sliding_attention", Some(window)) if window > 0 => Ok(Some(window)),
            ("sliding_attention", _) => Err(file.invalid("sliding_attention layers need a sliding_window")),
            (other, _) => Err(file.invalid(&format!("layer type {other:?} is not supported"))),
        })
        .collect()
}

fn load_block<B: Backend>(
    loader: &Loader<'_, B>,
    config: &LlamaConfig,
    layer: usize,
    window: Option<usize>,
    kv_heads: usize,
    head_dim: usize,
) -> Result<Block<B>> {
    let (hidden, inner, heads) = (config.hidden_size, config.intermediate_size, config.num_attention_heads);
    let (width, kv_width) = (heads * head_dim, kv_heads * head_dim);
    let path = |name: &str| format!("model.layers.{layer}.{name}");
    let attention = |name: &str| path(&format!("self_attn.{name}"));
    let mlp = |name: &str| path(&format!("mlp.{name}"));
    Ok(Block {
        input_layernorm: loader.norm(&path("input_layernorm"), hidden)?,
        qkv_proj: [
            loader.matrix_with_bias(&attention("q_proj"), width, hidden, config.attention_bias)?,
            loader.matrix_with_bias(&attention("k_proj"), kv_width, hidden, config.attention_bias)?,
            loader.matrix_with_bias(&attention("v_proj"), kv_width, hidden, config.attention_bias)?,
        ],
        o_proj: loader.matrix_with_bias(&attention("o_proj"), hidden, width, config.attention_bias)?,
        post_attention_layernorm: loader.norm(&path("post_attention_layernorm"), hidden)?,
        gate_up_proj: [
            loader.matrix_with_bias(&mlp("gate_proj"), inner, hidden, config.mlp_bias)?,
            loader.matrix_with_bias(&mlp("up_proj"), inner, hidden, config.mlp_bias)?,
        ],
        down_proj: loader.matrix_with_bias(&mlp("down_proj"), hidden, inner, config.mlp_bias)?,
        attention: AttentionSpec {
            layer,
            heads,
            scale: (head_dim as f64).powf(-0.5) as f32,
            window,
            softcap: None,
            split_scale: false,
        },
    })
}

impl<B: Backend> Block<B> {
    fn forward(
        &self,
        backend: &B,
        x: B::Tensor,
        rope: &B::Rope,
        epsilon: f32,
        step: &B::Step,
        kv: &mut B::Kv,
    ) -> Result<B::Tensor> {
        let normed = backend.rms_norm(&x, &self.input_layernorm, epsilon)?;
        let [q, k, v] = backend.linear_each(&normed, self.qkv_proj.each_ref())?;
        let q = backend.apply_rope(q, rope, step)?;
        let k = backend.apply_rope(k, rope, step)?;
        let attended = backend.attention(&q, &k, &v, &self.attention, step, kv)?;
        let x = backend.linear_add(&attended, &self.o_proj, x)?;

        let normed = backend.rms_norm(&x, &self.post_attention_layernorm, epsilon)?;
        let [gate_proj, up_proj] = &self.gate_up_proj;
        let inner = backend.gated_linear(&normed, gate_proj, up_proj, Activation::Silu)?;
        Ok(backend.linear_add(&inner, &self.down_proj, x)?)
    }
}

impl<B: Backend> LanguageModel<B> for Llama<B> {
    fn vocabulary_size(&self) -> usize {
        self.vocabulary_size
    }

    fn context_length(&self) -> usize {
        self.context_length
    }

    fn kv_layout(&self) -> &KvLayout {
        &self.kv_layout
    }

    fn forward(&self, backend: &B, step: &B::Step, kv: &mut B::Kv) -> Result<B::Tensor> {
        let mut x = backend.embed(&self.embed_tokens, step)?;
        for block in &self.layers {
            x = block.forward(backend, x, &self.rope, self.epsilon, step, kv)?;
        }
        // The norm works line by line, so only the lines that reach the head need it.
        let x = backend.outputs(&x, step)?;
        let x = backend.rms_norm(&x, &self.norm, self.epsilon)?;
        Ok(backend.linear(&x, self.lm_head.as_ref().unwrap_or(&self.embed_tokens))?)
    }
}

#[cfg(test)]
mod tests {
    use linnet_compute::cpu::{CpuBackend, CpuOptions};
    use serde_json::json;

    #[test]
    fn sizes_that_no_model_has_are_refused_by_name_and_nothing_is_allocated() {
        let huge = 1u64 << 60;
        for (field, size) in [
            ("num_hidden_layers", huge),
            ("num_hidden_layers", u64::MAX),
            ("num_attention_heads", 1 << 40),
            ("num_key_value_heads", 0),
            ("head_dim", huge),
            ("head_dim", 1 << 40),
            ("hidden_size", huge),
            ("hidden_size", 0),
            ("intermediate_size", huge),
            ("vocab_size", huge),
            ("max_position_embeddings", huge),
            ("max_position_embeddings", 0),
            ("sliding_window", huge),
        ] {
            let mut document = json!({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1,
                "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
                "vocab_size": 32});
            document[field] = json!(size);
            if field == "num_attention_heads" {
                document["num_key_value_heads"] = json!(size);
            }
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("config.json"), document.to_string()).unwrap();
            let header = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
            let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 4]].concat();
            std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
            let backend = CpuBackend::new(CpuOptions { threads: 1, ..CpuOptions::default() });
            let text = crate::load(&backend, folder.path()).map(|_| ()).unwrap_err().to_string();
            let said = match (field, size) {
                ("num_key_value_heads", _) => "0 key-value heads",
                _ => field,
            };
            assert!(text.contains(said), "{field} {size}: {text}");
        }
    }
}
