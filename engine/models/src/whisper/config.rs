//! Sizes of a Whisper model, from its `config.json` (docs/decisions/whisper-folder.md).

use crate::{ModelConfig, error::Result};
use linnet_compute::{KvLayout, LayerKv};
use serde::Deserialize;
use std::{collections::BTreeSet, path::Path};

/// The value of `model_type`.
pub const WHISPER_MODEL_TYPE: &str = "whisper";

/// From how many entries of the vocabulary on a model knows more languages than English.
const MULTILINGUAL_VOCABULARY: usize = 51_865;

/// Frames of mel that a convolution looks at.
pub(super) const CONVOLUTION_KERNEL: usize = 3;

/// How many times wider than the model the inner layer of its feed-forward part is.
pub(super) const INNER_WIDTH: usize = 4;

/// No model has as many layers; each takes memory before its weights are looked for.
const LARGEST_LAYER_COUNT: usize = 1 << 10;

/// A model's sizes, under the names of OpenAI's `ModelDimensions`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct WhisperConfig {
    /// Mel bins of a frame: 80 or 128.
    pub n_mels: usize,
    /// Positions that the encoder gives for a window, half as many as it has frames: 1,500.
    pub n_audio_ctx: usize,
    /// Width of the encoder.
    pub n_audio_state: usize,
    /// Attention heads of an encoder layer.
    pub n_audio_head: usize,
    /// Encoder layers.
    pub n_audio_layer: usize,
    /// Entries of a line of logits.
    pub n_vocab: usize,
    /// The most tokens in a sequence: 448.
    pub n_text_ctx: usize,
    /// Width of the decoder, the same as the encoder's.
    pub n_text_state: usize,
    /// Attention heads of a decoder layer.
    pub n_text_head: usize,
    /// Decoder layers.
    pub n_text_layer: usize,
    /// Heads of the decoder's cross attention that follow the audio in time, as (layer, head). Where a configuration names
    /// none, all heads of the upper half of the layers, as in OpenAI's `whisper/model.py`.
    #[serde(default)]
    pub alignment_heads: Vec<(usize, usize)>,
}

impl WhisperConfig {
    /// Reads the configuration of a model folder.
    ///
    /// # Errors
    /// When it cannot be read, is of another architecture, or its sizes do not fit each other.
    pub fn load(folder: &Path) -> Result<Self> {
        Self::from_config(&ModelConfig::load(folder)?)
    }

    /// Reads the fields of a configuration.
    ///
    /// # Errors
    /// When it is of another architecture, a field is missing, or sizes do not fit each other.
    pub fn from_config(file: &ModelConfig) -> Result<Self> {
        let model_type = file.model_type()?;
        if model_type != WHISPER_MODEL_TYPE {
            return Err(file.invalid(&format!("model_type is {model_type:?}, not {WHISPER_MODEL_TYPE:?}")));
        }
        let mut config: Self = file.read()?;
        config.check(file)?;
        if config.alignment_heads.is_empty() {
            let layers = config.n_text_layer / 2..config.n_text_layer;
            config.alignment_heads =
                layers.flat_map(|layer| (0..config.n_text_head).map(move |head| (layer, head))).collect();
        }
        Ok(config)
    }

    fn check(&self, file: &ModelConfig) -> Result<()> {
        file.check_sizes(&[
            ("n_mels", self.n_mels),
            ("n_audio_ctx", self.n_audio_ctx),
            ("n_audio_state", self.n_audio_state),
            ("n_audio_head", self.n_audio_head),
            ("n_audio_layer", self.n_audio_layer),
            ("n_vocab", self.n_vocab),
            ("n_text_ctx", self.n_text_ctx),
            ("n_text_state", self.n_text_state),
            ("n_text_head", self.n_text_head),
            ("n_text_layer", self.n_text_layer),
        ])?;
        for (name, layers) in [("n_audio_layer", self.n_audio_layer), ("n_text_layer", self.n_text_layer)] {
            if layers > LARGEST_LAYER_COUNT {
                return Err(file.invalid(&format!("{name} is {layers}, more than {LARGEST_LAYER_COUNT}")));
            }
        }
        for (part, state, heads) in
            [("audio", self.n_audio_state, self.n_audio_head), ("text", self.n_text_state, self.n_text_head)]
        {
            if !state.is_multiple_of(heads) || !state.is_multiple_of(2) {
                return Err(file.invalid(&format!("n_{part}_state {state} cannot be shared by {heads} heads")));
            }
        }
        if self.n_audio_state != self.n_text_state {
            let (audio, text) = (self.n_audio_state, self.n_text_state);
            return Err(
                file.invalid(&format!("n_audio_state is {audio} but n_text_state is {text}; they must be equal"))
            );
        }
        let mut seen = BTreeSet::new();
        for &(layer, head) in &self.alignment_heads {
            if layer >= self.n_text_layer || head >= self.n_text_head || !seen.insert((layer, head)) {
                let (layers, heads) = (self.n_text_layer, self.n_text_head);
                let reason = format!(
                    "alignment head [{layer}, {head}] is named twice or is none of {layers} layers with {heads} heads"
                );
                return Err(file.invalid(&reason));
            }
        }
        Ok(())
    }

    /// Whether it knows more languages than English.
    #[must_use]
    pub fn is_multilingual(&self) -> bool {
        self.n_vocab >= MULTILINGUAL_VOCABULARY
    }

    /// Frames of mel in a window.
    #[must_use]
    pub fn window_frames(&self) -> usize {
        2 * self.n_audio_ctx
    }

    /// What each decoder layer keeps of a sequence.
    #[must_use]
    pub fn kv_layout(&self) -> KvLayout {
        let head_dim = self.n_text_state / self.n_text_head;
        KvLayout { layers: vec![LayerKv { kv_heads: self.n_text_head, head_dim, window: None }; self.n_text_layer] }
    }

    /// How many weights there are, the encoder's positions not counted.
    #[must_use]
    pub fn parameters(&self) -> usize {
        let state = self.n_audio_state;
        let attention = 4 * state * state + 3 * state;
        let feed_forward = 2 * INNER_WIDTH * state * state + (INNER_WIDTH + 1) * state;
        let encoder_layer = attention + feed_forward + 4 * state;
        let decoder_layer = 2 * attention + feed_forward + 6 * state;
        let convolutions = CONVOLUTION_KERNEL * state * (self.n_mels + state) + 2 * state;
        let tables = (self.n_vocab + self.n_text_ctx) * state;
        let norms = 4 * state;
        convolutions + tables + norms + self.n_audio_layer * encoder_layer + self.n_text_layer * decoder_layer
    }

    /// Bytes that one encoded window keeps: keys and values of cross attention, in floats of `element` bytes.
    #[must_use]
    pub fn window_bytes(&self, element: usize) -> usize {
        2 * self.n_text_layer * self.n_audio_ctx * self.n_text_state * element
    }

    /// Bytes that one token of a sequence keeps, in floats of `element` bytes.
    #[must_use]
    pub fn token_bytes(&self, element: usize) -> usize {
        2 * self.n_text_layer * self.n_text_state * element
    }

    /// Bytes of activations while a window is encoded, in floats of `element` bytes: the frames of both convolutions with
    /// what they look at, or a layer's input, its norm, queries, keys, values and the inner layer, whichever is more.
    #[must_use]
    pub fn encoder_bytes(&self, element: usize) -> usize {
        let (frames, state) = (self.window_frames(), self.n_audio_state);
        let first = frames * (CONVOLUTION_KERNEL * self.n_mels + state);
        let second = frames * state + self.n_audio_ctx * (CONVOLUTION_KERNEL + 1) * state;
        let layer = self.n_audio_ctx * state * (2 + 4 + INNER_WIDTH);
        first.max(second).max(layer) * element
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tiny() -> serde_json::Value {
        json!({"model_type": "whisper", "n_mels": 80, "n_audio_ctx": 1500, "n_audio_state": 384, "n_audio_head": 6,
            "n_audio_layer": 4, "n_vocab": 51864, "n_text_ctx": 448, "n_text_state": 384, "n_text_head": 6,
            "n_text_layer": 4})
    }

    fn read(document: serde_json::Value) -> Result<WhisperConfig> {
        WhisperConfig::from_config(&ModelConfig::for_tests(document))
    }

    #[test]
    fn tiny_en_has_the_sizes_that_openai_says() {
        let config = read(tiny()).unwrap();
        assert_eq!(config.parameters(), 37_184_256);
        assert!(!config.is_multilingual());
        assert_eq!(config.kv_layout().layers.len(), 4);
        assert_eq!(config.alignment_heads.len(), 12);
        assert_eq!(config.alignment_heads[0], (2, 0));
        assert_eq!(config.window_bytes(2), 2 * 4 * 1500 * 384 * 2);
    }

    #[test]
    fn named_heads_win_and_others_than_there_are_do_not() {
        let mut document = tiny();
        document["alignment_heads"] = json!([[1, 0], [3, 5]]);
        assert_eq!(read(document.clone()).unwrap().alignment_heads, [(1, 0), (3, 5)]);
        for wrong in [json!([[4, 0]]), json!([[0, 6]]), json!([[1, 1], [1, 1]])] {
            document["alignment_heads"] = wrong;
            assert!(read(document.clone()).unwrap_err().to_string().contains("alignment head"));
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused_by_name() {
        for (field, value, said) in [
            ("model_type", json!("llama"), "model_type"),
            ("n_audio_state", json!(768), "n_text_state"),
            ("n_text_head", json!(5), "n_text_state"),
            ("n_audio_head", json!(0), "n_audio_head"),
            ("n_text_layer", json!(1 << 20), "n_text_layer"),
            ("n_vocab", json!(1u64 << 60), "n_vocab"),
            ("n_mels", json!(null), "n_mels"),
        ] {
            let mut document = tiny();
            document[field] = value;
            let text = read(document).unwrap_err().to_string();
            assert!(text.contains(said), "{field}: {text}");
        }
    }
}
