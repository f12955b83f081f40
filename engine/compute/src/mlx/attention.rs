//! Attention, composed as mlx-lm 0.32.2 composes it: MLX's fused form, `quantized_scaled_dot_product_attention`
//! (`mlx_lm/models/base.py`) over a quantized cache, and Gemma 2's form with a cap on the scores.

use super::{
    failure::Failure,
    graph::{Graph, Mask, Packing, Result, data, dtype},
    kv::{GroupPlan, Stored},
};
use crate::AttentionSpec;
use mlx_rs::Array;

/// `q` is `[rows, heads, length, head_dim]`; the result is shaped like it.
#[allow(clippy::too_many_arguments, reason = "the operands of one operation")]
pub(super) fn attend(
    graph: &Graph,
    q: &Array,
    keys: &Stored,
    values: &Stored,
    spec: &AttentionSpec,
    plan: &GroupPlan,
    mask: &Mask,
    packing: Option<Packing>,
) -> Result<Array> {
    match (keys, values, spec.softcap) {
        (Stored::Plain([k]), Stored::Plain([v]), None) => graph.attention(q, k, v, spec.scale, mask),
        (Stored::Plain([k]), Stored::Plain([v]), Some(cap)) => capped(graph, q, k, v, spec.scale, cap, mask),
        (Stored::Affine(k), Stored::Affine(v), None) => {
            let packing = known(packing)?;
            if let Some(kernels) = graph.kernels()
                && let Some(out) = kernels.decode_attention(q, [k, v], spec.scale, packing, plan)?
            {
                return Ok(out);
            }
            quantized(graph, q, k, v, spec.scale, mask, packing)
        }
        (keys, values, softcap) => {
            // Only quantized layers with a cap come here, for which the reference has no form of its own.
            let packing = known(packing)?;
            let (keys, values) = (keys.dequantized(graph, packing)?, values.dequantized(graph, packing)?);
            let (k, v) = (&keys.arrays()[0], &values.arrays()[0]);
            match softcap {
                Some(cap) => capped(graph, q, k, v, spec.scale, cap, mask),
                None => graph.attention(q, k, v, spec.scale, mask),
            }
        }
    }
}

/// How quantized arrays are packed. Only a store that says so has any.
fn known(packing: Option<Packing>) -> Result<Packing> {
    packing.ok_or_else(|| Failure::new("attention", "quantized keys of a store that does not say how".into()))
}

/// How many query heads share a key head, and the queries with those as an axis of their own.
fn by_kv_head(graph: &Graph, q: &Array, kv_heads: i32) -> Result<(i32, Array)> {
    let (rows, heads, length, head_dim) = (q.dim(0), q.dim(1), q.dim(2), q.dim(3));
    let repeats = heads / kv_heads;
    if repeats == 1 {
        return Ok((1, q.clone()));
    }
    Ok((repeats, graph.reshape(q, &[rows, kv_heads, repeats, length, head_dim])?))
}

fn quantized(
    graph: &Graph,
    q: &Array,
    keys: &[Array; 3],
    values: &[Array; 3],
    scale: f32,
    mask: &Mask,
    packing: Packing,
) -> Result<Array> {
    let scaled = graph.multiply(q, &graph.scalar(f64::from(scale), data::dtype_of(q))?)?;
    let (repeats, scaled) = by_kv_head(graph, &scaled, keys[0].dim(1))?;
    let (keys, values) = if repeats > 1 {
        (expand_each(graph, keys)?, expand_each(graph, values)?)
    } else {
        (keys.clone(), values.clone())
    };
    let mut scores = graph.quantized_matmul(&scaled, &keys, true, packing)?;
    if let Some(mask) = to_array(graph, mask, &scores, repeats)? {
        scores = graph.select(&mask, &scores, &lowest(graph, &scores)?)?;
    }
    let weights = graph.softmax_last(&scores)?;
    let out = graph.quantized_matmul(&weights, &values, false, packing)?;
    merge_heads(graph, &out, q)
}

fn capped(graph: &Graph, q: &Array, k: &Array, v: &Array, scale: f32, cap: f32, mask: &Mask) -> Result<Array> {
    let scaled = graph.multiply(q, &graph.scalar(f64::from(scale), data::dtype_of(q))?)?;
    let (repeats, scaled) = by_kv_head(graph, &scaled, k.dim(1))?;
    let (k, v) = if repeats > 1 { (graph.expand(k, 2)?, graph.expand(v, 2)?) } else { (k.clone(), v.clone()) };
    let scores = graph.matmul(&scaled, &graph.swap_last(&k)?)?;
    let cap = graph.scalar(f64::from(cap), data::dtype_of(&scores))?;
    let mut scores = graph.multiply(&graph.tanh(&graph.divide(&scores, &cap)?)?, &cap)?;
    if let Some(mask) = to_array(graph, mask, &scores, repeats)? {
        scores = graph.select(&mask, &scores, &lowest(graph, &scores)?)?;
    }
    let weights = graph.softmax_last(&scores)?;
    merge_heads(graph, &graph.matmul(&weights, &v)?, q)
}

fn expand_each(graph: &Graph, [packed, scales, biases]: &[Array; 3]) -> Result<[Array; 3]> {
    Ok([graph.expand(packed, -3)?, graph.expand(scales, -3)?, graph.expand(biases, -3)?])
}

/// The mask as booleans that broadcast to the scores.
pub(super) fn to_array(graph: &Graph, mask: &Mask, scores: &Array, repeats: i32) -> Result<Option<Array>> {
    Ok(match mask {
        Mask::None => None,
        Mask::Causal => {
            let shape = scores.shape();
            let (queries, keys) = (shape[shape.len() - 2], shape[shape.len() - 1]);
            let places = graph.reshape(&graph.arange(keys - queries, keys)?, &[queries, 1])?;
            Some(graph.greater_equal(&places, &graph.arange(0, keys)?)?)
        }
        Mask::Array(array) if repeats > 1 && array.ndim() > 3 => Some(graph.expand(array, -3)?),
        Mask::Array(array) => Some(array.clone()),
    })
}

/// The lowest finite number of the scores' type.
pub(super) fn lowest(graph: &Graph, scores: &Array) -> Result<Array> {
    let dtype = data::dtype_of(scores);
    let value = match dtype {
        dtype::F16 => f64::from(half::f16::MIN),
        dtype::BF16 => f64::from(half::bf16::MIN),
        _ => f64::from(f32::MIN),
    };
    graph.scalar(value, dtype)
}

fn merge_heads(graph: &Graph, out: &Array, q: &Array) -> Result<Array> {
    if out.ndim() == 4 { Ok(out.clone()) } else { graph.reshape(out, q.shape()) }
}
