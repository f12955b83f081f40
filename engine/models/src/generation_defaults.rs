//! How a model's makers want it sampled, and which tokens end its answers.

use std::path::Path;

use serde_json::{Map, Value};

use crate::special_tokens::{JsonFileError, SpecialTokens, read_json_object};
use crate::tokenizer::Tokenizer;

/// The defaults of `generation_config.json`, merged with what the other files of a model folder say. A field is
/// `None` where no file sets it, so that the server's own default applies.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Whether tokens are drawn at random; `Some(false)` means greedy.
    pub do_sample: Option<bool>,
    /// Sampling temperature.
    pub temperature: Option<f32>,
    /// Probability mass kept, from 0 to 1.
    pub top_p: Option<f32>,
    /// Number of most probable tokens kept; 0 keeps all.
    pub top_k: Option<u32>,
    /// Smallest probability kept, as a share of the highest.
    pub min_p: Option<f32>,
    /// Divides positive and multiplies negative logits of tokens already present; 1 changes nothing.
    pub repetition_penalty: Option<f32>,
    /// Every token that ends an answer, without repeats.
    pub eos_token_ids: Vec<u32>,
}

impl GenerationDefaults {
    /// Reads the defaults of a model folder.
    ///
    /// Sampling fields come from `generation_config.json` alone. The tokens that end an answer are all that
    /// `generation_config.json` names, or else `config.json` (also in its `text_config`), and in both cases the
    /// `eos_token` of `tokenizer_config.json` too: chat models often end turns with that one while `config.json`
    /// still names the base model's.
    ///
    /// # Errors
    /// [`JsonFileError`] when one of the files is unreadable or not a JSON object. A field with a wrong type counts
    /// as not set.
    pub fn load(folder: &Path, tokenizer: &Tokenizer) -> Result<Self, JsonFileError> {
        let object = |name: &str| read_json_object(&folder.join(name)).map(Option::unwrap_or_default);
        let special_tokens = SpecialTokens::load(folder)?;
        let eos = special_tokens.get("eos_token").and_then(|text| tokenizer.token_id(text));
        Ok(Self::merge(&object("generation_config.json")?, &object("config.json")?, eos))
    }

    /// The defaults from the two files' contents and the tokenizer's own end token.
    pub fn merge(generation: &Map<String, Value>, config: &Map<String, Value>, tokenizer_eos: Option<u32>) -> Self {
        let number = |name: &str| generation.get(name).and_then(Value::as_f64).map(|value| value as f32);
        let count = |name: &str| generation.get(name).and_then(token_id);
        let model = |name: &str| {
            let outer = config.get(name).filter(|value| !value.is_null());
            outer.or_else(|| config.get("text_config").and_then(|inner| inner.get(name)))
        };
        let mut eos_token_ids = token_ids(generation.get("eos_token_id"));
        if eos_token_ids.is_empty() {
            eos_token_ids = token_ids(model("eos_token_id"));
        }
        eos_token_ids.extend(tokenizer_eos);
        let mut seen = std::collections::HashSet::new();
        eos_token_ids.retain(|id| seen.insert(*id));
        Self {
            do_sample: generation.get("do_sample").and_then(Value::as_bool),
            temperature: number("temperature"),
            top_p: number("top_p"),
            top_k: count("top_k"),
            min_p: number("min_p"),
            repetition_penalty: number("repetition_penalty"),
            eos_token_ids,
        }
    }
}

fn token_id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

/// One id or a list of them.
fn token_ids(value: Option<&Value>) -> Vec<u32> {
    match value {
        Some(Value::Array(ids)) => ids.iter().filter_map(token_id).collect(),
        Some(id) => token_id(id).into_iter().collect(),
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn merge(generation: &Value, config: &Value, eos: Option<u32>) -> GenerationDefaults {
        GenerationDefaults::merge(generation.as_object().unwrap(), config.as_object().unwrap(), eos)
    }

    #[test]
    fn the_end_tokens_of_generation_config_win_and_the_tokenizers_joins_them() {
        let defaults = merge(&json!({"eos_token_id": [7, 8, 7]}), &json!({"eos_token_id": 2}), Some(9));
        assert_eq!(defaults.eos_token_ids, [7, 8, 9]);
    }

    #[test]
    fn config_names_the_end_token_as_number_list_or_inside_text_config() {
        let empty = json!({});
        assert_eq!(merge(&empty, &json!({"eos_token_id": 2}), None).eos_token_ids, [2]);
        assert_eq!(merge(&empty, &json!({"eos_token_id": [2, 3]}), Some(3)).eos_token_ids, [2, 3]);
        let nested = json!({"eos_token_id": null, "text_config": {"eos_token_id": 5}});
        assert_eq!(merge(&empty, &nested, None).eos_token_ids, [5]);
    }

    #[test]
    fn sampling_fields_are_none_unless_set_and_wrong_types_do_not_count() {
        let generation = json!({"temperature": 0.6, "top_k": 20, "top_p": "0.9", "do_sample": true, "min_p": null});
        let defaults = merge(&generation, &json!({"temperature": 1.0}), None);
        assert_eq!((defaults.temperature, defaults.top_k, defaults.do_sample), (Some(0.6), Some(20), Some(true)));
        assert_eq!((defaults.top_p, defaults.min_p, defaults.repetition_penalty), (None, None, None));
    }
}
