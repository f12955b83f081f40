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
        let mut rows = Vec::with_capacity(runs.len());
        let (mut queries, mut outputs) = (q.data(), out.data_mut());
        for ((length, memory), pages) in runs.iter().zip(&pages) {
            let (query, rest) = queries.split_at(length * width);
            queries = rest;
            let (output, rest) = std::mem::take(&mut outputs).split_at_mut(length * width);
            outputs = rest;
            // All see all: where a query stands among the lines does not matter, but it must be one of them.
            for (query, output) in query.chunks(memory.lines * width).zip(output.chunks_mut(memory.lines * width)) {
                let length = query.len() / width;
                rows.push(AttentionRow {
                    query,
                    output,
                    start: memory.lines - length,
                    length,
                    pages,
                    first_position: 0,
                });
            }
        }
        let options = AttentionOptions {
            heads: geometry.kv_heads,
            geometry,
            scale: (geometry.head_dim as f64).powf(-0.5) as f32,
            is_causal: false,
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
        // Hypotheses about one window read it together.
        let mut runs: Vec<(usize, &CpuMemory)> = Vec::with_capacity(memories.len());
        for ((row, _), memory) in step.rows().zip(memories) {
            match runs.last_mut() {
                Some((length, last)) if std::ptr::eq(*last, *memory) => *length += row.length,
                _ => runs.push((row.length, memory)),
            }
        }
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
