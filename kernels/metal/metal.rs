//! Kernels for Apple GPUs: Metal sources, what they compute in plain Rust, and how they are launched.
//!
//! The sources have the form that MLX's custom kernels take: functions ([`KernelSource::functions`]) and a kernel's body,
//! around which MLX writes the signature. Nothing here needs a Mac: a [`Launch`] is data, handed to MLX by
//! linnet-compute on a Mac and to the runner of linnet-metal-host in tests.

mod affine;
mod decode_attention;
mod element;
mod gated;
mod greedy;
mod launch;
mod source;
#[cfg(test)]
mod twins;

pub use affine::AffineRows;
pub use decode_attention::{
    DECODE_ATTENTION, DECODE_ATTENTION_JOIN, DECODE_ATTENTION_PARTS, DecodeAttention, decode_attention_reference,
};
pub use element::{Element, round_to};
pub use gated::{GATED_MATVEC, GATED_MATVEC_MAX_ROWS, Gate, GatedMatvec, gated_reference};
pub use greedy::{GREEDY_FINISH, GREEDY_NONE, GREEDY_SINGLE, GREEDY_TILES, GreedyPlan, greedy_reference, log_sum_exp};
pub use launch::{Launch, LaunchError, Output, TemplateValue};
pub use source::{KernelSource, SourceFile};

/// Every kernel of this folder.
pub static KERNELS: [&KernelSource; 7] = [
    &DECODE_ATTENTION,
    &DECODE_ATTENTION_PARTS,
    &DECODE_ATTENTION_JOIN,
    &GATED_MATVEC,
    &GREEDY_SINGLE,
    &GREEDY_TILES,
    &GREEDY_FINISH,
];
