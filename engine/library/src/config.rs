//! What this room needs to know of a model's `config.json`.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::affine::Affine;
use crate::disk;
use crate::error::LibraryError;

/// Configurations are some kilobytes.
const CONFIG_LIMIT: u64 = 8 << 20;
/// No size in a configuration is larger; products of two sizes then fit into 64 bits.
pub(crate) const LARGEST_SIZE: u64 = 1 << 28;
/// Name of the file.
pub(crate) const CONFIG_NAME: &str = "config.json";

/// A model's `config.json`.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) path: PathBuf,
    pub(crate) fields: Map<String, Value>,
}

impl Config {
    /// Reads the file of a model's folder.
    pub(crate) fn read(folder: &Path) -> Result<Self, LibraryError> {
        let path = folder.join(CONFIG_NAME);
        match disk::read_json(&path, CONFIG_LIMIT)? {
            Value::Object(fields) => Ok(Config { path, fields }),
            _ => Err(LibraryError::malformed(&path, "it is not a JSON object")),
        }
    }

    fn wrong(&self, reason: impl Into<String>) -> LibraryError {
        LibraryError::Config { path: self.path.clone(), reason: reason.into() }
    }

    /// `model_type`.
    pub(crate) fn model_type(&self) -> Result<&str, LibraryError> {
        self.fields
            .get("model_type")
            .and_then(Value::as_str)
            .ok_or_else(|| self.wrong("it has no model_type; fetch it again"))
    }

    /// A whole number, also inside of `text_config` (models with several parts keep the language model's fields there).
    pub(crate) fn integer(&self, name: &str) -> Option<u64> {
        self.field(name).and_then(Value::as_u64)
    }

    /// A field, also inside of `text_config`.
    pub(crate) fn field(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).or_else(|| self.fields.get("text_config")?.get(name)).filter(|value| !value.is_null())
    }

    /// A whole number that must be there and positive.
    pub(crate) fn needed(&self, name: &str) -> Result<u64, LibraryError> {
        self.integer(name)
            .filter(|number| (1..=LARGEST_SIZE).contains(number))
            .ok_or_else(|| self.wrong(format!("{name} is missing or not a positive number; fetch it again")))
    }

    /// The affine quantization, where there is one; other kinds are refused.
    pub(crate) fn quantization(&self) -> Result<Option<Quantization>, LibraryError> {
        let own = self.fields.get("quantization").filter(|value| !value.is_null());
        let foreign = self.fields.get("quantization_config").filter(|value| !value.is_null());
        if own.is_none()
            && let Some(method) = foreign.and_then(|fields| fields.get("quant_method")).and_then(Value::as_str)
        {
            return Err(LibraryError::UnsupportedFeature {
                path: self.path.clone(),
                feature: format!("weights quantized by {method}"),
                remedy: "use the model's original weights (bf16 or f16), an MLX conversion, or a GGUF file".into(),
            });
        }
        let Some(fields) = own.or(foreign) else { return Ok(None) };
        let Some(fields) = fields.as_object() else {
            return Err(self.wrong("quantization is not an object; fetch it again"));
        };
        let default = self.affine("quantization", fields)?;
        let mut layers = Vec::new();
        for (name, entry) in fields {
            match entry {
                Value::Bool(false) => layers.push((name.clone(), None)),
                Value::Object(entry) => layers.push((name.clone(), Some(self.affine(name, entry)?))),
                _ => {}
            }
        }
        Ok(Some(Quantization { default, layers }))
    }

    fn affine(&self, name: &str, fields: &Map<String, Value>) -> Result<Affine, LibraryError> {
        if let Some(mode) = fields.get("mode").and_then(Value::as_str).filter(|mode| *mode != "affine") {
            return Err(LibraryError::UnsupportedFeature {
                path: self.path.clone(),
                feature: format!("quantization in the mode {mode} ({name})"),
                remedy: "use an affine conversion of the model, or its original weights".into(),
            });
        }
        let number = |key: &str| fields.get(key).and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok());
        let (Some(bits), Some(group_size)) = (number("bits"), number("group_size")) else {
            return Err(self.wrong(format!("{name} lacks bits or group_size; fetch it again")));
        };
        let affine = Affine { bits, group_size };
        if !affine.is_supported() {
            return Err(LibraryError::UnsupportedFeature {
                path: self.path.clone(),
                feature: format!("{affine} quantization ({name})"),
                remedy: "use 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128".into(),
            });
        }
        Ok(affine)
    }
}

/// The `quantization` of a configuration.
#[derive(Clone, Debug)]
pub(crate) struct Quantization {
    pub(crate) default: Affine,
    /// Layers (without `.weight`) that differ from the default; `None` is dense.
    pub(crate) layers: Vec<(String, Option<Affine>)>,
}

impl Quantization {
    /// How the layer of that name is quantized, if it has scales.
    pub(crate) fn of(&self, layer: &str) -> Option<Affine> {
        match self.layers.iter().find(|entry| entry.0 == layer) {
            Some((_, affine)) => *affine,
            None => Some(self.default),
        }
    }

    /// The `quantization` object as mlx-lm writes it: the default first, then the layers that differ.
    pub(crate) fn to_json(&self) -> Value {
        let entry = |affine: Affine| {
            let mut fields = Map::new();
            fields.insert("group_size".into(), affine.group_size.into());
            fields.insert("bits".into(), affine.bits.into());
            fields
        };
        let mut fields = entry(self.default);
        for (name, affine) in &self.layers {
            fields.insert(name.clone(), affine.map_or(Value::Bool(false), |affine| entry(affine).into()));
        }
        fields.into()
    }

    /// Chooses the most frequent kind (by elements) as the default and lists the others.
    pub(crate) fn from_layers(layers: Vec<(String, Option<Affine>, u64)>) -> Option<Self> {
        let mut weights: Vec<(Affine, u64)> = Vec::new();
        for (_, affine, elements) in &layers {
            let Some(affine) = affine else { continue };
            match weights.iter_mut().find(|entry| entry.0 == *affine) {
                Some(entry) => entry.1 += elements,
                None => weights.push((*affine, *elements)),
            }
        }
        let (default, _) = weights.into_iter().max_by_key(|entry| entry.1)?;
        let layers = layers
            .into_iter()
            .filter(|(_, affine, _)| *affine != Some(default))
            .map(|(name, affine, _)| (name, affine))
            .collect();
        Some(Quantization { default, layers })
    }

    /// For people: "4-bit, group 64" or "4-bit, group 32 (1 layer of 211: 8-bit, group 32)".
    pub(crate) fn describe(&self) -> String {
        let mut text = self.default.to_string();
        let mut kinds: Vec<(String, usize)> = Vec::new();
        for (_, affine) in &self.layers {
            let name = affine.map_or("dense".to_owned(), |affine| affine.to_string());
            match kinds.iter_mut().find(|kind| kind.0 == name) {
                Some(kind) => kind.1 += 1,
                None => kinds.push((name, 1)),
            }
        }
        if !kinds.is_empty() {
            let kinds: Vec<String> = kinds
                .into_iter()
                .map(|(name, count)| format!("{count} {}: {name}", if count == 1 { "layer" } else { "layers" }))
                .collect();
            text = format!("{text} ({})", kinds.join("; "));
        }
        text
    }
}
