//! The sizes of a Whisper model, and what follows from them: tensors, shapes, heads that follow the audio in time.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::config::LARGEST_SIZE;
use crate::error::LibraryError;

/// `model_type` of a Whisper model.
pub(crate) const MODEL_TYPE: &str = "whisper";
/// From how many entries on a vocabulary is multilingual (openai/whisper, model.py).
const MULTILINGUAL_VOCABULARY: u64 = 51_865;
/// What a vocabulary has beside its languages.
const BESIDE_LANGUAGES: u64 = 51_765;
/// No model has more layers.
const LARGEST_LAYER_COUNT: u64 = 1 << 10;
/// How many names an error lists.
const NAMES_SHOWN: usize = 4;

/// A model's sizes, under the names of OpenAI's `ModelDimensions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dimensions {
    pub(crate) n_mels: u64,
    pub(crate) n_audio_ctx: u64,
    pub(crate) n_audio_state: u64,
    pub(crate) n_audio_head: u64,
    pub(crate) n_audio_layer: u64,
    pub(crate) n_vocab: u64,
    pub(crate) n_text_ctx: u64,
    pub(crate) n_text_state: u64,
    pub(crate) n_text_head: u64,
    pub(crate) n_text_layer: u64,
}

impl Dimensions {
    fn fields(&self) -> [(&'static str, u64); 10] {
        [
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
        ]
    }

    /// Refuses sizes that no model can have.
    pub(super) fn check(&self, path: &Path) -> Result<(), LibraryError> {
        let wrong = |reason: String| Err(LibraryError::malformed(path, reason));
        for (name, size) in self.fields() {
            if size == 0 || size > LARGEST_SIZE {
                return wrong(format!("{name} is {size}"));
            }
        }
        for (name, layers) in [("n_audio_layer", self.n_audio_layer), ("n_text_layer", self.n_text_layer)] {
            if layers > LARGEST_LAYER_COUNT {
                return wrong(format!("{name} is {layers}; no Whisper model has more than {LARGEST_LAYER_COUNT}"));
            }
        }
        for (state, heads) in [(self.n_audio_state, self.n_audio_head), (self.n_text_state, self.n_text_head)] {
            if state % heads != 0 {
                return wrong(format!("a width of {state} cannot be shared by {heads} heads"));
            }
        }
        if self.n_audio_state != self.n_text_state {
            return wrong(format!("its encoder is {} wide, its decoder {}", self.n_audio_state, self.n_text_state));
        }
        Ok(())
    }

    /// Whether it knows more languages than English.
    pub(crate) fn is_multilingual(&self) -> bool {
        self.n_vocab >= MULTILINGUAL_VOCABULARY
    }

    /// Languages in its vocabulary.
    pub(super) fn languages(&self) -> u64 {
        self.n_vocab.saturating_sub(BESIDE_LANGUAGES + u64::from(self.is_multilingual()))
    }

    /// Tokens of text, which is also the id of the first special token, `<|endoftext|>`.
    pub(super) fn text_tokens(&self) -> usize {
        if self.is_multilingual() { 50_257 } else { 50_256 }
    }

    /// `config.json`, without quantization (docs/decisions/whisper-folder.md).
    pub(crate) fn config(&self, alignment_heads: &[(u64, u64)]) -> Map<String, Value> {
        let mut config = Map::new();
        config.insert("model_type".into(), MODEL_TYPE.into());
        for (name, size) in self.fields() {
            config.insert(name.into(), size.into());
        }
        if !alignment_heads.is_empty() {
            let heads: Vec<Value> = alignment_heads.iter().map(|(layer, head)| json!([layer, head])).collect();
            config.insert("alignment_heads".into(), heads.into());
        }
        config
    }

    /// All tensors of a model of these sizes, with the shapes that our folders have.
    pub(super) fn tensors(&self) -> Vec<(String, Vec<u64>)> {
        let state = self.n_audio_state;
        let mut tensors = vec![
            ("encoder.conv1.weight".to_owned(), vec![state, 3, self.n_mels]),
            ("encoder.conv1.bias".to_owned(), vec![state]),
            ("encoder.conv2.weight".to_owned(), vec![state, 3, state]),
            ("encoder.conv2.bias".to_owned(), vec![state]),
        ];
        for (part, layers, is_decoder) in [("encoder", self.n_audio_layer, false), ("decoder", self.n_text_layer, true)]
        {
            if is_decoder {
                tensors.push(("decoder.token_embedding.weight".into(), vec![self.n_vocab, state]));
                tensors.push(("decoder.positional_embedding".into(), vec![self.n_text_ctx, state]));
            }
            for layer in 0..layers {
                let block = format!("{part}.blocks.{layer}");
                let mut add = |name: &str, shape: Vec<u64>| tensors.push((format!("{block}.{name}"), shape));
                let attentions: &[&str] = if is_decoder { &["attn", "cross_attn"] } else { &["attn"] };
                for attention in attentions {
                    add(&format!("{attention}_ln.weight"), vec![state]);
                    add(&format!("{attention}_ln.bias"), vec![state]);
                    for projection in ["query", "key", "value", "out"] {
                        add(&format!("{attention}.{projection}.weight"), vec![state, state]);
                        if projection != "key" {
                            add(&format!("{attention}.{projection}.bias"), vec![state]);
                        }
                    }
                }
                add("mlp_ln.weight", vec![state]);
                add("mlp_ln.bias", vec![state]);
                add("mlp1.weight", vec![4 * state, state]);
                add("mlp1.bias", vec![4 * state]);
                add("mlp2.weight", vec![state, 4 * state]);
                add("mlp2.bias", vec![state]);
            }
            let last = if is_decoder { "decoder.ln" } else { "encoder.ln_post" };
            tensors.push((format!("{last}.weight"), vec![state]));
            tensors.push((format!("{last}.bias"), vec![state]));
        }
        tensors
    }

    /// Refuses tensors that are missing, too many, or of another shape. `found` has the shapes of our folders.
    pub(super) fn check_tensors(&self, path: &Path, found: &BTreeMap<&str, &[u64]>) -> Result<(), LibraryError> {
        let expected: BTreeMap<String, Vec<u64>> = self.tensors().into_iter().collect();
        for (name, shape) in &expected {
            match found.get(name.as_str()) {
                None => {
                    return Err(LibraryError::MissingTensor {
                        path: path.to_owned(),
                        tensor: name.clone(),
                        architecture: MODEL_TYPE.to_owned(),
                    });
                }
                Some(has) if *has != shape.as_slice() => {
                    return Err(LibraryError::Shape {
                        path: path.to_owned(),
                        tensor: name.clone(),
                        found: has.to_vec(),
                        expected: shape.clone(),
                    });
                }
                Some(_) => {}
            }
        }
        let unknown: Vec<&str> = found.keys().copied().filter(|name| !expected.contains_key(*name)).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        Err(LibraryError::UnexpectedTensors {
            path: path.to_owned(),
            architecture: MODEL_TYPE.to_owned(),
            names: unknown.iter().take(NAMES_SHOWN).map(|name| (*name).to_owned()).collect(),
            count: unknown.len(),
        })
    }

    /// The heads that follow the audio in time of OpenAI's own models (`_ALIGNMENT_HEADS` of openai/whisper's
    /// `__init__.py`, unpacked), for files that do not name them. The two oldest large models have the same sizes: what
    /// is called v1 is taken for v1. Empty for models that are not OpenAI's.
    pub(super) fn known_alignment_heads(&self, file_name: &str) -> Vec<(u64, u64)> {
        let heads: &[(u64, u64)] = match (self.n_audio_layer, self.n_text_layer, self.n_vocab) {
            (4, 4, 51_864) => &[(1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4)],
            (4, 4, 51_865) => &[(2, 2), (3, 0), (3, 2), (3, 3), (3, 4), (3, 5)],
            (6, 6, 51_864) => &[(3, 3), (4, 7), (5, 1), (5, 5), (5, 7)],
            (6, 6, 51_865) => &[(3, 1), (4, 2), (4, 3), (4, 7), (5, 1), (5, 2), (5, 4), (5, 6)],
            (12, 12, 51_864) => &SMALL_EN,
            (12, 12, 51_865) => &[(5, 3), (5, 9), (8, 0), (8, 4), (8, 7), (8, 8), (9, 0), (9, 7), (9, 9), (10, 5)],
            (24, 24, 51_864) => &MEDIUM_EN,
            (24, 24, 51_865) => &[(13, 15), (15, 4), (15, 15), (16, 1), (20, 0), (23, 4)],
            (32, 32, 51_865) if file_name.contains("v1") => {
                &[(9, 19), (11, 2), (11, 4), (11, 17), (22, 7), (22, 11), (22, 17), (23, 2), (23, 15)]
            }
            (32, 32, 51_865) => &LARGE_V2,
            (32, 32, 51_866) => {
                &[(7, 0), (10, 17), (12, 18), (13, 12), (16, 1), (17, 14), (19, 11), (21, 4), (24, 1), (25, 6)]
            }
            (32, 4, 51_866) => &[(2, 4), (2, 11), (3, 3), (3, 6), (3, 11), (3, 14)],
            _ => &[],
        };
        heads.iter().copied().filter(|(layer, head)| *layer < self.n_text_layer && *head < self.n_text_head).collect()
    }
}

#[rustfmt::skip]
const SMALL_EN: [(u64, u64); 19] = [
    (6, 6), (7, 0), (7, 3), (7, 8), (8, 2), (8, 5), (8, 7), (9, 0), (9, 4), (9, 8), (9, 10), (10, 0), (10, 1), (10, 2),
    (10, 3), (10, 6), (10, 11), (11, 2), (11, 4),
];
#[rustfmt::skip]
const MEDIUM_EN: [(u64, u64); 18] = [
    (11, 4), (14, 1), (14, 12), (14, 14), (15, 4), (16, 0), (16, 4), (16, 9), (17, 12), (17, 14), (18, 7), (18, 10),
    (18, 15), (20, 0), (20, 3), (20, 9), (20, 14), (21, 12),
];
#[rustfmt::skip]
const LARGE_V2: [(u64, u64); 23] = [
    (10, 12), (13, 17), (16, 11), (16, 12), (16, 13), (17, 15), (17, 16), (18, 4), (18, 11), (18, 19), (19, 11), (21, 2),
    (21, 3), (22, 3), (22, 9), (22, 12), (23, 5), (23, 7), (23, 13), (25, 5), (26, 1), (26, 12), (27, 15),
];
