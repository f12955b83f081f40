//! Which architectures there are. A new one is its own file and one line here.

use crate::{LanguageModel, ModelConfig, ModelError, error::Result, llama, loader::Loader};
use linnet_compute::{Backend, Checkpoint, KvLayout};
use std::path::Path;

/// Names the families once for every use of the list.
macro_rules! architectures {
    ($($model_type:literal => $load:path, $shape:path;)+) => {
        /// The values of `model_type` that can be loaded.
        pub const SUPPORTED_ARCHITECTURES: &[&str] = &[$($model_type),+];

        fn load_architecture<B: Backend>(
            model_type: &str,
            loader: &Loader<'_, B>,
        ) -> Result<Box<dyn LanguageModel<B>>> {
            match model_type {
                $($model_type => $load(loader),)+
                other => Err(unknown(other)),
            }
        }

        fn shape_of(config: &ModelConfig) -> Result<ModelShape> {
            match config.model_type()? {
                $($model_type => $shape(config),)+
                other => Err(unknown(other)),
            }
        }
    };
}

architectures! {
    "llama" => llama::load, llama::shape;
    "mistral" => llama::load, llama::shape;
}

/// What a model's configuration says of its size, before anything is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelShape {
    /// The longest sequence the model was made for, in tokens.
    pub context_length: usize,
    /// What each layer keeps of a sequence.
    pub kv_layout: KvLayout,
}

/// Reads the shape of the model in `folder` from its configuration.
///
/// # Errors
/// When the configuration is missing or damaged, or the architecture is not supported.
pub fn shape(folder: &Path) -> Result<ModelShape> {
    shape_of(&ModelConfig::load(folder)?)
}

fn unknown(model_type: &str) -> ModelError {
    ModelError::UnknownArchitecture { model_type: model_type.to_owned(), supported: SUPPORTED_ARCHITECTURES.join(", ") }
}

/// Loads the model in `folder` onto `backend`.
///
/// # Errors
/// When the configuration or the weights are missing, damaged or do not fit, weights are left over, or the architecture
/// is not supported.
pub fn load<B: Backend>(backend: &B, folder: &Path) -> Result<Box<dyn LanguageModel<B>>> {
    let config = ModelConfig::load(folder)?;
    let model_type = config.model_type()?;
    if !SUPPORTED_ARCHITECTURES.contains(&model_type) {
        return Err(unknown(model_type));
    }
    let checkpoint = Checkpoint::open(folder)?;
    backend.admit_weights(checkpoint.bytes())?;
    let loader = Loader::new(backend, &checkpoint, &config);
    let model = load_architecture(model_type, &loader)?;
    loader.finish()?;
    Ok(model)
}
