//! Weights by dotted path, as an architecture asks for them, and nothing left over in the end.

use crate::{ModelConfig, ModelError, WeightPrecision, error::Result, weight_precision::EightBitMatrix};
use linnet_compute::{Backend, Checkpoint, ComputeError, ConvolutionSource, Dtype, MatrixSource, TensorView, Weight};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// How many names an error lists.
const NAMES_SHOWN: usize = 4;

/// Hands a checkpoint's weights over to a backend, and remembers which were asked for.
#[derive(Debug)]
pub(crate) struct Loader<'a, B> {
    backend: &'a B,
    checkpoint: &'a Checkpoint,
    config: &'a ModelConfig,
    precision: WeightPrecision,
    left: RefCell<BTreeSet<&'a str>>,
}

impl<'a, B: Backend> Loader<'a, B> {
    /// A loader of `checkpoint`, quantized as `config` says.
    #[must_use]
    pub(crate) fn new(backend: &'a B, checkpoint: &'a Checkpoint, config: &'a ModelConfig) -> Self {
        let left = RefCell::new(checkpoint.names().collect());
        Self { backend, checkpoint, config, precision: WeightPrecision::Stored, left }
    }

    /// The same loader, which hands dense matrices over in this precision.
    #[must_use]
    pub(crate) fn with_precision(self, precision: WeightPrecision) -> Self {
        Self { precision, ..self }
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

    /// The matrix of the layer `path`, `[out_features, in_features]`, without a bias; quantized if `path.scales` is
    /// there.
    ///
    /// # Errors
    /// When a part is missing or of another shape.
    pub(crate) fn matrix(&self, path: &str, out_features: usize, in_features: usize) -> Result<B::Matrix> {
        self.matrix_with_bias(path, out_features, in_features, false)
    }

    /// As [`Loader::matrix`], for a layer whose configuration says whether it has a bias.
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
        let source = self.source(path, out_features, in_features, bias)?;
        if let (WeightPrecision::Int8, Weight::Dense(weight)) = (self.precision, &source.weight) {
            weight.expect_shape(&[out_features, in_features])?;
            if let Some(rounded) = EightBitMatrix::round(weight) {
                return Ok(self.backend.matrix(&MatrixSource { weight: rounded.weight(weight.name), ..source })?);
            }
        }
        Ok(self.backend.matrix(&source)?)
    }

    fn source(&self, path: &str, out_features: usize, in_features: usize, bias: bool) -> Result<MatrixSource<'a>> {
        let packed = self.require(&format!("{path}.weight"))?;
        let weight = match self.tensor(&format!("{path}.scales")) {
            None => Weight::Dense(packed),
            Some(scales) => {
                let quantization = self.config.quantization(path)?.ok_or_else(|| {
                    self.config.invalid(&format!("{path} is stored quantized but the configuration does not say how"))
                })?;
                let biases = self.require(&format!("{path}.biases"))?;
                Weight::Affine { quantization, packed, scales, biases }
            }
        };
        let bias = if bias { Some(self.require(&format!("{path}.bias"))?) } else { None };
        Ok(MatrixSource { out_features, in_features, weight, bias })
    }

    /// The weight of the norm `path`.
    ///
    /// # Errors
    /// When it is missing or of another length.
    pub(crate) fn norm(&self, path: &str, features: usize) -> Result<B::Vector> {
        let weight = self.require(&format!("{path}.weight"))?;
        weight.expect_shape(&[features])?;
        self.backend.vector(&weight).map_err(ComputeError::into)
    }

    /// The vector of this name.
    ///
    /// # Errors
    /// As [`Loader::norm`].
    pub(crate) fn vector(&self, name: &str, length: usize) -> Result<B::Vector> {
        let vector = self.require(name)?;
        vector.expect_shape(&[length])?;
        self.backend.vector(&vector).map_err(ComputeError::into)
    }

    /// The table of this name, `[rows, columns]`, in the type it is stored in.
    ///
    /// # Errors
    /// When it is missing or of another shape.
    pub(crate) fn table(&self, name: &str, rows: usize, columns: usize) -> Result<B::Matrix> {
        let weight = Weight::Dense(self.require(name)?);
        Ok(self.backend.matrix(&MatrixSource { out_features: rows, in_features: columns, weight, bias: None })?)
    }

    /// The convolution `path`, its weight of this shape `[out, kernel, in]`.
    ///
    /// # Errors
    /// When a part is missing or of another shape.
    pub(crate) fn convolution(&self, path: &str, shape: [usize; 3], stride: usize) -> Result<B::Convolution> {
        let weight = self.require(&format!("{path}.weight"))?;
        weight.expect_shape(&shape)?;
        let bias = self.require(&format!("{path}.bias"))?;
        Ok(self.backend.convolution(&ConvolutionSource { weight, bias, stride })?)
    }

    /// The type of a tensor.
    ///
    /// # Errors
    /// When it is missing.
    pub(crate) fn dtype(&self, name: &str) -> Result<Dtype> {
        Ok(self.checkpoint.require(name)?.dtype)
    }

    /// Names weights that the architecture knows and has no use for, as mlx-lm's `sanitize` drops them.
    pub(crate) fn leave_out(&self, is_useless: impl Fn(&str) -> bool) {
        self.left.borrow_mut().retain(|name| !is_useless(name));
    }

    /// Ends the loading.
    ///
    /// # Errors
    /// When weights are left that nothing asked for. The model would run without them and answer wrongly; mlx-lm
    /// refuses such a folder too (`load_weights` with `strict`).
    pub(crate) fn finish(&self) -> Result<()> {
        let left = self.left.borrow();
        if left.is_empty() {
            return Ok(());
        }
        Err(ModelError::UnexpectedWeights {
            folder: self.checkpoint.folder().to_owned(),
            names: left.iter().take(NAMES_SHOWN).map(|name| (*name).to_owned()).collect(),
            count: left.len(),
        })
    }

    fn tensor(&self, name: &str) -> Option<TensorView<'a>> {
        let tensor = self.checkpoint.tensor(name)?;
        self.left.borrow_mut().remove(name);
        Some(tensor)
    }

    fn require(&self, name: &str) -> Result<TensorView<'a>> {
        let tensor = self.checkpoint.require(name)?;
        self.left.borrow_mut().remove(name);
        Ok(tensor)
    }
}
