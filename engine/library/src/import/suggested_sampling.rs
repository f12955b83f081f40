//! What a model's makers recommend for sampling, where its files do not say it.

use serde_json::{Map, Value, json};

use super::Companion;
use crate::disk;
use crate::error::LibraryError;

/// Name of the file that says how a model wants to be sampled.
const GENERATION_CONFIG: &str = "generation_config.json";
/// Generation configurations are some hundred bytes.
const GENERATION_CONFIG_LIMIT: u64 = 1 << 20;
/// Fields by which a generation configuration shows that its maker thought of sampling.
const SAMPLING_FIELDS: [&str; 5] = ["do_sample", "temperature", "top_p", "top_k", "min_p"];

/// How a model's makers want it sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SuggestedSampling {
    /// Sampling temperature.
    pub temperature: f64,
    /// Probability mass kept, from 0 to 1.
    pub top_p: f64,
}

impl SuggestedSampling {
    /// Puts the values into the generation configuration among `companions`, unless it has a word on sampling itself.
    pub(super) fn add_to(self, companions: &mut Vec<(String, Companion)>) -> Result<(), LibraryError> {
        let index = companions.iter().position(|(name, _)| name == GENERATION_CONFIG);
        let mut fields = match index.map(|index| &companions[index].1) {
            None => Map::new(),
            Some(Companion::Json(value)) => value.as_object().cloned().unwrap_or_default(),
            Some(Companion::Copy(path)) => match disk::read_json(path, GENERATION_CONFIG_LIMIT)? {
                Value::Object(fields) => fields,
                _ => return Err(LibraryError::malformed(path, "it is not a JSON object")),
            },
        };
        if SAMPLING_FIELDS.iter().any(|field| fields.contains_key(*field)) {
            return Ok(());
        }
        fields.insert("do_sample".into(), json!(true));
        fields.insert("temperature".into(), json!(self.temperature));
        fields.insert("top_p".into(), json!(self.top_p));
        let companion = Companion::Json(Value::Object(fields));
        match index {
            Some(index) => companions[index].1 = companion,
            None => companions.push((GENERATION_CONFIG.into(), companion)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAKERS: SuggestedSampling = SuggestedSampling { temperature: 0.2, top_p: 0.9 };

    fn with(companions: Vec<(String, Companion)>) -> Value {
        let mut companions = companions;
        MAKERS.add_to(&mut companions).unwrap();
        assert_eq!(companions.len(), 1);
        match companions.remove(0) {
            (name, Companion::Json(value)) if name == GENERATION_CONFIG => value,
            (name, Companion::Copy(path)) => panic!("{name} is still {}", path.display()),
            (name, Companion::Json(value)) => panic!("{name}: {value}"),
        }
    }

    #[test]
    fn a_model_that_says_nothing_about_sampling_gets_its_makers_values_and_keeps_its_tokens() {
        let expected = json!({"do_sample": true, "temperature": 0.2, "top_p": 0.9});
        assert_eq!(with(Vec::new()), expected);
        let tokens = json!({"eos_token_id": [2, 0]});
        let merged = with(vec![(GENERATION_CONFIG.into(), Companion::Json(tokens))]);
        assert_eq!(merged["eos_token_id"], json!([2, 0]));
        assert_eq!(merged["temperature"], json!(0.2));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(GENERATION_CONFIG);
        std::fs::write(&path, r#"{"eos_token_id": 2, "transformers_version": "4.42.3"}"#).unwrap();
        let merged = with(vec![(GENERATION_CONFIG.into(), Companion::Copy(path))]);
        assert_eq!((&merged["eos_token_id"], &merged["top_p"]), (&json!(2), &json!(0.9)));
    }

    #[test]
    fn a_model_that_does_say_how_it_wants_to_be_sampled_is_left_alone() {
        for field in ["do_sample", "temperature", "top_p", "top_k", "min_p"] {
            let own = json!({field: 0});
            assert_eq!(with(vec![(GENERATION_CONFIG.into(), Companion::Json(own.clone()))]), own);
        }
    }
}
