//! The highest logit.

use crate::StepModelError;

/// Enough lanes to fill the vector registers of every machine.
const LANES: usize = 16;

/// The highest logit, found in one pass that also finds NaN.
///
/// # Errors
/// [`StepModelError::InvalidLogits`] when a logit is NaN or the highest is not finite.
pub(super) fn of(logits: &[f32]) -> Result<f32, StepModelError> {
    let (highest, has_nan) = scan(logits);
    if has_nan {
        return Err(StepModelError::InvalidLogits("NaN"));
    }
    if highest.is_finite() {
        Ok(highest)
    } else {
        Err(StepModelError::InvalidLogits("none is finite, or one is infinite"))
    }
}

/// The highest value that is not NaN, and whether there is a NaN.
pub(super) fn scan(values: &[f32]) -> (f32, bool) {
    let mut highest = [f32::NEG_INFINITY; LANES];
    let mut nan = [0u32; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            highest[lane] = if chunk[lane] > highest[lane] { chunk[lane] } else { highest[lane] };
            nan[lane] |= u32::from(chunk[lane].is_nan());
        }
    }
    let highest = highest.iter().chain(rest).fold(f32::NEG_INFINITY, |highest, &value| highest.max(value));
    (highest, nan.iter().any(|&nan| nan != 0) || rest.iter().any(|value| value.is_nan()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_is_found_at_every_place() {
        for length in 1..70 {
            for place in 0..length {
                let mut logits = vec![-3.0; length];
                logits[place] = -2.0;
                assert_eq!(of(&logits).unwrap(), -2.0);
                logits[place] = f32::NAN;
                assert!(matches!(of(&logits), Err(StepModelError::InvalidLogits("NaN"))));
            }
        }
    }

    #[test]
    fn logits_without_a_finite_highest_are_refused() {
        assert!(of(&[]).is_err());
        assert!(of(&[f32::NEG_INFINITY; 20]).is_err());
        assert!(of(&[1.0, f32::INFINITY]).is_err());
        assert_eq!(of(&[f32::NEG_INFINITY, 1.0]).unwrap(), 1.0);
    }
}
