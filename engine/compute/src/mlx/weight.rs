//! Weights as MLX holds them, in the types they are stored in.

use super::{
    graph::{Graph, Packing, Result, data, dtype},
    metal_kernels::GatedOperands,
    tensor::{MlxTensor, Part},
};
use crate::{Dtype, MatrixSource, TensorView, Weight};
use mlx_rs::Array;
use std::rc::Rc;

/// On a GPU, kernels are chosen by how many rows a matrix has; from this multiple on it is the same one for each of
/// several matrices and for all of them together.
const GPU_ROW_MULTIPLE: usize = 128;

/// A weight matrix, `[out, in]`.
#[derive(Debug)]
pub struct MlxMatrix {
    elements: Elements,
    bias: Option<Array>,
    pub(super) out_features: usize,
    pub(super) in_features: usize,
    /// The larger matrix whose rows these are.
    whole: Option<Whole>,
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

#[derive(Debug, Clone)]
struct Whole {
    elements: Rc<Elements>,
    start: i32,
    stop: i32,
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
        Ok(Self { elements, bias, out_features, in_features, whole: None })
    }

    /// Takes over matrices that are multiplied with the same input. Where that leaves every bit as it is, their rows
    /// become one matrix, so that one product serves them all.
    pub(super) fn load_each<const N: usize>(graph: &Graph, sources: [&MatrixSource<'_>; N]) -> Result<[Self; N]> {
        let mut matrices = Vec::with_capacity(N);
        for source in sources {
            matrices.push(Self::load(graph, source)?);
        }
        let mut matrices: [Self; N] = match matrices.try_into() {
            Ok(matrices) => matrices,
            Err(_) => return Err(super::failure::Failure::new("matrix", "a matrix went missing".into())),
        };
        if let Some((packing, joined)) = join(graph, &matrices)? {
            let whole = Rc::new(Elements::Affine { arrays: joined, packing });
            whole.eval()?;
            let mut start = 0;
            for matrix in &mut matrices {
                let stop = start + matrix.out_features as i32;
                // Views of the joined rows replace the matrix's own copy.
                matrix.elements = whole.rows(graph, start, stop)?;
                matrix.elements.eval()?;
                matrix.whole = Some(Whole { elements: Rc::clone(&whole), start, stop });
                start = stop;
            }
        }
        Ok(matrices)
    }

    /// `x Wᵀ + b`.
    pub(super) fn apply(&self, graph: &Graph, x: &Array) -> Result<Array> {
        match (&self.elements, &self.bias) {
            (Elements::Dense { transposed, .. }, Some(bias)) => graph.addmm(bias, x, transposed),
            (elements, None) => elements.product(graph, x),
            (elements, Some(bias)) => graph.add(&elements.product(graph, x)?, bias),
        }
    }

    /// The products of several matrices with one input; one product if they are rows of the same matrix.
    pub(super) fn apply_each<const N: usize>(
        graph: &Graph,
        x: &MlxTensor,
        matrices: [&Self; N],
    ) -> Result<[MlxTensor; N]> {
        if let Some(wholes) = same_whole(&matrices) {
            let product = x.map_flat(graph, |x| wholes[0].elements.product(graph, x))?;
            let mut tensors = Vec::with_capacity(N);
            for whole in wholes {
                tensors.push(product.map(|part| match part {
                    Part::Flat(product) => {
                        Ok(Part::Columns { product: Rc::clone(product), start: whole.start, stop: whole.stop })
                    }
                    other => Ok(other.clone()),
                })?);
            }
            if let Ok(tensors) = tensors.try_into() {
                return Ok(tensors);
            }
        }
        let mut tensors = Vec::with_capacity(N);
        for matrix in matrices {
            tensors.push(x.map_flat(graph, |x| matrix.apply(graph, x))?);
        }
        tensors.try_into().map_err(|_| super::failure::Failure::new("linear", "a product went missing".into()))
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

    /// Rows as views.
    fn rows(&self, graph: &Graph, start: i32, stop: i32) -> Result<Self> {
        let cut = |array: &Array| graph.slice(array, 0, start, stop);
        Ok(match self {
            Self::Dense { weight, .. } => {
                let weight = cut(weight)?;
                let transposed = graph.swap_last(&weight)?;
                Self::Dense { weight, transposed }
            }
            Self::Affine { arrays: [packed, scales, biases], packing } => {
                Self::Affine { arrays: [cut(packed)?, cut(scales)?, cut(biases)?], packing: *packing }
            }
        })
    }

    fn eval(&self) -> Result<()> {
        match self {
            Self::Dense { weight, transposed } => data::eval(&[weight, transposed]),
            Self::Affine { arrays: [packed, scales, biases], .. } => data::eval(&[packed, scales, biases]),
        }
    }
}

/// All rows one below the other, if one product for all gives the same bits as one for each: affine matrices packed
/// alike. (A dense product's order of additions depends on its size.)
fn join<const N: usize>(graph: &Graph, matrices: &[MlxMatrix; N]) -> Result<Option<(Packing, [Array; 3])>> {
    let mut parts: [Vec<&Array>; 3] = Default::default();
    let mut common = None;
    for matrix in matrices {
        let Elements::Affine { arrays, packing } = &matrix.elements else { return Ok(None) };
        let kind = (*packing, data::dtype_of(&arrays[1]));
        let fits = matrix.bias.is_none()
            && *common.get_or_insert(kind) == kind
            && (!graph.is_gpu() || matrix.out_features.is_multiple_of(GPU_ROW_MULTIPLE));
        if !fits {
            return Ok(None);
        }
        for (list, array) in parts.iter_mut().zip(arrays) {
            list.push(array);
        }
    }
    let Some((packing, _)) = common.filter(|_| N > 1) else { return Ok(None) };
    let [packed, scales, biases] = &parts;
    let joined = [graph.concatenate(packed, 0)?, graph.concatenate(scales, 0)?, graph.concatenate(biases, 0)?];
    Ok(Some((packing, joined)))
}

/// The places of matrices within the matrix that holds them all.
fn same_whole<'a, const N: usize>(matrices: &[&'a MlxMatrix; N]) -> Option<[&'a Whole; N]> {
    let first = matrices.first()?.whole.as_ref()?;
    let mut wholes = [first; N];
    for (place, matrix) in wholes.iter_mut().zip(matrices) {
        *place = matrix.whole.as_ref().filter(|whole| Rc::ptr_eq(&whole.elements, &first.elements))?;
    }
    Some(wholes)
}

/// A stored tensor as an array of its own type.
pub(super) fn load(tensor: &TensorView<'_>) -> Result<Array> {
    let shape: Vec<i32> = tensor.shape.iter().map(|&length| length as i32).collect();
    let dtype = match tensor.dtype {
        Dtype::F32 => dtype::F32,
        Dtype::F16 => dtype::F16,
        Dtype::BF16 => dtype::BF16,
        Dtype::U32 => dtype::U32,
    };
    data::from_bytes(tensor.bytes, &shape, dtype)
}
