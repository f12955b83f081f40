//! The decoder: a causal transformer whose layers also listen to the encoder.

use super::{
    WhisperConfig, WhisperWindow,
    layers::{FeedForward, Norm, Projections},
};
use crate::{error::Result, loader::Loader};
use linnet_compute::{AttentionSpec, Backend};

/// `mlx_whisper.whisper.TextDecoder`.
pub(super) struct Decoder<B: Backend> {
    token_embedding: B::Matrix,
    positional_embedding: B::Matrix,
    heads: usize,
    layers: Vec<Layer<B>>,
    norm: Norm<B>,
}

struct Layer<B: Backend> {
    attention: Projections<B>,
    spec: AttentionSpec,
    cross_attention: Projections<B>,
    feed_forward: FeedForward<B>,
}

impl<B: Backend> Decoder<B> {
    pub(super) fn load(loader: &Loader<'_, B>, config: &WhisperConfig) -> Result<Self> {
        let (state, heads) = (config.n_text_state, config.n_text_head);
        let scale = ((state / heads) as f64).powf(-0.5) as f32;
        let mut layers = Vec::with_capacity(config.n_text_layer);
        for layer in 0..config.n_text_layer {
            let path = format!("decoder.blocks.{layer}");
            layers.push(Layer {
                attention: Projections::load(loader, &format!("{path}.attn"), state)?,
                spec: AttentionSpec { layer, heads, scale, window: None, softcap: None, split_scale: true },
                cross_attention: Projections::load(loader, &format!("{path}.cross_attn"), state)?,
                feed_forward: FeedForward::load(loader, &path, state)?,
            });
        }
        Ok(Self {
            token_embedding: loader.matrix("decoder.token_embedding", config.n_vocab, state)?,
            positional_embedding: loader.table("decoder.positional_embedding", config.n_text_ctx, state)?,
            heads,
            layers,
            norm: Norm::load(loader, "decoder.ln", state)?,
        })
    }

    /// Keys and values of each layer's cross attention.
    pub(super) fn listen(&self, backend: &B, encoded: &B::Tensor) -> Result<Vec<B::Memory>> {
        let memory = |layer: &Layer<B>| {
            let projections = &layer.cross_attention;
            let [k, v] = backend.linear_each(encoded, [&projections.key, &projections.value])?;
            Ok(backend.memory(&k, &v, self.heads)?)
        };
        self.layers.iter().map(memory).collect()
    }

    /// Logits of the tokens that reach the output head. `observe` sees each layer's number, the queries of its cross
    /// attention, and the memories that they look into.
    pub(super) fn forward(
        &self,
        backend: &B,
        step: &B::Step,
        windows: &[&WhisperWindow<B>],
        kv: &mut B::Kv,
        mut observe: impl FnMut(usize, &B::Tensor, &[&B::Memory]) -> Result<()>,
    ) -> Result<B::Tensor> {
        let tokens = backend.embed(&self.token_embedding, step)?;
        let mut x = backend.add(tokens, &backend.embed_positions(&self.positional_embedding, step)?)?;
        for (number, layer) in self.layers.iter().enumerate() {
            let [q, k, v] = layer.attention.project(backend, &x)?;
            let attended = backend.attention(&q, &k, &v, &layer.spec, step, kv)?;
            x = backend.linear_add(&attended, &layer.attention.out, x)?;

            let cross = &layer.cross_attention;
            let q = backend.linear(&cross.norm.apply(backend, &x)?, &cross.query)?;
            let memories: Vec<&B::Memory> = windows.iter().filter_map(|window| window.layers.get(number)).collect();
            observe(number, &q, &memories)?;
            let heard = backend.cross_attention(&q, &memories, step)?;
            x = backend.linear_add(&heard, &cross.out, x)?;
            x = layer.feed_forward.forward(backend, x)?;
        }
        // The norm works line by line, so only the lines that reach the head need it.
        let x = self.norm.apply(backend, &backend.outputs(&x, step)?)?;
        Ok(backend.linear(&x, &self.token_embedding)?)
    }
}
