//! Positions that are added to activations.

use super::{CpuBackend, CpuMatrix, CpuStep, CpuTensor, shape};
use crate::{Dtype, Result};

impl CpuBackend {
    pub(super) fn make_sinusoids(&self, length: usize, channels: usize, dtype: Dtype) -> Result<CpuTensor> {
        let half = channels / 2;
        if channels < 4 || !channels.is_multiple_of(2) || !dtype.is_float() {
            return Err(shape("sinusoids", format!("{channels} channels of {dtype}")));
        }
        // In single precision, as the reference has them.
        let increment = (f64::from(10_000.0_f32).ln() / (half - 1) as f64) as f32;
        let inverse: Vec<f32> = (0..half).map(|index| (-increment * index as f32).exp()).collect();
        let mut out = self.arena.tensor(length, channels);
        for (position, line) in out.data_mut().chunks_exact_mut(channels).enumerate() {
            let (sines, cosines) = line.split_at_mut(half);
            for ((sine, cosine), inverse) in sines.iter_mut().zip(cosines).zip(&inverse) {
                (*sine, *cosine) = (position as f32 * inverse).sin_cos();
            }
        }
        Ok(out)
    }

    pub(super) fn positions_of(&self, table: &CpuMatrix, step: &CpuStep) -> Result<CpuTensor> {
        let columns = table.matrix.in_features();
        let mut out = self.arena.tensor(step.positions().len(), columns);
        for (&position, line) in step.positions().iter().zip(out.data_mut().chunks_exact_mut(columns)) {
            let row = position as usize;
            if row >= table.matrix.out_features() {
                let positions = table.matrix.out_features();
                return Err(shape("embed_positions", format!("position {row} of a table of {positions}")));
            }
            table.matrix.dequantize_row(row, line);
        }
        Ok(out)
    }
}
