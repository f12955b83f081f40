//! Architectures, tokenizers and chat templates: a model folder becomes something that can run.
//!
//! One file per family ([`registry`] lists them), written once, generic over [`linnet_compute::Backend`].

mod config;
mod error;
mod language_model;
mod llama;
mod loader;
mod registry;
mod rope_config;

pub use config::ModelConfig;
pub use error::ModelError;
pub use language_model::LanguageModel;
pub use registry::{SUPPORTED_ARCHITECTURES, load};
