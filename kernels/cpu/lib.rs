//! SIMD kernels for transformer inference on CPU cores.
//!
//! Everything here knows slices and shapes and no model. A [`Context`] carries the instruction set and the thread pool;
//! kernels are free functions that take it first. The scalar version of each kernel is the readable reference; all
//! others are tested against it.

mod activation;
mod argmax;
mod attention;
mod context;
mod convert;
mod convolution;
mod elementwise;
mod float_slice;
mod isa;
mod matmul;
#[path = "../metal/metal.rs"]
pub mod metal;
mod norm;
mod pages;
mod parallel;
pub mod pool;
mod rope;
mod scratch;
mod simd;
mod softmax;
mod turns;
mod weight_memory;

pub use activation::Activation;
pub use argmax::argmax;
pub use attention::{
    AttentionError, AttentionOptions, AttentionRow, CrossAttentionError, CrossMemory, CrossRow, HeadLayout,
    MemoryFormat, attention, coarse_full_attention, cross_attention, cross_scores, full_attention,
};
pub use context::Context;
pub use convert::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
pub use convolution::{Convolution1d, ConvolutionWeight, conv1d};
pub use elementwise::{activate_in_place, add_in_place, gated, scale_in_place};
pub use float_slice::FloatSlice;
pub use isa::Isa;
pub use matmul::{AffineWeight, DenseWeight, Epilogue, Matrix, MatrixError, Precision, Product, matmul, matmul_gated};
pub use norm::{layer_norm, rms_norm, rms_norm_in_place};
pub use pages::{
    AffinePages, AffineTokens, Half, PAGE_TOKENS, Page, PageFormat, PageGeometry, append, append_affine, read_affine,
    read_page, write_affine,
};
pub use rope::{RopeTable, rope};
pub use softmax::{log_sum_exp, softmax_in_place};
pub use turns::{CoreTurns, UrgentTurn};
