//! Convolutions as products: the lines that a kernel sees lie side by side, and one matrix takes them all.

use super::{CpuBackend, CpuTensor, floats, kernel, shape};
use crate::{Backend, ConvolutionSource, Result};
use linnet_kernels::{DenseWeight, Matrix, Product};

/// A convolution, its weight laid out as a matrix `[out, kernel * in]`.
#[derive(Debug)]
pub struct CpuConvolution {
    matrix: Matrix,
    bias: Vec<f32>,
    kernel: usize,
    stride: usize,
}

impl CpuBackend {
    pub(super) fn load_convolution(&self, source: &ConvolutionSource<'_>) -> Result<CpuConvolution> {
        let [out_features, kernel_size, features] = source.shape()?;
        let weight = DenseWeight { out_features, in_features: kernel_size * features, data: floats(&source.weight)? };
        let matrix = Matrix::from_dense(&self.context, weight).map_err(|error| kernel("convolution", &error))?;
        let bias = self.vector(&source.bias)?;
        Ok(CpuConvolution { matrix, bias, kernel: kernel_size, stride: source.stride })
    }

    pub(super) fn run_convolution(&self, x: &CpuTensor, convolution: &CpuConvolution) -> Result<CpuTensor> {
        let CpuConvolution { matrix, bias, kernel: kernel_size, stride } = convolution;
        let (lines, columns, width) = (x.rows(), x.columns(), matrix.in_features());
        if columns * kernel_size != width {
            return Err(shape("convolve", format!("{columns} features for a kernel of {}", width / kernel_size)));
        }
        let rows = lines.div_ceil(*stride);
        let reach = kernel_size / 2;
        let mut seen = self.arena.tensor(rows, width);
        for (row, target) in seen.data_mut().chunks_exact_mut(width).enumerate() {
            // What the kernel sees lies in one piece, cut where the lines begin or end.
            let centre = row * stride;
            let (first, last) = (centre.saturating_sub(reach), (centre + reach + 1).min(lines));
            let before = (first + reach - centre) * columns;
            let within = (last - first) * columns;
            target[..before].fill(0.0);
            target[before..before + within].copy_from_slice(&x.data()[first * columns..last * columns]);
            target[before + within..].fill(0.0);
        }
        let mut out = self.arena.tensor(rows, matrix.out_features());
        let product = Product::new(matrix, out.data_mut()).with_bias(Some(bias));
        linnet_kernels::matmul(&self.context, self.precision, seen.data(), rows, &mut [product])
            .map_err(|error| kernel("convolve", &error))?;
        Ok(out)
    }
}
