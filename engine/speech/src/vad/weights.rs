//! The detector's weights as they lie in its file.

use linnet_kernels::{Context, DenseWeight, FloatSlice, Matrix, MatrixError};
use safetensors::{Dtype, SafeTensors};
use thiserror::Error;

/// Why the detector cannot be loaded or run.
#[derive(Debug, Error)]
pub enum VadError {
    /// The file is no safetensors file.
    #[error("the voice activity weights cannot be read: {0}; use assets/silero/silero_vad_16k.safetensors")]
    Unreadable(#[from] safetensors::SafeTensorError),
    /// A weight has another shape or type than the network of v6 for 16 kHz.
    #[error(
        "{name} of the voice activity weights is {dtype:?} {found:?}, expected F32 {expected:?}; use \
         assets/silero/silero_vad_16k.safetensors"
    )]
    WrongWeight {
        /// The weight.
        name: &'static str,
        /// Its element type.
        dtype: Dtype,
        /// Its shape.
        found: Vec<usize>,
        /// The shape the network has.
        expected: Vec<usize>,
    },
    /// A product failed: memory is short.
    #[error("voice activity: {0}")]
    Matrix(#[from] MatrixError),
}

/// A file of weights whose shapes are checked as they are taken out.
pub(super) struct Weights<'a> {
    tensors: SafeTensors<'a>,
}

impl<'a> Weights<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, VadError> {
        Ok(Self { tensors: SafeTensors::deserialize(bytes)? })
    }

    /// The numbers of weight `name`, row-major.
    pub(super) fn take(&self, name: &'static str, shape: &[usize]) -> Result<Vec<f32>, VadError> {
        let tensor = self.tensors.tensor(name)?;
        if tensor.dtype() != Dtype::F32 || tensor.shape() != shape {
            let (dtype, found, expected) = (tensor.dtype(), tensor.shape().to_vec(), shape.to_vec());
            return Err(VadError::WrongWeight { name, dtype, found, expected });
        }
        let numbers = FloatSlice::F32(tensor.data());
        Ok((0..numbers.len()).map(|index| numbers.get(index)).collect())
    }

    /// The taps `taps` of a convolution `[out, in, 3]` as a matrix `[out, taps * in]`, so that a convolution is a product
    /// with the inputs of neighbouring positions laid one after the other.
    pub(super) fn convolution(
        &self,
        context: &Context,
        name: &'static str,
        [outputs, inputs]: [usize; 2],
        taps: std::ops::Range<usize>,
    ) -> Result<Matrix, VadError> {
        let weight = self.take(name, &[outputs, inputs, TAPS])?;
        let mut rows = Vec::with_capacity(outputs * inputs * taps.len());
        for row in weight.chunks_exact(inputs * TAPS) {
            for tap in taps.clone() {
                rows.extend(row.iter().skip(tap).step_by(TAPS));
            }
        }
        matrix(context, outputs, inputs * taps.len(), &rows)
    }
}

/// Width of the network's convolutions.
const TAPS: usize = 3;

/// A matrix of `rows`, laid out for the context's kernels.
pub(super) fn matrix(
    context: &Context,
    out_features: usize,
    in_features: usize,
    rows: &[f32],
) -> Result<Matrix, VadError> {
    let bytes: Vec<u8> = rows.iter().flat_map(|number| number.to_le_bytes()).collect();
    Ok(Matrix::from_dense(context, DenseWeight { out_features, in_features, data: FloatSlice::F32(&bytes) })?)
}
