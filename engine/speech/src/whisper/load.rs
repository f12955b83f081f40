//! A model folder becomes a network that decoding can use.

use super::{WhisperNetwork, backend_network::BackendNetwork};
use linnet_compute::{
    BackendChoice,
    cpu::{CpuBackend, CpuOptions},
};
use linnet_models::{ModelError, WeightPrecision};
use std::path::Path;

/// How a network is loaded and run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NetworkOptions {
    /// What computes.
    pub backend: BackendChoice,
    /// Threads to compute on, of the `cpu` backend. `None`: one per physical core.
    pub threads: Option<usize>,
    /// In which precision dense weights are held.
    pub weights: WeightPrecision,
    /// Compute products with quantized weights exactly, in f32; slower. Of the `cpu` backend.
    pub exact: bool,
}

/// Why a folder did not become a network.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadNetworkError {
    /// Its configuration or weights.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The backend asked for is not in this build.
    #[error(
        "this build of Linnet has no {0} backend; build it with `--features {0}` (on Linux after `make mlx`), or use cpu"
    )]
    NoBackend(BackendChoice),
    /// An option that the backend does not have.
    #[error("the {backend} backend has no {option}; leave it out, or choose another backend")]
    NoOption {
        /// The backend.
        backend: BackendChoice,
        /// The option.
        option: &'static str,
    },
}

/// Loads the Whisper model in `folder`. The network belongs to the calling thread.
///
/// # Errors
/// When the model cannot be loaded, or the backend or an option of it is not there.
pub fn load_network(folder: &Path, options: &NetworkOptions) -> Result<Box<dyn WhisperNetwork>, LoadNetworkError> {
    match options.backend {
        BackendChoice::Cpu => {
            let default = CpuOptions::default();
            let cpu = CpuOptions { threads: options.threads.unwrap_or(default.threads), exact: options.exact };
            let backend = match options.weights {
                WeightPrecision::Stored => CpuBackend::new(cpu),
                // Speech bears coarse activations beside coarse weights: others hold both in 8 bits too.
                WeightPrecision::Int8 => CpuBackend::new(cpu).with_coarse_activations(),
            };
            Ok(Box::new(BackendNetwork::load(backend, folder, options.weights)?))
        }
        BackendChoice::Mlx => {
            let unknown = [(options.threads.is_some(), "threads"), (options.exact, "exact")];
            if let Some((_, option)) = unknown.into_iter().find(|(is_set, _)| *is_set) {
                return Err(LoadNetworkError::NoOption { backend: options.backend, option });
            }
            load_on_mlx(folder, options.weights)
        }
    }
}

#[cfg(feature = "mlx")]
fn load_on_mlx(folder: &Path, weights: WeightPrecision) -> Result<Box<dyn WhisperNetwork>, LoadNetworkError> {
    use linnet_compute::mlx::{MlxBackend, MlxOptions};
    let backend = MlxBackend::new(MlxOptions::default()).map_err(ModelError::from)?;
    Ok(Box::new(BackendNetwork::load(backend, folder, weights)?))
}

#[cfg(not(feature = "mlx"))]
fn load_on_mlx(_folder: &Path, _weights: WeightPrecision) -> Result<Box<dyn WhisperNetwork>, LoadNetworkError> {
    Err(LoadNetworkError::NoBackend(BackendChoice::Mlx))
}
