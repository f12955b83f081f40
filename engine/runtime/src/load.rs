//! A model folder becomes a running engine with its tokenizer, template and defaults.

use crate::{
    BackendChoice, BackendModel, BackendModelOptions, Engine, EngineOptions, EngineText, StepModelError,
    recommendation::drop_unusable, ssd::SsdTier,
};
use linnet_compute::{
    KvQuantization,
    cpu::{CpuBackend, CpuOptions},
};
use linnet_models::{
    ChatTemplate, GenerationDefaults, JsonFileError, ModelConfig, ModelError, TemplateError, Tokenizer, TokenizerError,
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// How a model is loaded and run.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// The name the engine goes by; `None` takes the folder's.
    pub name: Option<String>,
    /// What computes.
    pub backend: BackendChoice,
    /// Quantizes keys and values; `None` keeps them as the backend holds them.
    pub kv_quantization: Option<KvQuantization>,
    /// Threads to compute on, of the `cpu` backend. `None`: one per physical core.
    pub threads: Option<usize>,
    /// Compute quantized products exactly, in f32; slower. Of the `cpu` backend.
    pub exact: bool,
    /// Tokens that the KV store holds for all requests together. `None`: what the requests' contexts need, bounded.
    pub kv_tokens: Option<usize>,
    /// Bytes that the KV store may take, where no number of tokens is given. `None`: 4 GiB.
    pub kv_bytes: Option<usize>,
    /// How the engine shares the model among requests.
    pub engine: EngineOptions,
    /// Where what is kept of prompts and answers survives a restart. Several models may share one.
    pub disk: Option<Arc<SsdTier>>,
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
    /// The backend asked for is not in this build.
    #[error(
        "this build of Linnet has no {0} backend; build it with `--features {0}` (on Linux after `make mlx`), or use \
         --backend cpu"
    )]
    NoBackend(BackendChoice),
    /// An option that the backend does not have.
    #[error("the {backend} backend has no {option}; leave it out, or choose another --backend")]
    NoOption {
        /// The backend.
        backend: BackendChoice,
        /// The option.
        option: &'static str,
    },
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
    options.check()?;
    let config = ModelConfig::load(folder)?;
    let architecture = config.model_type()?.to_owned();
    let fitted = |wish: KvQuantization| config.head_dim().map_or(wish, |head_dim| wish.for_heads(head_dim));
    let options = &LoadOptions { kv_quantization: options.kv_quantization.map(fitted), ..options.clone() };
    let tokenizer = Tokenizer::load(folder)?;
    let template = ChatTemplate::load(folder)?;
    let mut defaults = GenerationDefaults::load(folder, &tokenizer)?;
    for note in drop_unusable(&mut defaults) {
        tracing::warn!(folder = %folder.display(), "{note}");
    }
    let name = options.name.clone().unwrap_or_else(|| {
        folder.file_name().map_or_else(|| folder.display().to_string(), |name| name.to_string_lossy().into_owned())
    });
    let text = EngineText::from_tokenizer(tokenizer.clone(), defaults.eos_token_ids.clone());
    let engine = start_engine(&name, folder, text, options)?;
    let info = ModelInfo {
        folder: folder.to_path_buf(),
        architecture,
        context_length: engine.context_length(),
        vocabulary_size: engine.vocabulary_size(),
    };
    Ok(LoadedModel { engine, tokenizer, template, defaults, info })
}

impl LoadOptions {
    /// Refuses what the chosen backend cannot do.
    fn check(&self) -> Result<(), LoadError> {
        let backend = self.backend;
        if !backend.is_available() {
            return Err(LoadError::NoBackend(backend));
        }
        let refused = match backend {
            BackendChoice::Cpu => Vec::new(),
            BackendChoice::Mlx => vec![(self.threads.is_some(), "--threads"), (self.exact, "--exact")],
        };
        match refused.into_iter().find(|(is_asked, _)| *is_asked) {
            Some((_, option)) => Err(LoadError::NoOption { backend, option }),
            None => Ok(()),
        }
    }
}

/// Starts an engine on the chosen backend.
fn start_engine(name: &str, folder: &Path, text: EngineText, options: &LoadOptions) -> Result<Engine, LoadError> {
    let (folder, disk) = (folder.to_path_buf(), options.disk.clone());
    let size = BackendModelOptions {
        kv_tokens: options.kv_tokens,
        kv_bytes: options.kv_bytes,
        sequences: options.engine.max_concurrent,
    };
    let failed = |error: &dyn std::error::Error| StepModelError::Compute(error.to_string());
    match options.backend {
        BackendChoice::Cpu => {
            let default = CpuOptions::default();
            let cpu = CpuOptions { threads: options.threads.unwrap_or(default.threads), exact: options.exact };
            let kv = options.kv_quantization;
            Ok(Engine::start_with_disk(name, options.engine, text, disk, move || {
                BackendModel::load(CpuBackend::new(cpu).with_kv_quantization(kv), &folder, size)
                    .map_err(|error| failed(&error))
            })?)
        }
        #[cfg(feature = "mlx")]
        BackendChoice::Mlx => {
            use linnet_compute::mlx::{MlxBackend, MlxOptions};
            let mlx = MlxOptions { kv_quantization: options.kv_quantization, ..MlxOptions::default() };
            Ok(Engine::start_with_disk(name, options.engine, text, disk, move || {
                let backend = MlxBackend::new(mlx).map_err(|error| failed(&error))?;
                BackendModel::load(backend, &folder, size).map_err(|error| failed(&error))
            })?)
        }
        #[cfg(not(feature = "mlx"))]
        BackendChoice::Mlx => Err(LoadError::NoBackend(BackendChoice::Mlx)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(options: &LoadOptions) -> String {
        options.check().map_or_else(|error| error.to_string(), |()| "accepted".into())
    }

    #[test]
    fn options_of_another_backend_are_refused_by_name() {
        let quantization = KvQuantization { bits: 4, group_size: 64, start: 0 };
        let cpu = LoadOptions { backend: BackendChoice::Cpu, ..Default::default() };
        assert_eq!(refusal(&cpu), "accepted");
        assert_eq!(refusal(&LoadOptions { kv_quantization: Some(quantization), ..cpu }), "accepted");
        let mlx = LoadOptions { backend: BackendChoice::Mlx, ..Default::default() };
        if BackendChoice::Mlx.is_available() {
            assert_eq!(refusal(&mlx), "accepted");
            assert!(refusal(&LoadOptions { threads: Some(2), ..mlx.clone() }).contains("--threads"));
            assert!(refusal(&LoadOptions { exact: true, ..mlx }).contains("--exact"));
        } else {
            assert!(refusal(&mlx).contains("--features mlx"));
        }
    }
}
