//! The encoder: two convolutions, positions, layers in which every position sees all others.

use super::{
    WhisperConfig,
    config::CONVOLUTION_KERNEL,
    layers::{FeedForward, Norm, Projections},
};
use crate::{error::Result, loader::Loader};
use linnet_compute::{Activation, Backend};

/// `mlx_whisper.whisper.AudioEncoder`.
pub(super) struct Encoder<B: Backend> {
    convolutions: [B::Convolution; 2],
    positions: B::Tensor,
    heads: usize,
    layers: Vec<Layer<B>>,
    norm: Norm<B>,
}

struct Layer<B: Backend> {
    attention: Projections<B>,
    feed_forward: FeedForward<B>,
}

impl<B: Backend> Encoder<B> {
    pub(super) fn load(loader: &Loader<'_, B>, config: &WhisperConfig) -> Result<Self> {
        let (state, kernel) = (config.n_audio_state, CONVOLUTION_KERNEL);
        let dtype = loader.dtype("encoder.conv1.weight")?;
        let mut layers = Vec::with_capacity(config.n_audio_layer);
        for layer in 0..config.n_audio_layer {
            let path = format!("encoder.blocks.{layer}");
            layers.push(Layer {
                attention: Projections::load(loader, &format!("{path}.attn"), state)?,
                feed_forward: FeedForward::load(loader, &path, state)?,
            });
        }
        Ok(Self {
            convolutions: [
                loader.convolution("encoder.conv1", [state, kernel, config.n_mels], 1)?,
                loader.convolution("encoder.conv2", [state, kernel, state], 2)?,
            ],
            positions: loader.backend().sinusoids(config.n_audio_ctx, state, dtype)?,
            heads: config.n_audio_head,
            layers,
            norm: Norm::load(loader, "encoder.ln_post", state)?,
        })
    }

    /// `[frames, n_mels]` to `[frames / 2, n_audio_state]`.
    pub(super) fn forward(&self, backend: &B, mel: &B::Tensor) -> Result<B::Tensor> {
        let mut x = mel.clone();
        for convolution in &self.convolutions {
            x = backend.activate(backend.convolve(&x, convolution)?, Activation::Gelu)?;
        }
        x = backend.add(x, &self.positions)?;
        for layer in &self.layers {
            let [q, k, v] = layer.attention.project(backend, &x)?;
            let attended = backend.full_attention(&q, &k, &v, self.heads)?;
            x = backend.linear_add(&attended, &layer.attention.out, x)?;
            x = layer.feed_forward.forward(backend, x)?;
        }
        self.norm.apply(backend, &x)
    }
}
