//! Arrays from the host, and their evaluation: what needs no stream.
#![allow(unsafe_code)]

use super::{Failure, Result, dtype};
use crate::mlx::failure;
use mlx_rs::Array;
use mlx_sys::{mlx_array, mlx_dtype};

/// An array of these bytes. They are copied.
pub(crate) fn from_bytes(bytes: &[u8], shape: &[i32], dtype: mlx_dtype) -> Result<Array> {
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
pub(crate) fn from_u32(values: &[u32], shape: &[i32]) -> Result<Array> {
    from_words(values, shape)
}

/// An array of 32-bit integers.
pub(crate) fn from_i32(values: &[i32], shape: &[i32]) -> Result<Array> {
    from_words(values, shape)
}

/// An array of floats.
pub(crate) fn from_f32(values: &[f32], shape: &[i32]) -> Result<Array> {
    from_words(values, shape)
}

/// Numbers whose every byte is part of their value.
trait Word: Copy {
    const DTYPE: mlx_dtype;
}

impl Word for u32 {
    const DTYPE: mlx_dtype = dtype::U32;
}

impl Word for i32 {
    const DTYPE: mlx_dtype = dtype::I32;
}

impl Word for f32 {
    const DTYPE: mlx_dtype = dtype::F32;
}

fn from_words<T: Word>(values: &[T], shape: &[i32]) -> Result<Array> {
    // SAFETY: the bytes of a slice of numbers without padding, for as long as it is borrowed.
    let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) };
    from_bytes(bytes, shape, T::DTYPE)
}

/// A scalar 32-bit integer.
pub(crate) fn integer(value: i32) -> Result<Array> {
    // SAFETY: makes a new handle.
    let handle = unsafe { mlx_sys::mlx_array_new_int(value) };
    if handle.ctx.is_null() {
        return Err(failure::take("integer"));
    }
    // SAFETY: the handle is new and nobody else's.
    Ok(unsafe { Array::from_ptr(handle) })
}

/// The element type of an array.
pub(crate) fn dtype_of(array: &Array) -> mlx_dtype {
    // SAFETY: a look-up in a valid array.
    unsafe { mlx_sys::mlx_array_dtype(array.as_ptr()) }
}

/// Whether the elements of a computed array lie in row-major order without gaps.
pub(crate) fn is_row_contiguous(array: &Array) -> Result<bool> {
    let mut is_contiguous = false;
    // SAFETY: the array is valid, and the out-parameter lives for the call.
    let status = unsafe { mlx_sys::_mlx_array_is_row_contiguous(&mut is_contiguous, array.as_ptr()) };
    if status == 0 { Ok(is_contiguous) } else { Err(failure::take("read")) }
}

/// MLX's version.
pub(crate) fn version() -> String {
    // SAFETY: the string is made, read and freed here; its data ends with a zero byte.
    unsafe {
        let mut text = mlx_sys::mlx_string_new();
        let version = match mlx_sys::mlx_version(&mut text) {
            0 => std::ffi::CStr::from_ptr(mlx_sys::mlx_string_data(text)).to_string_lossy().into_owned(),
            _ => String::new(),
        };
        mlx_sys::mlx_string_free(text);
        version
    }
}

/// Computes these arrays and waits for them.
pub(crate) fn eval(arrays: &[&Array]) -> Result<()> {
    // SAFETY: the vector is valid for the call.
    with_vector("eval", arrays, |vector| unsafe { mlx_sys::mlx_eval(vector) })
}

/// Begins to compute these arrays.
pub(crate) fn async_eval(arrays: &[&Array]) -> Result<()> {
    // SAFETY: the vector is valid for the call.
    with_vector("async_eval", arrays, |vector| unsafe { mlx_sys::mlx_async_eval(vector) })
}

/// Gives buffers that MLX keeps for reuse back to the system.
pub(crate) fn clear_cache() {
    // SAFETY: takes nothing and only frees what nobody uses.
    unsafe { mlx_sys::mlx_clear_cache() };
}

pub(super) fn with_vector(
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
pub(super) fn call(operation: &'static str, call: impl FnOnce(*mut mlx_array) -> i32) -> Result<Array> {
    // SAFETY: an empty handle; freeing it is allowed.
    let mut handle = unsafe { mlx_sys::mlx_array_new() };
    let status = call(&mut handle);
    // SAFETY: whatever the call left in the handle is nobody else's.
    let array = unsafe { Array::from_ptr(handle) };
    if status == 0 { Ok(array) } else { Err(failure::take(operation)) }
}

/// Runs one operation that writes three arrays.
pub(super) fn call_three(
    operation: &'static str,
    operate: impl FnOnce(*mut mlx_sys::mlx_vector_array) -> i32,
) -> Result<[Array; 3]> {
    // SAFETY: an empty vector, freed below on every path.
    let mut vector = unsafe { mlx_sys::mlx_vector_array_new() };
    let status = operate(&mut vector);
    let arrays = if status == 0 {
        // SAFETY: the vector is valid; an index beyond its end is an error status.
        let get = |index| call(operation, |out| unsafe { mlx_sys::mlx_vector_array_get(out, vector, index) });
        get(0).and_then(|first| Ok([first, get(1)?, get(2)?]))
    } else {
        Err(failure::take(operation))
    };
    // SAFETY: made above and not used after this.
    unsafe { mlx_sys::mlx_vector_array_free(vector) };
    arrays
}

/// The bytes at an address that every element type accepts.
fn align(bytes: &[u8]) -> Vec<u64> {
    let mut words = vec![0u64; bytes.len().div_ceil(8)];
    // SAFETY: the words hold at least as many bytes, and any bytes make a u64.
    let target = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), bytes.len()) };
    target.copy_from_slice(bytes);
    words
}
