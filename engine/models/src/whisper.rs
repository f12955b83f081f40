//! Whisper: an encoder that hears a window of audio and a decoder that writes what it heard.
//!
//! Written after mlx-whisper 0.4.3's `mlx_whisper/whisper.py`, operation for operation.

mod config;
mod decoder;
mod encoder;
mod layers;

pub use config::{WHISPER_MODEL_TYPE, WhisperConfig};

use crate::{ModelConfig, WeightPrecision, error::Result, loader::Loader};
use decoder::Decoder;
use encoder::Encoder;
use linnet_compute::{Backend, Checkpoint, ComputeError};
use std::path::Path;

/// A loaded model on a backend.
pub struct Whisper<B: Backend> {
    config: WhisperConfig,
    encoder: Encoder<B>,
    decoder: Decoder<B>,
}

/// What the decoder hears of one window: keys and values of each layer's cross attention.
pub struct WhisperWindow<B: Backend> {
    layers: Vec<B::Memory>,
}

/// Where a text's tokens look.
pub struct WhisperAlignment<B: Backend> {
    /// For each decoder layer, the scores of its alignment heads in the configuration's order, before softmax:
    /// `[heads * tokens, n_audio_ctx]`. `None` where it has no such heads.
    pub scores: Vec<Option<B::Tensor>>,
    /// Logits of the tokens that the step asks for.
    pub logits: B::Tensor,
}

impl<B: Backend> Whisper<B> {
    /// Loads the model in `folder`, whose format docs/decisions/whisper-folder.md describes.
    ///
    /// # Errors
    /// When the configuration or the weights are missing, damaged or do not fit, or weights are left over.
    pub fn load(backend: &B, folder: &Path, precision: WeightPrecision) -> Result<Self> {
        let file = ModelConfig::load(folder)?;
        let config = WhisperConfig::from_config(&file)?;
        let checkpoint = Checkpoint::open(folder)?;
        backend.admit_weights(checkpoint.bytes())?;
        let loader = Loader::new(backend, &checkpoint, &file).with_precision(precision);
        let encoder = Encoder::load(&loader, &config)?;
        let decoder = Decoder::load(&loader, &config)?;
        // What other programs store beside the weights: positions that are computed, heads that config.json names.
        loader.leave_out(|name| {
            matches!(name, "alignment_heads" | "encoder.positional_embedding" | "encoder._positional_embedding")
        });
        loader.finish()?;
        Ok(Self { config, encoder, decoder })
    }

    /// Its sizes.
    #[must_use]
    pub fn config(&self) -> &WhisperConfig {
        &self.config
    }

    /// What the encoder makes of a window: `2 * n_audio_ctx` frames of `n_mels` values, frame by frame, become
    /// `[n_audio_ctx, n_audio_state]`.
    ///
    /// # Errors
    /// When the window has another size, or an operation fails.
    pub fn encode(&self, backend: &B, mel: &[f32]) -> Result<B::Tensor> {
        let expected = self.config.window_frames() * self.config.n_mels;
        if mel.len() != expected {
            let detail = format!("a window of {} log-mel values instead of {expected}", mel.len());
            return Err(ComputeError::Shape { operation: "encode", detail }.into());
        }
        self.encoder.forward(backend, &backend.lines(mel, self.config.n_mels)?)
    }

    /// What the decoder's layers hear of a window that was encoded.
    ///
    /// # Errors
    /// When an operation fails.
    pub fn listen(&self, backend: &B, encoded: &B::Tensor) -> Result<WhisperWindow<B>> {
        Ok(WhisperWindow { layers: self.decoder.listen(backend, encoded)? })
    }

    /// Processes a prepared step, whose rows listen to one window each: stores its keys and values in `kv`, a store of
    /// [`WhisperConfig::kv_layout`], and returns a line of logits for each token that asks for it.
    ///
    /// # Errors
    /// When there is not one window for each row or an operation fails. What the step's slots hold is then undefined.
    pub fn decode(
        &self,
        backend: &B,
        step: &B::Step,
        windows: &[&WhisperWindow<B>],
        kv: &mut B::Kv,
    ) -> Result<B::Tensor> {
        self.decoder.forward(backend, step, windows, kv, |_, _, _| Ok(()))
    }

    /// As [`Whisper::decode`], for a step of one row; says beside the logits where its tokens look.
    ///
    /// # Errors
    /// As [`Whisper::decode`].
    pub fn align(
        &self,
        backend: &B,
        step: &B::Step,
        window: &WhisperWindow<B>,
        kv: &mut B::Kv,
    ) -> Result<WhisperAlignment<B>> {
        let mut scores = Vec::with_capacity(self.config.n_text_layer);
        let logits = self.decoder.forward(backend, step, &[window], kv, |layer, queries, memories| {
            let heads: Vec<usize> = self.alignment_heads(layer).collect();
            scores.push(match memories {
                [memory] if !heads.is_empty() => Some(backend.cross_scores(queries, memory, &heads)?),
                _ => None,
            });
            Ok(())
        })?;
        Ok(WhisperAlignment { scores, logits })
    }

    /// A layer's alignment heads, in the configuration's order.
    fn alignment_heads(&self, layer: usize) -> impl Iterator<Item = usize> {
        self.config.alignment_heads.iter().filter(move |(of, _)| *of == layer).map(|(_, head)| *head)
    }
}
