//! SIMD kernels for transformer inference on CPU cores.
//!
//! Everything here knows slices and shapes and no model. A [`Context`] carries the instruction set and the thread pool;
//! kernels are free functions that take it first. The scalar version of each kernel is the readable reference; all
//! others are tested against it.

mod context;
mod isa;
pub mod pool;

pub use context::Context;
pub use isa::Isa;
