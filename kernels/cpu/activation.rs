//! The activation functions of gated feed-forward layers.

#![allow(unsafe_code)]

use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use crate::simd::{ExpConstants, MAX_LANES, Vector, exp as exp_vector, zip_in_place};

/// What GELU's tanh form adds of the cube.
const GELU_CUBIC: f32 = 0.044_715;
/// `2 sqrt(2/pi)`: twice the argument of its tanh.
const GELU_TANH_SCALE: f32 = 2.0 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
/// The factor of GELU's sigmoid form.
const GELU_SIGMOID_SCALE: f32 = 1.702;

/// `p` of formula 7.1.26 of Abramowitz and Stegun.
const ERF_REACH: f32 = 0.327_591_1;
/// Its `a1` to `a5`.
const ERF_POLYNOMIAL: [f32; 5] = [0.254_829_6, -0.284_496_72, 1.421_413_8, -1.453_152_1, 1.061_405_4];

/// An elementwise activation function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x * sigmoid(x)`, also called swish (Elfwing et al. 2017).
    Silu,
    /// The tanh form of GELU: `x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))` (Hendrycks and Gimpel 2016).
    GeluTanh,
    /// Exact GELU: `x/2 * (1 + erf(x / sqrt(2)))`.
    Gelu,
    /// The sigmoid form of GELU: `x * sigmoid(1.702 x)`.
    GeluSigmoid,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2` (So et al. 2021).
    ReluSquared,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `tanh(x)`.
    Tanh,
    /// `x` itself.
    Identity,
}

impl Activation {
    /// The function at `x`, to a few units in the last place of f32.
    #[must_use]
    #[inline(always)]
    pub fn apply(self, x: f32) -> f32 {
        match self {
            Self::Silu => x * sigmoid(x),
            Self::GeluTanh => {
                // 1 + tanh(y) = 2 sigmoid(2y)
                let y = GELU_TANH_SCALE * (x + GELU_CUBIC * x * x * x);
                x * sigmoid(y)
            }
            Self::Gelu => 0.5 * x * (1.0 + erf(x * FRAC_1_SQRT_2)),
            Self::GeluSigmoid => x * sigmoid(GELU_SIGMOID_SCALE * x),
            Self::Relu => x.max(0.0),
            Self::ReluSquared => {
                let positive = x.max(0.0);
                positive * positive
            }
            Self::Sigmoid => sigmoid(x),
            Self::Tanh => tanh(x),
            Self::Identity => x,
        }
    }
}

/// `gate[i] = f(gate[i]) * up[i]`. The functions that models gate with are computed in vectors, the others, and what is
/// no whole vector, one by one.
///
/// # Safety
/// The machine must have `V`'s instruction set.
#[inline(always)]
pub(crate) unsafe fn gate<V: Vector>(activation: Activation, gate: &mut [f32], up: &[f32]) {
    // A loop for each function. (No closures: one that is used twice is not always inlined, and then not compiled for
    // the instruction set of the caller.)
    macro_rules! vectors {
        (|$x:ident, $constants:ident| $argument:expr) => {{
            // SAFETY: the caller's promise; whole vectors of both slices are read and written.
            unsafe {
                let $constants = ExpConstants::<V>::new();
                for (gate, up) in gate.chunks_exact_mut(V::LANES).zip(up.chunks_exact(V::LANES)) {
                    let $x = V::load(gate.as_ptr());
                    times_sigmoid($x, $argument, &$constants).mul(V::load(up.as_ptr())).store(gate.as_mut_ptr());
                }
            }
            gate.len() / V::LANES * V::LANES
        }};
    }
    // SAFETY: the caller's promise.
    let (cubic, tanh_scale, sigmoid_scale) =
        unsafe { (V::splat(GELU_CUBIC), V::splat(GELU_TANH_SCALE), V::splat(GELU_SIGMOID_SCALE)) };
    let done = match activation {
        Activation::Silu => vectors!(|x, constants| x),
        Activation::GeluTanh => vectors!(|x, constants| x.mul(x).mul(x).mul_add(cubic, x).mul(tanh_scale)),
        Activation::GeluSigmoid => vectors!(|x, constants| x.mul(sigmoid_scale)),
        _ => 0,
    };
    for (gate, up) in gate.iter_mut().zip(up).skip(done) {
        *gate = activation.apply(*gate) * up;
    }
}

/// `x = f(x)`. GELU, which plain feed-forward layers use, is computed in vectors; the others are loops without branches
/// that the compiler makes vector code of, with the features that are enabled where this is inlined.
///
/// # Safety
/// The machine must have `V`'s instruction set.
#[inline(always)]
pub(crate) unsafe fn activate<V: Vector>(activation: Activation, x: &mut [f32]) {
    macro_rules! loops {
        ($($function:ident)*) => {
            match activation {
                $(Activation::$function => x.iter_mut().for_each(|x| *x = Activation::$function.apply(*x)),)*
                // SAFETY: the caller's promise.
                Activation::Gelu => unsafe { gelu_in_place::<V>(x) },
                Activation::Identity => {}
            }
        };
    }
    loops!(Silu GeluTanh GeluSigmoid Relu ReluSquared Sigmoid Tanh);
}

/// `sums = f(sums + bias)`.
///
/// # Safety
/// The machine must have `V`'s instruction set.
#[inline(always)]
pub(crate) unsafe fn activate_with_bias<V: Vector>(activation: Activation, sums: &mut [f32], bias: Option<&[f32]>) {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(bias) = bias {
            zip_in_place::<V>(sums, bias, |sum, bias| sum.add(bias));
        }
        activate::<V>(activation, sums);
    }
}

#[inline(always)]
unsafe fn gelu_in_place<V: Vector>(x: &mut [f32]) {
    let mut chunks = x.chunks_exact_mut(V::LANES);
    // SAFETY: the caller's promise; each chunk, and the buffer of the tail, is a whole vector.
    unsafe {
        let constants = GeluConstants::<V>::new();
        for chunk in &mut chunks {
            gelu(V::load(chunk.as_ptr()), &constants).store(chunk.as_mut_ptr());
        }
        let rest = chunks.into_remainder();
        if !rest.is_empty() {
            let mut padded = [0.0; MAX_LANES];
            padded[..rest.len()].copy_from_slice(rest);
            gelu(V::load(padded.as_ptr()), &constants).store(padded.as_mut_ptr());
            rest.copy_from_slice(&padded[..rest.len()]);
        }
    }
}

/// The constants of [`gelu`], so that loops load them once.
struct GeluConstants<V> {
    exp: ExpConstants<V>,
    half: V,
    root: V,
    reach: V,
    polynomial: [V; 5],
}

impl<V: Vector> GeluConstants<V> {
    /// # Safety
    /// The machine must have `V`'s instruction set.
    #[inline(always)]
    unsafe fn new() -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Self {
                exp: ExpConstants::new(),
                half: V::splat(0.5),
                root: V::splat(FRAC_1_SQRT_2),
                reach: V::splat(ERF_REACH),
                polynomial: [
                    V::splat(ERF_POLYNOMIAL[0]),
                    V::splat(ERF_POLYNOMIAL[1]),
                    V::splat(ERF_POLYNOMIAL[2]),
                    V::splat(ERF_POLYNOMIAL[3]),
                    V::splat(ERF_POLYNOMIAL[4]),
                ],
            }
        }
    }
}

/// `x/2 * (1 + erf(x / sqrt(2)))`, the error function as in [`erf`].
#[inline(always)]
fn gelu<V: Vector>(x: V, constants: &GeluConstants<V>) -> V {
    let one = constants.exp.one;
    let scaled = x.mul(constants.root);
    let magnitude = scaled.abs();
    let t = one.div(magnitude.mul_add(constants.reach, one));
    let [first, second, third, fourth, fifth] = constants.polynomial;
    let polynomial = t.mul_add(fifth, fourth).mul_add(t, third).mul_add(t, second).mul_add(t, first).mul(t);
    let zero = constants.exp.zero;
    let bell = exp_vector(zero.sub(magnitude.mul(magnitude)), &constants.exp);
    let erf = one.sub(polynomial.mul(bell)).copy_sign(x);
    let half = x.mul(constants.half);
    erf.mul_add(half, half)
}

/// `x * sigmoid(y)`.
#[inline(always)]
fn times_sigmoid<V: Vector>(x: V, y: V, constants: &ExpConstants<V>) -> V {
    x.div(exp_vector(constants.zero.sub(y), constants).add(constants.one))
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[inline(always)]
fn tanh(x: f32) -> f32 {
    // Near zero 1 - 2/(e^2x + 1) cancels; the odd Taylor polynomial is exact to f32 there.
    let square = x * x;
    let small =
        x * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 + square * (-17.0 / 315.0 + square * (62.0 / 2835.0)))));
    let large = 1.0 - 2.0 / (exp(2.0 * x) + 1.0);
    if x.abs() < 0.25 { small } else { large }
}

/// `e^x` without branches: `2^n * p(r)`, Cody-Waite reduction, degree-6 polynomial (the coefficients of Cephes' expf).
/// Relative error below 2e-7; arguments are held inside the range of normal results, NaN stays NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding and taking it away rounds to an integer
    let bounded = if x > 88.0 { 88.0 } else { x };
    let bounded = if bounded < -87.0 { -87.0 } else { bounded };
    let shifted = bounded * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = bounded - n * 0.693_359_4 + n * 2.121_944_4e-4;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let p = p * r * r + r + 1.0;
    // The integer n stands in the low bits of `shifted`.
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    p * scale
}

/// The error function by the rational form 7.1.26 of Abramowitz and Stegun, absolute error below 1.5e-7 (plus f32
/// rounding).
#[inline(always)]
fn erf(x: f32) -> f32 {
    let magnitude = x.abs();
    let t = 1.0 / (1.0 + ERF_REACH * magnitude);
    let [first, second, third, fourth, fifth] = ERF_POLYNOMIAL;
    let poly = t * (first + t * (second + t * (third + t * (fourth + t * fifth))));
    (1.0 - poly * exp(-magnitude * magnitude)).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate_over_its_range() {
        for step in -8700..=8800 {
            let x = step as f32 * 0.01;
            let expected = f64::from(x).exp();
            let error = (f64::from(exp(x)) - expected).abs() / expected;
            assert!(error < 3e-7, "exp({x}): relative error {error}");
        }
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(-1000.0) < 2e-38);
        assert!(exp(1000.0) > 1e38);
    }

    #[test]
    fn activations_agree_with_double_precision() {
        for step in -2000..=2000 {
            let x = step as f32 * 0.01;
            let d = f64::from(x);
            let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (d + 0.044715 * d * d * d);
            let cases = [
                (Activation::Silu, d * sigmoid(d)),
                (Activation::GeluTanh, 0.5 * d * (1.0 + inner.tanh())),
                (Activation::GeluSigmoid, d * sigmoid(1.702 * d)),
                (Activation::Relu, d.max(0.0)),
                (Activation::ReluSquared, d.max(0.0) * d.max(0.0)),
                (Activation::Sigmoid, sigmoid(d)),
                (Activation::Tanh, d.tanh()),
                (Activation::Identity, d),
            ];
            for (activation, expected) in cases {
                let got = f64::from(activation.apply(x));
                assert!(
                    (got - expected).abs() <= 1e-6 * expected.abs().max(0.3),
                    "{activation:?}({x}): {got} for {expected}"
                );
            }
        }
    }

    #[test]
    fn exact_gelu_agrees_with_known_values() {
        // erf values from the NIST Digital Library of Mathematical Functions, table 7.
        for (x, expected) in
            [(0.5f32, 0.520_499_9f32), (1.0, 0.842_700_8), (2.0, 0.995_322_3), (-1.0, -0.842_700_8), (0.0, 0.0)]
        {
            assert!((erf(x) - expected).abs() < 4e-7, "erf({x})");
        }
        assert!((Activation::Gelu.apply(1.0) - 0.841_344_7).abs() < 1e-6);
        assert!(Activation::Gelu.apply(-20.0).abs() < 1e-6);
    }

    #[test]
    fn large_arguments_stay_finite() {
        for activation in
            [Activation::Silu, Activation::GeluTanh, Activation::Gelu, Activation::GeluSigmoid, Activation::Tanh]
        {
            for x in [1e4f32, -1e4, 3e8, -3e8] {
                assert!(activation.apply(x).is_finite(), "{activation:?}({x})");
            }
        }
    }
}
