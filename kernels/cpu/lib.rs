//! SIMD kernels for transformer inference on CPU cores.
//!
//! Everything here knows slices and shapes and no model. A [`Context`] carries the instruction set and the thread pool;
//! kernels are free functions that take it first. The scalar version of each kernel is the readable reference; all
//! others are tested against it.

mod activation;
mod aligned;
mod context;
mod float_slice;
mod isa;
mod matmul;
pub mod pool;

pub use activation::Activation;
pub use context::Context;
pub use float_slice::FloatSlice;
pub use isa::Isa;
pub use matmul::{AffineWeight, DenseWeight, Epilogue, Matrix, MatrixError, Precision, Product, matmul, matmul_gated};
