//! Tensors, weights and the [`Backend`] trait on which every architecture is written.
//!
//! A checkpoint on disk becomes [`Checkpoint`] and [`MatrixSource`] views; a [`Backend`] takes those over and computes
//! steps with them. [`cpu`] is the backend on linnet-kernels.

mod backend;
mod checkpoint;
pub mod cpu;
mod dtype;
mod error;
mod kv;
mod matrix_source;
mod rope;
mod row;

pub use backend::{Activation, AttentionSpec, Backend};
pub use checkpoint::{Checkpoint, TensorView};
pub use dtype::Dtype;
pub use error::{ComputeError, Result};
pub use kv::{KvLayout, KvStore, KvUsage, LayerKv};
pub use matrix_source::{AffineQuantization, MatrixSource, Weight};
pub use rope::{RopeScaling, RopeSpec};
pub use row::{Outputs, Row, Slot};
