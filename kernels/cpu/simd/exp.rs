//! The exponential function on vectors, and what follows from it.

use super::Vector;

/// Above this the result is infinite: e^x would need the exponent 128.
const OVERFLOW: f32 = 89.0;

/// Below this e^x is no normal f32 and becomes 0.
const UNDERFLOW: f32 = -87.336_54;

/// `e^x`, with a relative error below 1.5e-7 for -87.3 <= x <= 88.37; 0 below, infinity above, NaN for NaN.
///
/// `x = n ln 2 + r` with integral `n`; `e^r` for `|r| <= ln 2 / 2` is Cephes' minimax polynomial of `expf` (S. Moshier), of
/// degree 7 in all; `ln 2` is split in two parts so that `r` keeps its bits.
#[inline(always)]
pub(crate) fn exp<V: Vector>(x: V, constants: &ExpConstants<V>) -> V {
    let c = constants;
    let clamped = x.min(c.overflow).max(c.underflow);
    let n = clamped.mul(c.log2_e).round();
    let r = n.mul_add(c.minus_ln2_high, clamped);
    let r = n.mul_add(c.minus_ln2_low, r);
    let mut polynomial = c.polynomial[0];
    polynomial = polynomial.mul_add(r, c.polynomial[1]);
    polynomial = polynomial.mul_add(r, c.polynomial[2]);
    polynomial = polynomial.mul_add(r, c.polynomial[3]);
    polynomial = polynomial.mul_add(r, c.polynomial[4]);
    polynomial = polynomial.mul_add(r, c.polynomial[5]);
    let result = polynomial.mul_add(r.mul(r), r.add(c.one));
    result.scale_by_power_of_two(n).zero_where_below(x, c.underflow)
}

/// `tanh(x)` with an absolute error below 2e-7: `sign(x) (1 - e) / (1 + e)` with `e = exp(-2 |x|)`.
#[inline(always)]
pub(crate) fn tanh<V: Vector>(x: V, constants: &ExpConstants<V>) -> V {
    let magnitude = x.abs();
    let e = exp(magnitude.mul(constants.minus_two), constants);
    constants.one.sub(e).div(constants.one.add(e)).copy_sign(x)
}

/// The constants of [`exp`], so that loops load them once.
#[derive(Clone, Copy)]
pub(crate) struct ExpConstants<V> {
    /// 0.
    pub(crate) zero: V,
    /// 1.
    pub(crate) one: V,
    minus_two: V,
    overflow: V,
    underflow: V,
    log2_e: V,
    minus_ln2_high: V,
    minus_ln2_low: V,
    polynomial: [V; 6],
}

impl<V: Vector> ExpConstants<V> {
    /// Fills the registers.
    ///
    /// # Safety
    /// The machine must have `V`'s instruction set.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Self {
                zero: V::splat(0.0),
                one: V::splat(1.0),
                minus_two: V::splat(-2.0),
                overflow: V::splat(OVERFLOW),
                underflow: V::splat(UNDERFLOW),
                log2_e: V::splat(std::f32::consts::LOG2_E),
                minus_ln2_high: V::splat(-0.693_359_4),
                minus_ln2_low: V::splat(2.121_944_4e-4),
                polynomial: [
                    V::splat(1.987_569_1e-4),
                    V::splat(1.398_199_9e-3),
                    V::splat(8.333_452e-3),
                    V::splat(4.166_579_6e-2),
                    V::splat(1.666_666_5e-1),
                    V::splat(0.5),
                ],
            }
        }
    }
}
