//! Convolutions along time, as products: what the kernel sees at a place lies in one piece.

use crate::{
    Activation, Context, DenseWeight, FloatSlice, Matrix, MatrixError, Precision, Product, matmul::matmul_strided,
};

/// A convolution over `[time, in_channels]`.
#[derive(Debug)]
pub struct Convolution1d {
    matrix: Matrix,
    bias: Option<Vec<f32>>,
    kernel: usize,
    in_channels: usize,
    stride: usize,
    padding: usize,
}

/// What a convolution looks like.
#[derive(Debug, Clone, Copy)]
pub struct ConvolutionWeight<'a> {
    /// Channels that come out.
    pub out_channels: usize,
    /// Places that the kernel sees at once.
    pub kernel: usize,
    /// Channels that go in.
    pub in_channels: usize,
    /// `[out_channels, kernel, in_channels]`, as MLX lays it out.
    pub data: FloatSlice<'a>,
    /// One number for each channel that comes out.
    pub bias: Option<&'a [f32]>,
    /// Places from one window to the next; at least 1.
    pub stride: usize,
    /// Places of zeros before the first and after the last.
    pub padding: usize,
}

impl Convolution1d {
    /// Lays the weight out for the kernels.
    ///
    /// # Errors
    /// [`MatrixError`] when sizes do not fit, the stride is zero, or memory is short.
    pub fn new(ctx: &Context, weight: ConvolutionWeight<'_>) -> Result<Self, MatrixError> {
        let ConvolutionWeight { out_channels, kernel, in_channels, data, bias, stride, padding } = weight;
        let in_features = kernel.checked_mul(in_channels).filter(|_| stride > 0);
        let Some(in_features) = in_features else {
            return Err(MatrixError::BadShape { out_features: out_channels, in_features: 0 });
        };
        if let Some(bias) = bias
            && bias.len() != out_channels
        {
            return Err(MatrixError::WrongBias { found: bias.len(), out_features: out_channels });
        }
        let matrix = Matrix::from_dense(ctx, DenseWeight { out_features: out_channels, in_features, data })?;
        Ok(Self { matrix, bias: bias.map(<[f32]>::to_vec), kernel, in_channels, stride, padding })
    }

    /// Channels that come out.
    #[must_use]
    pub fn out_channels(&self) -> usize {
        self.matrix.out_features()
    }

    /// Channels that go in.
    #[must_use]
    pub fn in_channels(&self) -> usize {
        self.in_channels
    }

    /// Places that come out for `time` that go in: `(time + 2 padding - kernel) / stride + 1`, or none.
    #[must_use]
    pub fn out_time(&self, time: usize) -> usize {
        (time + 2 * self.padding).checked_sub(self.kernel).map_or(0, |last| last / self.stride + 1)
    }

    /// Bytes of the weight.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.matrix.bytes()
    }
}

/// `output[t] = activation(bias + sum over k, c of weight[.., k, c] * x[t * stride + k - padding, c])`, `x` being zero outside.
/// `x` is `[time, in_channels]`, `output` `[out_time, out_channels]`.
///
/// # Errors
/// [`MatrixError`] when a length does not fit.
pub fn conv1d(
    ctx: &Context,
    convolution: &Convolution1d,
    x: &[f32],
    activation: Activation,
    output: &mut [f32],
) -> Result<(), MatrixError> {
    let Convolution1d { matrix, bias, kernel, in_channels, stride, padding } = convolution;
    let time = x.len() / in_channels;
    if time * in_channels != x.len() {
        return Err(MatrixError::WrongInput { found: x.len(), rows: time, in_features: *in_channels });
    }
    let rows = convolution.out_time(time);
    // With zeros before and after, each window is a row of a matrix whose rows overlap.
    let mut padded: Vec<f32> = ctx.scratch().take();
    padded.clear();
    padded.resize(padding * in_channels, 0.0);
    padded.extend_from_slice(x);
    padded.resize((time + 2 * padding).max(*kernel) * in_channels, 0.0);
    let product = Product::new(matrix, output).with_bias(bias.as_deref()).with_activation(activation);
    let result = matmul_strided(ctx, Precision::Exact, &padded, rows, stride * in_channels, &mut [product]);
    ctx.scratch().give_back(padded);
    result
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng, rngs::StdRng};

    use super::*;
    use crate::Isa;

    #[test]
    fn convolutions_agree_with_the_definition_on_every_level() {
        let mut rng = StdRng::seed_from_u64(70);
        let shapes =
            [(9, 5, 3, 7, 1, 1), (30, 16, 3, 24, 2, 1), (101, 80, 3, 33, 1, 1), (8, 3, 5, 4, 3, 2), (4, 2, 4, 3, 1, 0)];
        for (time, in_channels, kernel, out_channels, stride, padding) in shapes {
            let mut random = |count: usize| (0..count).map(|_| rng.random_range(-1.0f32..1.0)).collect::<Vec<f32>>();
            let (x, weight, bias) =
                (random(time * in_channels), random(out_channels * kernel * in_channels), random(out_channels));
            let bytes: Vec<u8> = weight.iter().flat_map(|value| value.to_le_bytes()).collect();
            for isa in Isa::available() {
                let ctx = Context::with_isa(isa, 2);
                let data = FloatSlice::F32(&bytes);
                let given = Some(bias.as_slice());
                let weight_of =
                    ConvolutionWeight { out_channels, kernel, in_channels, data, bias: given, stride, padding };
                let convolution = Convolution1d::new(&ctx, weight_of).unwrap();
                let rows = convolution.out_time(time);
                assert_eq!(rows, (time + 2 * padding - kernel) / stride + 1);
                for activation in [Activation::Identity, Activation::Gelu] {
                    let mut output = vec![f32::NAN; rows * out_channels];
                    conv1d(&ctx, &convolution, &x, activation, &mut output).unwrap();
                    for (index, got) in output.iter().enumerate() {
                        let (row, channel) = (index / out_channels, index % out_channels);
                        let mut sum = f64::from(bias[channel]);
                        for k in 0..kernel {
                            let Some(place) = (row * stride + k).checked_sub(padding).filter(|place| *place < time)
                            else {
                                continue;
                            };
                            for c in 0..in_channels {
                                let weight = weight[(channel * kernel + k) * in_channels + c];
                                sum += f64::from(weight) * f64::from(x[place * in_channels + c]);
                            }
                        }
                        let expected = activation.apply(sum as f32);
                        assert!((got - expected).abs() < 1e-5, "{isa:?} {activation:?} at {index}: {got} {expected}");
                    }
                }
            }
        }
    }

    #[test]
    fn wrong_shapes_are_refused() {
        let ctx = Context::new(1);
        let bytes = [0u8; 4 * 2 * 3 * 4];
        let weight = ConvolutionWeight {
            out_channels: 2,
            kernel: 3,
            in_channels: 4,
            data: FloatSlice::F32(&bytes),
            bias: None,
            stride: 1,
            padding: 1,
        };
        assert!(Convolution1d::new(&ctx, ConvolutionWeight { stride: 0, ..weight }).is_err());
        assert!(Convolution1d::new(&ctx, ConvolutionWeight { kernel: 2, ..weight }).is_err());
        assert!(Convolution1d::new(&ctx, ConvolutionWeight { bias: Some(&[0.0]), ..weight }).is_err());
        let convolution = Convolution1d::new(&ctx, weight).unwrap();
        assert!(conv1d(&ctx, &convolution, &[0.0; 7], Activation::Identity, &mut [0.0; 2]).is_err());
        assert!(conv1d(&ctx, &convolution, &[0.0; 8], Activation::Identity, &mut [0.0; 3]).is_err());
        assert!(conv1d(&ctx, &convolution, &[0.0; 8], Activation::Identity, &mut [0.0; 4]).is_ok());
    }
}
