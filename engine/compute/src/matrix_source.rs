//! A weight matrix as a checkpoint holds it.

use crate::{ComputeError, Dtype, Result, TensorView};

/// Bits per weight that affine kernels read.
const SUPPORTED_BITS: [u32; 6] = [2, 3, 4, 5, 6, 8];
/// Group sizes that affine kernels read.
const SUPPORTED_GROUPS: [usize; 3] = [32, 64, 128];

/// How MLX quantized a matrix: `w = scale * q + bias` with one scale and bias per group of inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AffineQuantization {
    /// Bits per weight.
    pub bits: u32,
    /// Weights per group.
    pub group_size: usize,
}

/// A weight matrix `[out, in]`, still in the checkpoint.
#[derive(Debug, Clone, Copy)]
pub struct MatrixSource<'a> {
    /// Rows.
    pub out_features: usize,
    /// Columns.
    pub in_features: usize,
    /// The elements.
    pub weight: Weight<'a>,
    /// Added to the product, `[out]`.
    pub bias: Option<TensorView<'a>>,
}

/// The elements of a matrix.
#[derive(Debug, Clone, Copy)]
pub enum Weight<'a> {
    /// Floats, `[out, in]`.
    Dense(TensorView<'a>),
    /// Affine-quantized.
    Affine {
        /// How.
        quantization: AffineQuantization,
        /// `[out, in * bits / 32]` words; element `i` of a row begins at bit `i * bits`, lowest first.
        packed: TensorView<'a>,
        /// `[out, in / group_size]` floats.
        scales: TensorView<'a>,
        /// `[out, in / group_size]` floats.
        biases: TensorView<'a>,
    },
}

impl MatrixSource<'_> {
    /// Checks that the parts have the shapes and types that they must have.
    ///
    /// # Errors
    /// Names the first tensor that does not.
    pub fn validate(&self) -> Result<()> {
        let (rows, columns) = (self.out_features, self.in_features);
        match &self.weight {
            Weight::Dense(weight) => {
                expect_float(weight)?;
                weight.expect_shape(&[rows, columns])?;
            }
            Weight::Affine { quantization, packed, scales, biases } => {
                let AffineQuantization { bits, group_size } = *quantization;
                let supported = SUPPORTED_BITS.contains(&bits) && SUPPORTED_GROUPS.contains(&group_size);
                if !supported || columns % group_size != 0 {
                    return Err(ComputeError::Quantization { name: packed.name.to_owned(), bits, group_size });
                }
                if packed.dtype != Dtype::U32 {
                    return Err(wrong_dtype(packed, "uint32"));
                }
                packed.expect_shape(&[rows, columns * bits as usize / 32])?;
                for part in [scales, biases] {
                    expect_float(part)?;
                    part.expect_shape(&[rows, columns / group_size])?;
                }
            }
        }
        if let Some(bias) = &self.bias {
            expect_float(bias)?;
            bias.expect_shape(&[rows])?;
        }
        Ok(())
    }
}

fn expect_float(tensor: &TensorView<'_>) -> Result<()> {
    if tensor.dtype.is_float() { Ok(()) } else { Err(wrong_dtype(tensor, "float32, float16 or bfloat16")) }
}

fn wrong_dtype(tensor: &TensorView<'_>, expected: &'static str) -> ComputeError {
    ComputeError::WrongDtype { name: tensor.name.to_owned(), found: tensor.dtype.to_string(), expected }
}
