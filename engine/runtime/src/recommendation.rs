//! What a model's own files recommend for sampling, held to the ranges that requests are held to.

use crate::{SamplingParameters, SubmitError};
use linnet_models::GenerationDefaults;

/// Takes out the values that no request could have, and says for each what it was. Left in, every request that names
/// no value of its own would be refused over a field that its sender never wrote.
pub(crate) fn drop_unusable(defaults: &mut GenerationDefaults) -> Vec<String> {
    let mut notes = Vec::new();
    // Each round takes out one field, of which there are four.
    while let Err(SubmitError::InvalidParameter { name, value, expected }) = parameters(defaults).validate(usize::MAX) {
        match name {
            "temperature" => defaults.temperature = None,
            "top_p" => defaults.top_p = None,
            "min_p" => defaults.min_p = None,
            "repetition_penalty" => defaults.repetition_penalty = None,
            _ => break,
        }
        notes.push(format!("{name} is {value} in generation_config.json, but must be {expected}; it is not followed"));
    }
    notes
}

fn parameters(defaults: &GenerationDefaults) -> SamplingParameters {
    let neutral = SamplingParameters::default();
    SamplingParameters {
        temperature: defaults.temperature.unwrap_or(neutral.temperature),
        top_p: defaults.top_p.unwrap_or(neutral.top_p),
        min_p: defaults.min_p.unwrap_or(neutral.min_p),
        repetition_penalty: defaults.repetition_penalty.unwrap_or(neutral.repetition_penalty),
        ..neutral
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_makers_value_that_no_request_could_have_does_not_spoil_every_request() {
        let mut defaults = GenerationDefaults {
            temperature: Some(-1.0),
            top_p: Some(1.5),
            top_k: Some(40),
            min_p: Some(f32::INFINITY),
            repetition_penalty: Some(1.1),
            ..GenerationDefaults::default()
        };
        let notes = drop_unusable(&mut defaults).join("\n");
        for said in ["temperature is -1", "top_p is 1.5", "min_p is inf", "from 0 to 1"] {
            assert!(notes.contains(said), "{notes}");
        }
        assert_eq!((defaults.temperature, defaults.top_p, defaults.min_p), (None, None, None));
        assert_eq!((defaults.top_k, defaults.repetition_penalty), (Some(40), Some(1.1)));
        assert!(parameters(&defaults).validate(usize::MAX).is_ok());
        assert!(drop_unusable(&mut defaults).is_empty());
    }
}
