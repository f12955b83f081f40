//! What can go wrong.

use std::{io, path::PathBuf};

use thiserror::Error;

/// Why a kernel did not run to its end.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HostError {
    /// clang or one of its companions is missing.
    #[error("{tool} is not here ({detail}); `sh tests/setup/system.sh test` brings it")]
    Toolchain {
        /// The program.
        tool: String,
        /// Why it could not be started.
        detail: String,
    },
    /// The source does not compile.
    #[error("{kernel} does not compile:\n{diagnostics}")]
    Compile {
        /// The kernel, or the part of the runner.
        kernel: String,
        /// What clang said.
        diagnostics: String,
    },
    /// The source has a form that the runner cannot rewrite.
    #[error("{file}:{line}: {message}")]
    Source {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong and what to write instead.
        message: String,
    },
    /// The inputs do not fit the kernel.
    #[error("{kernel} takes {expected} inputs ({names}), but got {got}")]
    Inputs {
        /// The kernel.
        kernel: &'static str,
        /// How many it takes.
        expected: usize,
        /// Their names.
        names: String,
        /// How many there are.
        got: usize,
    },
    /// The kernel did something wrong while it ran.
    #[error("{kernel}: {kind}: {message}")]
    Fault {
        /// The kernel.
        kernel: &'static str,
        /// One word: `divergence`, `race`, `uninitialized`, `unwritten`, `read-only`, `threadgroup-memory`, `lane`,
        /// `launch`, `address` (AddressSanitizer), `undefined` (UndefinedBehaviorSanitizer) or `ended` (a signal or the
        /// time limit).
        kind: String,
        /// What happened where.
        message: String,
    },
    /// The GPU refused or failed.
    #[error("{kernel} on the GPU: {reason}")]
    Gpu {
        /// The kernel.
        kernel: &'static str,
        /// What MLX said.
        reason: String,
    },
    /// A file or a process failed.
    #[error("{path}: {source}")]
    Io {
        /// The file or program.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

impl HostError {
    /// The kind of a [`HostError::Fault`], for tests that expect one.
    #[must_use]
    pub fn fault_kind(&self) -> Option<&str> {
        match self {
            HostError::Fault { kind, .. } => Some(kind),
            _ => None,
        }
    }

    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> HostError {
        let path = path.into();
        |source| HostError::Io { path, source }
    }
}
