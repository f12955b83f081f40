//! Tensors, weights and the [`Backend`] trait on which every architecture is written.

mod row;

pub use row::{Outputs, Row, Slot};
