//! MLX's operations on one stream, as thin calls of its C interface.
//!
//! mlx-rs wraps the same functions, but looks up and clones a stream for each; a decode step makes hundreds of calls, so
//! here the stream is found once. Arrays are mlx-rs's own, so what it wraps can be mixed in freely.
#![allow(unsafe_code)]

pub(crate) mod data;
mod fused;
mod operations;

pub(crate) use fused::{Mask, Packing, RopeArguments};

use super::{
    failure::{self, Failure},
    metal_kernels::MetalKernels,
};
use mlx_rs::Array;
use mlx_sys::{mlx_dtype, mlx_optional_dtype, mlx_stream};
use std::{marker::PhantomData, rc::Rc};

/// A result of one operation.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Element types, as MLX numbers them.
pub(crate) mod dtype {
    pub(crate) use mlx_sys::{
        mlx_dtype__MLX_BFLOAT16 as BF16, mlx_dtype__MLX_FLOAT16 as F16, mlx_dtype__MLX_FLOAT32 as F32,
        mlx_dtype__MLX_INT32 as I32, mlx_dtype__MLX_UINT32 as U32,
    };
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
        // SAFETY: empty handles; the first is freed below, the second is the graph's own.
        let (mut device, mut stream) = unsafe { (mlx_sys::mlx_device_new(), mlx_sys::mlx_stream_new()) };
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

    /// Waits for an array and returns its bytes in row-major order.
    pub(crate) fn bytes(&self, array: &Array) -> Result<Vec<u8>> {
        // Waits for this array alone: another operation on it would be queued behind whatever was submitted since.
        data::eval(&[array])?;
        let copy;
        let array = if data::is_row_contiguous(array)? {
            array
        } else {
            copy = self.contiguous(array)?;
            data::eval(&[&copy])?;
            &copy
        };
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
}

/// No element type: the one that follows from the operands.
const NO_DTYPE: mlx_optional_dtype = mlx_optional_dtype { value: dtype::F32, has_value: false };
