//! The rotary embedding of a configuration: `rope_theta` and `rope_scaling`, or transformers 5's `rope_parameters` in
//! their place; read as mlx-lm 0.32.2's `initialize_rope` reads it.

use crate::{ModelConfig, error::Result};
use linnet_compute::{RopeScaling, RopeSpec};
use serde_json::Value;

/// The base where a configuration names none, as in mlx-lm.
const DEFAULT_BASE: f64 = 10_000.0;
/// How far beyond its trained length a sequence is tried before a length-dependent embedding is believed.
const LENGTHS_TRIED: [usize; 3] = [1, 2, 64];

/// What a configuration says about its rotary embedding.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RopeFields<'a> {
    /// `rope_theta`.
    pub(crate) theta: Option<f64>,
    /// `rope_scaling`.
    pub(crate) scaling: Option<&'a Value>,
    /// `rope_parameters`: theta, kind and numbers in one object, as transformers 5 saves them.
    pub(crate) parameters: Option<&'a Value>,
    /// `rope_traditional`.
    pub(crate) traditional: bool,
    /// `max_position_embeddings`.
    pub(crate) max_position_embeddings: Option<usize>,
}

/// The rotary embedding over heads of `dims` elements. The older fields win where a configuration has both, as in
/// mlx-lm's `qwen3.py`; its `llama.py` does not read `rope_parameters` and computes such models with wrong angles.
///
/// # Errors
/// When the kind is unknown, it lacks a number that its kind needs, or its numbers give angles that are none.
pub(crate) fn rope_spec(config: &ModelConfig, dims: usize, fields: RopeFields<'_>) -> Result<RopeSpec> {
    let parameters = match fields.parameters {
        None | Some(Value::Null) => None,
        Some(values @ Value::Object(entries)) => {
            // Some families have one embedding for each kind of layer.
            if let Some((kind, _)) = entries.iter().find(|(_, entry)| entry.is_object()) {
                return Err(config.invalid(&format!("rope_parameters that differ by layer ({kind}) are not supported")));
            }
            Some(values)
        }
        Some(_) => return Err(config.invalid("rope_parameters is not an object")),
    };
    let base = match (fields.theta, parameters.and_then(|values| values.get("rope_theta"))) {
        (Some(theta), _) => theta,
        (None, None | Some(Value::Null)) => DEFAULT_BASE,
        (None, Some(theta)) => {
            theta.as_f64().ok_or_else(|| config.invalid("rope_parameters.rope_theta is not a number"))?
        }
    };
    let scaling = match fields.scaling.or(parameters) {
        Some(values @ Value::Object(_)) => read_scaling(config, values, dims, fields.max_position_embeddings)?,
        _ => RopeScaling::None,
    };
    // Phi's factors are defined for halves only.
    let traditional = fields.traditional && !matches!(scaling, RopeScaling::LongRope { .. });
    let spec = RopeSpec { dims, traditional, base, scaling };
    check(config, &spec, fields.max_position_embeddings)?;
    Ok(spec)
}

/// Refuses numbers with which the backends would compute nonsense, or not the same.
fn check(config: &ModelConfig, spec: &RopeSpec, max_position_embeddings: Option<usize>) -> Result<()> {
    let dims = spec.dims;
    if dims == 0 || !dims.is_multiple_of(2) {
        return Err(config.invalid(&format!("heads of {dims} elements cannot be turned in pairs")));
    }
    match &spec.scaling {
        RopeScaling::LongRope { long_factor, .. } if ![1, dims / 2].contains(&long_factor.len()) => {
            let found = long_factor.len();
            return Err(config.invalid(&format!("{found} numbers in long_factor for {} pairs of a head", dims / 2)));
        }
        RopeScaling::Proportional { rotated_dims, .. } if !(1..=dims).contains(rotated_dims) => {
            return Err(config.invalid("partial_rotary_factor is not above 0 and at most 1"));
        }
        _ => {}
    }
    let trained = max_position_embeddings.unwrap_or(1).max(1);
    let may_rest = matches!(spec.scaling, RopeScaling::Proportional { .. });
    let is_divisor =
        |frequency: f64| frequency > 0.0 && (may_rest && frequency.is_infinite() || (frequency as f32).is_finite());
    // Kinds that do not depend on the length give the same each time.
    let is_sound = LENGTHS_TRIED.iter().map(|times| trained.saturating_mul(*times)).all(|length| {
        let base = spec.base_for(length);
        base > 0.0 && (base as f32).is_finite() && spec.frequencies(length).into_iter().all(is_divisor)
    });
    let scale = spec.input_scale();
    if is_sound && scale > 0.0 && scale.is_finite() {
        return Ok(());
    }
    Err(config.invalid(&format!(
        "its rotary embedding (base {}, {:?}) gives angles that are no numbers for heads of {dims} elements",
        spec.base, spec.scaling
    )))
}

fn read_scaling(
    config: &ModelConfig,
    values: &Value,
    dims: usize,
    max_position_embeddings: Option<usize>,
) -> Result<RopeScaling> {
    let kind = values.get("type").or_else(|| values.get("rope_type")).and_then(Value::as_str).unwrap_or("default");
    let optional = |key: &str| values.get(key).and_then(Value::as_f64);
    let required =
        |key: &str| optional(key).ok_or_else(|| config.invalid(&format!("rope_scaling of type {kind:?} needs {key}")));
    Ok(match kind {
        "default" | "mrope" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: required("factor")? },
        "dynamic" => RopeScaling::Dynamic {
            factor: required("factor")?,
            max_position: max_position_embeddings
                .ok_or_else(|| config.invalid("rope_scaling of type \"dynamic\" needs max_position_embeddings"))?,
        },
        "llama3" => RopeScaling::Llama3 {
            factor: required("factor")?,
            low_frequency_factor: optional("low_freq_factor").unwrap_or(1.0),
            high_frequency_factor: optional("high_freq_factor").unwrap_or(4.0),
            original_max_position: optional("original_max_position_embeddings").unwrap_or(8192.0),
        },
        "yarn" | "deepseek_yarn" | "telechat3-yarn" => RopeScaling::Yarn {
            factor: required("factor")?,
            original_max_position: optional("original_max_position_embeddings").unwrap_or(4096.0),
            beta_fast: optional("beta_fast").unwrap_or(32.0),
            beta_slow: optional("beta_slow").unwrap_or(1.0),
            mscale: optional("mscale").unwrap_or(1.0),
            mscale_all_dim: optional("mscale_all_dim").unwrap_or(0.0),
        },
        "longrope" => RopeScaling::LongRope {
            long_factor: long_factor(values)
                .ok_or_else(|| config.invalid("rope_scaling of type \"longrope\" needs long_factor"))?,
            // mlx-lm's default where a configuration names no context length.
            max_position: max_position_embeddings.map_or(131_072.0, |length| length as f64),
            original_max_position: required("original_max_position_embeddings")?,
        },
        "proportional" => RopeScaling::Proportional {
            rotated_dims: (dims as f64 * optional("partial_rotary_factor").unwrap_or(1.0)) as usize,
            factor: optional("factor").unwrap_or(1.0),
        },
        other => return Err(config.invalid(&format!("rope_scaling of type {other:?} is not supported"))),
    })
}

fn long_factor(values: &Value) -> Option<Vec<f64>> {
    match values.get("long_factor")? {
        Value::Array(factors) => factors.iter().map(|factor| factor.as_f64()).collect(),
        single => single.as_f64().map(|number| vec![number]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(document: &Value, dims: usize) -> Result<RopeSpec> {
        let fields = RopeFields {
            theta: document.get("rope_theta").and_then(Value::as_f64),
            scaling: document.get("rope_scaling"),
            parameters: document.get("rope_parameters"),
            max_position_embeddings: Some(4096),
            ..RopeFields::default()
        };
        rope_spec(&ModelConfig::for_tests(json!({})), dims, fields)
    }

    #[test]
    fn a_model_saved_by_transformers_5_keeps_its_base_and_its_scaling() {
        let older = json!({"rope_theta": 500_000.0, "rope_scaling": {"rope_type": "llama3", "factor": 32.0,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}});
        let newer = json!({"rope_parameters": {"rope_theta": 500_000.0, "rope_type": "llama3", "factor": 32.0,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}});
        let spec = read(&newer, 64).unwrap();
        assert_eq!(spec, read(&older, 64).unwrap());
        assert!(spec.base == 500_000.0 && matches!(spec.scaling, RopeScaling::Llama3 { .. }));
        let plain = read(&json!({"rope_parameters": {"rope_theta": 100_000.0, "rope_type": "default"}}), 64).unwrap();
        assert_eq!((plain.base, plain.scaling), (100_000.0, RopeScaling::None));
        // Where both stand there, the older fields are what every reader knows.
        let both =
            json!({"rope_theta": 5.0, "rope_parameters": {"rope_theta": 7.0, "rope_type": "linear", "factor": 2}});
        let both = read(&both, 64).unwrap();
        assert_eq!((both.base, both.scaling), (5.0, RopeScaling::Linear { factor: 2.0 }));
        assert_eq!(read(&json!({"rope_parameters": null}), 64).unwrap().base, DEFAULT_BASE);
    }

    #[test]
    fn rope_parameters_that_cannot_be_followed_are_refused_and_not_passed_over() {
        for (parameters, word) in [
            (
                json!({"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}),
                "full_attention",
            ),
            (json!({"rope_theta": "10000"}), "rope_theta"),
            (json!(10_000), "rope_parameters"),
            (json!({"rope_theta": 1e4, "rope_type": "new"}), "new"),
        ] {
            let text = read(&json!({"rope_parameters": parameters}), 64).unwrap_err().to_string();
            assert!(text.contains(word), "{text}");
        }
    }

    #[test]
    fn numbers_that_give_no_angles_are_refused_before_anything_is_computed() {
        let factors = |count: usize| vec![1.5; count];
        let long = |factors: Value| {
            json!({"type": "longrope", "long_factor": factors,
            "original_max_position_embeddings": 2048})
        };
        for (dims, scaling) in [
            (64, json!({"type": "proportional", "partial_rotary_factor": 1.5})),
            (64, json!({"type": "proportional", "partial_rotary_factor": -0.5})),
            (64, json!({"type": "proportional", "partial_rotary_factor": 0.0})),
            (64, long(json!(factors(31)))),
            (64, long(json!(factors(33)))),
            (64, long(json!([]))),
            (64, json!({"type": "longrope", "long_factor": factors(32), "original_max_position_embeddings": 1})),
            (64, json!({"type": "longrope", "long_factor": factors(32), "original_max_position_embeddings": 0})),
            (64, json!({"type": "linear", "factor": 0.0})),
            (64, json!({"type": "linear", "factor": -2.0})),
            (64, json!({"type": "dynamic", "factor": -1.0})),
            (2, json!({"type": "dynamic", "factor": 2.0})),
            (64, json!({"type": "llama3", "factor": 0.0})),
            (64, json!({"type": "yarn", "factor": 0.0})),
            (64, json!({"type": "yarn", "factor": 2.0, "beta_fast": 0.0})),
            (63, json!({"type": "default"})),
            (0, json!({"type": "default"})),
        ] {
            let found = read(&json!({"rope_scaling": scaling}), dims);
            assert!(found.is_err(), "{scaling} over {dims} became {:?}", found.unwrap());
        }
        for theta in [0.0, -1.0, 1e300] {
            assert!(read(&json!({"rope_theta": theta}), 64).is_err(), "{theta}");
        }
        for (dims, scaling) in [
            (64, json!({"type": "proportional", "partial_rotary_factor": 0.25})),
            (64, json!({"type": "proportional", "partial_rotary_factor": 1.0, "factor": 8.0})),
            (64, long(json!(factors(32)))),
            (64, long(json!(1.5))),
            (64, json!({"type": "dynamic", "factor": 2.0})),
            (64, json!({"type": "yarn", "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.707})),
            (2, json!({"type": "default"})),
        ] {
            read(&json!({"rope_scaling": scaling}), dims).unwrap();
        }
    }
}
