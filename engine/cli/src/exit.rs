//! What went wrong, as a text and an exit code.

use std::io;
use std::process::ExitCode;

use linnet_library::{LibraryError, PullError, StorePullError};

use crate::models::ChoiceError;

/// How a command ended. The numbers are part of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// It did what was asked.
    Done = 0,
    /// It could not.
    Failed = 1,
    /// A model or file that was named does not exist.
    NotFound = 3,
    /// The user stopped it: 128 and the number of SIGINT, as shells have it.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Tells the user what went wrong and gives the process's exit code.
pub(crate) fn report(result: anyhow::Result<Exit>) -> ExitCode {
    let exit = result.unwrap_or_else(|error| {
        // Whoever reads our output had enough of it (`linnet ls | head -1`).
        if is_broken_pipe(&error) {
            return Exit::Done;
        }
        eprintln!("error: {}", text_of(&error));
        classify(&error)
    });
    exit.into()
}

/// The error with its causes, without a cause whose text the error already repeats.
fn text_of(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn classify(error: &anyhow::Error) -> Exit {
    let is_missing = error.chain().any(|cause| {
        let in_library = cause.downcast_ref::<LibraryError>().is_some_and(is_missing_here);
        let on_hub = cause.downcast_ref::<StorePullError>().is_some_and(|error| match error {
            StorePullError::Pull(error) => is_missing_there(error),
            StorePullError::Library(error) => is_missing_here(error),
        });
        let of_choice = cause.downcast_ref::<ChoiceError>().is_some_and(|error| match error {
            ChoiceError::None
            | ChoiceError::Several(_)
            | ChoiceError::NoStarter
            | ChoiceError::NoSpeech
            | ChoiceError::SeveralSpeech(_) => true,
            ChoiceError::Speech(_) | ChoiceError::Text(_) | ChoiceError::Unusable { .. } => false,
        });
        in_library || on_hub || of_choice
    });
    if is_missing { Exit::NotFound } else { Exit::Failed }
}

fn is_missing_here(error: &LibraryError) -> bool {
    match error {
        LibraryError::NotFound { .. } | LibraryError::Ambiguous { .. } => true,
        LibraryError::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

fn is_missing_there(error: &PullError) -> bool {
    matches!(error, PullError::RepositoryNotFound { .. } | PullError::RevisionNotFound { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn what_is_missing_has_its_own_code_even_under_context() {
        let missing = LibraryError::NotFound { name: "x".into(), near: vec![] };
        let error = anyhow::Error::from(missing).context("cannot load");
        assert_eq!(classify(&error), Exit::NotFound);
        assert_eq!(classify(&anyhow::anyhow!("other")), Exit::Failed);
        assert_eq!(classify(&ChoiceError::None.into()), Exit::NotFound);
        let on_hub = PullError::RevisionNotFound { id: "a/b".into(), revision: "x".into() };
        assert_eq!(classify(&StorePullError::from(on_hub).into()), Exit::NotFound);
    }

    #[test]
    fn a_cause_is_told_once() {
        let inner: Result<(), _> = Err(io::Error::other("disk on fire"));
        let error = inner.context("cannot write f: disk on fire").context("cannot save").unwrap_err();
        assert_eq!(text_of(&error), "cannot save: cannot write f: disk on fire");
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        assert!(is_broken_pipe(&io::Error::from(io::ErrorKind::BrokenPipe).into()));
        assert!(!is_broken_pipe(&io::Error::other("x").into()));
    }
}
