//! Keys and values that a step does not add to: those of a window of audio, for the decoder and within the encoder.

use super::{CpuBackend, CpuStep, CpuTensor, shape};
use crate::{ComputeError, Result};
use linnet_kernels::{CrossAttentionError, CrossMemory, CrossRow, HeadLayout, MemoryFormat, Precision};

/// Keys and values of some lines, as the kernels read them: in f16, or as they came where nothing may be lost.
#[derive(Debug)]
pub struct CpuMemory(CrossMemory);

/// The factor on scores.
fn scale(layout: HeadLayout) -> f32 {
    (layout.head_dim as f64).powf(-0.5) as f32
}

fn failure(operation: &'static str) -> impl Fn(CrossAttentionError) -> ComputeError {
    move |error| ComputeError::Kernel { operation, reason: error.to_string() }
}

/// How lines of keys and values are cut into heads.
fn layout(operation: &'static str, k: &CpuTensor, v: &CpuTensor, heads: usize) -> Result<HeadLayout> {
    let (lines, width) = (k.rows(), k.columns());
    if (v.rows(), v.columns()) != (lines, width) || lines == 0 || heads == 0 || !width.is_multiple_of(heads) {
        let detail = format!("keys [{lines}, {width}] and values [{}, {}] of {heads} heads", v.rows(), v.columns());
        return Err(shape(operation, detail));
    }
    Ok(HeadLayout { heads, head_dim: width / heads })
}

impl CpuBackend {
    pub(super) fn keep(&self, k: &CpuTensor, v: &CpuTensor, heads: usize) -> Result<CpuMemory> {
        let layout = layout("memory", k, v, heads)?;
        let format = if self.precision == Precision::Exact { MemoryFormat::F32 } else { MemoryFormat::F16 };
        let memory = CrossMemory::new(&self.context, layout, k.data(), v.data(), format);
        memory.map(CpuMemory).map_err(failure("memory"))
    }

    pub(super) fn attend_all(&self, q: &CpuTensor, k: &CpuTensor, v: &CpuTensor, heads: usize) -> Result<CpuTensor> {
        let layout = layout("full_attention", k, v, heads)?;
        if q.columns() != k.columns() {
            return Err(shape("full_attention", format!("queries of {} for keys of {}", q.columns(), k.columns())));
        }
        let mut out = self.arena.tensor(q.rows(), q.columns());
        let scale = scale(layout);
        let attend = match self.precision {
            Precision::OneTerm => linnet_kernels::coarse_full_attention,
            Precision::Exact | Precision::Fast => linnet_kernels::full_attention,
        };
        attend(&self.context, layout, scale, q.data(), k.data(), v.data(), out.data_mut())
            .map_err(failure("full_attention"))?;
        Ok(out)
    }

    pub(super) fn attend_memories(&self, q: &CpuTensor, memories: &[&CpuMemory], step: &CpuStep) -> Result<CpuTensor> {
        let count = step.rows().count();
        let Some(first) = memories.first().filter(|_| memories.len() == count) else {
            return Err(shape("cross_attention", format!("{} memories for {count} rows", memories.len())));
        };
        let layout = first.0.layout();
        let width = layout.width();
        if (q.rows(), q.columns()) != (step.tokens().len(), width) {
            let detail = format!("queries [{}, {}] for [{}, {width}]", q.rows(), q.columns(), step.tokens().len());
            return Err(shape("cross_attention", detail));
        }
        let mut out = self.arena.tensor(q.rows(), width);
        let mut rest = out.data_mut();
        let mut rows = Vec::with_capacity(count);
        for ((row, first), memory) in step.rows().zip(memories) {
            let (output, tail) = rest.split_at_mut(row.length * width);
            rest = tail;
            let query = &q.data()[first * width..(first + row.length) * width];
            rows.push(CrossRow { query, output, memory: &memory.0 });
        }
        linnet_kernels::cross_attention(&self.context, scale(layout), &mut rows).map_err(failure("cross_attention"))?;
        Ok(out)
    }

    pub(super) fn memory_scores(&self, q: &CpuTensor, memory: &CpuMemory, heads: &[usize]) -> Result<CpuTensor> {
        let layout = memory.0.layout();
        if q.columns() != layout.width() {
            return Err(shape("cross_scores", format!("queries of {} for {layout:?}", q.columns())));
        }
        let mut out = self.arena.tensor(heads.len() * q.rows(), memory.0.lines());
        linnet_kernels::cross_scores(&self.context, scale(layout), &memory.0, q.data(), heads, out.data_mut())
            .map_err(failure("cross_scores"))?;
        Ok(out)
    }
}
