//! A model folder becomes a running engine with its tokenizer, template and defaults.

use crate::{BackendModel, Engine, EngineOptions, EngineText, StepModelError};
use linnet_compute::cpu::{CpuBackend, CpuOptions};
use linnet_models::{
    ChatTemplate, GenerationDefaults, JsonFileError, ModelConfig, ModelError, TemplateError, Tokenizer, TokenizerError,
};
use std::path::{Path, PathBuf};

/// How a model is loaded and run.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// The name the engine goes by; `None` takes the folder's.
    pub name: Option<String>,
    /// Threads to compute on. `None`: one per physical core.
    pub threads: Option<usize>,
    /// Compute quantized products exactly, in f32; slower.
    pub exact: bool,
    /// Tokens that the KV store holds for all requests together. `None`: what the requests' contexts need, bounded.
    pub kv_tokens: Option<usize>,
    /// How the engine shares the model among requests.
    pub engine: EngineOptions,
}

/// A model that runs, and all that turns messages into its tokens and back.
#[derive(Debug, Clone)]
pub struct LoadedModel {
    /// The engine, to which requests go.
    pub engine: Engine,
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// Messages to text; `None` for a model without a chat template.
    pub template: Option<ChatTemplate>,
    /// How the model's makers sample it.
    pub defaults: GenerationDefaults,
    /// What it is.
    pub info: ModelInfo,
}

/// Facts about a loaded model.
#[derive(Debug, Clone)]
pub struct ModelInfo {
    /// Its folder.
    pub folder: PathBuf,
    /// `model_type` of its configuration.
    pub architecture: String,
    /// The most tokens of one request, prompt and answer together.
    pub context_length: usize,
    /// How many tokens it knows.
    pub vocabulary_size: usize,
}

/// A model folder that could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// Its configuration or weights.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Its tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// Its chat template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// Its generation defaults.
    #[error(transparent)]
    Defaults(#[from] JsonFileError),
    /// The engine thread could not load the weights.
    #[error(transparent)]
    Engine(#[from] StepModelError),
}

/// Loads the model in `folder` and starts its engine.
///
/// Small files are read first, so that a folder without a tokenizer is refused before its weights are touched.
///
/// # Errors
/// [`LoadError`], naming the file and what is wrong with it.
pub fn load_model(folder: &Path, options: &LoadOptions) -> Result<LoadedModel, LoadError> {
    let architecture = ModelConfig::load(folder)?.model_type()?.to_owned();
    let tokenizer = Tokenizer::load(folder)?;
    let template = ChatTemplate::load(folder)?;
    let defaults = GenerationDefaults::load(folder, &tokenizer)?;
    let name = options.name.clone().unwrap_or_else(|| {
        folder.file_name().map_or_else(|| folder.display().to_string(), |name| name.to_string_lossy().into_owned())
    });
    let load = {
        let folder = folder.to_path_buf();
        let default = CpuOptions::default();
        let cpu = CpuOptions { threads: options.threads.unwrap_or(default.threads), exact: options.exact };
        let (kv_tokens, sequences) = (options.kv_tokens, options.engine.max_concurrent);
        move || {
            BackendModel::load(CpuBackend::new(cpu), &folder, kv_tokens, sequences)
                .map_err(|error| StepModelError::Compute(error.to_string()))
        }
    };
    let text = EngineText::from_tokenizer(tokenizer.clone(), defaults.eos_token_ids.clone());
    let engine = Engine::start(&name, options.engine, text, load)?;
    let info = ModelInfo {
        folder: folder.to_path_buf(),
        architecture,
        context_length: engine.context_length(),
        vocabulary_size: engine.vocabulary_size(),
    };
    Ok(LoadedModel { engine, tokenizer, template, defaults, info })
}
