//! Convolutions along lines.

use super::{CpuBackend, CpuTensor, floats, kernel, shape};
use crate::{Backend, ConvolutionSource, Result};
use linnet_kernels::{Activation, Convolution1d, ConvolutionWeight};

/// A convolution, its weight laid out for the kernels.
#[derive(Debug)]
pub struct CpuConvolution(Convolution1d);

impl CpuBackend {
    pub(super) fn load_convolution(&self, source: &ConvolutionSource<'_>) -> Result<CpuConvolution> {
        let [out_channels, kernel_size, in_channels] = source.shape()?;
        let bias = self.vector(&source.bias)?;
        let weight = ConvolutionWeight {
            out_channels,
            kernel: kernel_size,
            in_channels,
            data: floats(&source.weight)?,
            bias: Some(&bias),
            stride: source.stride,
            padding: kernel_size / 2,
        };
        let convolution = Convolution1d::new(&self.context, weight);
        Ok(CpuConvolution(convolution.map_err(|error| kernel("convolution", &error))?))
    }

    pub(super) fn run_convolution(&self, x: &CpuTensor, convolution: &CpuConvolution) -> Result<CpuTensor> {
        let CpuConvolution(convolution) = convolution;
        if x.columns() != convolution.in_channels() {
            let detail = format!("{} features for a convolution over {}", x.columns(), convolution.in_channels());
            return Err(shape("convolve", detail));
        }
        let mut out = self.arena.tensor(convolution.out_time(x.rows()), convolution.out_channels());
        linnet_kernels::conv1d(&self.context, convolution, x.data(), Activation::Identity, out.data_mut())
            .map_err(|error| kernel("convolve", &error))?;
        Ok(out)
    }
}
