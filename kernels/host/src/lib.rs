//! Compiles the Metal sources of linnet-kernels with clang and runs them on this machine, for tests.
//!
//! A [`Launch`](linnet_kernels::metal::Launch) is turned into the text that MLX's `MetalKernel` would make of it, with the
//! kernel's own files included in place of their text, and compiled against a stand-in for Apple's `metal_stdlib`
//! (`include/`). The program that results runs the grid with one fiber per thread (`runtime/`). It refuses what a GPU
//! would silently get wrong: accesses outside of a buffer or a threadgroup array, memory read before it is written,
//! outputs left unwritten, races, barriers and simdgroup operations that some threads do not reach, too much threadgroup
//! memory.

mod argument;
pub mod coverage;
mod device;
mod error;
mod generate;
#[cfg(feature = "gpu")]
mod gpu;
mod job;
mod lint;
mod rewrite;
mod toolchain;

pub use argument::Argument;
pub use device::{Device, HostDevice, Schedule};
pub use error::HostError;
pub use generate::generated_source;
#[cfg(feature = "gpu")]
pub use gpu::GpuDevice;
pub use job::FunctionConstant;
pub use lint::{Finding, lint};
pub use toolchain::Toolchain;
