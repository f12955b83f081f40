//! Weights as MLX holds them, in the types they are stored in.

use super::{
    graph::{Graph, Packing, Result, data, dtype},
    metal_kernels::GatedOperands,
};
use crate::{Dtype, MatrixSource, TensorView, Weight};
use mlx_rs::Array;

/// A weight matrix, `[out, in]`.
#[derive(Debug)]
pub struct MlxMatrix {
    elements: Elements,
    bias: Option<Array>,
    pub(super) out_features: usize,
    pub(super) in_features: usize,
}

#[derive(Debug)]
enum Elements {
    Dense {
        weight: Array,
        /// A view, made once.
        transposed: Array,
    },
    Affine {
        /// Packed words, scales, biases.
        arrays: [Array; 3],
        packing: Packing,
    },
}

impl MlxMatrix {
    /// Takes over a matrix that was validated.
    pub(super) fn load(graph: &Graph, source: &MatrixSource<'_>) -> Result<Self> {
        let elements = match &source.weight {
            Weight::Dense(weight) => {
                let weight = load(weight)?;
                let transposed = graph.swap_last(&weight)?;
                Elements::Dense { weight, transposed }
            }
            Weight::Affine { quantization, packed, scales, biases } => Elements::Affine {
                arrays: [load(packed)?, load(scales)?, load(biases)?],
                packing: Packing { group_size: quantization.group_size as i32, bits: quantization.bits as i32 },
            },
        };
        elements.eval()?;
        let bias = source.bias.as_ref().map(load).transpose()?;
        let (out_features, in_features) = (source.out_features, source.in_features);
        Ok(Self { elements, bias, out_features, in_features })
    }

    /// `x Wᵀ + b`.
    pub(super) fn apply(&self, graph: &Graph, x: &Array) -> Result<Array> {
        match (&self.elements, &self.bias) {
            (Elements::Dense { transposed, .. }, Some(bias)) => graph.addmm(bias, x, transposed),
            (elements, None) => elements.product(graph, x),
            (elements, Some(bias)) => graph.add(&elements.product(graph, x)?, bias),
        }
    }

    /// This matrix and another as gate and up of one fused product, if they are packed alike and have no bias.
    pub(super) fn gated_with<'a>(&'a self, up: &'a Self) -> Option<GatedOperands<'a>> {
        let (Elements::Affine { arrays: gate, packing }, Elements::Affine { arrays, packing: other }) =
            (&self.elements, &up.elements)
        else {
            return None;
        };
        let is_alike = packing == other && self.out_features == up.out_features && self.in_features == up.in_features;
        (is_alike && self.bias.is_none() && up.bias.is_none()).then_some(GatedOperands {
            gate,
            up: arrays,
            packing: *packing,
            columns: self.in_features,
            outputs: self.out_features,
        })
    }

    /// The rows that the ids name, dequantized.
    pub(super) fn embed(&self, graph: &Graph, ids: &Array) -> Result<Array> {
        match &self.elements {
            Elements::Dense { weight, .. } => graph.take(weight, ids, 0),
            Elements::Affine { arrays: [packed, scales, biases], packing } => {
                let rows = [graph.take(packed, ids, 0)?, graph.take(scales, ids, 0)?, graph.take(biases, ids, 0)?];
                graph.dequantize(&rows, *packing)
            }
        }
    }
}

impl Elements {
    fn product(&self, graph: &Graph, x: &Array) -> Result<Array> {
        match self {
            Self::Dense { transposed, .. } => graph.matmul(x, transposed),
            Self::Affine { arrays, packing } => graph.quantized_matmul(x, arrays, true, *packing),
        }
    }

    fn eval(&self) -> Result<()> {
        match self {
            Self::Dense { weight, transposed } => data::eval(&[weight, transposed]),
            Self::Affine { arrays: [packed, scales, biases], .. } => data::eval(&[packed, scales, biases]),
        }
    }
}

/// A stored tensor as an array of its own type.
pub(super) fn load(tensor: &TensorView<'_>) -> Result<Array> {
    let shape: Vec<i32> = tensor.shape.iter().map(|&length| length as i32).collect();
    data::from_bytes(tensor.bytes, &shape, dtype_of(tensor.dtype))
}

/// MLX's name of a type.
pub(super) fn dtype_of(dtype: Dtype) -> mlx_sys::mlx_dtype {
    match dtype {
        Dtype::F32 => dtype::F32,
        Dtype::F16 => dtype::F16,
        Dtype::BF16 => dtype::BF16,
        Dtype::U32 => dtype::U32,
    }
}
