//! Softmax over rows.

use crate::{Context, parallel::for_row_parts};

/// Softmax of each row of `x` (`[rows, cols]`), in place, with the row's maximum subtracted first. Elements of `-inf` get
/// exactly 0; a row of nothing but `-inf` becomes NaN, as in every other implementation.
///
/// # Panics
/// If `cols` does not divide `x.len()`.
pub fn softmax_in_place(ctx: &Context, x: &mut [f32], cols: usize) {
    for_row_parts(ctx, x, cols, &|_, part| {
        for row in part.chunks_exact_mut(cols) {
            softmax_row(row);
        }
    });
}

fn softmax_row(row: &mut [f32]) {
    let maximum = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for value in row.iter_mut() {
        *value = (*value - maximum).exp();
        sum += *value;
    }
    row.iter_mut().for_each(|value| *value /= sum);
}
