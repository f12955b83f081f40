//! SwiGLU and GeGLU in one pass over the 4-bit weights of gate and up, for up to four rows.
//!
//! **What it computes.** For activations `x`, `[rows, columns]` of type `T`, and affine 4-bit weights `gate` and `up`,
//! `[outputs, columns]`, with scales and biases of type `T` in groups of 32, 64 or 128:
//!
//! - `g = T(x gateᵀ)`, `u = T(x upᵀ)`, summed in single precision;
//! - `out = T(activation(g) * u)`, the activation in single precision: `g / (1 + exp(-g))` for SwiGLU, the tanh form of
//!   GELU for GeGLU.
//!
//! **How.** Each simdgroup holds two or four rows of both weights against all rows of activations, so that weights are
//! read once; nothing between the products and the result is written.
//!
//! **Tolerance.** `g` and `u` differ from an exact sum by the order of addition (1e-6 of the sum of magnitudes) and by
//! their rounding to `T`. The composed form also rounds inside of the activation: the results differ by up to 4 units in
//! the last place of `T`.

use super::{
    AffineRows, Element, KernelSource, Launch, LaunchError, Output, TemplateValue, element::round_to,
    source::source_file,
};

/// Inputs `x`, `[rows, columns]`, whose rows may lie apart, and codes, scales and biases of gate and up as MLX stores them; output `out`,
/// `[rows, outputs]`.
pub static GATED_MATVEC: KernelSource = KernelSource {
    name: "linnet_gated_matvec",
    inputs: &["x", "gate_codes", "gate_scales", "gate_biases", "up_codes", "up_scales", "up_biases"],
    outputs: &["out"],
    functions: &[source_file!("gated.metal")],
    body: source_file!("gated_matvec.metal"),
};

/// The most rows of activations.
pub const GATED_MATVEC_MAX_ROWS: usize = 4;
/// Below this an input would become so small that MLX passes it in another address space.
const MIN_OUTPUTS: usize = 8;
const SIMDGROUPS: u32 = 2;

/// The non-linearity of a gated unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gate {
    /// `x * sigmoid(x)`: SwiGLU.
    Silu,
    /// GELU in its tanh form: GeGLU.
    GeluTanh,
}

/// The figures of a gated product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatedMatvec {
    /// Rows of activations, 1 to [`GATED_MATVEC_MAX_ROWS`].
    pub rows: usize,
    /// Width of the activations.
    pub columns: usize,
    /// Width of the result.
    pub outputs: usize,
    /// Columns to a scale and bias: 32, 64 or 128.
    pub group: usize,
    /// The type of activations, scales, biases and result.
    pub element: Element,
    /// The activation.
    pub gate: Gate,
}

impl GatedMatvec {
    /// How to launch [`GATED_MATVEC`].
    ///
    /// # Errors
    /// When the kernel is not written for these figures.
    pub fn launch(&self) -> Result<Launch, LaunchError> {
        let kernel = GATED_MATVEC.name;
        let GatedMatvec { rows, columns, outputs, group, element, gate } = *self;
        let unsupported = |what, got, supported| LaunchError::Unsupported { kernel, what, got, supported };
        if !(1..=GATED_MATVEC_MAX_ROWS).contains(&rows) {
            return Err(unsupported("rows", rows, "1 to 4"));
        }
        if ![32, 64, 128].contains(&group) {
            return Err(unsupported("group size", group, "32, 64 and 128"));
        }
        if !(MIN_OUTPUTS..=MAX_SIDE).contains(&outputs) {
            return Err(unsupported("outputs", outputs, "8 to 1048576"));
        }
        if !(1..=MAX_SIDE).contains(&columns) {
            return Err(unsupported("columns", columns, "1 to 1048576"));
        }
        if !columns.is_multiple_of(group) {
            let (what, factor_name) = ("columns", "the group size");
            return Err(LaunchError::NotAMultiple { kernel, what, got: columns, factor_name, factor: group });
        }
        if !element.is_float() {
            return Err(LaunchError::UnsupportedElement { kernel, what: "x", got: element, supported: "floats" });
        }
        // Registers: two products for each pair of row and output.
        let per_simdgroup = if rows == 1 { 4 } else { 2 };
        let groups = outputs.div_ceil(per_simdgroup * SIMDGROUPS as usize);
        Ok(Launch {
            kernel: &GATED_MATVEC,
            template: vec![
                ("T", TemplateValue::Element(element)),
                ("ROWS", TemplateValue::Int(rows as i32)),
                ("GROUP", TemplateValue::Int(group as i32)),
                ("OUTPUTS", TemplateValue::Int(per_simdgroup as i32)),
                ("GELU", TemplateValue::Int(i32::from(gate == Gate::GeluTanh))),
            ],
            outputs: vec![Output { shape: vec![rows, outputs], element }],
            grid: [32 * SIMDGROUPS, groups as u32, 1],
            threadgroup: [32 * SIMDGROUPS, 1, 1],
        })
    }
}

const MAX_SIDE: usize = 1 << 20;

/// What the kernel computes, in plain Rust: `x` is `[rows, columns]`, the result `[rows, outputs]`.
#[must_use]
pub fn gated_reference(
    x: &[f32],
    gate: &AffineRows<'_>,
    up: &AffineRows<'_>,
    activation: Gate,
    element: Element,
) -> Vec<f32> {
    let outputs = gate.scales.len() * gate.group / gate.columns;
    let product = |weight: &AffineRows<'_>, x: &[f32], output: usize| {
        let sum: f32 = x.iter().enumerate().map(|(column, x)| x * weight.value(output, column)).sum();
        round_to(element, sum)
    };
    let one = |x: &[f32], output: usize| {
        let value = activation.apply(product(gate, x, output)) * product(up, x, output);
        round_to(element, value)
    };
    x.chunks(gate.columns).flat_map(|row| (0..outputs).map(move |output| one(row, output))).collect()
}

impl Gate {
    /// The function itself.
    #[must_use]
    pub fn apply(self, x: f32) -> f32 {
        match self {
            Gate::Silu => x / (1.0 + (-x).exp()),
            Gate::GeluTanh => 0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x * x * x)).tanh()),
        }
    }
}
