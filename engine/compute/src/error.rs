//! What can go wrong between a checkpoint on disk and a computed tensor.

use std::path::PathBuf;

/// An error of this crate. Every variant names what was met and, where there is one, the way out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ComputeError {
    // --- Checkpoints -------------------------------------------------------------------------------------------------
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A folder without weights.
    #[error(
        "{folder} holds no model.safetensors and no model.safetensors.index.json; import or download the model again"
    )]
    NoWeights {
        /// The folder.
        folder: PathBuf,
    },
    /// A safetensors header that does not describe its file.
    #[error("{path} is damaged: {reason}; download or import the model again")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor that the architecture needs is not there.
    #[error("the weights in {folder} lack the tensor {name}; the model is incomplete or of another architecture")]
    MissingTensor {
        /// The folder.
        folder: PathBuf,
        /// The tensor.
        name: String,
    },
    /// A tensor of another shape than the configuration says.
    #[error("tensor {name} has shape {found:?} but the configuration asks for {expected:?}")]
    WrongShape {
        /// The tensor.
        name: String,
        /// Its shape in the file.
        found: Vec<usize>,
        /// The shape asked for.
        expected: Vec<usize>,
    },
    /// A tensor of a type that its place does not allow.
    #[error("tensor {name} is stored as {found} but {expected} is needed here")]
    WrongDtype {
        /// The tensor.
        name: String,
        /// Its type in the file.
        found: String,
        /// The types allowed.
        expected: &'static str,
    },
    /// A quantization that no kernel reads.
    #[error(
        "{name} is quantized as {bits} bits in groups of {group_size}; bits 2, 3, 4, 5, 6, 8 and groups 32, 64, 128 are supported"
    )]
    Quantization {
        /// The tensor.
        name: String,
        /// Bits per weight.
        bits: u32,
        /// Weights per group.
        group_size: usize,
    },

    // --- Steps -------------------------------------------------------------------------------------------------------
    /// Operands whose shapes do not fit each other.
    #[error("{operation}: {detail}")]
    Shape {
        /// The operation.
        operation: &'static str,
        /// The shapes met.
        detail: String,
    },
    /// A token id beyond the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocabulary}")]
    TokenOutOfRange {
        /// The token.
        token: u32,
        /// How many tokens there are.
        vocabulary: usize,
    },
    /// A position that does not fit what a sequence holds: a step, an import or a cut that begins elsewhere.
    #[error("slot {slot} holds {held} tokens, which does not fit position {start}")]
    WrongStart {
        /// The slot.
        slot: u32,
        /// What it holds.
        held: usize,
        /// Where the row begins, or the position that was to be cut at, exported from or imported to.
        start: usize,
    },
    /// A slot that was never opened or is closed.
    #[error("slot {slot} is not open")]
    UnknownSlot {
        /// The slot.
        slot: u32,
    },
    /// A kept block that was never given out or was released.
    #[error("the kept block {kept} is unknown")]
    UnknownBlock {
        /// The block.
        kept: u64,
    },
    /// No room for more tokens.
    #[error("the KV cache is full: {used} of {capacity} tokens are in use and {wanted} more were asked for")]
    KvFull {
        /// Tokens in use.
        used: usize,
        /// Tokens that fit.
        capacity: usize,
        /// Tokens asked for.
        wanted: usize,
    },
    /// Memory that is not there.
    #[error(
        "{what} would need {} of memory, but {} of {} are in use; close other models, choose a smaller one, or hold fewer \
         tokens (--kv-tokens, --kv-bits)",
        Gibibytes(*needed), Gibibytes(*used), Gibibytes(*limit)
    )]
    OutOfMemory {
        /// What it is for.
        what: &'static str,
        /// Bytes asked for.
        needed: usize,
        /// Bytes in use.
        used: usize,
        /// Bytes that may be used.
        limit: usize,
    },
    /// A sequence that cannot be cut back, because a sliding window has dropped what would be needed then.
    #[error(
        "slot {slot} holds {held} tokens and cannot be cut back to {wanted}: its layers with a window of {window} tokens \
         have dropped earlier ones"
    )]
    WindowPassed {
        /// The slot.
        slot: u32,
        /// The window.
        window: usize,
        /// Tokens held.
        held: usize,
        /// Tokens wanted.
        wanted: usize,
    },
    /// A quantization of keys and values that no kernel reads.
    #[error(
        "heads of {head_dim} elements cannot be quantized to {bits} bits in groups of {group_size}; bits 4 and 8 and groups \
         of 32, 64 or 128 that divide the head are supported; leave out --kv-bits for this model"
    )]
    KvQuantization {
        /// Bits per element.
        bits: u32,
        /// Elements per group.
        group_size: usize,
        /// Elements per head.
        head_dim: usize,
    },
    /// Something that this backend does not do.
    #[error("the {backend} backend cannot {what}")]
    Unsupported {
        /// The backend.
        backend: &'static str,
        /// What was asked for.
        what: &'static str,
    },
    /// A kernel refused its operands.
    #[error("{operation}: {reason}")]
    Kernel {
        /// The operation.
        operation: &'static str,
        /// What the kernel said.
        reason: String,
    },
}

/// Bytes for people.
struct Gibibytes(usize);

impl std::fmt::Display for Gibibytes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gibibytes = self.0 as f64 / (1u64 << 30) as f64;
        if gibibytes < 0.1 {
            write!(formatter, "{:.1} MiB", gibibytes * 1024.0)
        } else {
            write!(formatter, "{gibibytes:.1} GiB")
        }
    }
}

/// A result of this crate.
pub type Result<T, E = ComputeError> = std::result::Result<T, E>;
