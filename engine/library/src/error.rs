//! Everything that can go wrong with models on disk, as one typed enum.
//!
//! Each text names the file (or the model), the figures that matter, and what to do about it.

use std::path::{Path, PathBuf};

/// A fault of the model store or of an import.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// No model of that name is in the store.
    #[error(
        "there is no model named \"{name}\"{}; `linnet ls` lists the models, `linnet pull` and `linnet import` add one",
        near_text(.near)
    )]
    NotFound {
        /// What was asked for.
        name: String,
        /// Names in the store that resemble it, nearest first.
        near: Vec<String>,
    },
    /// A shortened name fits several models.
    #[error("\"{name}\" fits several models: {}; write one of them in full", .candidates.join(", "))]
    Ambiguous {
        /// What was asked for.
        name: String,
        /// The full names it fits.
        candidates: Vec<String>,
    },
    /// The name cannot be a model's name.
    #[error(
        "\"{name}\" cannot be a model's name: {reason}; a name is `model` or `organisation/model`, without leading \
         dots, `..`, backslashes, colons or control characters"
    )]
    InvalidName {
        /// The refused name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A model of that name is already there.
    #[error("a model named \"{name}\" is already in {path}; choose another name, or ask to replace it")]
    NameTaken {
        /// The taken name.
        name: String,
        /// Where it lies.
        path: PathBuf,
    },
    /// What is at the model's place is no model, and replacing it would delete it.
    #[error(
        "{path} is no model: it holds {holds}; choose another name than \"{name}\", or move it away yourself if you do \
         not need it"
    )]
    NotAModel {
        /// The name that was asked for.
        name: String,
        /// What is in its place.
        path: PathBuf,
        /// What that holds, for people.
        holds: String,
    },
    /// Neither `LINNET_HOME` nor a home folder is known.
    #[error("no folder for the models is known: set LINNET_HOME (or HOME) to a folder that Linnet may write to")]
    NoHome,
    /// The operation would touch files outside of the store.
    #[error("{path} is not inside the model store {store} (it leads to {target}); remove it by hand if you mean it")]
    OutsideStore {
        /// The path that was to be changed.
        path: PathBuf,
        /// The store's folder of models.
        store: PathBuf,
        /// Where the path really leads.
        target: PathBuf,
    },
    /// The disk cannot hold the result.
    #[error(
        "not enough disk space in {path}: {needed} bytes must be free and {available} are; free at least {} bytes \
         or set LINNET_HOME to another disk",
        .needed.saturating_sub(*.available)
    )]
    DiskSpace {
        /// The folder that was to be written to.
        path: PathBuf,
        /// Bytes that must be free: what the result takes, and what stays free for other programs.
        needed: u64,
        /// Bytes that are free.
        available: u64,
    },
    /// The disk became full while writing.
    #[error(
        "the disk became full while writing {path}; nothing was imported: free some space or set LINNET_HOME to \
         another disk, then try again"
    )]
    DiskFull {
        /// The file that could not be written.
        path: PathBuf,
    },
    /// The operating system refused something.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried, as a verb: "read", "write", "rename".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's own error.
        source: std::io::Error,
    },
    /// The source is none of the things that can be imported.
    #[error("{path} cannot be imported: {reason}")]
    UnknownSource {
        /// The file or folder.
        path: PathBuf,
        /// What is missing or odd, with the remedy.
        reason: String,
    },
    /// The model's architecture is not one that Linnet runs.
    #[error(
        "{path} is a model of the architecture \"{architecture}\", which Linnet does not run yet; supported: {}",
        .supported.join(", ")
    )]
    UnsupportedArchitecture {
        /// The file or folder.
        path: PathBuf,
        /// Its `model_type` or `general.architecture`.
        architecture: String,
        /// What is supported.
        supported: Vec<String>,
    },
    /// The architecture is known, but the file uses a feature of it that is not supported.
    #[error("{path} uses {feature}, which Linnet does not support: {remedy}")]
    UnsupportedFeature {
        /// The file or folder.
        path: PathBuf,
        /// The feature, by its field name or number.
        feature: String,
        /// What to do instead.
        remedy: String,
    },
    /// A file ends before its contents do.
    #[error(
        "{path} is truncated: {what} needs {needed} bytes, the file has {actual} ({} missing); fetch the file again",
        .needed.saturating_sub(*.actual)
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Which part does not fit: a header field or a tensor.
        what: String,
        /// Bytes that the file would need.
        needed: u64,
        /// Bytes it has.
        actual: u64,
    },
    /// A file contradicts its own format.
    #[error("{path} is damaged or not what it seems: {reason}; fetch the file again")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What contradicts the format.
        reason: String,
    },
    /// `config.json` lacks a field or has a value that cannot be.
    #[error("{path}: {reason}")]
    Config {
        /// The `config.json`.
        path: PathBuf,
        /// The field and what is wrong with it, with the remedy.
        reason: String,
    },
    /// A tensor that the architecture needs is not there.
    #[error(
        "{path} has no tensor \"{tensor}\", which a {architecture} model of this configuration needs; fetch it again"
    )]
    MissingTensor {
        /// The file or folder.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The architecture.
        architecture: String,
    },
    /// Tensors that the configuration has no use for, such as biases where it says that there are none.
    #[error(
        "{path} holds {count} tensors that a {architecture} model of this configuration has no use for ({}{}); config \
         and weights do not belong together, fetch both again",
        .names.join(", "),
        if .names.len() < *.count { ", ..." } else { "" }
    )]
    UnexpectedTensors {
        /// The folder.
        path: PathBuf,
        /// The architecture.
        architecture: String,
        /// The first of them.
        names: Vec<String>,
        /// How many there are.
        count: usize,
    },
    /// A tensor's shape does not follow from the configuration.
    #[error(
        "{path}: tensor \"{tensor}\" has the shape {found:?}, the configuration asks for {expected:?}; config and weights do not belong together"
    )]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The shape it has (logical, that is unpacked, where it is quantized).
        found: Vec<u64>,
        /// The shape it should have.
        expected: Vec<u64>,
    },
    /// A file that a shard index names is not there.
    #[error("{path} names the shard {shard}, which is not there; fetch it again")]
    MissingShard {
        /// The index file.
        path: PathBuf,
        /// The missing shard.
        shard: String,
    },
    /// A shard index points outside of its folder.
    #[error("{path} names the shard \"{shard}\", which leads out of the folder; a shard must be a plain file name")]
    UnsafeShard {
        /// The index file.
        path: PathBuf,
        /// The refused name.
        shard: String,
    },
    /// The model has no tokenizer that can be used.
    #[error("{path} has no usable tokenizer: {reason}")]
    Tokenizer {
        /// The file or folder.
        path: PathBuf,
        /// What is missing or unknown, with the remedy.
        reason: String,
    },
    /// The wish to quantize cannot be fulfilled.
    #[error("{path} cannot be quantized as asked: {reason}")]
    Quantize {
        /// The file or folder.
        path: PathBuf,
        /// Why, with the remedy.
        reason: String,
    },
}

fn near_text(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!(" (did you mean {}?)", near.join(" or ")) }
}

impl LibraryError {
    /// Wraps a system error; a full disk becomes [`LibraryError::DiskFull`].
    pub fn io(action: &'static str, path: &Path, source: std::io::Error) -> Self {
        match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                LibraryError::DiskFull { path: path.to_owned() }
            }
            _ => LibraryError::Io { action, path: path.to_owned(), source },
        }
    }

    /// Whether trying again with the same files cannot help: it is the model itself that is refused.
    pub(crate) fn is_about_the_model(&self) -> bool {
        match self {
            LibraryError::UnknownSource { .. }
            | LibraryError::UnsupportedArchitecture { .. }
            | LibraryError::UnsupportedFeature { .. }
            | LibraryError::Truncated { .. }
            | LibraryError::Malformed { .. }
            | LibraryError::Config { .. }
            | LibraryError::MissingTensor { .. }
            | LibraryError::UnexpectedTensors { .. }
            | LibraryError::Shape { .. }
            | LibraryError::MissingShard { .. }
            | LibraryError::UnsafeShard { .. }
            | LibraryError::Tokenizer { .. } => true,
            LibraryError::NotFound { .. }
            | LibraryError::Ambiguous { .. }
            | LibraryError::InvalidName { .. }
            | LibraryError::NameTaken { .. }
            | LibraryError::NotAModel { .. }
            | LibraryError::NoHome
            | LibraryError::OutsideStore { .. }
            | LibraryError::DiskSpace { .. }
            | LibraryError::DiskFull { .. }
            | LibraryError::Io { .. }
            // Another wish may be granted.
            | LibraryError::Quantize { .. } => false,
        }
    }

    /// A [`LibraryError::Malformed`] for this file.
    pub(crate) fn malformed(path: &Path, reason: impl Into<String>) -> Self {
        LibraryError::Malformed { path: path.to_owned(), reason: reason.into() }
    }
}

/// Adds the action and the path to a system error.
pub(crate) trait IoContext<T> {
    /// Wraps the error, if there is one.
    fn at(self, action: &'static str, path: &Path) -> Result<T, LibraryError>;
}

impl<T> IoContext<T> for std::io::Result<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T, LibraryError> {
        self.map_err(|source| LibraryError::io(action, path, source))
    }
}
