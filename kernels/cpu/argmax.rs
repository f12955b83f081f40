//! The index of the largest element.

/// The index of the largest element of `x`; the lowest such index on ties. NaN never wins. An empty or all-NaN slice
/// gives 0.
#[must_use]
pub fn argmax(x: &[f32]) -> usize {
    let maximum = maximum(x);
    x.iter().position(|&value| value == maximum).unwrap_or(0)
}

/// The largest element; `f32::max` drops NaN. Sixteen independent maxima let the compiler use vector registers.
fn maximum(x: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = x.chunks_exact(LANES);
    let tail = chunks.remainder();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = lane.max(value);
        }
    }
    lanes.iter().chain(tail).copied().fold(f32::NEG_INFINITY, f32::max)
}

#[cfg(test)]
mod tests {
    use super::argmax;

    #[test]
    fn lowest_index_wins_a_tie() {
        for length in 1..70 {
            for first in 0..length {
                let mut x = vec![-1.0; length];
                x[first..].fill(3.0);
                assert_eq!(argmax(&x), first, "length {length}");
            }
        }
    }

    #[test]
    fn nan_never_wins() {
        assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY, -5.0, f32::NAN, -4.0, f32::NAN]), 4);
        assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY]), 1);
        assert_eq!(argmax(&[f32::NAN; 40]), 0);
        assert_eq!(argmax(&[]), 0);
    }

    #[test]
    fn infinity_and_signed_zero() {
        assert_eq!(argmax(&[1.0, f32::INFINITY, f32::INFINITY]), 1);
        assert_eq!(argmax(&[-0.0, 0.0]), 0);
        assert_eq!(argmax(&[f32::NEG_INFINITY; 3]), 0);
    }
}
