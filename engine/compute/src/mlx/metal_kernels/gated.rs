//! The gated half of an MLP.

use super::{MetalKernels, element_of, planned};
use crate::{
    Activation,
    mlx::graph::{Graph, Packing, Result, data},
};
use linnet_kernels::metal::{Gate, GatedMatvec};
use mlx_rs::Array;

/// Codes, scales and biases of gate and up, `[outputs, ...]`, packed alike and without a bias of their own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GatedOperands<'a> {
    pub(crate) gate: &'a [Array; 3],
    pub(crate) up: &'a [Array; 3],
    pub(crate) packing: Packing,
    /// Width of the activations.
    pub(crate) columns: usize,
    /// Width of the result.
    pub(crate) outputs: usize,
}

impl MetalKernels {
    /// `activation(x gateᵀ) * (x upᵀ)` for `x` of `[batch, length, columns]` with few lines in all.
    pub(crate) fn gated(
        &self,
        graph: &Graph,
        x: &Array,
        operands: &GatedOperands<'_>,
        activation: Activation,
    ) -> Result<Option<Array>> {
        let GatedOperands { gate: weight, up, packing, columns, outputs } = *operands;
        let gate = match activation {
            Activation::Silu => Gate::Silu,
            Activation::GeluTanh => Gate::GeluTanh,
            Activation::Gelu => return Ok(None),
        };
        let kind = data::dtype_of(x);
        let is_alike = weight[1..].iter().chain(&up[1..]).all(|array| data::dtype_of(array) == kind);
        let Some(element) = element_of(kind).filter(|_| is_alike && packing.bits == 4 && x.ndim() == 3) else {
            return Ok(None);
        };
        let (batch, length) = (x.dim(0), x.dim(1));
        let (rows, group) = ((batch * length) as usize, packing.group_size as usize);
        let figures = GatedMatvec { rows, columns, outputs, group, element, gate };
        let Some(launch) = planned(figures.launch()) else { return Ok(None) };
        let flat = graph.reshape(x, &[batch * length, columns as i32])?;
        let inputs: Vec<&Array> = [&flat].into_iter().chain(weight).chain(up).collect();
        let out = self.run_for_one(&launch, &inputs)?;
        Ok(Some(graph.reshape(&out, &[batch, length, outputs as i32])?))
    }
}
