//! RMS norm and layer norm over rows.

use crate::{Context, parallel::for_row_parts};

/// RMS norm of each row: `out = x / sqrt(mean(x^2) + eps) * weight`, sums in f32.
///
/// `x` and `out` are `[rows, cols]` with `rows = x.len() / cols`; `weight` is `[cols]`. With `cols` = the head dimension
/// it normalizes each head of queries or keys.
///
/// # Panics
/// If `cols` does not divide `x.len()`, or `out` or `weight` do not fit.
pub fn rms_norm(ctx: &Context, x: &[f32], cols: usize, weight: Option<&[f32]>, eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "rms_norm: input and output differ in length");
    check_parameter("weight", weight, cols);
    for_row_parts(ctx, out, cols, &|first, part| {
        part.copy_from_slice(&x[first * cols..first * cols + part.len()]);
        for row in part.chunks_exact_mut(cols) {
            rms_norm_row(row, weight, eps);
        }
    });
}

/// [`rms_norm`] in place.
///
/// # Panics
/// If `cols` does not divide `x.len()`, or `weight` does not fit.
pub fn rms_norm_in_place(ctx: &Context, x: &mut [f32], cols: usize, weight: Option<&[f32]>, eps: f32) {
    check_parameter("weight", weight, cols);
    for_row_parts(ctx, x, cols, &|_, part| {
        for row in part.chunks_exact_mut(cols) {
            rms_norm_row(row, weight, eps);
        }
    });
}

/// Layer norm of each row: `out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias` with the biased variance, sums
/// in f32. Shapes as in [`rms_norm`]; `bias` is `[cols]`.
///
/// # Panics
/// If `cols` does not divide `x.len()`, or `out`, `weight` or `bias` do not fit.
pub fn layer_norm(
    ctx: &Context,
    x: &[f32],
    cols: usize,
    weight: Option<&[f32]>,
    bias: Option<&[f32]>,
    eps: f32,
    out: &mut [f32],
) {
    assert_eq!(x.len(), out.len(), "layer_norm: input and output differ in length");
    check_parameter("weight", weight, cols);
    check_parameter("bias", bias, cols);
    for_row_parts(ctx, out, cols, &|first, part| {
        part.copy_from_slice(&x[first * cols..first * cols + part.len()]);
        for row in part.chunks_exact_mut(cols) {
            layer_norm_row(row, weight, bias, eps);
        }
    });
}

fn check_parameter(name: &str, parameter: Option<&[f32]>, cols: usize) {
    if let Some(values) = parameter {
        assert_eq!(values.len(), cols, "norm: {name} must have one value per column");
    }
}

fn rms_norm_row(row: &mut [f32], weight: Option<&[f32]>, eps: f32) {
    let mean_square = row.iter().map(|value| value * value).sum::<f32>() / row.len() as f32;
    let scale = 1.0 / (mean_square + eps).sqrt();
    row.iter_mut().for_each(|value| *value *= scale);
    scale_columns(row, weight);
}

fn layer_norm_row(row: &mut [f32], weight: Option<&[f32]>, bias: Option<&[f32]>, eps: f32) {
    let mean = row.iter().sum::<f32>() / row.len() as f32;
    row.iter_mut().for_each(|value| *value -= mean);
    let variance = row.iter().map(|value| value * value).sum::<f32>() / row.len() as f32;
    let scale = 1.0 / (variance + eps).sqrt();
    row.iter_mut().for_each(|value| *value *= scale);
    scale_columns(row, weight);
    if let Some(bias) = bias {
        row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
    }
}

fn scale_columns(row: &mut [f32], weight: Option<&[f32]>) {
    if let Some(weight) = weight {
        row.iter_mut().zip(weight).for_each(|(value, weight)| *value *= weight);
    }
}
