//! Elementwise operations, shapes, reductions.
#![allow(unsafe_code)]

use super::{Failure, Graph, NO_DTYPE, Result, data, dtype};
use mlx_rs::Array;
use mlx_sys::mlx_dtype;

/// Defines methods that pass arrays and then the stream.
macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident($($argument:ident),+) = $function:ident;)+) => {
        impl Graph {
            $($(#[$doc])*
            pub(crate) fn $name(&self, $($argument: &Array),+) -> Result<Array> {
                // SAFETY: every handle is valid for the call.
                data::call(stringify!($name), |out| unsafe {
                    mlx_sys::$function(out, $($argument.as_ptr(),)+ self.stream)
                })
            })+
        }
    };
}

operations! {
    /// `a + b`.
    add(a, b) = mlx_add;
    /// `a - b`.
    subtract(a, b) = mlx_subtract;
    /// `a * b`.
    multiply(a, b) = mlx_multiply;
    /// `a / b`.
    divide(a, b) = mlx_divide;
    /// `a ** b`.
    power(a, b) = mlx_power;
    /// `a % b`, with the sign of `b`.
    remainder(a, b) = mlx_remainder;
    /// The product of matrices in the last two axes.
    matmul(a, b) = mlx_matmul;
    /// `e ** x`.
    exp(x) = mlx_exp;
    /// The hyperbolic tangent.
    tanh(x) = mlx_tanh;
    /// The error function.
    erf(x) = mlx_erf;
    /// The sine.
    sin(x) = mlx_sin;
    /// The cosine.
    cos(x) = mlx_cos;
    /// `1 / (1 + e ** -x)`.
    sigmoid(x) = mlx_sigmoid;
    /// `-x`.
    negative(x) = mlx_negative;
    /// Which elements are neither infinite nor NaN.
    is_finite(x) = mlx_isfinite;
    /// `a >= b`.
    greater_equal(a, b) = mlx_greater_equal;
    /// `a > b`.
    greater(a, b) = mlx_greater;
    /// `a <= b`.
    less_equal(a, b) = mlx_less_equal;
    /// `a < b`.
    less(a, b) = mlx_less;
    /// `a and b`.
    logical_and(a, b) = mlx_logical_and;
    /// `x` where the condition holds, else `y`.
    select(condition, x, y) = mlx_where;
}

impl Graph {
    /// Another element type.
    pub(crate) fn astype(&self, x: &Array, dtype: mlx_dtype) -> Result<Array> {
        // SAFETY: the handle is valid for the call, as in every operation below.
        data::call("astype", |out| unsafe { mlx_sys::mlx_astype(out, x.as_ptr(), dtype, self.stream) })
    }

    /// The same elements in row-major order.
    pub(crate) fn contiguous(&self, x: &Array) -> Result<Array> {
        // SAFETY: see `astype`.
        data::call("contiguous", |out| unsafe { mlx_sys::mlx_contiguous(out, x.as_ptr(), false, self.stream) })
    }

    /// Another shape.
    pub(crate) fn reshape(&self, x: &Array, shape: &[i32]) -> Result<Array> {
        // SAFETY: see `astype`; the shape lives for the call.
        data::call("reshape", |out| unsafe {
            mlx_sys::mlx_reshape(out, x.as_ptr(), shape.as_ptr(), shape.len(), self.stream)
        })
    }

    /// Elements of `x`'s memory by the distance of neighbours along each axis.
    #[cfg(feature = "kernel-tests")]
    pub(crate) fn as_strided(&self, x: &Array, shape: &[i32], strides: &[i64]) -> Result<Array> {
        // SAFETY: see `astype`; shape and strides live for the call.
        data::call("as_strided", |out| unsafe {
            mlx_sys::mlx_as_strided(
                out,
                x.as_ptr(),
                shape.as_ptr(),
                shape.len(),
                strides.as_ptr(),
                strides.len(),
                0,
                self.stream,
            )
        })
    }

    /// Another order of the axes.
    pub(crate) fn transpose(&self, x: &Array, axes: &[i32]) -> Result<Array> {
        // SAFETY: see `reshape`.
        data::call("transpose", |out| unsafe {
            mlx_sys::mlx_transpose_axes(out, x.as_ptr(), axes.as_ptr(), axes.len(), self.stream)
        })
    }

    /// The last two axes exchanged.
    pub(crate) fn swap_last(&self, x: &Array) -> Result<Array> {
        // SAFETY: see `astype`.
        data::call("swapaxes", |out| unsafe { mlx_sys::mlx_swapaxes(out, x.as_ptr(), -1, -2, self.stream) })
    }

    /// A new axis of length 1.
    pub(crate) fn expand(&self, x: &Array, axis: i32) -> Result<Array> {
        // SAFETY: see `astype`.
        data::call("expand_dims", |out| unsafe { mlx_sys::mlx_expand_dims(out, x.as_ptr(), axis, self.stream) })
    }

    /// Elements `start..stop` along `axis`.
    pub(crate) fn slice(&self, x: &Array, axis: usize, start: i32, stop: i32) -> Result<Array> {
        let shape = x.shape();
        if start == 0 && shape.get(axis) == Some(&stop) {
            return Ok(x.clone());
        }
        let (mut starts, mut stops, strides) = ([0; 5], [0; 5], [1; 5]);
        let ndim = shape.len();
        if ndim > 5 || axis >= ndim {
            return Err(Failure::new("slice", format!("axis {axis} of an array of shape {shape:?}")));
        }
        stops[..ndim].copy_from_slice(shape);
        starts[axis] = start;
        stops[axis] = stop;
        // SAFETY: see `reshape`.
        data::call("slice", |out| unsafe {
            mlx_sys::mlx_slice(
                out,
                x.as_ptr(),
                starts.as_ptr(),
                ndim,
                stops.as_ptr(),
                ndim,
                strides.as_ptr(),
                ndim,
                self.stream,
            )
        })
    }

    /// `x` with elements `start..` along axis 2 of 4 replaced by `update`. Where nobody else holds `x` when it is
    /// computed, MLX writes in place.
    pub(crate) fn update_tokens(&self, x: &Array, update: &Array, start: i32) -> Result<Array> {
        let (shape, update_shape) = (x.shape(), update.shape());
        let (&[rows, heads, _, width], &[_, _, length, _]) = (shape, update_shape) else {
            let detail = format!("{update_shape:?} into {shape:?}; both must have 4 axes");
            return Err(Failure::new("slice_update", detail));
        };
        let (starts, stops, strides) = ([0, 0, start, 0], [rows, heads, start + length, width], [1; 4]);
        // SAFETY: see `reshape`.
        data::call("slice_update", |out| unsafe {
            mlx_sys::mlx_slice_update(
                out,
                x.as_ptr(),
                update.as_ptr(),
                starts.as_ptr(),
                4,
                stops.as_ptr(),
                4,
                strides.as_ptr(),
                4,
                self.stream,
            )
        })
    }

    /// Arrays one after the other along `axis`.
    pub(crate) fn concatenate(&self, arrays: &[&Array], axis: i32) -> Result<Array> {
        if let [single] = arrays {
            return Ok((*single).clone());
        }
        let mut result = Err(Failure::new("concatenate", "no arrays".into()));
        data::with_vector("concatenate", arrays, |vector| {
            // SAFETY: the vector is valid for the call.
            result = data::call("concatenate", |out| unsafe {
                mlx_sys::mlx_concatenate_axis(out, vector, axis, self.stream)
            });
            0
        })?;
        result
    }

    /// Zeros.
    pub(crate) fn zeros(&self, shape: &[i32], dtype: mlx_dtype) -> Result<Array> {
        // SAFETY: see `reshape`.
        data::call("zeros", |out| unsafe { mlx_sys::mlx_zeros(out, shape.as_ptr(), shape.len(), dtype, self.stream) })
    }

    /// Integers from `start` to `stop`, that one excluded.
    pub(crate) fn arange(&self, start: i32, stop: i32) -> Result<Array> {
        // SAFETY: takes numbers only.
        data::call("arange", |out| unsafe {
            mlx_sys::mlx_arange(out, f64::from(start), f64::from(stop), 1.0, dtype::I32, self.stream)
        })
    }

    /// Floats from `start` by `step` up to `stop`, that one excluded.
    pub(crate) fn arange_f32(&self, start: f64, stop: f64, step: f64) -> Result<Array> {
        // SAFETY: takes numbers only.
        data::call("arange", |out| unsafe { mlx_sys::mlx_arange(out, start, stop, step, dtype::F32, self.stream) })
    }

    /// Integers from `start` by `step` up to `stop`, that one excluded.
    pub(crate) fn arange_step(&self, start: i32, stop: i32, step: i32) -> Result<Array> {
        // SAFETY: takes numbers only.
        data::call("arange", |out| unsafe {
            mlx_sys::mlx_arange(out, f64::from(start), f64::from(stop), f64::from(step), dtype::I32, self.stream)
        })
    }

    /// The slices of `x` along `axis` that the indices name.
    pub(crate) fn take(&self, x: &Array, indices: &Array, axis: i32) -> Result<Array> {
        // SAFETY: see `astype`.
        data::call("take", |out| unsafe {
            mlx_sys::mlx_take_axis(out, x.as_ptr(), indices.as_ptr(), axis, self.stream)
        })
    }

    /// For every place, the element of `x` along `axis` that the index there names.
    pub(crate) fn take_along(&self, x: &Array, indices: &Array, axis: i32) -> Result<Array> {
        // SAFETY: see `astype`.
        data::call("take_along_axis", |out| unsafe {
            mlx_sys::mlx_take_along_axis(out, x.as_ptr(), indices.as_ptr(), axis, self.stream)
        })
    }

    /// `x` with the elements along `axis` that the indices name replaced.
    pub(crate) fn put_along(&self, x: &Array, indices: &Array, values: &Array, axis: i32) -> Result<Array> {
        // SAFETY: see `astype`.
        data::call("put_along_axis", |out| unsafe {
            mlx_sys::mlx_put_along_axis(out, x.as_ptr(), indices.as_ptr(), values.as_ptr(), axis, self.stream)
        })
    }

    /// The elements along `axis` moved on by `shift`, those at the end to the beginning.
    pub(crate) fn roll(&self, x: &Array, shift: i32, axis: i32) -> Result<Array> {
        // SAFETY: see `astype`; the shift lives for the call.
        data::call("roll", |out| unsafe {
            mlx_sys::mlx_roll_axis(out, x.as_ptr(), &raw const shift, 1, axis, self.stream)
        })
    }

    /// The sum along the last axis, which stays with length 1.
    pub(crate) fn sum_last(&self, x: &Array) -> Result<Array> {
        // SAFETY: see `astype`.
        data::call("sum", |out| unsafe { mlx_sys::mlx_sum_axis(out, x.as_ptr(), -1, true, self.stream) })
    }

    /// The maximum along the last axis, which stays with length 1.
    pub(crate) fn max_last(&self, x: &Array) -> Result<Array> {
        // SAFETY: see `astype`.
        data::call("max", |out| unsafe { mlx_sys::mlx_max_axis(out, x.as_ptr(), -1, true, self.stream) })
    }

    /// The place of the maximum along the last axis, the lowest on ties. The axis stays with length 1.
    pub(crate) fn argmax_last(&self, x: &Array) -> Result<Array> {
        // SAFETY: see `astype`.
        data::call("argmax", |out| unsafe { mlx_sys::mlx_argmax_axis(out, x.as_ptr(), -1, true, self.stream) })
    }

    /// `log(sum(e ** x))` along the last axis, which stays with length 1.
    pub(crate) fn logsumexp_last(&self, x: &Array) -> Result<Array> {
        // SAFETY: see `astype`.
        data::call("logsumexp", |out| unsafe { mlx_sys::mlx_logsumexp_axis(out, x.as_ptr(), -1, true, self.stream) })
    }

    /// Softmax along the last axis, computed in 32 bits.
    pub(crate) fn softmax_last(&self, x: &Array) -> Result<Array> {
        // SAFETY: see `astype`.
        data::call("softmax", |out| unsafe { mlx_sys::mlx_softmax_axis(out, x.as_ptr(), -1, true, self.stream) })
    }

    /// Sorted along the last axis, lowest first.
    pub(crate) fn sort_last(&self, x: &Array) -> Result<Array> {
        // SAFETY: see `astype`.
        data::call("sort", |out| unsafe { mlx_sys::mlx_sort_axis(out, x.as_ptr(), -1, self.stream) })
    }

    /// Indices along the last axis such that what stands before place `kth` is not above what stands there.
    pub(crate) fn argpartition_last(&self, x: &Array, kth: i32) -> Result<Array> {
        // SAFETY: see `astype`.
        data::call("argpartition", |out| unsafe {
            mlx_sys::mlx_argpartition_axis(out, x.as_ptr(), kth, -1, self.stream)
        })
    }

    /// Sums of all elements up to each along the last axis; from the other end if `reverse`, without itself if not
    /// `inclusive`.
    pub(crate) fn cumsum_last(&self, x: &Array, reverse: bool, inclusive: bool) -> Result<Array> {
        // SAFETY: see `astype`.
        data::call("cumsum", |out| unsafe {
            mlx_sys::mlx_cumsum_axis(out, x.as_ptr(), -1, reverse, inclusive, NO_DTYPE, self.stream)
        })
    }
}
