//! MLX's operations on one stream, as thin calls of its C interface.
//!
//! mlx-rs wraps the same functions, but looks up and clones a stream for each; a decode step makes hundreds of calls, so
//! here the stream is found once. Arrays are mlx-rs's own, so what it wraps can be mixed in freely.
#![allow(unsafe_code)]
// A graph stands for MLX on this thread: what needs no stream is still asked of it.
#![allow(clippy::unused_self, clippy::wrong_self_convention)]

use super::{
    failure::{self, Failure},
    metal_kernels::MetalKernels,
};
use mlx_rs::Array;
use mlx_sys::{mlx_array, mlx_dtype, mlx_optional_dtype, mlx_optional_float, mlx_optional_int, mlx_stream};
use std::{ffi::CStr, marker::PhantomData, rc::Rc};

/// A result of one operation.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Element types, as MLX numbers them.
pub(crate) mod dtype {
    pub(crate) use mlx_sys::{
        mlx_dtype__MLX_BFLOAT16 as BF16, mlx_dtype__MLX_FLOAT16 as F16, mlx_dtype__MLX_FLOAT32 as F32,
        mlx_dtype__MLX_INT32 as I32, mlx_dtype__MLX_UINT32 as U32,
    };
}

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

/// Builds operations on one stream. Lazy arrays belong to the thread that made them, so this stays on its thread.
pub(crate) struct Graph {
    stream: mlx_stream,
    is_gpu: bool,
    /// Fused kernels, if they are wanted and there are any for the device.
    kernels: Option<MetalKernels>,
    _this_thread: PhantomData<Rc<()>>,
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the handle is this graph's own and used nowhere else.
        unsafe { mlx_sys::mlx_stream_free(self.stream) };
    }
}

impl Graph {
    /// On the default device of this process: the GPU where MLX was built for one, else the cores.
    pub(crate) fn new() -> Result<Self> {
        failure::install();
        // SAFETY: makes an empty handle.
        let mut device = unsafe { mlx_sys::mlx_device_new() };
        // SAFETY: as above.
        let mut stream = unsafe { mlx_sys::mlx_stream_new() };
        let mut kind = mlx_sys::mlx_device_type__MLX_CPU;
        // SAFETY: all three are out-parameters that live for the calls.
        let status = unsafe {
            let mut status = mlx_sys::mlx_get_default_device(&mut device);
            if status == 0 {
                status = mlx_sys::mlx_device_get_type(&mut kind, device);
            }
            if status == 0 {
                status = mlx_sys::mlx_get_default_stream(&mut stream, device);
            }
            mlx_sys::mlx_device_free(device);
            status
        };
        let graph = Self {
            stream,
            is_gpu: kind == mlx_sys::mlx_device_type__MLX_GPU,
            kernels: None,
            _this_thread: PhantomData,
        };
        if status == 0 { Ok(graph) } else { Err(failure::take("stream")) }
    }

    /// With our own kernels where the device runs them.
    pub(crate) fn with_kernels(mut self) -> Self {
        self.kernels = if self.is_gpu { MetalKernels::new() } else { None };
        self
    }

    /// Our own kernels, where the device runs them and they are wanted.
    pub(crate) fn kernels(&self) -> Option<&MetalKernels> {
        self.kernels.as_ref()
    }

    /// Whether the device is a GPU.
    pub(crate) fn is_gpu(&self) -> bool {
        self.is_gpu
    }

    // --- Data --------------------------------------------------------------------------------------------------------

    /// An array of these bytes. They are copied.
    pub(crate) fn from_bytes(&self, bytes: &[u8], shape: &[i32], dtype: mlx_dtype) -> Result<Array> {
        let elements: usize = shape.iter().map(|&length| length as usize).product();
        // SAFETY: a pure look-up.
        let size = unsafe { mlx_sys::mlx_dtype_size(dtype) };
        if elements * size != bytes.len() {
            return Err(Failure::new("array", format!("{} bytes for the shape {shape:?} of {size} each", bytes.len())));
        }
        let aligned;
        let data = if bytes.as_ptr().addr().is_multiple_of(size) {
            bytes.as_ptr()
        } else {
            // MLX reads whole elements.
            aligned = align(bytes);
            aligned.as_ptr().cast()
        };
        // SAFETY: `data` holds as many elements as the shape has, suitably aligned, and is only read during the call.
        let handle = unsafe { mlx_sys::mlx_array_new_data(data.cast(), shape.as_ptr(), shape.len() as i32, dtype) };
        if handle.ctx.is_null() {
            return Err(failure::take("array"));
        }
        // SAFETY: the handle is new and nobody else's.
        Ok(unsafe { Array::from_ptr(handle) })
    }

    /// An array of 32-bit unsigned integers.
    pub(crate) fn from_u32(&self, values: &[u32], shape: &[i32]) -> Result<Array> {
        self.from_words(values.as_ptr().cast(), values.len(), shape, dtype::U32)
    }

    /// An array of 32-bit integers.
    pub(crate) fn from_i32(&self, values: &[i32], shape: &[i32]) -> Result<Array> {
        self.from_words(values.as_ptr().cast(), values.len(), shape, dtype::I32)
    }

    /// An array of floats.
    pub(crate) fn from_f32(&self, values: &[f32], shape: &[i32]) -> Result<Array> {
        self.from_words(values.as_ptr().cast(), values.len(), shape, dtype::F32)
    }

    fn from_words(&self, data: *const u8, length: usize, shape: &[i32], dtype: mlx_dtype) -> Result<Array> {
        // SAFETY: callers pass slices of 4-byte elements.
        self.from_bytes(unsafe { std::slice::from_raw_parts(data, length * 4) }, shape, dtype)
    }

    /// A scalar of type `dtype`, as a Python number becomes one beside an array of that type.
    pub(crate) fn scalar(&self, value: f64, dtype: mlx_dtype) -> Result<Array> {
        // SAFETY: makes a new handle.
        let handle = unsafe { mlx_sys::mlx_array_new_float32(value as f32) };
        if handle.ctx.is_null() {
            return Err(failure::take("scalar"));
        }
        // SAFETY: the handle is new and nobody else's.
        let scalar = unsafe { Array::from_ptr(handle) };
        if dtype == dtype::F32 { Ok(scalar) } else { self.astype(&scalar, dtype) }
    }

    /// A scalar 32-bit integer.
    pub(crate) fn integer(&self, value: i32) -> Result<Array> {
        // SAFETY: makes a new handle.
        let handle = unsafe { mlx_sys::mlx_array_new_int(value) };
        if handle.ctx.is_null() {
            return Err(failure::take("integer"));
        }
        // SAFETY: the handle is new and nobody else's.
        Ok(unsafe { Array::from_ptr(handle) })
    }

    /// The element type of an array.
    pub(crate) fn dtype_of(&self, array: &Array) -> mlx_dtype {
        // SAFETY: a look-up in a valid array.
        unsafe { mlx_sys::mlx_array_dtype(array.as_ptr()) }
    }

    /// Waits for an array and returns its bytes in row-major order.
    pub(crate) fn bytes(&self, array: &Array) -> Result<Vec<u8>> {
        let array = self.contiguous(array)?;
        self.eval(&[&array])?;
        // SAFETY: the array is evaluated and contiguous, so it holds `nbytes` bytes from its data pointer on. The typed
        // accessors of one width read the same pointer.
        unsafe {
            let handle = array.as_ptr();
            let data: *const u8 = match mlx_sys::mlx_array_itemsize(handle) {
                1 => mlx_sys::mlx_array_data_uint8(handle),
                2 => mlx_sys::mlx_array_data_uint16(handle).cast(),
                4 => mlx_sys::mlx_array_data_uint32(handle).cast(),
                _ => mlx_sys::mlx_array_data_uint64(handle).cast(),
            };
            let length = mlx_sys::mlx_array_nbytes(handle);
            if data.is_null() {
                return if length == 0 { Ok(Vec::new()) } else { Err(failure::take("read")) };
            }
            Ok(std::slice::from_raw_parts(data, length).to_vec())
        }
    }

    /// Waits for an array of 32-bit unsigned integers and returns them.
    pub(crate) fn read_u32(&self, array: &Array) -> Result<Vec<u32>> {
        let bytes = self.bytes(array)?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word)).collect())
    }

    /// Waits for an array of floats, converted to 32 bits, and appends them to `out`.
    pub(crate) fn read_f32(&self, array: &Array, out: &mut Vec<f32>) -> Result<()> {
        let bytes = self.bytes(&self.astype(array, dtype::F32)?)?;
        out.extend(bytes.as_chunks::<4>().0.iter().map(|word| f32::from_ne_bytes(*word)));
        Ok(())
    }

    // --- Evaluation --------------------------------------------------------------------------------------------------

    /// Computes these arrays and waits for them.
    pub(crate) fn eval(&self, arrays: &[&Array]) -> Result<()> {
        // SAFETY: the vector is valid for the call.
        self.with_vector("eval", arrays, |vector| unsafe { mlx_sys::mlx_eval(vector) })
    }

    /// Begins to compute these arrays.
    pub(crate) fn async_eval(&self, arrays: &[&Array]) -> Result<()> {
        // SAFETY: the vector is valid for the call.
        self.with_vector("async_eval", arrays, |vector| unsafe { mlx_sys::mlx_async_eval(vector) })
    }

    /// Gives buffers that MLX keeps for reuse back to the system.
    pub(crate) fn clear_cache(&self) {
        // SAFETY: takes nothing and only frees what nobody uses.
        unsafe { mlx_sys::mlx_clear_cache() };
    }

    fn with_vector(
        &self,
        operation: &'static str,
        arrays: &[&Array],
        call: impl FnOnce(mlx_sys::mlx_vector_array) -> i32,
    ) -> Result<()> {
        let handles: Vec<mlx_array> = arrays.iter().map(|array| array.as_ptr()).collect();
        // SAFETY: the handles are valid; the vector copies them and is freed below.
        let vector = unsafe { mlx_sys::mlx_vector_array_new_data(handles.as_ptr(), handles.len()) };
        let status = call(vector);
        // SAFETY: made above and not used after this.
        unsafe { mlx_sys::mlx_vector_array_free(vector) };
        if status == 0 { Ok(()) } else { Err(failure::take(operation)) }
    }

    /// Runs one operation that writes a new array.
    fn call(&self, operation: &'static str, call: impl FnOnce(*mut mlx_array) -> i32) -> Result<Array> {
        // SAFETY: an empty handle; freeing it is allowed.
        let mut handle = unsafe { mlx_sys::mlx_array_new() };
        let status = call(&mut handle);
        // SAFETY: whatever the call left in the handle is nobody else's.
        let array = unsafe { Array::from_ptr(handle) };
        if status == 0 { Ok(array) } else { Err(failure::take(operation)) }
    }

    /// Runs one operation that writes three arrays.
    fn call_three(
        &self,
        operation: &'static str,
        call: impl FnOnce(*mut mlx_sys::mlx_vector_array) -> i32,
    ) -> Result<[Array; 3]> {
        // SAFETY: an empty vector, freed below on every path.
        let mut vector = unsafe { mlx_sys::mlx_vector_array_new() };
        let status = call(&mut vector);
        let arrays = if status == 0 {
            // SAFETY: the vector is valid; an index beyond its end is an error status.
            let get = |index| self.call(operation, |out| unsafe { mlx_sys::mlx_vector_array_get(out, vector, index) });
            get(0).and_then(|first| Ok([first, get(1)?, get(2)?]))
        } else {
            Err(failure::take(operation))
        };
        // SAFETY: made above and not used after this.
        unsafe { mlx_sys::mlx_vector_array_free(vector) };
        arrays
    }
}

/// An array that may be left out.
fn optional(array: Option<&Array>) -> mlx_array {
    array.map_or(mlx_array { ctx: std::ptr::null_mut() }, Array::as_ptr)
}

fn some(value: i32) -> mlx_optional_int {
    mlx_optional_int { value, has_value: true }
}

/// The bytes at an address that every element type accepts.
fn align(bytes: &[u8]) -> Vec<u64> {
    let mut words = vec![0u64; bytes.len().div_ceil(8)];
    // SAFETY: the words hold at least as many bytes, and any bytes make a u64.
    let target = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), bytes.len()) };
    target.copy_from_slice(bytes);
    words
}

/// Defines methods that pass arrays and then the stream.
macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident($($argument:ident),+) = $function:ident;)+) => {
        impl Graph {
            $($(#[$doc])*
            pub(crate) fn $name(&self, $($argument: &Array),+) -> Result<Array> {
                // SAFETY: every handle is valid for the call.
                self.call(stringify!($name), |out| unsafe {
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
        self.call("astype", |out| unsafe { mlx_sys::mlx_astype(out, x.as_ptr(), dtype, self.stream) })
    }

    /// The same elements in row-major order.
    pub(crate) fn contiguous(&self, x: &Array) -> Result<Array> {
        // SAFETY: see `astype`.
        self.call("contiguous", |out| unsafe { mlx_sys::mlx_contiguous(out, x.as_ptr(), false, self.stream) })
    }

    /// Another shape.
    pub(crate) fn reshape(&self, x: &Array, shape: &[i32]) -> Result<Array> {
        // SAFETY: see `astype`; the shape lives for the call.
        self.call("reshape", |out| unsafe {
            mlx_sys::mlx_reshape(out, x.as_ptr(), shape.as_ptr(), shape.len(), self.stream)
        })
    }

    /// Elements of `x`'s memory by the distance of neighbours along each axis.
    pub(crate) fn as_strided(&self, x: &Array, shape: &[i32], strides: &[i64]) -> Result<Array> {
        // SAFETY: see `astype`; shape and strides live for the call.
        self.call("as_strided", |out| unsafe {
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
        self.call("transpose", |out| unsafe {
            mlx_sys::mlx_transpose_axes(out, x.as_ptr(), axes.as_ptr(), axes.len(), self.stream)
        })
    }

    /// The last two axes exchanged.
    pub(crate) fn swap_last(&self, x: &Array) -> Result<Array> {
        // SAFETY: see `astype`.
        self.call("swapaxes", |out| unsafe { mlx_sys::mlx_swapaxes(out, x.as_ptr(), -1, -2, self.stream) })
    }

    /// A new axis of length 1.
    pub(crate) fn expand(&self, x: &Array, axis: i32) -> Result<Array> {
        // SAFETY: see `astype`.
        self.call("expand_dims", |out| unsafe { mlx_sys::mlx_expand_dims(out, x.as_ptr(), axis, self.stream) })
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
        self.call("slice", |out| unsafe {
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
        self.call("slice_update", |out| unsafe {
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
        self.with_vector("concatenate", arrays, |vector| {
            // SAFETY: the vector is valid for the call.
            result = self
                .call("concatenate", |out| unsafe { mlx_sys::mlx_concatenate_axis(out, vector, axis, self.stream) });
            0
        })?;
        result
    }

    /// Zeros.
    pub(crate) fn zeros(&self, shape: &[i32], dtype: mlx_dtype) -> Result<Array> {
        // SAFETY: see `reshape`.
        self.call("zeros", |out| unsafe { mlx_sys::mlx_zeros(out, shape.as_ptr(), shape.len(), dtype, self.stream) })
    }

    /// Integers from `start` to `stop`, that one excluded.
    pub(crate) fn arange(&self, start: i32, stop: i32) -> Result<Array> {
        // SAFETY: takes numbers only.
        self.call("arange", |out| unsafe {
            mlx_sys::mlx_arange(out, f64::from(start), f64::from(stop), 1.0, dtype::I32, self.stream)
        })
    }

    /// Floats from `start` by `step` up to `stop`, that one excluded.
    pub(crate) fn arange_f32(&self, start: f64, stop: f64, step: f64) -> Result<Array> {
        // SAFETY: takes numbers only.
        self.call("arange", |out| unsafe { mlx_sys::mlx_arange(out, start, stop, step, dtype::F32, self.stream) })
    }

    /// Integers from `start` by `step` up to `stop`, that one excluded.
    pub(crate) fn arange_step(&self, start: i32, stop: i32, step: i32) -> Result<Array> {
        // SAFETY: takes numbers only.
        self.call("arange", |out| unsafe {
            mlx_sys::mlx_arange(out, f64::from(start), f64::from(stop), f64::from(step), dtype::I32, self.stream)
        })
    }

    /// The slices of `x` along `axis` that the indices name.
    pub(crate) fn take(&self, x: &Array, indices: &Array, axis: i32) -> Result<Array> {
        // SAFETY: see `astype`.
        self.call("take", |out| unsafe { mlx_sys::mlx_take_axis(out, x.as_ptr(), indices.as_ptr(), axis, self.stream) })
    }

    /// For every place, the element of `x` along `axis` that the index there names.
    pub(crate) fn take_along(&self, x: &Array, indices: &Array, axis: i32) -> Result<Array> {
        // SAFETY: see `astype`.
        self.call("take_along_axis", |out| unsafe {
            mlx_sys::mlx_take_along_axis(out, x.as_ptr(), indices.as_ptr(), axis, self.stream)
        })
    }

    /// `x` with the elements along `axis` that the indices name replaced.
    pub(crate) fn put_along(&self, x: &Array, indices: &Array, values: &Array, axis: i32) -> Result<Array> {
        // SAFETY: see `astype`.
        self.call("put_along_axis", |out| unsafe {
            mlx_sys::mlx_put_along_axis(out, x.as_ptr(), indices.as_ptr(), values.as_ptr(), axis, self.stream)
        })
    }

    /// The elements along `axis` moved on by `shift`, those at the end to the beginning.
    pub(crate) fn roll(&self, x: &Array, shift: i32, axis: i32) -> Result<Array> {
        // SAFETY: see `astype`; the shift lives for the call.
        self.call("roll", |out| unsafe {
            mlx_sys::mlx_roll_axis(out, x.as_ptr(), &raw const shift, 1, axis, self.stream)
        })
    }

    /// The sum along the last axis, which stays with length 1.
    pub(crate) fn sum_last(&self, x: &Array) -> Result<Array> {
        // SAFETY: see `astype`.
        self.call("sum", |out| unsafe { mlx_sys::mlx_sum_axis(out, x.as_ptr(), -1, true, self.stream) })
    }

    /// The maximum along the last axis, which stays with length 1.
    pub(crate) fn max_last(&self, x: &Array) -> Result<Array> {
        // SAFETY: see `astype`.
        self.call("max", |out| unsafe { mlx_sys::mlx_max_axis(out, x.as_ptr(), -1, true, self.stream) })
    }

    /// The place of the maximum along the last axis, the lowest on ties.
    pub(crate) fn argmax_last(&self, x: &Array) -> Result<Array> {
        // SAFETY: see `astype`.
        self.call("argmax", |out| unsafe { mlx_sys::mlx_argmax_axis(out, x.as_ptr(), -1, false, self.stream) })
    }

    /// `log(sum(e ** x))` along the last axis, which stays with length 1.
    pub(crate) fn logsumexp_last(&self, x: &Array) -> Result<Array> {
        // SAFETY: see `astype`.
        self.call("logsumexp", |out| unsafe { mlx_sys::mlx_logsumexp_axis(out, x.as_ptr(), -1, true, self.stream) })
    }

    /// Softmax along the last axis, computed in 32 bits.
    pub(crate) fn softmax_last(&self, x: &Array) -> Result<Array> {
        // SAFETY: see `astype`.
        self.call("softmax", |out| unsafe { mlx_sys::mlx_softmax_axis(out, x.as_ptr(), -1, true, self.stream) })
    }

    /// Sorted along the last axis, lowest first.
    pub(crate) fn sort_last(&self, x: &Array) -> Result<Array> {
        // SAFETY: see `astype`.
        self.call("sort", |out| unsafe { mlx_sys::mlx_sort_axis(out, x.as_ptr(), -1, self.stream) })
    }

    /// Indices along the last axis such that what stands before place `kth` is not above what stands there.
    pub(crate) fn argpartition_last(&self, x: &Array, kth: i32) -> Result<Array> {
        // SAFETY: see `astype`.
        self.call("argpartition", |out| unsafe {
            mlx_sys::mlx_argpartition_axis(out, x.as_ptr(), kth, -1, self.stream)
        })
    }

    /// Sums of all elements up to each along the last axis; from the other end if `reverse`, without itself if not
    /// `inclusive`.
    pub(crate) fn cumsum_last(&self, x: &Array, reverse: bool, inclusive: bool) -> Result<Array> {
        // SAFETY: see `astype`.
        self.call("cumsum", |out| unsafe {
            mlx_sys::mlx_cumsum_axis(out, x.as_ptr(), -1, reverse, inclusive, NO_DTYPE, self.stream)
        })
    }

    /// `c + a b`.
    pub(crate) fn addmm(&self, c: &Array, a: &Array, b: &Array) -> Result<Array> {
        // SAFETY: see `astype`.
        self.call("addmm", |out| unsafe {
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
        self.call("quantized_matmul", |out| unsafe {
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
        self.call("dequantize", |out| unsafe {
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
        self.call_three("quantize", |out| unsafe {
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
        self.call("rms_norm", |out| unsafe {
            mlx_sys::mlx_fast_rms_norm(out, x.as_ptr(), weight.as_ptr(), epsilon, self.stream)
        })
    }

    /// Turns `[batch, heads, tokens, head_dim]` by positions from `offset` on: one for all rows, or one each.
    pub(crate) fn rope(&self, x: &Array, arguments: &RopeArguments, offset: &Array) -> Result<Array> {
        let base =
            mlx_optional_float { value: arguments.base.unwrap_or(0.0), has_value: arguments.frequencies.is_none() };
        // SAFETY: see `astype`.
        self.call("rope", |out| unsafe {
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
        self.call("scaled_dot_product_attention", |out| unsafe {
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

const NO_DTYPE: mlx_optional_dtype = mlx_optional_dtype { value: dtype::F32, has_value: false };

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
