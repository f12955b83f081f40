//! `.linnet.json`: where a model came from.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::origin::Origin;
use crate::disk;
use crate::error::LibraryError;

/// Name of the file in a model's folder.
pub(crate) const RECORD_NAME: &str = ".linnet.json";
const RECORD_LIMIT: u64 = 4 << 20;

/// What is known about a model's origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// What it was made from.
    pub source: Origin,
    /// The format it had there: "gguf", "huggingface", "mlx" or "ggml".
    pub format: String,
    /// What the import changed or lost.
    #[serde(default)]
    pub notes: Vec<String>,
    /// When it was imported: seconds since 1970 in UTC.
    pub created: u64,
}

impl Record {
    /// A record of something that happens now.
    pub fn now(source: Origin, format: &str, notes: Vec<String>) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |duration| duration.as_secs());
        Record { source, format: format.to_owned(), notes, created }
    }

    /// Writes the record into a model's folder.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), LibraryError> {
        let path = folder.join(RECORD_NAME);
        let value = serde_json::to_value(self)
            .map_err(|error| LibraryError::io("write", &path, std::io::Error::other(error)))?;
        disk::write_json(&path, &value)
    }

    /// Reads the record of a model's folder, if there is a usable one.
    pub fn read(folder: &Path) -> Option<Self> {
        let value = disk::read_json(&folder.join(RECORD_NAME), RECORD_LIMIT).ok()?;
        serde_json::from_value(value).ok()
    }
}
