//! Keys and values that a step does not add to: those of a window of audio, for the decoder and within the encoder.

use super::{CpuBackend, CpuStep, CpuTensor, shape};
use crate::{ComputeError, Result};
use linnet_kernels::{AttentionOptions, AttentionRow, PAGE_TOKENS, Page, PageGeometry};

/// Keys and values of some lines, in pages.
#[derive(Debug)]
pub struct CpuMemory {
    geometry: PageGeometry,
    lines: usize,
    pages: Vec<u16>,
}

impl CpuMemory {
    /// Takes over lines of keys and values.
    pub(super) fn new(k: &CpuTensor, v: &CpuTensor, heads: usize) -> Result<Self> {
        let (lines, width) = (k.rows(), k.columns());
        if (v.rows(), v.columns()) != (lines, width) || lines == 0 || heads == 0 || !width.is_multiple_of(heads) {
            let detail = format!("keys [{lines}, {width}] and values [{}, {}] of {heads} heads", v.rows(), v.columns());
            return Err(shape("memory", detail));
        }
        let geometry = PageGeometry { kv_heads: heads, head_dim: width / heads };
        let mut pages = vec![0; lines.div_ceil(PAGE_TOKENS) * geometry.elements()];
        let parts = k.data().chunks(PAGE_TOKENS * width).zip(v.data().chunks(PAGE_TOKENS * width));
        for (page, (keys, values)) in pages.chunks_exact_mut(geometry.elements()).zip(parts) {
            linnet_kernels::append(geometry, page, 0, keys, values, keys.len() / width);
        }
        Ok(Self { geometry, lines, pages })
    }

    fn pages(&self) -> Vec<Page<'_>> {
        self.pages.chunks_exact(self.geometry.elements()).map(Page::from).collect()
    }

    fn width(&self) -> usize {
        self.geometry.kv_heads * self.geometry.head_dim
    }
}

impl CpuBackend {
    /// Attention of each run of queries over a memory: `(queries, memory)` in the order of `q`'s lines.
    fn attend(&self, operation: &'static str, q: &CpuTensor, runs: &[(usize, &CpuMemory)]) -> Result<CpuTensor> {
        let width = q.columns();
        let total: usize = runs.iter().map(|(queries, _)| queries).sum();
        let Some((_, first)) = runs.first().filter(|_| total == q.rows()) else {
            return Err(shape(operation, format!("{} queries for {total}", q.rows())));
        };
        let geometry = first.geometry;
        if let Some((_, other)) = runs.iter().find(|(_, memory)| memory.geometry != geometry || memory.width() != width)
        {
            let (found, expected) = (other.geometry, geometry);
            return Err(shape(operation, format!("queries of {width} for memories of {expected:?} and {found:?}")));
        }
        let pages: Vec<Vec<Page<'_>>> = runs.iter().map(|(_, memory)| memory.pages()).collect();
        let mut out = self.arena.tensor(total, width);
        let of_line = runs
            .iter()
            .zip(&pages)
            .flat_map(|((queries, memory), pages)| std::iter::repeat_n((memory.lines, pages.as_slice()), *queries));
        let mut rows: Vec<AttentionRow<'_>> = q
            .data()
            .chunks_exact(width)
            .zip(out.data_mut().chunks_exact_mut(width))
            .zip(of_line)
            .map(|((query, output), (lines, pages))| {
                // As if it came last, a query sees all.
                AttentionRow { query, output, start: lines - 1, length: 1, pages, first_position: 0 }
            })
            .collect();
        let options = AttentionOptions {
            heads: geometry.kv_heads,
            geometry,
            scale: (geometry.head_dim as f64).powf(-0.5) as f32,
            window: None,
            softcap: None,
            sinks: None,
        };
        linnet_kernels::attention(&self.context, &options, &mut rows)
            .map_err(|error| ComputeError::Kernel { operation, reason: error.to_string() })?;
        Ok(out)
    }

    pub(super) fn attend_all(&self, q: &CpuTensor, k: &CpuTensor, v: &CpuTensor, heads: usize) -> Result<CpuTensor> {
        let memory = CpuMemory::new(k, v, heads)?;
        self.attend("full_attention", q, &[(q.rows(), &memory)])
    }

    pub(super) fn attend_memories(&self, q: &CpuTensor, memories: &[&CpuMemory], step: &CpuStep) -> Result<CpuTensor> {
        let runs: Vec<(usize, &CpuMemory)> =
            step.rows().zip(memories).map(|((row, _), memory)| (row.length, *memory)).collect();
        if memories.len() != step.rows().count() {
            return Err(shape("cross_attention", format!("{} memories for other rows", memories.len())));
        }
        self.attend("cross_attention", q, &runs)
    }

    pub(super) fn memory_scores(&self, q: &CpuTensor, memory: &CpuMemory, heads: &[usize]) -> Result<CpuTensor> {
        let PageGeometry { kv_heads, head_dim } = memory.geometry;
        let width = memory.width();
        if q.columns() != width || heads.iter().any(|&head| head >= kv_heads) {
            let detail = format!("queries of {} and heads {heads:?} for {:?}", q.columns(), memory.geometry);
            return Err(shape("cross_scores", detail));
        }
        let scale = (head_dim as f64).powf(-0.5) as f32;
        let (tokens, lines) = (q.rows(), memory.lines);
        let mut out = self.arena.tensor(heads.len() * tokens, lines);
        let mut keys = vec![0.0; PAGE_TOKENS * width];
        let mut values = vec![0.0; PAGE_TOKENS * width];
        for (number, page) in memory.pages.chunks_exact(memory.geometry.elements()).enumerate() {
            let first = number * PAGE_TOKENS;
            let count = PAGE_TOKENS.min(lines - first);
            let (keys, values) = (&mut keys[..count * width], &mut values[..count * width]);
            linnet_kernels::read_page(memory.geometry, page, 0, keys, values, count);
            for (line, target) in out.data_mut().chunks_exact_mut(lines).enumerate() {
                let (head, token) = (heads[line / tokens], line % tokens);
                let query = &q.data()[token * width + head * head_dim..][..head_dim];
                for (score, key) in target[first..first + count].iter_mut().zip(keys.chunks_exact(width)) {
                    let key = &key[head * head_dim..][..head_dim];
                    *score = scale * query.iter().zip(key).map(|(query, key)| query * key).sum::<f32>();
                }
            }
        }
        Ok(out)
    }
}
