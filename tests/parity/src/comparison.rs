//! How far a model's logits are from a fixture's.

use crate::Fixture;

/// The outcome of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The largest `max |a - b| / max |b|` of any kept row, `a` being the model's logits and `b` the reference's.
    /// Not a number anywhere counts as infinite.
    pub error: f32,
    /// The position of the row with the largest error.
    pub error_position: usize,
    /// As `error`, against the reference whose keys and values were rounded to f16.
    pub rounded_kv_error: f32,
    /// At how many of the decode steps the model picks the reference's token.
    pub agreed: usize,
    /// How many decode steps there are.
    pub steps: usize,
    /// The first decode step at which it picks another.
    pub first_disagreement: Option<usize>,
}

/// Runs a model over the fixture and compares.
///
/// `forward` takes the next tokens of one sequence and returns the logits after the last of them. It gets the prompt in
/// the fixture's chunks, then the reference's tokens one by one.
///
/// # Errors
/// Whatever `forward` returns.
pub fn compare<E>(fixture: &Fixture, mut forward: impl FnMut(&[u32]) -> Result<Vec<f32>, E>) -> Result<Comparison, E> {
    let mut comparison = Comparison {
        error: 0.0,
        error_position: 0,
        rounded_kv_error: 0.0,
        agreed: 0,
        steps: fixture.tokens.len(),
        first_disagreement: None,
    };
    let mut logits = Vec::new();
    let mut position = 0;
    for &length in &fixture.chunks {
        logits = forward(&fixture.prompt[position..position + length])?;
        position += length;
        comparison.measure(fixture, position - 1, &logits);
    }
    for (step, &token) in fixture.tokens.iter().enumerate() {
        if step > 0 {
            logits = forward(&fixture.tokens[step - 1..step])?;
            position += 1;
            comparison.measure(fixture, position - 1, &logits);
        }
        if argmax(&logits) == Some(token) {
            comparison.agreed += 1;
        } else {
            comparison.first_disagreement.get_or_insert(step);
        }
    }
    Ok(comparison)
}

impl Comparison {
    fn measure(&mut self, fixture: &Fixture, position: usize, logits: &[f32]) {
        let Some(row) = fixture.row_at(position) else { return };
        let size = fixture.vocabulary_size();
        let range = row * size..(row + 1) * size;
        let error = relative_error(logits, &fixture.logits[range.clone()]);
        if error > self.error {
            self.error = error;
            self.error_position = position;
        }
        let rounded_kv_error = relative_error(logits, &fixture.rounded_kv_logits[range]);
        self.rounded_kv_error = self.rounded_kv_error.max(rounded_kv_error);
    }
}

/// `max |a - b| / max |b|`; infinite when the lengths differ or any value is not finite.
fn relative_error(found: &[f32], reference: &[f32]) -> f32 {
    if found.len() != reference.len() || !found.iter().chain(reference).all(|value| value.is_finite()) {
        return f32::INFINITY;
    }
    let largest = reference.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let difference = found.iter().zip(reference).fold(0.0f32, |largest, (a, b)| largest.max((a - b).abs()));
    difference / largest
}

/// The index of the greatest value, the lowest on ties.
fn argmax(values: &[f32]) -> Option<u32> {
    let best = values.iter().enumerate().reduce(|best, next| if next.1 > best.1 { next } else { best })?;
    u32::try_from(best.0).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::path::PathBuf;

    /// A "model" whose logits after a token are a fixed row, and the fixture that agrees with it.
    fn fixture() -> (Fixture, impl Fn(&[u32]) -> Vec<f32> + Clone) {
        let row = |tokens: &[u32]| {
            let last = *tokens.last().unwrap() as usize;
            let mut values = vec![0.5, -1.0, 0.25, 0.0];
            values[(last + 1) % 4] = 4.0;
            values
        };
        let rows = vec![1, 2, 4];
        let logits = [row(&[1]), row(&[2]), row(&[0])].concat();
        let fixture = Fixture {
            folder: PathBuf::from("made-up"),
            prompt: vec![0, 1, 2],
            chunks: vec![2, 1],
            tokens: vec![3, 0, 1],
            rows,
            rounded_kv_logits: logits.clone(),
            logits,
        };
        (fixture, row)
    }

    fn run(fixture: &Fixture, forward: impl Fn(&[u32]) -> Vec<f32>) -> Comparison {
        compare(fixture, |tokens| Ok::<_, Infallible>(forward(tokens))).unwrap()
    }

    #[test]
    fn a_model_that_agrees_has_no_error() {
        let (fixture, row) = fixture();
        let comparison = run(&fixture, row);
        assert_eq!(comparison.error, 0.0);
        assert_eq!((comparison.agreed, comparison.steps, comparison.first_disagreement), (3, 3, None));
    }

    #[test]
    fn one_logit_that_is_off_is_measured_where_it_is() {
        let (fixture, row) = fixture();
        let comparison = run(&fixture, |tokens| {
            let mut values = row(tokens);
            if tokens == [2] {
                values[1] -= 0.04;
            }
            values
        });
        assert!((comparison.error - 0.01).abs() < 1e-6);
        assert_eq!(comparison.error_position, 2);
        assert_eq!(comparison.rounded_kv_error, comparison.error);
        assert_eq!(comparison.agreed, 3);
    }

    #[test]
    fn another_token_is_a_disagreement_though_its_logits_were_not_kept() {
        let (fixture, row) = fixture();
        let comparison = run(&fixture, |tokens| if tokens == [3] { vec![0.0, 9.0, 0.0, 0.0] } else { row(tokens) });
        assert_eq!((comparison.error, comparison.agreed, comparison.first_disagreement), (0.0, 2, Some(1)));
    }

    #[test]
    fn values_that_are_no_numbers_and_rows_of_another_length_are_infinitely_wrong() {
        let (fixture, row) = fixture();
        let nan = |tokens: &[u32]| {
            let mut values = row(tokens);
            values[0] = f32::NAN;
            values
        };
        assert_eq!(run(&fixture, nan).error, f32::INFINITY);
        assert_eq!(run(&fixture, |tokens| row(tokens)[..3].to_vec()).error, f32::INFINITY);
    }
}
