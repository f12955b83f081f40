//! Products, quantization, and what MLX computes in one kernel.
#![allow(unsafe_code)]

use super::{Graph, NO_DTYPE, Result, data};
use mlx_rs::Array;
use mlx_sys::{mlx_array, mlx_optional_float, mlx_optional_int};
use std::ffi::CStr;

const AFFINE: &CStr = c"affine";
const NO_MASK: &CStr = c"";
const CAUSAL: &CStr = c"causal";

/// The mask of [`Graph::attention`].
#[derive(Debug, Clone)]
pub(crate) enum Mask {
    /// Every query sees every key.
    None,
    /// The last query sees all keys, each one before it one less.
    Causal,
    /// Booleans that broadcast to `[batch, heads, queries, keys]`.
    Array(Array),
}

/// How groups of elements are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packing {
    pub(crate) group_size: i32,
    pub(crate) bits: i32,
}

/// The arguments of MLX's rope that do not change from step to step.
#[derive(Debug, Clone)]
pub(crate) struct RopeArguments {
    pub(crate) dims: i32,
    pub(crate) traditional: bool,
    pub(crate) scale: f32,
    /// Used where there are no frequencies.
    pub(crate) base: Option<f32>,
    pub(crate) frequencies: Option<Array>,
}

/// An array that may be left out.
fn optional(array: Option<&Array>) -> mlx_array {
    array.map_or(mlx_array { ctx: std::ptr::null_mut() }, Array::as_ptr)
}

fn some(value: i32) -> mlx_optional_int {
    mlx_optional_int { value, has_value: true }
}

impl Graph {
    /// `c + a b`.
    pub(crate) fn addmm(&self, c: &Array, a: &Array, b: &Array) -> Result<Array> {
        // SAFETY: see `astype`.
        data::call("addmm", |out| unsafe {
            mlx_sys::mlx_addmm(out, c.as_ptr(), a.as_ptr(), b.as_ptr(), 1.0, 1.0, self.stream)
        })
    }

    /// `x w`, or `x wᵀ`, with an affine-quantized `w`.
    pub(crate) fn quantized_matmul(
        &self,
        x: &Array,
        [weight, scales, biases]: &[Array; 3],
        transpose: bool,
        packing: Packing,
    ) -> Result<Array> {
        // SAFETY: see `astype`; the mode is a constant.
        data::call("quantized_matmul", |out| unsafe {
            mlx_sys::mlx_quantized_matmul(
                out,
                x.as_ptr(),
                weight.as_ptr(),
                scales.as_ptr(),
                biases.as_ptr(),
                transpose,
                some(packing.group_size),
                some(packing.bits),
                AFFINE.as_ptr(),
                self.stream,
            )
        })
    }

    /// The floats that affine quantization stands for.
    pub(crate) fn dequantize(&self, [weight, scales, biases]: &[Array; 3], packing: Packing) -> Result<Array> {
        // SAFETY: see `quantized_matmul`.
        data::call("dequantize", |out| unsafe {
            mlx_sys::mlx_dequantize(
                out,
                weight.as_ptr(),
                scales.as_ptr(),
                biases.as_ptr(),
                some(packing.group_size),
                some(packing.bits),
                AFFINE.as_ptr(),
                optional(None),
                NO_DTYPE,
                self.stream,
            )
        })
    }

    /// Affine quantization along the last axis: packed words, scales, biases.
    pub(crate) fn quantize(&self, x: &Array, packing: Packing) -> Result<[Array; 3]> {
        // SAFETY: see `quantized_matmul`.
        data::call_three("quantize", |out| unsafe {
            mlx_sys::mlx_quantize(
                out,
                x.as_ptr(),
                some(packing.group_size),
                some(packing.bits),
                AFFINE.as_ptr(),
                optional(None),
                self.stream,
            )
        })
    }

    /// RMS norm along the last axis.
    pub(crate) fn rms_norm(&self, x: &Array, weight: &Array, epsilon: f32) -> Result<Array> {
        // SAFETY: see `astype`.
        data::call("rms_norm", |out| unsafe {
            mlx_sys::mlx_fast_rms_norm(out, x.as_ptr(), weight.as_ptr(), epsilon, self.stream)
        })
    }

    /// Layer norm along the last axis.
    pub(crate) fn layer_norm(&self, x: &Array, weight: &Array, bias: &Array, epsilon: f32) -> Result<Array> {
        // SAFETY: see `astype`.
        data::call("layer_norm", |out| unsafe {
            mlx_sys::mlx_fast_layer_norm(out, x.as_ptr(), weight.as_ptr(), bias.as_ptr(), epsilon, self.stream)
        })
    }

    /// A convolution of `[batch, lines, in]` with `[out, kernel, in]`.
    pub(crate) fn conv1d(&self, x: &Array, weight: &Array, stride: i32, padding: i32) -> Result<Array> {
        // SAFETY: see `astype`.
        data::call("conv1d", |out| unsafe {
            mlx_sys::mlx_conv1d(out, x.as_ptr(), weight.as_ptr(), stride, padding, 1, 1, self.stream)
        })
    }

    /// Turns `[batch, heads, tokens, head_dim]` by positions from `offset` on: one for all rows, or one each.
    pub(crate) fn rope(&self, x: &Array, arguments: &RopeArguments, offset: &Array) -> Result<Array> {
        let base =
            mlx_optional_float { value: arguments.base.unwrap_or(0.0), has_value: arguments.frequencies.is_none() };
        // SAFETY: see `astype`.
        data::call("rope", |out| unsafe {
            mlx_sys::mlx_fast_rope_dynamic(
                out,
                x.as_ptr(),
                arguments.dims,
                arguments.traditional,
                base,
                arguments.scale,
                offset.as_ptr(),
                optional(arguments.frequencies.as_ref()),
                self.stream,
            )
        })
    }

    /// Attention over `[batch, heads, tokens, head_dim]`.
    pub(crate) fn attention(&self, q: &Array, k: &Array, v: &Array, scale: f32, mask: &Mask) -> Result<Array> {
        let (mode, array) = match mask {
            Mask::None => (NO_MASK, None),
            Mask::Causal => (CAUSAL, None),
            Mask::Array(array) => (NO_MASK, Some(array)),
        };
        // SAFETY: see `astype`; the mode is a constant.
        data::call("scaled_dot_product_attention", |out| unsafe {
            mlx_sys::mlx_fast_scaled_dot_product_attention(
                out,
                q.as_ptr(),
                k.as_ptr(),
                v.as_ptr(),
                scale,
                mode.as_ptr(),
                optional(array),
                optional(None),
                false,
                self.stream,
            )
        })
    }
}
