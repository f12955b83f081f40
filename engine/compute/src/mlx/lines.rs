//! What an encoder needs beside a language model's operations: lines from the host, convolutions, fixed positions.

use super::{
    MlxBackend, MlxTensor,
    graph::{Graph, Result, data, dtype},
    tensor::Part,
    weight,
};
use crate::{ComputeError, ConvolutionSource, Dtype, Result as ComputeResult};
use mlx_rs::Array;

/// A convolution, in the type it is stored in.
#[derive(Debug)]
pub struct MlxConvolution {
    /// `[out, kernel, in]`.
    weight: Array,
    bias: Array,
    stride: i32,
}

impl MlxConvolution {
    pub(super) fn load(source: &ConvolutionSource<'_>) -> ComputeResult<Self> {
        source.shape()?;
        let stride = i32::try_from(source.stride).unwrap_or(i32::MAX);
        Ok(Self { weight: weight::load(&source.weight)?, bias: weight::load(&source.bias)?, stride })
    }

    /// As `mlx.nn.Conv1d`.
    fn apply(&self, graph: &Graph, x: &Array) -> Result<Array> {
        let dtype = data::dtype_of(&self.weight);
        let cast;
        let x = if data::dtype_of(x) == dtype {
            x
        } else {
            cast = graph.astype(x, dtype)?;
            &cast
        };
        let product = graph.conv1d(x, &self.weight, self.stride, self.weight.dim(1) / 2)?;
        graph.add(&product, &self.bias)
    }
}

impl MlxBackend {
    pub(super) fn host_lines(values: &[f32], columns: usize) -> ComputeResult<MlxTensor> {
        if columns == 0 || !values.len().is_multiple_of(columns) {
            let detail = format!("{} values in lines of {columns}", values.len());
            return Err(ComputeError::Shape { operation: "lines", detail });
        }
        let lines = (values.len() / columns) as i32;
        let array = data::from_f32(values, &[1, lines, columns as i32])?;
        Ok(MlxTensor::new(vec![Part::flat(array)], None))
    }

    pub(super) fn run_convolution(&self, x: &MlxTensor, convolution: &MlxConvolution) -> ComputeResult<MlxTensor> {
        let features = convolution.weight.dim(2) as usize;
        if let Some(part) = x.parts().iter().find(|part| part.features() != features) {
            let detail = format!("{} features for a kernel of {features}", part.features());
            return Err(ComputeError::Shape { operation: "convolve", detail });
        }
        Ok(x.map_flat(&self.graph, |x| convolution.apply(&self.graph, x))?)
    }

    /// As `mlx_whisper.whisper.sinusoids`.
    pub(super) fn make_sinusoids(&self, length: usize, channels: usize, dtype: Dtype) -> ComputeResult<MlxTensor> {
        if channels < 4 || !channels.is_multiple_of(2) || !dtype.is_float() {
            let detail = format!("{channels} channels of {dtype}");
            return Err(ComputeError::Shape { operation: "sinusoids", detail });
        }
        let (graph, half) = (&*self.graph, (channels / 2) as i32);
        let increment = 10_000.0_f64.ln() / f64::from(half - 1);
        let exponents = graph.multiply(&graph.scalar(-increment, dtype::F32)?, &graph.arange(0, half)?)?;
        let inverse = graph.reshape(&graph.exp(&exponents)?, &[1, half])?;
        let positions = graph.reshape(&graph.arange(0, length as i32)?, &[length as i32, 1])?;
        let angles = graph.multiply(&positions, &inverse)?;
        let lines = graph.concatenate(&[&graph.sin(&angles)?, &graph.cos(&angles)?], 1)?;
        let lines = graph.astype(&lines, weight::dtype_of(dtype))?;
        let lines = graph.reshape(&lines, &[1, length as i32, channels as i32])?;
        data::eval(&[&lines])?;
        Ok(MlxTensor::new(vec![Part::flat(lines)], None))
    }
}
