//! `rope_scaling` of a configuration, read as mlx-lm 0.32.2's `initialize_rope` reads it.

use crate::{ModelConfig, error::Result};
use linnet_compute::{RopeScaling, RopeSpec};
use serde_json::Value;

/// The rotary embedding that a configuration's `rope_scaling` asks for.
///
/// # Errors
/// When its type is unknown or it lacks a number that its type needs.
pub(crate) fn rope_spec(
    config: &ModelConfig,
    dims: usize,
    base: f64,
    traditional: bool,
    scaling: Option<&Value>,
    max_position_embeddings: Option<usize>,
) -> Result<RopeSpec> {
    let scaling = match scaling {
        Some(values @ Value::Object(_)) => read_scaling(config, values, dims, max_position_embeddings)?,
        _ => RopeScaling::None,
    };
    // Phi's factors are defined for halves only.
    let traditional = traditional && !matches!(scaling, RopeScaling::LongRope { .. });
    Ok(RopeSpec { dims, traditional, base, scaling })
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
