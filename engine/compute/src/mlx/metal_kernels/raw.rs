//! Running a kernel on arrays of bytes, for its tests.

use super::MetalKernels;
use crate::{
    ComputeError, Result,
    mlx::{
        failure::Failure,
        graph::{Graph, data, dtype},
    },
};
use linnet_kernels::metal::{Element, Launch};
use mlx_rs::Array;

/// An array that goes into a kernel, or comes out of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelArray {
    /// Its shape.
    pub shape: Vec<usize>,
    /// By how many elements an index of each axis moves on.
    pub strides: Vec<usize>,
    /// Its element type.
    pub element: Element,
    /// Memory from its first element to its last, native byte order.
    pub bytes: Vec<u8>,
}

/// Runs a kernel on the GPU and waits for its outputs.
///
/// # Errors
/// When MLX has no Metal here, an array does not have the bytes that its shape and strides take, or the kernel does not
/// compile.
pub fn run_kernel(launch: &Launch, inputs: &[KernelArray]) -> Result<Vec<KernelArray>> {
    let graph = Graph::new()?;
    let kernels = MetalKernels::new().ok_or_else(|| ComputeError::Kernel {
        operation: launch.kernel.name,
        reason: "MLX has no Metal device on this machine".into(),
    })?;
    let inputs = inputs.iter().map(|input| load(&graph, input)).collect::<Result<Vec<Array>, Failure>>()?;
    let outputs = kernels.run(launch, &inputs.iter().collect::<Vec<_>>())?;
    let read = |(array, output): (&Array, &linnet_kernels::metal::Output)| {
        let strides = (1..=output.shape.len()).map(|axis| output.shape[axis..].iter().product()).collect();
        let bytes = graph.bytes(array)?;
        Ok(KernelArray { shape: output.shape.clone(), strides, element: output.element, bytes })
    };
    outputs.iter().zip(&launch.outputs).map(read).collect()
}

/// Where the last element that shape and strides reach stands; `None` where they reach none, or too far to count.
fn last_element(input: &KernelArray) -> Option<usize> {
    if input.shape.len() != input.strides.len() {
        return None;
    }
    let mut axes = input.shape.iter().zip(&input.strides);
    axes.try_fold(0usize, |last, (&size, &stride)| last.checked_add(size.checked_sub(1)?.checked_mul(stride)?))
}

fn load(graph: &Graph, input: &KernelArray) -> Result<Array, Failure> {
    let kind = match input.element {
        Element::F32 => dtype::F32,
        Element::F16 => dtype::F16,
        Element::Bf16 => dtype::BF16,
        Element::U32 => dtype::U32,
        Element::I32 => dtype::I32,
    };
    let length = input.bytes.len() / input.element.bytes();
    if last_element(input).is_none_or(|last| last >= length) {
        let KernelArray { shape, strides, bytes, .. } = input;
        let reason = format!("shape {shape:?} and strides {strides:?} do not fit {} bytes", bytes.len());
        return Err(Failure::new("run_kernel", reason));
    }
    let shape: Vec<i32> = input.shape.iter().map(|&size| size as i32).collect();
    if length == input.shape.iter().product::<usize>() {
        return data::from_bytes(&input.bytes, &shape, kind);
    }
    let memory = data::from_bytes(&input.bytes, &[length as i32], kind)?;
    let strides: Vec<i64> = input.strides.iter().map(|&stride| stride as i64).collect();
    graph.as_strided(&memory, &shape, &strides)
}
