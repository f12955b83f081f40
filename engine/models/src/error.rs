//! What can go wrong between a model folder and a model that runs.

use linnet_compute::ComputeError;
use std::path::PathBuf;

/// An error of loading or running an architecture.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A configuration that is not valid JSON, or lacks what its architecture needs.
    #[error("{path} is not a usable configuration: {reason}; download or import the model again")]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Weights that the configuration has no use for, such as biases where it says that there are none.
    #[error(
        "{folder} holds {count} weights that its config.json has no use for ({}{}); the two do not belong together, and \
         the answers would be wrong: download or import the model again",
        .names.join(", "),
        if .names.len() < *.count { ", ..." } else { "" }
    )]
    UnexpectedWeights {
        /// The model folder.
        folder: PathBuf,
        /// The first of them.
        names: Vec<String>,
        /// How many there are.
        count: usize,
    },
    /// An architecture that is not written yet.
    #[error("the architecture {model_type:?} is not supported; supported are: {supported}")]
    UnknownArchitecture {
        /// `model_type` of the configuration.
        model_type: String,
        /// What is.
        supported: String,
    },
    /// Weights that do not fit, or a step that failed.
    #[error(transparent)]
    Compute(#[from] ComputeError),
}

/// A result of this crate's architectures.
pub(crate) type Result<T, E = ModelError> = std::result::Result<T, E>;
