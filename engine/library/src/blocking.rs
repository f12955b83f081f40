//! File work beside the async threads.

use std::io;
use std::path::PathBuf;

use crate::PullError;

/// Runs work that waits for the disk on a thread made for waiting. Dropping the future does not stop the work, so
/// what it owns (a lock, an open file) is let go of only when it has ended.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PullError> + Send + 'static,
) -> Result<T, PullError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        let source = io::Error::other(error.to_string());
        Err(PullError::Io { action: "finish the file work in", path: PathBuf::from("the library"), source })
    })
}
