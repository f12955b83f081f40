//! `config.json`: what all architectures share, and how weights are quantized.

use crate::{ModelError, error::Result};
use linnet_compute::AffineQuantization;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// No size in a configuration is larger; products of two sizes then fit into 64 bits. The same as the importer's.
const LARGEST_SIZE: usize = 1 << 28;

/// A model folder's configuration, before an architecture reads its own part of it.
#[derive(Debug, Clone)]
pub struct ModelConfig {
    path: PathBuf,
    document: Value,
}

impl ModelConfig {
    /// Reads `config.json` of a model folder.
    ///
    /// # Errors
    /// When it cannot be read, is not a JSON object, or names no `model_type`.
    pub fn load(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let text = std::fs::read_to_string(&path).map_err(|source| ModelError::Io { path: path.clone(), source })?;
        let document = serde_json::from_str(&text)
            .map_err(|error| ModelError::Config { path: path.clone(), reason: error.to_string() })?;
        let config = Self { path, document };
        config.model_type()?;
        Ok(config)
    }

    /// The architecture's name.
    ///
    /// # Errors
    /// When the configuration has none.
    pub fn model_type(&self) -> Result<&str> {
        self.document.get("model_type").and_then(Value::as_str).ok_or_else(|| self.invalid("it names no model_type"))
    }

    /// Elements of an attention head, where the configuration says so in the usual fields.
    #[must_use]
    pub fn head_dim(&self) -> Option<usize> {
        let size = |name: &str| usize::try_from(self.document.get(name)?.as_u64()?).ok().filter(|size| *size > 0);
        size("head_dim").or_else(|| Some(size("hidden_size")? / size("num_attention_heads")?))
    }

    /// The whole document.
    #[must_use]
    pub fn document(&self) -> &Value {
        &self.document
    }

    /// The fields of an architecture. A field that is null counts as missing.
    ///
    /// # Errors
    /// When a field is missing or of another type.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T> {
        let mut document = self.document.clone();
        if let Value::Object(fields) = &mut document {
            fields.retain(|_, value| !value.is_null());
        }
        serde_path_to_error::deserialize(document).map_err(|error| {
            let (path, inner) = (error.path().to_string(), error.into_inner());
            // An error about the whole object names the field itself.
            self.invalid(&if path == "." { inner.to_string() } else { format!("{path}: {inner}") })
        })
    }

    /// Refuses sizes with which products would overflow or memory run out before a single weight is looked at.
    ///
    /// # Errors
    /// Names the first size that is 0 or larger than any model's.
    pub(crate) fn check_sizes(&self, sizes: &[(&str, usize)]) -> Result<()> {
        match sizes.iter().find(|(_, size)| !(1..=LARGEST_SIZE).contains(size)) {
            Some((name, size)) => Err(self.invalid(&format!("{name} is {size}, not from 1 to {LARGEST_SIZE}"))),
            None => Ok(()),
        }
    }

    /// An error about this file.
    #[must_use]
    pub fn invalid(&self, reason: &str) -> ModelError {
        ModelError::Config { path: self.path.clone(), reason: reason.to_owned() }
    }

    /// How the layer of this name is quantized, as mlx-lm decides it: an entry of its own in `quantization` wins (false
    /// means not at all), else the values for all. `None` for a model without quantization.
    ///
    /// # Errors
    /// When the entry is not what mlx-lm writes, or the mode is not affine.
    pub fn quantization(&self, layer: &str) -> Result<Option<AffineQuantization>> {
        // Null is missing here too.
        let field = |name: &str| self.document.get(name).filter(|value| !value.is_null());
        let Some(all) = field("quantization").or_else(|| field("quantization_config")) else { return Ok(None) };
        let entry = match all.get(layer) {
            Some(Value::Bool(false)) => return Ok(None),
            Some(entry @ Value::Object(_)) => entry,
            _ => all,
        };
        let mode = entry.get("mode").or_else(|| all.get("mode")).and_then(Value::as_str).unwrap_or("affine");
        if mode != "affine" {
            return Err(self.invalid(&format!("quantization mode {mode:?} is not supported; affine is")));
        }
        let number = |key: &str| {
            entry
                .get(key)
                .or_else(|| all.get(key))
                .and_then(Value::as_u64)
                .and_then(|number| u32::try_from(number).ok())
                .ok_or_else(|| self.invalid(&format!("its quantization has no usable {key}")))
        };
        Ok(Some(AffineQuantization { bits: number("bits")?, group_size: number("group_size")? as usize }))
    }
}

#[cfg(test)]
impl ModelConfig {
    /// A configuration that lies in no folder.
    pub(crate) fn for_tests(document: Value) -> Self {
        Self { path: "config.json".into(), document }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(document: Value) -> ModelConfig {
        ModelConfig::for_tests(document)
    }

    #[test]
    fn the_size_of_a_head_is_said_or_follows() {
        let size = |document| config(document).head_dim();
        assert_eq!(size(serde_json::json!({"hidden_size": 960, "num_attention_heads": 10})), Some(96));
        assert_eq!(size(serde_json::json!({"head_dim": 32, "hidden_size": 960, "num_attention_heads": 10})), Some(32));
        assert_eq!(size(serde_json::json!({"hidden_size": 960, "num_attention_heads": 0})), None);
    }

    #[test]
    fn an_empty_quantization_does_not_hide_the_one_beside_it() {
        let good = serde_json::json!({"group_size": 64, "bits": 4});
        for document in [
            serde_json::json!({"quantization": null, "quantization_config": good}),
            serde_json::json!({"quantization": good, "quantization_config": null}),
        ] {
            let found = config(document).quantization("a").unwrap();
            assert_eq!(found, Some(AffineQuantization { bits: 4, group_size: 64 }));
        }
        let neither = config(serde_json::json!({"quantization": null, "quantization_config": null}));
        assert_eq!(neither.quantization("a").unwrap(), None);
    }

    #[test]
    fn a_layer_of_its_own_wins_and_false_is_dense() {
        let config = config(serde_json::json!({"quantization": {
            "group_size": 32, "bits": 4, "lm_head": {"group_size": 64, "bits": 8}, "model.norm": false}}));
        let layer = |name| config.quantization(name).unwrap();
        assert_eq!(layer("a"), Some(AffineQuantization { bits: 4, group_size: 32 }));
        assert_eq!(layer("lm_head"), Some(AffineQuantization { bits: 8, group_size: 64 }));
        assert_eq!(layer("model.norm"), None);
    }

    #[test]
    fn null_is_missing_and_a_wrong_field_is_named() {
        #[derive(Debug, serde::Deserialize)]
        struct Fields {
            #[serde(default)]
            bias: bool,
            layers: usize,
        }
        let read = |document| config(document).read::<Fields>();
        let fields = read(serde_json::json!({"bias": null, "layers": 2})).unwrap();
        assert_eq!((fields.bias, fields.layers), (false, 2));
        let text = read(serde_json::json!({"layers": "two"})).unwrap_err().to_string();
        assert!(text.contains("layers: invalid type"), "{text}");
        let text = read(serde_json::json!({"layers": null})).unwrap_err().to_string();
        assert!(text.contains("missing field `layers`"), "{text}");
    }

    #[test]
    fn another_mode_is_refused_by_name() {
        let config = config(serde_json::json!({"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}}));
        assert!(config.quantization("a").unwrap_err().to_string().contains("mxfp4"));
    }
}
