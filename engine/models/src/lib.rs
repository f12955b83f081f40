//! Architectures, tokenizers and chat templates: a model folder becomes something that can run.
//!
//! One file per family ([`registry`] lists them), written once, generic over [`linnet_compute::Backend`].

mod chat_template;
mod config;
mod error;
mod language_model;
mod llama;
mod loader;
mod registry;
mod rope_config;
mod special_tokens;

pub use chat_template::{ChatTemplate, ClockTime, TemplateError, TemplateInput};
pub use config::ModelConfig;
pub use error::ModelError;
pub use language_model::LanguageModel;
pub use registry::{SUPPORTED_ARCHITECTURES, load};
pub use special_tokens::{JsonFileError, SpecialTokens};
