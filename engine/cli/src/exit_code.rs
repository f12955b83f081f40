//! Which error ends the process with which code.

use crate::models::NoModels;
use linnet_library::LibraryError;
use std::{io, process::ExitCode};

/// A model that does not exist.
const NOT_FOUND: u8 = 3;
/// Ended by Ctrl-C, as shells count it.
const INTERRUPTED: u8 = 130;

/// The user interrupted a command that had not finished.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// The exit code of a command that failed.
pub(crate) fn of(error: &anyhow::Error) -> ExitCode {
    let is_missing = |cause: &(dyn std::error::Error + 'static)| {
        matches!(cause.downcast_ref(), Some(LibraryError::NotFound { .. } | LibraryError::Ambiguous { .. }))
            || cause.is::<NoModels>()
    };
    if error.chain().any(is_missing) {
        ExitCode::from(NOT_FOUND)
    } else if error.chain().any(|cause| cause.is::<Interrupted>()) {
        ExitCode::from(INTERRUPTED)
    } else {
        ExitCode::FAILURE
    }
}

/// Whether the reader of our output went away, as `linnet ls | head` does: no failure.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_went_away_is_no_failure() {
        let error = anyhow::Error::from(io::Error::from(io::ErrorKind::BrokenPipe)).context("writing");
        assert!(is_broken_pipe(&error));
        assert!(!is_broken_pipe(&anyhow::anyhow!("broken pipe")));
    }
}
