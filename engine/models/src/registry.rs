//! Which architectures there are. A new one is its own file and one line here.

use crate::{LanguageModel, ModelConfig, ModelError, error::Result, llama, loader::Loader};
use linnet_compute::{Backend, Checkpoint};
use std::path::Path;

/// Names the families once for every use of the list.
macro_rules! architectures {
    ($($model_type:literal => $load:path),+ $(,)?) => {
        /// The values of `model_type` that can be loaded.
        pub const SUPPORTED_ARCHITECTURES: &[&str] = &[$($model_type),+];

        fn load_architecture<B: Backend>(
            model_type: &str,
            loader: &Loader<'_, B>,
        ) -> Result<Box<dyn LanguageModel<B>>> {
            match model_type {
                $($model_type => $load(loader),)+
                other => Err(ModelError::UnknownArchitecture {
                    model_type: other.to_owned(),
                    supported: SUPPORTED_ARCHITECTURES.join(", "),
                }),
            }
        }
    };
}

architectures! {
    "llama" => llama::load,
    "mistral" => llama::load,
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
        return Err(ModelError::UnknownArchitecture {
            model_type: model_type.to_owned(),
            supported: SUPPORTED_ARCHITECTURES.join(", "),
        });
    }
    let checkpoint = Checkpoint::open(folder)?;
    backend.admit_weights(checkpoint.bytes())?;
    let loader = Loader::new(backend, &checkpoint, &config);
    let model = load_architecture(model_type, &loader)?;
    loader.finish()?;
    Ok(model)
}
