//! Launches the kernels of linnet-kernels on Apple's GPUs, as nodes of MLX's graph.
//!
//! Each function gives nothing where the kernel is not written for the figures; the caller then composes the operation.
//! Elsewhere than on Metal there are no kernels at all ([`MetalKernels::new`]).
#![allow(unsafe_code)]

mod attention;
mod gated;
mod greedy;
#[cfg(feature = "kernel-tests")]
mod raw;

pub(super) use gated::GatedOperands;
#[cfg(feature = "kernel-tests")]
pub use raw::{KernelArray, run_kernel};

use super::{
    failure::Failure,
    graph::{Result, dtype},
};
use linnet_kernels::metal::{Element, KernelSource, Launch, LaunchError, TemplateValue};
use mlx_rs::{
    Array, Dtype,
    fast::{MetalKernel, MetalKernelApplyOptions, MetalKernelOptions, MetalKernelOutput, TemplateArg},
};
use mlx_sys::mlx_dtype;
use std::{cell::RefCell, collections::HashMap, rc::Rc};

/// The kernels that were used so far. Compiled by MLX when first evaluated.
pub(crate) struct MetalKernels {
    known: RefCell<HashMap<&'static str, Rc<MetalKernel>>>,
}

impl MetalKernels {
    /// The kernels, if MLX computes on Metal.
    pub(crate) fn new() -> Option<Self> {
        let mut is_available = false;
        // SAFETY: the out-parameter lives for the call.
        let status = unsafe { mlx_sys::mlx_metal_is_available(&mut is_available) };
        (status == 0 && is_available).then(|| Self { known: RefCell::default() })
    }

    /// Adds a launch to the graph. `inputs` must have the shapes and types that the launch was planned for.
    pub(crate) fn run(&self, launch: &Launch, inputs: &[&Array]) -> Result<Vec<Array>> {
        let kernel = self.kernel(launch.kernel)?;
        let outputs: Vec<MetalKernelOutput> = launch
            .outputs
            .iter()
            .map(|output| MetalKernelOutput {
                shape: output.shape.iter().map(|&size| size as i32).collect(),
                dtype: mlx_type(output.element),
            })
            .collect();
        let template = |&(name, value): &(&str, TemplateValue)| {
            let value = match value {
                TemplateValue::Element(element) => TemplateArg::Dtype(mlx_type(element)),
                TemplateValue::Int(value) => TemplateArg::Int(value),
                TemplateValue::Bool(value) => TemplateArg::Bool(value),
            };
            (name.to_owned(), value)
        };
        let options = MetalKernelApplyOptions {
            template_args: launch.template.iter().map(template).collect(),
            ..MetalKernelApplyOptions::default()
        };
        let triple = |sizes: [u32; 3]| (sizes[0] as i32, sizes[1] as i32, sizes[2] as i32);
        // SAFETY: a launch is planned for the shapes of its inputs; its kernel stays inside of them, writes every element
        // of its outputs and no input, and has no races: tested for each kernel by linnet-metal-host.
        unsafe { kernel.apply(inputs, &outputs, triple(launch.grid), triple(launch.threadgroup), options) }
            .map_err(|error| Failure::new(launch.kernel.name, error.to_string()))
    }

    /// [`MetalKernels::run`] for kernels with one output.
    fn run_for_one(&self, launch: &Launch, inputs: &[&Array]) -> Result<Array> {
        let mut outputs = self.run(launch, inputs)?;
        outputs.pop().ok_or_else(|| Failure::new(launch.kernel.name, "gave no output".into()))
    }

    fn kernel(&self, source: &'static KernelSource) -> Result<Rc<MetalKernel>> {
        if let Some(kernel) = self.known.borrow().get(source.name) {
            return Ok(Rc::clone(kernel));
        }
        // Inputs come as they lie: kernels read shapes and strides where rows may lie apart.
        let options =
            MetalKernelOptions { header: source.header(), ensure_row_contiguous: false, atomic_outputs: false };
        let kernel = MetalKernel::new(source.name, source.inputs, source.outputs, source.body.text, options)
            .map_err(|error| Failure::new(source.name, error.to_string()))?;
        let kernel = Rc::new(kernel);
        self.known.borrow_mut().insert(source.name, Rc::clone(&kernel));
        Ok(kernel)
    }
}

/// A plan, or nothing where the kernel is not written for its figures.
fn planned<T>(plan: std::result::Result<T, LaunchError>) -> Option<T> {
    // What is refused is composed instead; that is no failure.
    plan.ok()
}

fn mlx_type(element: Element) -> Dtype {
    match element {
        Element::F32 => Dtype::Float32,
        Element::F16 => Dtype::Float16,
        Element::Bf16 => Dtype::Bfloat16,
        Element::U32 => Dtype::Uint32,
        Element::I32 => Dtype::Int32,
    }
}

fn element_of(kind: mlx_dtype) -> Option<Element> {
    match kind {
        dtype::F32 => Some(Element::F32),
        dtype::F16 => Some(Element::F16),
        dtype::BF16 => Some(Element::Bf16),
        dtype::U32 => Some(Element::U32),
        dtype::I32 => Some(Element::I32),
        _ => None,
    }
}
