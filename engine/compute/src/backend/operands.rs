//! What the operations of a [`crate::Backend`] take beside tensors.

use crate::{ComputeError, Result, TensorView};

/// A gated unit's non-linearity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU with the tanh approximation.
    GeluTanh,
    /// GELU with the error function.
    Gelu,
}

/// One layer's attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionSpec {
    /// The layer, as an index into the [`KvLayout`].
    pub layer: usize,
    /// How many query heads there are.
    pub heads: usize,
    /// What the scores are multiplied with.
    pub scale: f32,
    /// A query at position `p` sees keys `p - window + 1 ..= p`. `None` sees all before it.
    pub window: Option<usize>,
    /// Scores become `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// Whether queries and keys are multiplied with the root of `scale` each, instead of the scores with `scale`: as
    /// Whisper has it, for the bits of a backend that rounds between. Not together with `softcap`.
    pub split_scale: bool,
}

/// A one-dimensional convolution over lines of features, as a checkpoint holds it. Beyond both ends lies zero, half a
/// kernel of it.
#[derive(Debug, Clone, Copy)]
pub struct ConvolutionSource<'a> {
    /// `[out, kernel, in]` floats; the kernel is odd.
    pub weight: TensorView<'a>,
    /// `[out]` floats, added to every line.
    pub bias: TensorView<'a>,
    /// From how many lines to how many the kernel moves on.
    pub stride: usize,
}

impl ConvolutionSource<'_> {
    /// Output features, lines that the kernel sees, input features.
    ///
    /// # Errors
    /// When weight and bias are not floats of fitting shapes, the kernel is even or the stride is 0.
    pub fn shape(&self) -> Result<[usize; 3]> {
        let &[out, kernel, features] = self.weight.shape else {
            return Err(ComputeError::WrongShape {
                name: self.weight.name.to_owned(),
                found: self.weight.shape.to_vec(),
                expected: vec![self.bias.shape.first().copied().unwrap_or(0), 3, 0],
            });
        };
        for part in [&self.weight, &self.bias] {
            if !part.dtype.is_float() {
                return Err(ComputeError::WrongDtype {
                    name: part.name.to_owned(),
                    found: part.dtype.to_string(),
                    expected: "float32, float16 or bfloat16",
                });
            }
        }
        self.bias.expect_shape(&[out])?;
        if kernel.is_multiple_of(2) || self.stride == 0 {
            let detail = format!("{} with a kernel of {kernel} and a stride of {}", self.weight.name, self.stride);
            return Err(ComputeError::Shape { operation: "convolution", detail });
        }
        Ok([out, kernel, features])
    }
}

/// How one token is drawn from a line of logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Draw {
    /// The most probable, the lowest id on ties.
    Greedy,
    /// At random, as mlx-lm 0.32.2's sampler draws: top-p, min-p and top-k narrow the distribution at temperature 1 in
    /// this order, then the temperature applies to what is left. Of that, the first token by id is taken at which the
    /// sum of probabilities passes `uniform`.
    Random {
        /// Above 0.
        temperature: f32,
        /// 0 and 1 keep all.
        top_p: f32,
        /// 0 keeps all.
        top_k: usize,
        /// 0 keeps all.
        min_p: f32,
        /// From 0 to 1, 1 excluded.
        uniform: f64,
    },
}

impl Draw {
    /// Whether two lines are drawn in the same way, their random numbers aside.
    #[must_use]
    pub fn is_alike(&self, other: &Self) -> bool {
        let without_uniform = |draw: &Self| match *draw {
            Self::Greedy => Self::Greedy,
            Self::Random { temperature, top_p, top_k, min_p, .. } => {
                Self::Random { temperature, top_p, top_k, min_p, uniform: 0.0 }
            }
        };
        without_uniform(self) == without_uniform(other)
    }

    /// The random number; 0 for the greedy draw.
    #[must_use]
    pub fn uniform(&self) -> f64 {
        match self {
            Self::Greedy => 0.0,
            Self::Random { uniform, .. } => *uniform,
        }
    }
}
