//! The vector types against plain arithmetic, on every level of this machine.

use half::f16;

use super::{
    ExpConstants, Kernel, MAX_LANES, Vector, VectorKernel, dispatch, dispatch_vector, exp, map_in_place, tanh,
};
use crate::Isa;

/// Applies a function of this module to every element.
enum Function {
    Exp,
    Tanh,
}

struct Apply<'a>(Function, &'a mut [f32]);

impl Kernel for Apply<'_> {
    fn scalar(self) {
        let function = match self.0 {
            Function::Exp => f32::exp,
            Function::Tanh => f32::tanh,
        };
        self.1.iter_mut().for_each(|x| *x = function(*x));
    }
}

impl VectorKernel for Apply<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn vector<V: Vector>(self) {
        // SAFETY: the caller's promise.
        unsafe {
            let constants = ExpConstants::<V>::new();
            match self.0 {
                Function::Exp => map_in_place::<V>(self.1, |x| exp(x, &constants)),
                Function::Tanh => map_in_place::<V>(self.1, |x| tanh(x, &constants)),
            }
        }
    }
}

#[test]
fn exp_keeps_its_relative_error() {
    let inputs: Vec<f32> = (-873_300..=883_600).map(|step| step as f32 * 1e-4).collect();
    for isa in Isa::available() {
        let mut outputs = inputs.clone();
        dispatch(isa, Apply(Function::Exp, &mut outputs));
        for (&x, &y) in inputs.iter().zip(&outputs) {
            let expected = f64::from(x).exp();
            let error = (f64::from(y) - expected).abs() / expected;
            assert!(error < 1.5e-7, "{isa:?}: exp({x}) = {y}, relative error {error:e}");
        }
    }
}

#[test]
fn exp_at_the_ends_of_its_range() {
    for isa in Isa::available() {
        let mut x = [f32::NEG_INFINITY, -1e30, -200.0, 0.0, 100.0, f32::INFINITY, f32::NAN];
        dispatch(isa, Apply(Function::Exp, &mut x));
        assert_eq!(x[..6], [0.0, 0.0, 0.0, 1.0, f32::INFINITY, f32::INFINITY], "{isa:?}");
        assert!(x[6].is_nan(), "{isa:?}");
    }
}

#[test]
fn tanh_keeps_its_absolute_error() {
    for isa in Isa::available() {
        let inputs: Vec<f32> = (-200_000..=200_000).map(|step| step as f32 * 1e-4).collect();
        let mut outputs = inputs.clone();
        dispatch(isa, Apply(Function::Tanh, &mut outputs));
        for (&x, &y) in inputs.iter().zip(&outputs) {
            let error = (f64::from(y) - f64::from(x).tanh()).abs();
            assert!(error < 2e-7, "{isa:?}: tanh({x}) = {y}, error {error:e}");
        }
        let mut ends = [f32::NEG_INFINITY, f32::INFINITY, -1e30, 1e30];
        dispatch(isa, Apply(Function::Tanh, &mut ends));
        assert_eq!(ends, [-1.0, 1.0, -1.0, 1.0], "{isa:?}");
    }
}

/// Every operation of the trait on one register of inputs.
struct Operations<'a> {
    a: &'a [f32; MAX_LANES],
    b: &'a [f32; MAX_LANES],
}

impl VectorKernel for Operations<'_> {
    type Output = Vec<(&'static str, Vec<f32>)>;

    #[inline(always)]
    unsafe fn vector<V: Vector>(self) -> Self::Output {
        // SAFETY: the caller's promise; all buffers have MAX_LANES elements.
        unsafe {
            let (a, b) = (V::load(self.a.as_ptr()), V::load(self.b.as_ptr()));
            let values = |vector: V| {
                let mut out = vec![0.0; V::LANES];
                vector.store(out.as_mut_ptr());
                out
            };
            let mut half = [0u16; MAX_LANES];
            a.store_f16(half.as_mut_ptr());
            vec![
                ("add", values(a.add(b))),
                ("sub", values(a.sub(b))),
                ("mul", values(a.mul(b))),
                ("div", values(a.div(b))),
                ("mul_add", values(a.mul_add(b, a))),
                ("max", values(a.max(b))),
                ("min", values(a.min(b))),
                ("abs", values(a.abs())),
                ("copy_sign", values(a.copy_sign(b))),
                ("round", values(a.round())),
                ("scale", values(b.scale_by_power_of_two(a.round()))),
                ("zero", values(a.zero_where_below(b, V::splat(0.5)))),
                ("swap", values(a.swap_pairs())),
                ("f16", values(V::load_f16(half.as_ptr()))),
            ]
        }
    }
}

#[test]
fn every_operation_agrees_with_plain_arithmetic() {
    let a: [f32; MAX_LANES] = std::array::from_fn(|i| (i as f32 - 7.3) * 1.25);
    let b: [f32; MAX_LANES] = std::array::from_fn(|i| (5.0 - i as f32) * 0.75);
    for isa in Isa::available() {
        for (name, got) in dispatch_vector(isa, Operations { a: &a, b: &b }).unwrap_or_default() {
            let lanes = got.len();
            let each = |f: fn(f32, f32) -> f32| (0..lanes).map(|i| f(a[i], b[i])).collect::<Vec<f32>>();
            let expected = match name {
                "add" => each(|a, b| a + b),
                "sub" => each(|a, b| a - b),
                "mul" => each(|a, b| a * b),
                "div" => each(|a, b| a / b),
                "mul_add" => each(|a, b| a.mul_add(b, a)),
                "max" => each(f32::max),
                "min" => each(f32::min),
                "abs" => each(|a, _| a.abs()),
                "copy_sign" => each(|a, b| a.abs().copysign(b)),
                "round" => each(|a, _| a.round_ties_even()),
                "scale" => each(|a, b| b * a.round_ties_even().exp2()),
                "zero" => each(|a, b| if b < 0.5 { 0.0 } else { a }),
                "swap" => (0..lanes).map(|i| a[i ^ 1]).collect(),
                "f16" => each(|a, _| f16::from_f32(a).to_f32()),
                _ => unreachable!("{name}"),
            };
            assert_eq!(got, expected, "{isa:?} {name}");
        }
    }
}

/// Sums and maxima of slices of one register, so that the number of lanes is known.
struct Reductions<'a>(&'a [f32; MAX_LANES]);

impl VectorKernel for Reductions<'_> {
    type Output = (usize, f32, f32);

    #[inline(always)]
    unsafe fn vector<V: Vector>(self) -> Self::Output {
        // SAFETY: the caller's promise; the buffer has MAX_LANES elements.
        let vector = unsafe { V::load(self.0.as_ptr()) };
        (V::LANES, vector.reduce_add(), vector.reduce_max())
    }
}

#[test]
fn reductions_see_every_lane() {
    for isa in Isa::available() {
        for lane in 0..MAX_LANES {
            let mut x = [0.0; MAX_LANES];
            x[lane] = 3.0;
            if let Ok((lanes, sum, maximum)) = dispatch_vector(isa, Reductions(&x)) {
                let expected = if lane < lanes { 3.0 } else { 0.0 };
                assert_eq!((sum, maximum), (expected, expected), "{isa:?} lane {lane}");
            }
        }
    }
}

#[test]
fn nan_in_the_first_operand_survives_max_and_min() {
    let a = [f32::NAN; MAX_LANES];
    let b = [1.0; MAX_LANES];
    for isa in Isa::available() {
        for (name, got) in dispatch_vector(isa, Operations { a: &a, b: &b }).unwrap_or_default() {
            if name == "max" || name == "min" {
                assert!(got.iter().all(|value| value.is_nan()), "{isa:?} {name}: {got:?}");
            }
        }
    }
}
