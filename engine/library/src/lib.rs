//! The models on disk: imported, listed, inspected, removed.
//!
//! A [`Store`] holds models in one format, MLX's layout with affine-quantized or dense weights. [`import`] brings
//! MLX folders, Hugging Face folders and GGUF files into it. Only headers and metadata are understood here; running a
//! model is the engine's business, and this crate knows nothing of it but the list of architectures it is given.

mod affine;
mod config;
mod convert;
mod disk;
mod error;
mod gguf;
mod import;
mod inspect;
mod layers;
mod store;
#[cfg(test)]
mod test_support;
mod weights;

pub use affine::Affine;
pub use error::LibraryError;
pub use import::{ImportOptions, Imported, Progress, Stage, import};
pub use inspect::{Inspection, Verdict, inspect};
pub use store::{ModelEntry, Record, Removed, Staging, Store};
