//! Running a launch on an Apple GPU, by the code that the product uses.

use linnet_compute::mlx::{KernelArray, run_kernel};
use linnet_kernels::metal::Launch;

use crate::{Argument, Device, HostError};

/// The GPU of a Mac.
#[derive(Debug, Clone, Copy, Default)]
pub struct GpuDevice;

impl Device for GpuDevice {
    fn run(&self, launch: &Launch, inputs: &[Argument]) -> Result<Vec<Argument>, HostError> {
        let inputs: Vec<KernelArray> = inputs
            .iter()
            .map(|Argument { shape, element, strides, bytes }| KernelArray {
                shape: shape.clone(),
                strides: strides.clone(),
                element: *element,
                bytes: bytes.clone(),
            })
            .collect();
        let outputs = run_kernel(launch, &inputs)
            .map_err(|error| HostError::Gpu { kernel: launch.kernel.name, reason: error.to_string() })?;
        let argument = |KernelArray { shape, strides, element, bytes }| Argument { shape, element, strides, bytes };
        Ok(outputs.into_iter().map(argument).collect())
    }
}
