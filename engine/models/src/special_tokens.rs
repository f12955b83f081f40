//! The special tokens a model folder names: beginning, end, padding and the like, by their text.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

/// The names under which `tokenizer_config.json` and `special_tokens_map.json` list special tokens; chat templates
/// see the same names as variables.
const NAMES: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Why a JSON file of a model folder could not be used.
#[derive(Debug, thiserror::Error)]
pub enum JsonFileError {
    /// The file is there and cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the file system says.
        source: std::io::Error,
    },
    /// The file is not JSON.
    #[error("{path} is not valid JSON ({source}); download or import the model again")]
    NotJson {
        /// The file.
        path: PathBuf,
        /// Where and why parsing stopped.
        source: serde_json::Error,
    },
    /// The file's outermost value is not an object.
    #[error("{path} holds no JSON object; download or import the model again")]
    NotObject {
        /// The file.
        path: PathBuf,
    },
}

/// Reads one JSON object from a model folder; `None` where the file does not exist.
pub(crate) fn read_json_object(path: &Path) -> Result<Option<Map<String, Value>>, JsonFileError> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(JsonFileError::Read { path: path.to_owned(), source }),
    };
    match serde_json::from_slice(&text) {
        Ok(Value::Object(object)) => Ok(Some(object)),
        Ok(_) => Err(JsonFileError::NotObject { path: path.to_owned() }),
        Err(source) => Err(JsonFileError::NotJson { path: path.to_owned(), source }),
    }
}

/// The special tokens of a model folder, by name (`bos_token`, `eos_token`, ...) and text.
///
/// `tokenizer_config.json` wins over `special_tokens_map.json`, name by name. A token that is null in both is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    by_name: Vec<(&'static str, String)>,
    additional: Vec<String>,
}

impl SpecialTokens {
    /// Reads the special tokens of `folder`; a folder with neither file has none.
    ///
    /// # Errors
    /// [`JsonFileError`] when one of the two files is unreadable or not a JSON object.
    pub fn load(folder: &Path) -> Result<Self, JsonFileError> {
        let config = read_json_object(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
        let map = read_json_object(&folder.join("special_tokens_map.json"))?.unwrap_or_default();
        Ok(Self::from_maps(&config, &map))
    }

    /// The special tokens that `tokenizer_config.json` (`config`) and `special_tokens_map.json` (`map`) name.
    pub fn from_maps(config: &Map<String, Value>, map: &Map<String, Value>) -> Self {
        let by_name = NAMES
            .iter()
            .filter_map(|&name| {
                let text = config.get(name).and_then(token_text).or_else(|| map.get(name).and_then(token_text));
                text.map(|text| (name, text))
            })
            .collect();
        let additional = ["additional_special_tokens", "extra_special_tokens"]
            .iter()
            .flat_map(|&name| [config.get(name), map.get(name)])
            .flatten()
            .find_map(|list| list.as_array().filter(|list| !list.is_empty()))
            .map(|list| list.iter().filter_map(token_text).collect())
            .unwrap_or_default();
        Self { by_name, additional }
    }

    /// The text of the token called `name` (`bos_token`, `eos_token`, ...).
    pub fn get(&self, name: &str) -> Option<&str> {
        self.by_name.iter().find(|(known, _)| *known == name).map(|(_, text)| text.as_str())
    }

    /// The further special tokens without a role of their own.
    pub fn additional(&self) -> &[String] {
        &self.additional
    }

    /// Every named token: name and text.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.by_name.iter().map(|(name, text)| (*name, text.as_str()))
    }
}

/// A token is written as its text or as an object with the text under `content`.
pub(crate) fn token_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Object(object) => object.get("content").and_then(Value::as_str).map(str::to_owned),
        _ => None,
    }
}
