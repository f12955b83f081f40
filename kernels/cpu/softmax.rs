//! Softmax over rows.

#![allow(unsafe_code)]

use crate::{
    Context,
    argmax::argmax,
    parallel::for_row_parts,
    simd::{ExpConstants, Kernel, Vector, VectorKernel, dispatch, exp, map_in_place, sum},
};

/// Softmax of each row of `x` (`[rows, cols]`), in place, with the row's maximum subtracted first. Elements of `-inf` get
/// exactly 0; a row of nothing but `-inf` becomes NaN, as in every other implementation.
///
/// # Panics
/// If `cols` does not divide `x.len()`.
pub fn softmax_in_place(ctx: &Context, x: &mut [f32], cols: usize) {
    for_row_parts(ctx, x, cols, &|_, part| {
        for row in part.chunks_exact_mut(cols) {
            dispatch(ctx.isa(), Softmax { row });
        }
    });
}

struct Softmax<'a> {
    row: &'a mut [f32],
}

impl Kernel for Softmax<'_> {
    fn scalar(self) {
        let maximum = self.row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // One running f32 sum over a whole vocabulary would lose two digits.
        let mut sum = 0.0;
        for value in self.row.iter_mut() {
            *value = (*value - maximum).exp();
            sum += f64::from(*value);
        }
        self.row.iter_mut().for_each(|value| *value /= sum as f32);
    }
}

impl VectorKernel for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn vector<V: Vector>(self) {
        // SAFETY: the caller's promise; loads stay inside chunks of their length.
        unsafe {
            let constants = ExpConstants::<V>::new();
            let chunks = self.row.chunks_exact(V::LANES);
            let tail = chunks.remainder().iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let maxima = chunks.fold(V::splat(tail), |maxima, chunk| V::load(chunk.as_ptr()).max(maxima));
            let maximum = V::splat(maxima.reduce_max());
            map_in_place::<V>(self.row, |x| exp(x.sub(maximum), &constants));
            let scale = V::splat(1.0 / sum::<V>(self.row, |sum, x| sum.add(x), |x| x));
            map_in_place::<V>(self.row, |x| x.mul(scale));
        }
    }
}

/// `ln(sum(exp(x)))`, computed from the largest element so that nothing overflows. Elements of `-inf` count as nothing;
/// of nothing else it is `-inf`.
#[must_use]
pub fn log_sum_exp(ctx: &Context, x: &[f32]) -> f32 {
    let maximum = x.get(argmax(x)).copied().unwrap_or(f32::NEG_INFINITY);
    if !maximum.is_finite() {
        return maximum;
    }
    maximum + dispatch(ctx.isa(), ExpSum { x, maximum }).ln()
}

struct ExpSum<'a> {
    x: &'a [f32],
    maximum: f32,
}

impl Kernel for ExpSum<'_> {
    fn scalar(self) -> f32 {
        self.x.iter().map(|&value| f64::from((value - self.maximum).exp())).sum::<f64>() as f32
    }
}

impl VectorKernel for ExpSum<'_> {
    type Output = f32;

    #[inline(always)]
    unsafe fn vector<V: Vector>(self) -> f32 {
        // SAFETY: the caller's promise.
        unsafe {
            let constants = ExpConstants::<V>::new();
            let maximum = V::splat(self.maximum);
            // Blocks keep the running sums small enough not to lose digits over a whole vocabulary.
            let mut total = 0.0f64;
            for block in self.x.chunks(BLOCK) {
                let mut sums = [V::splat(0.0); 2];
                let mut pairs = block.chunks_exact(2 * V::LANES);
                for pair in &mut pairs {
                    for (index, sum) in sums.iter_mut().enumerate() {
                        let x = V::load(pair.as_ptr().add(index * V::LANES));
                        *sum = sum.add(exp(x.sub(maximum), &constants));
                    }
                }
                total += f64::from(sums[0].add(sums[1]).reduce_add());
                for &x in pairs.remainder() {
                    total += f64::from((x - self.maximum).exp());
                }
            }
            total as f32
        }
    }
}

/// Elements summed in single precision.
const BLOCK: usize = 4096;

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng, rngs::StdRng};

    use super::{log_sum_exp, softmax_in_place};
    use crate::{Context, Isa};

    #[test]
    fn log_sum_exp_agrees_with_double_precision_on_every_level() {
        let mut rng = StdRng::seed_from_u64(31);
        for length in [1, 2, 15, 64, 1001, 51_865] {
            let mut x: Vec<f32> = (0..length).map(|_| rng.random_range(-30.0f32..30.0)).collect();
            if length > 2 {
                x[1] = f32::NEG_INFINITY;
            }
            let expected = x.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
            for isa in Isa::available() {
                let found = log_sum_exp(&Context::with_isa(isa, 1), &x);
                assert!((f64::from(found) - expected).abs() < 4e-6, "{isa:?}, {length}: {found} is not {expected}");
            }
        }
        let ctx = Context::new(1);
        assert_eq!(log_sum_exp(&ctx, &[f32::NEG_INFINITY; 3]), f32::NEG_INFINITY);
        assert_eq!(log_sum_exp(&ctx, &[]), f32::NEG_INFINITY);
    }

    #[test]
    fn softmax_agrees_with_double_precision_on_every_level() {
        let mut rng = StdRng::seed_from_u64(30);
        for (rows, cols) in [(1, 1), (3, 2), (7, 15), (4, 64), (2, 1001), (60, 600), (1, 49_152)] {
            let inputs: Vec<f32> = (0..=rows * cols).map(|_| rng.random_range(-30.0f32..30.0)).collect();
            for isa in Isa::available() {
                let mut x = inputs.clone();
                softmax_in_place(&Context::with_isa(isa, 2), &mut x[1..], cols);
                for (got, row) in x[1..].chunks_exact(cols).zip(inputs[1..].chunks_exact(cols)) {
                    let maximum = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let weight = |x: f32| f64::from(x - maximum).exp();
                    let sum: f64 = row.iter().map(|&x| weight(x)).sum();
                    for (&got, &x) in got.iter().zip(row) {
                        let expected = weight(x) / sum;
                        let error = (f64::from(got) - expected).abs();
                        assert!(error < 3e-6 * expected + 1e-30, "{isa:?} {rows}x{cols}: {got:e} for {expected:e}");
                    }
                }
            }
        }
    }

    #[test]
    fn masked_elements_get_exactly_zero() {
        for isa in Isa::available() {
            let mut x =
                [1000.0, f32::NEG_INFINITY, 1000.0, f32::NEG_INFINITY, f32::NEG_INFINITY, 1000.0, 1000.0, -1e30, 0.0];
            softmax_in_place(&Context::with_isa(isa, 1), &mut x, 9);
            assert_eq!(x, [0.25, 0.0, 0.25, 0.0, 0.0, 0.25, 0.25, 0.0, 0.0], "{isa:?}");
        }
    }
}
