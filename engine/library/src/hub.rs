//! The Hugging Face hub: what a repository holds, and how its files come to this machine.
//!
//! The protocol is plain HTTP: one JSON listing per revision, and one address per file that either answers itself
//! (small files) or redirects to a content network (large ones). Two rules must not change: the token goes to the
//! endpoint's own origin and to nobody else, and no file gets its final name before its hash was checked.

mod client;
mod download;
mod listing;
mod partial;
mod retry;
mod selection;
mod token;
mod verify;

pub use client::{HubClient, HubOptions};
pub use listing::{RemoteFile, RepositoryListing};
pub use selection::{ChosenFiles, FileSelection, choose_files};
pub use verify::BlobHash;

pub(crate) use download::{download_file, wait_for_lock};
pub(crate) use listing::check_file_name;
pub(crate) use partial::{BlobLock, BlobPaths, WORK_FOLDER, partial_length, sweep_work_folder};
pub(crate) use verify::hash_matches;
