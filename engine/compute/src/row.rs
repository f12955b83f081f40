//! A step is a flat list of tokens cut into rows; each row is one sequence's slice.

use crate::{ComputeError, Result};
use std::ops::Range;

/// A sequence's place in a backend's KV store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// For which tokens of a row the hidden state goes on to the output head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outputs {
    /// None: the row only fills the KV store.
    None,
    /// The last token: the next one is wanted.
    Last,
    /// Every token, as perplexity and verification need.
    All,
    /// `count` tokens from the row's token `first` on.
    Some {
        /// The first of them, counted in the row.
        first: usize,
        /// How many.
        count: usize,
    },
}

impl Outputs {
    /// The tokens, counted in a row of `length` tokens; a range beyond the row's end is the caller's mistake.
    #[must_use]
    pub fn places(self, length: usize) -> Range<usize> {
        match self {
            Self::None => 0..0,
            Self::Last => length.saturating_sub(1)..length,
            Self::All => 0..length,
            Self::Some { first, count } => first..first.saturating_add(count),
        }
    }
}

/// One sequence's slice of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The sequence.
    pub slot: Slot,
    /// The position of the row's first token: what the slot already holds.
    pub start: usize,
    /// How many tokens of the step's flat list belong to this row.
    pub length: usize,
    /// Which of them reach the output head.
    pub outputs: Outputs,
}

impl Row {
    /// Checks that rows make up the step's tokens and ask only for outputs that they have.
    pub(crate) fn check_all(rows: &[Self], tokens: usize) -> Result<()> {
        let total: usize = rows.iter().map(|row| row.length).sum();
        let refuse = |detail| Err(ComputeError::Shape { operation: "step", detail });
        if total != tokens || rows.iter().any(|row| row.length == 0) {
            return refuse(format!("rows of {total} tokens in all for {tokens} tokens; none may be empty"));
        }
        match rows.iter().find(|row| row.outputs.places(row.length).end > row.length) {
            Some(row) => refuse(format!("outputs {:?} of a row of {} tokens", row.outputs, row.length)),
            None => Ok(()),
        }
    }
}
