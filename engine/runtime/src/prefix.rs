//! The prefix cache: which computed tokens are kept, found again and given up. It decides and counts; it knows no model
//! and holds no keys and values, only the handles of blocks that a [`crate::StepModel`] keeps.

mod namespace;
mod rank;
mod sessions;
mod tree;

pub use namespace::{BlockKey, Namespace};
pub use rank::Eviction;
pub(crate) use sessions::Sessions;
pub use tree::{Node, PrefixMatch, PrefixTree};
