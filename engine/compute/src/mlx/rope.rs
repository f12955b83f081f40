//! Rotary embeddings as mlx-lm 0.32.2 composes them (`mlx_lm/models/rope_utils.py`): the frequencies are computed by MLX
//! itself, because its power function is what equal bits need.

use super::graph::{Graph, Result, RopeArguments, data, dtype};
use crate::{RopeScaling, RopeSpec};
use mlx_rs::Array;

/// A rotary embedding for heads of one size.
#[derive(Debug)]
pub struct MlxRope {
    spec: RopeSpec,
    arguments: RopeArguments,
    /// What the rotated part is multiplied with first.
    input_scale: Option<f64>,
    pub(super) head_dim: usize,
}

impl MlxRope {
    pub(super) fn new(graph: &Graph, spec: &RopeSpec, head_dim: usize) -> Result<Self> {
        let frequencies = frequencies(graph, spec)?;
        let scale = match spec.scaling {
            RopeScaling::Linear { factor } => (1.0 / factor) as f32,
            _ => 1.0,
        };
        let arguments = RopeArguments {
            dims: spec.dims as i32,
            traditional: spec.traditional,
            scale,
            base: frequencies.is_none().then_some(spec.base as f32),
            frequencies,
        };
        let input_scale = match spec.scaling {
            RopeScaling::LongRope { .. } => Some(spec.input_scale()),
            RopeScaling::Yarn { .. } => Some(spec.input_scale()).filter(|scale| *scale != 1.0),
            _ => None,
        };
        Ok(Self { spec: spec.clone(), arguments, input_scale, head_dim })
    }

    /// Turns `[batch, heads, length, head_dim]`. `offset` is the position of the first token, one for all rows or one
    /// each; `positions` are the same numbers on the host.
    pub(super) fn apply(&self, graph: &Graph, x: &Array, offset: &Array, positions: &[usize]) -> Result<Array> {
        let scaled;
        let x = match self.input_scale {
            None => x,
            Some(scale) => {
                scaled = self.scale_input(graph, x, scale)?;
                &scaled
            }
        };
        if !self.spec.depends_on_length() {
            return graph.rope(x, &self.arguments, offset);
        }
        // The base differs from row to row, so each is turned by itself.
        let length = x.dim(2) as usize;
        let turned = positions
            .iter()
            .enumerate()
            .map(|(row, &position)| {
                let base = Some(self.spec.base_for(position + length) as f32);
                let arguments = RopeArguments { base, ..self.arguments.clone() };
                let line = graph.slice(x, 0, row as i32, row as i32 + 1)?;
                graph.rope(&line, &arguments, &data::integer(position as i32)?)
            })
            .collect::<Result<Vec<_>>>()?;
        graph.concatenate(&turned.iter().collect::<Vec<_>>(), 0)
    }

    /// Multiplies the elements that will be turned.
    fn scale_input(&self, graph: &Graph, x: &Array, scale: f64) -> Result<Array> {
        let scale = graph.scalar(scale, data::dtype_of(x))?;
        let (dims, width) = (self.arguments.dims, x.dim(3));
        let scaled = graph.multiply(&graph.slice(x, 3, 0, dims)?, &scale)?;
        if dims == width {
            return Ok(scaled);
        }
        graph.concatenate(&[&scaled, &graph.slice(x, 3, dims, width)?], 3)
    }
}

/// The wavelength divisors, where the kind has its own; in 32-bit floats, step by step as the reference.
fn frequencies(graph: &Graph, spec: &RopeSpec) -> Result<Option<Array>> {
    let number = |value: f64| graph.scalar(value, dtype::F32);
    let dims = spec.dims as i32;
    let exponents = |stop: i32| {
        let even = graph.astype(&graph.arange_step(0, stop, 2)?, dtype::F32)?;
        graph.divide(&even, &number(f64::from(dims))?)
    };
    let powers = |stop: i32| graph.power(&number(spec.base)?, &exponents(stop)?);
    Ok(Some(match &spec.scaling {
        RopeScaling::None | RopeScaling::Linear { .. } | RopeScaling::Dynamic { .. } => return Ok(None),
        RopeScaling::Llama3 { factor, low_frequency_factor, high_frequency_factor, original_max_position } => {
            let frequencies = powers(dims)?;
            let wavelengths = graph.multiply(&number(std::f64::consts::TAU)?, &frequencies)?;
            let (low, high) = (*low_frequency_factor, *high_frequency_factor);
            let longest = number(original_max_position / low)?;
            let shortest = number(original_max_position / high)?;
            let stretched = graph.multiply(&frequencies, &number(*factor)?)?;
            let frequencies = graph.select(&graph.greater(&wavelengths, &longest)?, &stretched, &frequencies)?;
            let is_medium =
                graph.logical_and(&graph.greater(&wavelengths, &shortest)?, &graph.less(&wavelengths, &longest)?)?;
            let ratio = graph.divide(&number(*original_max_position)?, &wavelengths)?;
            let smooth = graph.divide(&graph.subtract(&ratio, &number(low)?)?, &number(high - low)?)?;
            let rest = graph.divide(&graph.subtract(&number(1.0)?, &smooth)?, &number(*factor)?)?;
            let smoothed = graph.divide(&frequencies, &graph.add(&rest, &smooth)?)?;
            graph.select(&is_medium, &smoothed, &frequencies)?
        }
        RopeScaling::Yarn { factor, .. } => {
            let extrapolated = powers(dims)?;
            let interpolated = graph.multiply(&number(*factor)?, &extrapolated)?;
            let kept = graph.subtract(&number(1.0)?, &yarn_ramp(graph, spec)?)?;
            let product = graph.multiply(&interpolated, &extrapolated)?;
            let blended = graph.add(
                &graph.multiply(&interpolated, &kept)?,
                &graph.multiply(&extrapolated, &graph.subtract(&number(1.0)?, &kept)?)?,
            )?;
            graph.divide(&product, &blended)?
        }
        RopeScaling::LongRope { long_factor, .. } => {
            let factors: Vec<f32> = long_factor.iter().map(|&factor| factor as f32).collect();
            // One factor for all pairs is a scalar.
            let factors = if factors.len() == 1 {
                number(long_factor[0])?
            } else {
                data::from_f32(&factors, &[factors.len() as i32])?
            };
            graph.multiply(&factors, &powers(dims)?)?
        }
        RopeScaling::Proportional { rotated_dims, factor } => {
            let rotated = graph.multiply(&number(*factor)?, &powers(*rotated_dims as i32)?)?;
            let still = vec![f32::INFINITY; (spec.dims - rotated_dims) / 2];
            graph.concatenate(&[&rotated, &data::from_f32(&still, &[still.len() as i32])?], 0)?
        }
    }))
}

/// 0 for pairs below YaRN's range, 1 above it, and a straight line between.
fn yarn_ramp(graph: &Graph, spec: &RopeSpec) -> Result<Array> {
    let (low, high) = spec.yarn_range().unwrap_or((0.0, 1.0));
    let number = |value: f64| graph.scalar(value, dtype::F32);
    let pairs = graph.arange_f32(0.0, (spec.dims / 2) as f64, 1.0)?;
    let line = graph.divide(&graph.subtract(&pairs, &number(low)?)?, &number(high - low)?)?;
    let above = graph.select(&graph.less(&line, &number(0.0)?)?, &number(0.0)?, &line)?;
    graph.select(&graph.greater(&above, &number(1.0)?)?, &number(1.0)?, &above)
}
