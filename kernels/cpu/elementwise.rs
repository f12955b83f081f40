//! Elementwise sums, products and gates.

#![allow(unsafe_code)]

use crate::{
    Activation, Context,
    activation::{activate, gate},
    parallel::for_element_parts,
    simd::{Kernel, Vector, VectorKernel, dispatch, map_in_place, zip_in_place},
};

/// `a += b`.
///
/// # Panics
/// If the slices differ in length.
pub fn add_in_place(ctx: &Context, a: &mut [f32], b: &[f32]) {
    assert_eq!(a.len(), b.len(), "add_in_place: lengths differ");
    for_element_parts(ctx, a, &|first, part| {
        let operand = &b[first..first + part.len()];
        dispatch(ctx.isa(), Elementwise { x: part, operation: Operation::Add(operand) });
    });
}

/// `x *= scale`.
pub fn scale_in_place(ctx: &Context, x: &mut [f32], scale: f32) {
    for_element_parts(ctx, x, &|_, part| {
        dispatch(ctx.isa(), Elementwise { x: part, operation: Operation::Scale(scale) });
    });
}

/// `gate = activation(gate) * up`, the middle of a gated feed-forward layer.
///
/// # Panics
/// If the slices differ in length.
pub fn gated(ctx: &Context, activation: Activation, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gated: lengths differ");
    for_element_parts(ctx, gate, &|first, part| {
        let up = &up[first..first + part.len()];
        dispatch(ctx.isa(), Elementwise { x: part, operation: Operation::Gate(activation, up) });
    });
}

/// `x = activation(x)`.
pub fn activate_in_place(ctx: &Context, activation: Activation, x: &mut [f32]) {
    for_element_parts(ctx, x, &|_, part| {
        dispatch(ctx.isa(), Elementwise { x: part, operation: Operation::Activate(activation) });
    });
}

enum Operation<'a> {
    Add(&'a [f32]),
    Scale(f32),
    Activate(Activation),
    Gate(Activation, &'a [f32]),
}

struct Elementwise<'a> {
    x: &'a mut [f32],
    operation: Operation<'a>,
}

impl Kernel for Elementwise<'_> {
    fn scalar(self) {
        match self.operation {
            Operation::Add(b) => self.x.iter_mut().zip(b).for_each(|(x, b)| *x += b),
            Operation::Scale(scale) => self.x.iter_mut().for_each(|x| *x *= scale),
            Operation::Activate(activation) => self.x.iter_mut().for_each(|x| *x = activation.apply(*x)),
            Operation::Gate(activation, up) => {
                self.x.iter_mut().zip(up).for_each(|(x, up)| *x = activation.apply(*x) * up);
            }
        }
    }
}

impl VectorKernel for Elementwise<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn vector<V: Vector>(self) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.operation {
                Operation::Add(b) => zip_in_place::<V>(self.x, b, |x, b| x.add(b)),
                Operation::Scale(scale) => {
                    let scale = V::splat(scale);
                    map_in_place::<V>(self.x, |x| x.mul(scale));
                }
                Operation::Activate(activation) => activate::<V>(activation, self.x),
                Operation::Gate(activation, up) => gate::<V>(activation, self.x, up),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng, rngs::StdRng};

    use super::{activate_in_place, add_in_place, gated, scale_in_place};
    use crate::{Activation, Context, Isa};

    const ACTIVATIONS: [Activation; 9] = [
        Activation::Silu,
        Activation::GeluTanh,
        Activation::Gelu,
        Activation::GeluSigmoid,
        Activation::Relu,
        Activation::ReluSquared,
        Activation::Sigmoid,
        Activation::Tanh,
        Activation::Identity,
    ];

    #[test]
    fn elementwise_operations_agree_with_the_formula_on_every_level() {
        let mut rng = StdRng::seed_from_u64(40);
        for length in [0, 1, 7, 8, 15, 16, 17, 33, 100, 1536, 50_001] {
            let mut random = |count: usize| (0..=count).map(|_| rng.random_range(-6.0f32..6.0)).collect::<Vec<f32>>();
            let (a, b) = (random(length), random(length));
            let (a, b) = (&a[1..], &b[1..]);
            for isa in Isa::available() {
                let ctx = Context::with_isa(isa, 2);
                let run = |work: &dyn Fn(&mut [f32])| {
                    let mut x = a.to_vec();
                    work(&mut x);
                    x
                };
                let each =
                    |f: &dyn Fn(f32, f32) -> f32| -> Vec<f32> { a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect() };
                assert_eq!(run(&|x| add_in_place(&ctx, x, b)), each(&|a, b| a + b));
                assert_eq!(run(&|x| scale_in_place(&ctx, x, 0.3)), each(&|a, _| a * 0.3));
                for activation in ACTIVATIONS {
                    let close = |got: Vec<f32>, expected: Vec<f32>, what: &str| {
                        for (index, (got, expected)) in got.into_iter().zip(expected).enumerate() {
                            // Fused multiply-adds round differently in the last place.
                            let bound = 1e-6 * expected.abs().max(1.0);
                            assert!(
                                (got - expected).abs() <= bound,
                                "{isa:?} {what} {activation:?} at {index} of {length}"
                            );
                        }
                    };
                    let activated = run(&|x| activate_in_place(&ctx, activation, x));
                    close(activated, each(&|a, _| activation.apply(a)), "activate");
                    close(run(&|x| gated(&ctx, activation, x, b)), each(&|a, b| activation.apply(a) * b), "gated");
                }
            }
        }
    }
}
