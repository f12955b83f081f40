//! Tensors, weights and the [`Backend`] trait on which every architecture is written.
//!
//! A checkpoint on disk becomes [`Checkpoint`] and [`MatrixSource`] views; a [`Backend`] takes those over and computes
//! steps with them. [`cpu`] is the backend on linnet-kernels; `mlx`, behind the
//! feature of that name, is the one on Apple's MLX.

mod backend;
mod backend_choice;
mod checkpoint;
pub mod cpu;
mod dtype;
mod error;
mod kv;
mod matrix_source;
#[cfg(feature = "mlx")]
pub mod mlx;
mod rope;
mod row;

pub use backend::{Activation, AttentionSpec, Backend, ConvolutionSource, Draw};
pub use backend_choice::{BackendChoice, UnknownBackend};
pub use checkpoint::{Checkpoint, TensorView};
pub use dtype::Dtype;
pub use error::{ComputeError, Result};
pub use kv::{KeptBlock, KvBlock, KvData, KvFormat, KvLayout, KvQuantization, KvStore, KvUsage, LayerBlock, LayerKv};
pub use matrix_source::{AffineQuantization, MatrixSource, Weight};
pub use rope::{RopeScaling, RopeSpec};
pub use row::{Outputs, Row, Slot};
