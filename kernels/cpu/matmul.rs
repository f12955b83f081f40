//! Products of activations with weight matrices.
//!
//! `matmul` multiplies one block of activations with any number of weights in one parallel region; `matmul_gated` fuses
//! the two projections and the activation of a gated feed-forward layer.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod buffers;
mod decode;
mod drive;
mod finish;
mod layout;
mod matrix;
#[cfg(target_arch = "aarch64")]
mod neon;
mod panel;
mod quantize;
mod scalar;
mod simd;
mod single;
mod stream;

pub(crate) use buffers::BufferStore;
pub use matrix::{AffineWeight, DenseWeight, Matrix, MatrixError};

use crate::{Activation, Context, Isa};
use drive::{Item, Rows};

/// How activations enter a product with a quantized weight. Dense weights are always multiplied in single precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Activations as they are, weights dequantized, accumulation in single precision.
    Exact,
    /// Activations as the sum of two signed 8-bit terms per weight group, integer products within a group.
    Fast,
    /// Products of more than 16 rows with one 8-bit term, which takes half the time and loses about half a percent per
    /// product: for encoders of speech, which bear it. Fewer rows wait for weights, not for arithmetic, and are computed
    /// as [`Precision::Fast`]; so are all on instruction sets whose byte products are no faster than those of words. The
    /// one precision in which a row's result depends on how many rows it comes with.
    OneTerm,
}

/// What happens to what the output holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// It is overwritten.
    Store,
    /// The product is added to it: a residual connection.
    Add,
}

/// One weight of a [`matmul`] and where its product goes.
#[derive(Debug)]
pub struct Product<'a> {
    /// The weight, `[out_features, in_features]`.
    pub weight: &'a Matrix,
    /// `[rows, out_features]`, row-major.
    pub output: &'a mut [f32],
    /// Added to every row of the product: `[out_features]`. Combines with either epilogue.
    pub bias: Option<&'a [f32]>,
    /// Whether the output is overwritten or added to.
    pub epilogue: Epilogue,
    /// Applied to the product and its bias, before what the output holds is added.
    pub activation: Activation,
}

impl<'a> Product<'a> {
    /// `output = x * weight^T`.
    pub fn new(weight: &'a Matrix, output: &'a mut [f32]) -> Self {
        Self { weight, output, bias: None, epilogue: Epilogue::Store, activation: Activation::Identity }
    }

    /// Adds `bias` to every row.
    #[must_use]
    pub fn with_bias(mut self, bias: Option<&'a [f32]>) -> Self {
        self.bias = bias;
        self
    }

    /// Applies a function to the product and its bias: the first half of a plain feed-forward layer.
    #[must_use]
    pub fn with_activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// Adds the product to what `output` holds instead of overwriting it.
    #[must_use]
    pub fn accumulate(mut self) -> Self {
        self.epilogue = Epilogue::Add;
        self
    }
}

/// Multiplies `x` (`[rows, in_features]`, row-major) with each weight: `output = activation(x * weight^T (+ bias)) (+ output)`.
///
/// All products run in one parallel region and share the quantized activations.
///
/// # Errors
/// [`MatrixError`] when a shape does not fit; nothing is written then.
pub fn matmul(
    context: &Context,
    precision: Precision,
    x: &[f32],
    rows: usize,
    products: &mut [Product<'_>],
) -> Result<(), MatrixError> {
    let stride = products.first().map_or(0, |product| product.weight.in_features());
    matmul_strided(context, precision, x, rows, stride, products)
}

/// [`matmul`] with rows of activations that begin `stride` numbers apart, and may overlap: the windows of a convolution.
/// `x` may go on behind the last row. With another stride than `in_features` weights must be dense.
pub(crate) fn matmul_strided(
    context: &Context,
    precision: Precision,
    x: &[f32],
    rows: usize,
    stride: usize,
    products: &mut [Product<'_>],
) -> Result<(), MatrixError> {
    for product in products.iter() {
        check(product.weight, x, rows, stride, product.output.len())?;
        if let Some(bias) = product.bias
            && bias.len() != product.weight.out_features()
        {
            return Err(MatrixError::WrongBias { found: bias.len(), out_features: product.weight.out_features() });
        }
    }
    let mut items: Vec<Item<'_>> = products
        .iter_mut()
        .map(|product| Item {
            weight: product.weight,
            gate: None,
            output: &mut *product.output,
            bias: product.bias,
            accumulate: product.epilogue == Epilogue::Add,
            activation: product.activation,
        })
        .collect();
    run(context, precision, Rows { x, count: rows, stride }, &mut items);
    Ok(())
}

/// `output = activation(x * gate^T) * (x * up^T)`, all `[rows, out_features]`, in one parallel region.
///
/// # Errors
/// [`MatrixError`] when a shape does not fit; nothing is written then.
#[allow(clippy::too_many_arguments)] // the operands of one product
pub fn matmul_gated(
    context: &Context,
    precision: Precision,
    x: &[f32],
    rows: usize,
    gate: &Matrix,
    up: &Matrix,
    activation: Activation,
    output: &mut [f32],
) -> Result<(), MatrixError> {
    if gate.out_features() != up.out_features() || gate.in_features() != up.in_features() {
        return Err(MatrixError::GateMismatch {
            gate_out: gate.out_features(),
            gate_in: gate.in_features(),
            up_out: up.out_features(),
            up_in: up.in_features(),
        });
    }
    check(gate, x, rows, gate.in_features(), output.len())?;
    let stride = gate.in_features();
    let item = Item {
        weight: up,
        gate: Some((gate, activation)),
        output,
        bias: None,
        accumulate: false,
        activation: Activation::Identity,
    };
    run(context, precision, Rows { x, count: rows, stride }, &mut [item]);
    Ok(())
}

/// Runs checked items on the kernels of the context's instruction set.
fn run(context: &Context, precision: Precision, rows: Rows<'_>, items: &mut [Item<'_>]) {
    // A matrix laid out for another instruction set is left to the scalar code, which reads any layout.
    let laid_out_for = |lanes| {
        items.iter().all(|item| {
            drive::lanes_of(item.weight) == lanes && item.gate.is_none_or(|(gate, _)| drive::lanes_of(gate) == lanes)
        })
    };
    // SAFETY: a context only names an instruction set that was found on this machine; shapes were checked by the
    // caller and the tile height here.
    unsafe {
        match context.isa() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 if laid_out_for(8) => drive::run::<avx2::Avx2>(context, precision, rows, items),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2Vnni if laid_out_for(8) => drive::run::<avx2::Avx2Vnni>(context, precision, rows, items),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni | Isa::Avx512Bf16 if laid_out_for(16) => {
                drive::run::<avx512::Avx512>(context, precision, rows, items);
            }
            #[cfg(target_arch = "aarch64")]
            Isa::Neon if laid_out_for(4) => drive::run::<neon::Neon>(context, precision, rows, items),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDotprod | Isa::NeonI8mm if laid_out_for(4) => {
                drive::run::<neon::NeonDotprod>(context, precision, rows, items);
            }
            _ => items.iter_mut().for_each(|item| scalar::run(item, precision, rows)),
        }
    }
}

fn check(weight: &Matrix, x: &[f32], rows: usize, stride: usize, output: usize) -> Result<(), MatrixError> {
    let (in_features, out_features) = (weight.in_features(), weight.out_features());
    let fits = if stride == in_features {
        rows.checked_mul(in_features) == Some(x.len())
    } else {
        let dense = matches!(weight.format(), matrix::Format::Dense { .. });
        let reach = rows.saturating_sub(1).checked_mul(stride).and_then(|start| start.checked_add(in_features));
        dense && (rows == 0 || reach.is_some_and(|reach| reach <= x.len()))
    };
    if !fits {
        return Err(MatrixError::WrongInput { found: x.len(), rows, in_features });
    }
    if rows.checked_mul(out_features) != Some(output) {
        return Err(MatrixError::WrongOutput { found: output, rows, out_features });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
