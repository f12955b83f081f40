//! Products of activations with weight matrices.
//!
//! `matmul` multiplies one block of activations with any number of weights in one parallel region; `matmul_gated` fuses
//! the two projections and the activation of a gated feed-forward layer.

mod layout;
mod matrix;
mod scalar;

pub use matrix::{AffineWeight, DenseWeight, Matrix, MatrixError};

use crate::{Activation, Context};

/// How activations enter a product with a quantized weight. Dense weights are always multiplied in single precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Activations as they are, weights dequantized, accumulation in single precision.
    Exact,
    /// Activations quantized to signed 8 bits per weight group, integer products within a group.
    Fast,
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
}

impl<'a> Product<'a> {
    /// `output = x * weight^T`.
    pub fn new(weight: &'a Matrix, output: &'a mut [f32]) -> Self {
        Self { weight, output, bias: None, epilogue: Epilogue::Store }
    }

    /// Adds `bias` to every row.
    #[must_use]
    pub fn with_bias(mut self, bias: Option<&'a [f32]>) -> Self {
        self.bias = bias;
        self
    }

    /// Adds the product to what `output` holds instead of overwriting it.
    #[must_use]
    pub fn accumulate(mut self) -> Self {
        self.epilogue = Epilogue::Add;
        self
    }
}

/// Multiplies `x` (`[rows, in_features]`, row-major) with each weight: `output = x * weight^T (+ bias) (+ output)`.
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
    let _ = context;
    for product in products.iter() {
        check(product.weight, x, rows, product.output.len())?;
        if let Some(bias) = product.bias
            && bias.len() != product.weight.out_features()
        {
            return Err(MatrixError::WrongBias { found: bias.len(), out_features: product.weight.out_features() });
        }
    }
    for product in products.iter_mut() {
        let (inputs, outputs) = (product.weight.in_features(), product.weight.out_features());
        let mut result = vec![0.0; outputs];
        for (x, output) in x.chunks_exact(inputs).zip(product.output.chunks_exact_mut(outputs)) {
            multiply(precision, product.weight, x, &mut result);
            for (index, (target, value)) in output.iter_mut().zip(&result).enumerate() {
                let value = value + product.bias.map_or(0.0, |bias| bias[index]);
                match product.epilogue {
                    Epilogue::Store => *target = value,
                    Epilogue::Add => *target += value,
                }
            }
        }
    }
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
    let _ = context;
    if gate.out_features() != up.out_features() || gate.in_features() != up.in_features() {
        return Err(MatrixError::GateMismatch {
            gate_out: gate.out_features(),
            gate_in: gate.in_features(),
            up_out: up.out_features(),
            up_in: up.in_features(),
        });
    }
    check(gate, x, rows, output.len())?;
    let (inputs, outputs) = (gate.in_features(), gate.out_features());
    let (mut gated, mut upped) = (vec![0.0; outputs], vec![0.0; outputs]);
    for (x, output) in x.chunks_exact(inputs).zip(output.chunks_exact_mut(outputs)) {
        multiply(precision, gate, x, &mut gated);
        multiply(precision, up, x, &mut upped);
        for ((target, gate), up) in output.iter_mut().zip(&gated).zip(&upped) {
            *target = activation.apply(*gate) * up;
        }
    }
    Ok(())
}

fn multiply(precision: Precision, weight: &Matrix, x: &[f32], output: &mut [f32]) {
    match precision {
        Precision::Exact => scalar::product_exact(weight, x, output),
        Precision::Fast => scalar::product_fast(weight, x, output),
    }
}

fn check(weight: &Matrix, x: &[f32], rows: usize, output: usize) -> Result<(), MatrixError> {
    let (in_features, out_features) = (weight.in_features(), weight.out_features());
    if rows.checked_mul(in_features) != Some(x.len()) {
        return Err(MatrixError::WrongInput { found: x.len(), rows, in_features });
    }
    if rows.checked_mul(out_features) != Some(output) {
        return Err(MatrixError::WrongOutput { found: output, rows, out_features });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
