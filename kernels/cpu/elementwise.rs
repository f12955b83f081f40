//! Elementwise sums, products and gates.

use crate::{Activation, Context, parallel::for_element_parts};

/// `a += b`.
///
/// # Panics
/// If the slices differ in length.
pub fn add_in_place(ctx: &Context, a: &mut [f32], b: &[f32]) {
    assert_eq!(a.len(), b.len(), "add_in_place: lengths differ");
    for_element_parts(ctx, a, &|first, part| {
        part.iter_mut().zip(&b[first..]).for_each(|(a, b)| *a += b);
    });
}

/// `x *= scale`.
pub fn scale_in_place(ctx: &Context, x: &mut [f32], scale: f32) {
    for_element_parts(ctx, x, &|_, part| part.iter_mut().for_each(|value| *value *= scale));
}

/// `gate = activation(gate) * up`, the middle of a gated feed-forward layer.
///
/// # Panics
/// If the slices differ in length.
pub fn gated(ctx: &Context, activation: Activation, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gated: lengths differ");
    for_element_parts(ctx, gate, &|first, part| {
        part.iter_mut().for_each(|x| *x = activation.apply(*x));
        part.iter_mut().zip(&up[first..]).for_each(|(gate, up)| *gate *= up);
    });
}

/// `x = activation(x)`.
pub fn activate_in_place(ctx: &Context, activation: Activation, x: &mut [f32]) {
    for_element_parts(ctx, x, &|_, part| part.iter_mut().for_each(|x| *x = activation.apply(*x)));
}
