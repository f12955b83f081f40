//! The index of the largest element.

/// The index of the largest element of `x`; the lowest such index on ties. NaN never wins. An empty or all-NaN slice
/// gives 0.
#[must_use]
pub fn argmax(x: &[f32]) -> usize {
    let maximum = maximum(x);
    let is_maximum = |value: &f32| *value == maximum;
    // Whole chunks are looked through without branches, so that vector registers serve here too.
    let skipped = x
        .chunks(CHUNK)
        .position(|chunk| chunk.iter().fold(false, |found, value| found | is_maximum(value)))
        .map_or(0, |chunk| chunk * CHUNK);
    skipped + x[skipped..].iter().position(is_maximum).unwrap_or(0)
}

/// Elements looked at together: independent maxima let the compiler use vector registers.
const CHUNK: usize = 32;

/// The largest element, NaN left out. The comparison is written out because it is one vector instruction; `f32::max`
/// takes four.
fn maximum(x: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; CHUNK];
    let chunks = x.chunks_exact(CHUNK);
    let tail = chunks.remainder();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, value);
        }
    }
    lanes.iter().chain(tail).copied().fold(f32::NEG_INFINITY, larger)
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
