//! Attention as mlx-whisper 0.4.3 composes it (`MultiHeadAttention.qkv_attention` of `mlx_whisper/whisper.py`): queries and
//! keys scaled each, a plain product, softmax, a plain product. Over a step's own lines, over all lines of a window, and over
//! the lines of a window that a sequence listens to.

use super::{
    MlxBackend, MlxStep, MlxTensor,
    attention::{lowest, to_array},
    graph::{Graph, Mask, Result, data},
    tensor::Part,
};
use crate::{ComputeError, Result as ComputeResult};
use mlx_rs::Array;
use std::rc::Rc;

/// Keys and values of a window, one row of a batch: what does not change from step to step.
#[derive(Debug)]
pub struct MlxMemory {
    /// `[1, heads, head_dim, lines]`, scaled.
    keys: Array,
    /// `[1, heads, lines, head_dim]`.
    values: Array,
    heads: usize,
    width: usize,
}

/// The root of the usual scale of scores.
fn scaled(graph: &Graph, x: &Array, head_dim: i32) -> Result<Array> {
    let scale = graph.scalar(f64::from(head_dim).powf(-0.25), data::dtype_of(x))?;
    graph.multiply(x, &scale)
}

/// `[batch, lines, heads * head_dim]` as four axes in this order of batch, lines, heads, head_dim.
fn by_heads(graph: &Graph, x: &Array, heads: usize, order: &[i32; 4]) -> Result<Array> {
    let (batch, lines, width, heads) = (x.dim(0), x.dim(1), x.dim(2), heads as i32);
    graph.transpose(&graph.reshape(x, &[batch, lines, heads, width / heads])?, order)
}

fn scaled_queries(graph: &Graph, x: &Array, heads: usize) -> Result<Array> {
    scaled(graph, &by_heads(graph, x, heads, &[0, 2, 1, 3])?, x.dim(2) / heads as i32)
}

fn scaled_keys(graph: &Graph, x: &Array, heads: usize) -> Result<Array> {
    scaled(graph, &by_heads(graph, x, heads, &[0, 2, 3, 1])?, x.dim(2) / heads as i32)
}

/// `[batch, lines, heads * head_dim]` of scaled queries and keys, and values by heads.
fn attended(graph: &Graph, queries: &Array, keys: &Array, values: &Array, mask: &Mask) -> Result<Array> {
    let mut scores = graph.matmul(queries, keys)?;
    if let Some(mask) = to_array(graph, mask, &scores, 1)? {
        scores = graph.select(&mask, &scores, &lowest(graph, &scores)?)?;
    }
    let out = graph.matmul(&graph.softmax_last(&scores)?, values)?;
    let (batch, heads, lines, head_dim) = (out.dim(0), out.dim(1), out.dim(2), out.dim(3));
    graph.reshape(&graph.transpose(&out, &[0, 2, 1, 3])?, &[batch, lines, heads * head_dim])
}

/// A step's own attention: `q` is `[rows, lines, heads * head_dim]`, keys and values are `[rows, heads, tokens, head_dim]`.
pub(super) fn attend_split(graph: &Graph, q: &Array, keys: &Array, values: &Array, mask: &Mask) -> Result<Array> {
    let heads = keys.dim(1) as usize;
    let queries = scaled_queries(graph, q, heads)?;
    let keys = scaled(graph, &graph.swap_last(keys)?, keys.dim(3))?;
    attended(graph, &queries, &keys, values, mask)
}

impl MlxMemory {
    pub(super) fn new(graph: &Graph, k: &MlxTensor, v: &MlxTensor, heads: usize) -> ComputeResult<Self> {
        let (k, v) = (alone("memory", graph, k)?, alone("memory", graph, v)?);
        let width = k.dim(2) as usize;
        if v.shape() != k.shape() || heads == 0 || !width.is_multiple_of(heads) {
            let detail = format!("keys {:?} and values {:?} of {heads} heads", k.shape(), v.shape());
            return Err(ComputeError::Shape { operation: "memory", detail });
        }
        let keys = scaled_keys(graph, &k, heads)?;
        let values = by_heads(graph, &v, heads, &[0, 2, 1, 3])?;
        Ok(Self { keys, values, heads, width })
    }
}

impl MlxBackend {
    pub(super) fn attend_all(
        &self,
        q: &MlxTensor,
        k: &MlxTensor,
        v: &MlxTensor,
        heads: usize,
    ) -> ComputeResult<MlxTensor> {
        let graph = &*self.graph;
        let memory = MlxMemory::new(graph, k, v, heads)?;
        let q = alone("full_attention", graph, q)?;
        if q.dim(2) as usize != memory.width {
            let detail = format!("queries {:?} for keys of {}", q.shape(), memory.width);
            return Err(ComputeError::Shape { operation: "full_attention", detail });
        }
        let queries = scaled_queries(graph, &q, heads)?;
        let out = attended(graph, &queries, &memory.keys, &memory.values, &Mask::None)?;
        Ok(MlxTensor::new(vec![Part::flat(out)], None))
    }

    pub(super) fn attend_memories(
        &self,
        q: &MlxTensor,
        memories: &[&MlxMemory],
        step: &MlxStep,
    ) -> ComputeResult<MlxTensor> {
        let rows: usize = step.groups.iter().map(|group| group.plan.members.len()).sum();
        let parts = q.parts();
        let fits = |part: &Part| memories.iter().all(|memory| memory.width == part.features());
        if memories.len() != rows || parts.len() != step.groups.len() || !parts.iter().all(fits) {
            let found: Vec<usize> = memories.iter().map(|memory| memory.width).collect();
            let detail = format!("memories of {found:?} features for {rows} rows in {} batches", parts.len());
            return Err(ComputeError::Shape { operation: "cross_attention", detail });
        }
        let attend = |part: &Part, members: &[usize]| self.attend_members(part, members, memories);
        let parts = parts.iter().zip(&step.groups).map(|(part, group)| attend(part, &group.plan.members));
        Ok(MlxTensor::new(parts.collect::<Result<_>>()?, None))
    }

    /// One batch's rows over their memories. Rows that listen to the same window are computed together.
    fn attend_members(&self, part: &Part, members: &[usize], memories: &[&MlxMemory]) -> Result<Part> {
        let graph = &*self.graph;
        let q = part.to_flat(graph)?;
        let mut heard: Vec<Array> = Vec::new();
        let mut first = 0;
        while first < members.len() {
            let memory = memories[members[first]];
            let alike = members[first..].iter().take_while(|&&member| std::ptr::eq(memories[member], memory)).count();
            let rows = if alike == members.len() {
                Rc::clone(&q)
            } else {
                Rc::new(graph.slice(&q, 0, first as i32, (first + alike) as i32)?)
            };
            let queries = scaled_queries(graph, &rows, memory.heads)?;
            heard.push(attended(graph, &queries, &memory.keys, &memory.values, &Mask::None)?);
            first += alike;
        }
        match <[Array; 1]>::try_from(heard) {
            Ok([all]) => Ok(Part::flat(all)),
            Err(heard) => Ok(Part::flat(graph.concatenate(&heard.iter().collect::<Vec<_>>(), 0)?)),
        }
    }

    pub(super) fn memory_scores(&self, q: &MlxTensor, memory: &MlxMemory, heads: &[usize]) -> ComputeResult<MlxTensor> {
        let graph = &*self.graph;
        let q = alone("cross_scores", graph, q)?;
        if q.dim(2) as usize != memory.width || heads.iter().any(|&head| head >= memory.heads) {
            let detail = format!("queries {:?} and heads {heads:?} of {}", q.shape(), memory.heads);
            return Err(ComputeError::Shape { operation: "cross_scores", detail });
        }
        let scores = graph.matmul(&scaled_queries(graph, &q, memory.heads)?, &memory.keys)?;
        let numbers: Vec<u32> = heads.iter().map(|&head| head as u32).collect();
        let chosen = graph.take(&scores, &data::from_u32(&numbers, &[heads.len() as i32])?, 1)?;
        let (count, tokens, lines) = (chosen.dim(1), chosen.dim(2), chosen.dim(3));
        let flat = graph.reshape(&chosen, &[1, count * tokens, lines])?;
        Ok(MlxTensor::new(vec![Part::flat(flat)], None))
    }
}

/// The lines of a tensor that is one batch of one row.
fn alone(operation: &'static str, graph: &Graph, x: &MlxTensor) -> ComputeResult<Rc<Array>> {
    if let [part] = x.parts() {
        let flat = part.to_flat(graph)?;
        if flat.dim(0) == 1 {
            return Ok(flat);
        }
    }
    Err(ComputeError::Shape { operation, detail: format!("{} batches where one row is expected", x.parts().len()) })
}
