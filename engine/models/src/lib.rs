//! Architectures, tokenizers and chat templates: a model folder becomes something that can run.
//!
//! One file per family ([`registry`] lists them), written once, generic over [`linnet_compute::Backend`].

mod chat_prompt;
mod chat_template;
mod config;
mod error;
mod generation_defaults;
mod language_model;
mod llama;
mod loader;
mod registry;
mod rope_config;
mod special_tokens;
mod tokenizer;
mod weight_precision;
mod whisper;

pub use chat_prompt::{PromptError, prompt_tokens};
pub use chat_template::{ChatTemplate, ClockTime, TemplateError, TemplateInput};
pub use config::ModelConfig;
pub use error::ModelError;
pub use generation_defaults::GenerationDefaults;
pub use language_model::LanguageModel;
pub use registry::{ModelShape, SUPPORTED_ARCHITECTURES, load, shape};
pub use special_tokens::{JsonFileError, SpecialTokens};
pub use tokenizer::{TextStream, Tokenizer, TokenizerError};
pub use weight_precision::WeightPrecision;
pub use whisper::{WHISPER_MODEL_TYPE, Whisper, WhisperAlignment, WhisperConfig, WhisperWindow};
