//! RMS norm and layer norm over rows.

#![allow(unsafe_code)]

use crate::{
    Context,
    parallel::for_row_parts,
    simd::{Kernel, Vector, VectorKernel, dispatch, map_in_place, sum, zip_in_place},
};

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
        dispatch(ctx.isa(), Norm { rows: part, cols, centre: false, weight, bias: None, eps });
    });
}

/// [`rms_norm`] in place.
///
/// # Panics
/// If `cols` does not divide `x.len()`, or `weight` does not fit.
pub fn rms_norm_in_place(ctx: &Context, x: &mut [f32], cols: usize, weight: Option<&[f32]>, eps: f32) {
    check_parameter("weight", weight, cols);
    for_row_parts(ctx, x, cols, &|_, part| {
        dispatch(ctx.isa(), Norm { rows: part, cols, centre: false, weight, bias: None, eps });
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
        dispatch(ctx.isa(), Norm { rows: part, cols, centre: true, weight, bias, eps });
    });
}

fn check_parameter(name: &str, parameter: Option<&[f32]>, cols: usize) {
    if let Some(values) = parameter {
        assert_eq!(values.len(), cols, "norm: {name} must have one value per column");
    }
}

/// Normalizes whole rows in place: layer norm with `centre`, RMS norm without.
struct Norm<'a> {
    rows: &'a mut [f32],
    cols: usize,
    centre: bool,
    weight: Option<&'a [f32]>,
    bias: Option<&'a [f32]>,
    eps: f32,
}

impl Kernel for Norm<'_> {
    fn scalar(self) {
        let columns = self.cols as f32;
        for row in self.rows.chunks_exact_mut(self.cols) {
            if self.centre {
                let mean = row.iter().sum::<f32>() / columns;
                row.iter_mut().for_each(|value| *value -= mean);
            }
            let mean_square = row.iter().map(|value| value * value).sum::<f32>() / columns;
            let scale = 1.0 / (mean_square + self.eps).sqrt();
            row.iter_mut().for_each(|value| *value *= scale);
            if let Some(weight) = self.weight {
                row.iter_mut().zip(weight).for_each(|(value, weight)| *value *= weight);
            }
            if let Some(bias) = self.bias {
                row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
            }
        }
    }
}

impl VectorKernel for Norm<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn vector<V: Vector>(self) {
        let columns = self.cols as f32;
        for row in self.rows.chunks_exact_mut(self.cols) {
            // SAFETY: the caller's promise.
            unsafe {
                if self.centre {
                    let mean = V::splat(sum::<V>(row, |sum, x| sum.add(x), |x| x) / columns);
                    map_in_place::<V>(row, |x| x.sub(mean));
                }
                let mean_square = sum::<V>(row, |sum, x| x.mul_add(x, sum), |x| x * x) / columns;
                let scale = V::splat(1.0 / (mean_square + self.eps).sqrt());
                match self.weight {
                    Some(weight) => zip_in_place::<V>(row, weight, |x, weight| x.mul(scale).mul(weight)),
                    None => map_in_place::<V>(row, |x| x.mul(scale)),
                }
                if let Some(bias) = self.bias {
                    zip_in_place::<V>(row, bias, |x, bias| x.add(bias));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng, rngs::StdRng};

    use super::{layer_norm, rms_norm, rms_norm_in_place};
    use crate::{Context, Isa};

    /// Norm of one row in f64, written from the definition.
    fn expected(x: &[f32], centre: bool, weight: Option<&[f32]>, bias: Option<&[f32]>, eps: f32) -> Vec<f64> {
        let count = x.len() as f64;
        let mean = if centre { x.iter().map(|&x| f64::from(x)).sum::<f64>() / count } else { 0.0 };
        let variance = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / count;
        let scale = 1.0 / (variance + f64::from(eps)).sqrt();
        (0..x.len())
            .map(|i| {
                let weight = weight.map_or(1.0, |weight| f64::from(weight[i]));
                let bias = bias.map_or(0.0, |bias| f64::from(bias[i]));
                (f64::from(x[i]) - mean) * scale * weight + bias
            })
            .collect()
    }

    #[test]
    fn norms_agree_with_double_precision_on_every_level() {
        let mut rng = StdRng::seed_from_u64(20);
        for (rows, cols) in [(1, 1), (3, 2), (2, 7), (9, 64), (5, 31), (4, 576), (1, 577), (70, 576), (3, 4099)] {
            // One element is cut off the front of each buffer, so that nothing is aligned.
            let mut random = |count: usize| (0..=count).map(|_| rng.random_range(-2.0f32..3.0)).collect::<Vec<f32>>();
            let (x, weight, bias) = (random(rows * cols), random(cols), random(cols));
            let (x, weight, bias) = (&x[1..], &weight[1..], &bias[1..]);
            for isa in Isa::available() {
                let ctx = Context::with_isa(isa, 2);
                for (weight, bias) in [(None, None), (Some(weight), None), (Some(weight), Some(bias))] {
                    let mut layer = vec![f32::NAN; x.len()];
                    layer_norm(&ctx, x, cols, weight, bias, 1e-5, &mut layer);
                    let mut rms = vec![f32::NAN; x.len()];
                    rms_norm(&ctx, x, cols, weight, 1e-6, &mut rms);
                    let mut in_place = x.to_vec();
                    rms_norm_in_place(&ctx, &mut in_place, cols, weight, 1e-6);
                    assert_eq!(rms, in_place);
                    for row in 0..rows {
                        let range = row * cols..(row + 1) * cols;
                        let layer_expected = expected(&x[range.clone()], true, weight, bias, 1e-5);
                        let rms_expected = expected(&x[range.clone()], false, weight, None, 1e-6);
                        for column in 0..cols {
                            let at = row * cols + column;
                            // Centring rounds in proportion to the values, and short rows can have a tiny variance.
                            let layer_error = (f64::from(layer[at]) - layer_expected[column]).abs();
                            assert!(layer_error < 2e-5, "{isa:?} layer {rows}x{cols} at {at}: {layer_error:e}");
                            let rms_error = (f64::from(rms[at]) - rms_expected[column]).abs();
                            assert!(rms_error < 4e-6, "{isa:?} rms {rows}x{cols} at {at}: {rms_error:e}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn eps_keeps_a_row_of_zeros_finite() {
        for isa in Isa::available() {
            let mut x = vec![0.0; 40];
            rms_norm_in_place(&Context::with_isa(isa, 1), &mut x, 40, None, 1e-6);
            assert_eq!(x, vec![0.0; 40]);
        }
    }

    #[test]
    fn nothing_to_do_is_fine() {
        rms_norm(&Context::new(1), &[], 8, None, 1e-6, &mut []);
    }
}
