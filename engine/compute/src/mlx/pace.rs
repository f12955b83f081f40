//! Handing a decode step to the device piece by piece.
//!
//! MLX writes new keys and values into the arrays of the step before only where nothing else holds those arrays; else it
//! copies them whole. A step that was just submitted holds them until the device is through with it. So a step that runs
//! ahead is submitted in pieces of a few layers, each once the step before has left those layers behind: the device
//! always has pieces of the earlier step to work on, and no cache is copied.

use super::graph::{Result, data};
use mlx_rs::Array;
use std::cell::{Cell, RefCell};

/// Into how many pieces a step of a large model is cut: the fewest that let one piece wait for another while a third is
/// computed. Each more costs the device a start (on an H200, an 8B shape decodes 1% slower with 6).
const LARGE_PIECES: usize = 3;

/// Into how many pieces a step of a small model is cut. There the host is behind, and the earlier the device begins the
/// better (on an H200, a 1B shape decodes 10% faster with 6 than with 3).
const SMALL_PIECES: usize = 6;

/// From how many bytes of weights on a model is large.
const LARGE: usize = 2 << 30;

/// How many pieces the step before must be ahead: what a piece held is let go a moment after it is through.
const LEAD: usize = 1;

/// What the last step submitted.
#[derive(Default)]
pub(super) struct Pace {
    is_large: Cell<bool>,
    /// An array of the end of each piece.
    last: RefCell<Vec<Array>>,
}

impl Pace {
    /// Learns how many bytes of weights a step reads.
    pub(super) fn weigh(&self, bytes: usize) {
        self.is_large.set(bytes >= LARGE);
    }

    /// Whether a step's array after layer `layer` of `layers` ends a piece. The last piece ends with the step's results.
    pub(super) fn ends_piece(&self, layer: usize, layers: usize) -> bool {
        let length = layers.div_ceil(if self.is_large.get() { LARGE_PIECES } else { SMALL_PIECES });
        length > 0 && (layer + 1).is_multiple_of(length) && layer + 1 < layers
    }

    /// Submits a step: the ends of its pieces, then its results.
    pub(super) fn submit(&self, ends: Vec<Array>, results: &[&Array]) -> Result<()> {
        let last = self.last.take();
        for (piece, end) in ends.iter().enumerate() {
            if let Some(before) = last.get(piece + LEAD).or(last.last()) {
                data::eval(&[before])?;
            }
            data::async_eval(&[end])?;
        }
        if let (Some(before), false) = (last.last(), ends.is_empty()) {
            data::eval(&[before])?;
        }
        data::async_eval(results)?;
        if !ends.is_empty() {
            let results = results.first().map(|result| (*result).clone());
            self.last.replace(ends.into_iter().chain(results).collect());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Pace;

    #[test]
    fn pieces_are_of_equal_length_and_the_last_layer_ends_none() {
        let pace = Pace::default();
        let ends = |layers| (0..layers).filter(|&layer| pace.ends_piece(layer, layers)).collect::<Vec<_>>();
        assert_eq!(ends(24), [3, 7, 11, 15, 19]);
        assert_eq!(ends(3), [0, 1]);
        assert!(ends(1).is_empty() && ends(0).is_empty());
        pace.weigh(5 << 30);
        assert_eq!(ends(32), [10, 21]);
    }
}
