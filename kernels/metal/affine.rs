//! MLX's affine quantization, as far as kernels and their references need it.

/// Rows of affine-quantized values: `value = scale * code + bias`, one scale and bias to a group of consecutive columns.
/// Codes of 4 or 8 bits are packed into 32-bit words, the first column lowest, as MLX packs them.
#[derive(Debug, Clone, Copy)]
pub struct AffineRows<'a> {
    /// Packed codes, `[rows, columns * bits / 32]`.
    pub codes: &'a [u32],
    /// `[rows, columns / group]`.
    pub scales: &'a [f32],
    /// `[rows, columns / group]`.
    pub biases: &'a [f32],
    /// Values of a row, padding included; a multiple of `group`.
    pub columns: usize,
    /// Bits of a code: 4 or 8.
    pub bits: usize,
    /// Columns that share a scale and a bias.
    pub group: usize,
}

impl AffineRows<'_> {
    /// The code at a place.
    #[must_use]
    pub fn code(&self, row: usize, column: usize) -> u32 {
        let per_word = 32 / self.bits;
        let word = self.codes[(row * self.columns + column) / per_word];
        (word >> (column % per_word * self.bits)) & ((1 << self.bits) - 1)
    }

    /// The value at a place.
    #[must_use]
    pub fn value(&self, row: usize, column: usize) -> f32 {
        let group = (row * self.columns + column) / self.group;
        self.scales[group] * self.code(row, column) as f32 + self.biases[group]
    }
}
