//! Puts finished sums where they belong.
#![allow(unsafe_code)]

use super::simd::Simd;

/// Operands of [`finish`].
pub(crate) struct Finish<'a> {
    /// `[rows][stride]`: finished sums.
    pub(crate) values: *const f32,
    pub(crate) stride: usize,
    /// Sums to use of each row, from its first on.
    pub(crate) count: usize,
    pub(crate) rows: usize,
    /// Where the first sum of the first row goes, rows `output_stride` apart.
    pub(crate) output: *mut f32,
    pub(crate) output_stride: usize,
    /// Added to each row: `count` numbers.
    pub(crate) bias: Option<&'a [f32]>,
    /// Whether the sums are added to the output.
    pub(crate) accumulate: bool,
}

/// Puts a block of sums into the output.
///
/// # Safety
/// The pointers must be valid for the shapes of [`Finish`]; the instruction set of `S` must be available.
#[inline(always)]
pub(crate) unsafe fn finish<S: Simd>(arguments: &Finish<'_>) {
    let whole = arguments.count / S::LANES * S::LANES;
    // SAFETY: the caller's promise; whole vectors first, then what is left one by one.
    unsafe {
        for row in 0..arguments.rows {
            let from = arguments.values.add(row * arguments.stride);
            let to = arguments.output.add(row * arguments.output_stride);
            for column in (0..whole).step_by(S::LANES) {
                let mut value = S::load(from.add(column));
                if let Some(bias) = arguments.bias {
                    value = S::add(value, S::load(bias.as_ptr().add(column)));
                }
                if arguments.accumulate {
                    value = S::add(value, S::load(to.add(column)));
                }
                S::store(to.add(column), value);
            }
            for column in whole..arguments.count {
                let mut value = *from.add(column);
                if let Some(bias) = arguments.bias {
                    value += bias[column];
                }
                if arguments.accumulate {
                    value += *to.add(column);
                }
                *to.add(column) = value;
            }
        }
    }
}
