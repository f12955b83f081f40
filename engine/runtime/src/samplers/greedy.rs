//! Greedy choice: the highest logit.

use super::maximum;
use crate::StepModelError;

/// How many logits are compared at once before the place of a new highest is looked for.
const BLOCK: usize = 512;

/// The token of the highest logit, the lowest id on ties. One pass.
///
/// # Errors
/// [`StepModelError::InvalidLogits`] when a logit is NaN or the highest is not finite.
pub(super) fn choose(logits: &[f32]) -> Result<u32, StepModelError> {
    let (mut best, mut highest) = (0, f32::NEG_INFINITY);
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        let (block_highest, has_nan) = maximum::scan(block);
        if has_nan {
            return Err(StepModelError::InvalidLogits("NaN"));
        }
        if block_highest > highest {
            highest = block_highest;
            best = index * BLOCK + block.iter().position(|&logit| logit == highest).unwrap_or(0);
        }
    }
    if highest.is_finite() {
        Ok(best as u32)
    } else {
        Err(StepModelError::InvalidLogits("none is finite, or one is infinite"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_id_wins_a_tie_across_blocks() {
        let mut logits = vec![0.0; 3000];
        for token in [2999, 1700, 700] {
            logits[token] = 1.0;
            assert_eq!(choose(&logits).unwrap(), token as u32);
        }
        assert_eq!(choose(&vec![-1.0; 3000]).unwrap(), 0);
    }

    #[test]
    fn not_a_number_is_an_error_wherever_it_stands() {
        for place in [0, 511, 512, 2999] {
            let mut logits = vec![0.0; 3000];
            logits[place] = f32::NAN;
            assert!(choose(&logits).is_err(), "at {place}");
        }
        assert!(choose(&[]).is_err());
        assert!(choose(&[f32::NEG_INFINITY; 3]).is_err());
    }
}
