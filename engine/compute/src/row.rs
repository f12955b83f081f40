//! A step is a flat list of tokens cut into rows; each row is one sequence's slice.

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
