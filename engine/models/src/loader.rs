//! Weights by dotted path, as an architecture asks for them.

use crate::{ModelConfig, error::Result};
use linnet_compute::{Backend, Checkpoint, ComputeError, MatrixSource, Weight};

/// Hands a checkpoint's weights over to a backend.
#[derive(Debug)]
pub(crate) struct Loader<'a, B> {
    backend: &'a B,
    checkpoint: &'a Checkpoint,
    config: &'a ModelConfig,
}

impl<'a, B: Backend> Loader<'a, B> {
    /// A loader of `checkpoint`, quantized as `config` says.
    #[must_use]
    pub(crate) fn new(backend: &'a B, checkpoint: &'a Checkpoint, config: &'a ModelConfig) -> Self {
        Self { backend, checkpoint, config }
    }

    /// Where the weights go.
    #[must_use]
    pub(crate) fn backend(&self) -> &'a B {
        self.backend
    }

    /// The model's configuration.
    #[must_use]
    pub(crate) fn config(&self) -> &'a ModelConfig {
        self.config
    }

    /// The matrix of the layer `path`, `[out_features, in_features]`; quantized if `path.scales` is there, with a bias
    /// if `path.bias` is.
    ///
    /// # Errors
    /// When a part is missing or of another shape.
    pub(crate) fn matrix(&self, path: &str, out_features: usize, in_features: usize) -> Result<B::Matrix> {
        Ok(self.backend.matrix(&self.source(path, out_features, in_features)?)?)
    }

    /// The matrices of layers that share an input of `in_features`: the path and the outputs of each.
    ///
    /// # Errors
    /// As [`Loader::matrix_with_bias`].
    pub(crate) fn matrix_each<const N: usize>(
        &self,
        layers: &[(String, usize); N],
        in_features: usize,
        bias: bool,
    ) -> Result<[B::Matrix; N]> {
        let mut sources = Vec::with_capacity(N);
        for (path, out_features) in layers {
            if bias {
                self.checkpoint.require(&format!("{path}.bias"))?;
            }
            sources.push(self.source(path, *out_features, in_features)?);
        }
        Ok(self.backend.matrix_each(std::array::from_fn(|index| &sources[index]))?)
    }

    fn source(&self, path: &str, out_features: usize, in_features: usize) -> Result<MatrixSource<'_>> {
        let packed = self.checkpoint.require(&format!("{path}.weight"))?;
        let weight = match self.checkpoint.tensor(&format!("{path}.scales")) {
            None => Weight::Dense(packed),
            Some(scales) => {
                let quantization = self.config.quantization(path)?.ok_or_else(|| {
                    self.config.invalid(&format!("{path} is stored quantized but the configuration does not say how"))
                })?;
                let biases = self.checkpoint.require(&format!("{path}.biases"))?;
                Weight::Affine { quantization, packed, scales, biases }
            }
        };
        let bias = self.checkpoint.tensor(&format!("{path}.bias"));
        Ok(MatrixSource { out_features, in_features, weight, bias })
    }

    /// The matrix of a layer whose configuration says whether it has a bias.
    ///
    /// # Errors
    /// As [`Loader::matrix`], and when the bias is missing although it should be there.
    pub(crate) fn matrix_with_bias(
        &self,
        path: &str,
        out_features: usize,
        in_features: usize,
        bias: bool,
    ) -> Result<B::Matrix> {
        if bias {
            self.checkpoint.require(&format!("{path}.bias"))?;
        }
        self.matrix(path, out_features, in_features)
    }

    /// The weight of the norm `path`.
    ///
    /// # Errors
    /// When it is missing or of another length.
    pub(crate) fn norm(&self, path: &str, features: usize) -> Result<B::Vector> {
        let weight = self.checkpoint.require(&format!("{path}.weight"))?;
        weight.expect_shape(&[features])?;
        self.backend.vector(&weight).map_err(ComputeError::into)
    }
}
