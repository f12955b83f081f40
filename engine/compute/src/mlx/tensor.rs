//! Activations of a step.

use super::graph::{Graph, Result};
use mlx_rs::Array;
use std::rc::Rc;

/// Activations of a step: one part for each batch of rows that is computed together. Clones share their arrays.
#[derive(Debug, Clone)]
pub struct MlxTensor {
    pub(super) parts: Parts,
    /// Which of a step's output lines each part holds; known once only output lines are left.
    pub(super) lines: Option<Rc<[Vec<usize>]>>,
}

/// Most steps have one part, which then costs no list.
#[derive(Debug, Clone)]
pub(super) enum Parts {
    One(Part),
    Many(Rc<[Part]>),
}

/// One batch's activations.
#[derive(Debug, Clone)]
pub(super) enum Part {
    /// `[batch, length, features]`.
    Flat(Rc<Array>),
    /// `[batch, heads, length, head_dim]`.
    Heads(Rc<Array>),
}

impl MlxTensor {
    pub(super) fn new(parts: Vec<Part>, lines: Option<Rc<[Vec<usize>]>>) -> Self {
        let parts = match <[Part; 1]>::try_from(parts) {
            Ok([part]) => Parts::One(part),
            Err(parts) => Parts::Many(parts.into()),
        };
        Self { parts, lines }
    }

    pub(super) fn parts(&self) -> &[Part] {
        match &self.parts {
            Parts::One(part) => std::slice::from_ref(part),
            Parts::Many(parts) => parts,
        }
    }

    /// Applies an operation to every part.
    pub(super) fn map(&self, operation: impl Fn(&Part) -> Result<Part>) -> Result<Self> {
        let parts = match &self.parts {
            Parts::One(part) => Parts::One(operation(part)?),
            Parts::Many(parts) => Parts::Many(parts.iter().map(operation).collect::<Result<_>>()?),
        };
        Ok(Self { parts, lines: self.lines.clone() })
    }

    /// Applies an operation on flat arrays to every part.
    pub(super) fn map_flat(&self, graph: &Graph, operation: impl Fn(&Array) -> Result<Array>) -> Result<Self> {
        self.map(|part| Ok(Part::flat(operation(&*part.to_flat(graph)?)?)))
    }

    /// Applies an operation on two flat arrays to the parts of two tensors of one step.
    pub(super) fn zip_flat(
        &self,
        other: &Self,
        graph: &Graph,
        operation: impl Fn(&Array, &Array) -> Result<Array>,
    ) -> Result<Self> {
        let apply = |a: &Part, b: &Part| Ok(Part::flat(operation(&*a.to_flat(graph)?, &*b.to_flat(graph)?)?));
        let parts = match (&self.parts, &other.parts) {
            (Parts::One(a), Parts::One(b)) => Parts::One(apply(a, b)?),
            (a, b) => {
                let (a, b) = (Self::slice(a), Self::slice(b));
                if a.len() != b.len() {
                    return Err(super::failure::Failure::new(
                        "step",
                        format!("tensors of {} and of {} batches belong to different steps", a.len(), b.len()),
                    ));
                }
                Parts::Many(a.iter().zip(b).map(|(a, b)| apply(a, b)).collect::<Result<_>>()?)
            }
        };
        Ok(Self { parts, lines: self.lines.clone() })
    }

    fn slice(parts: &Parts) -> &[Part] {
        match parts {
            Parts::One(part) => std::slice::from_ref(part),
            Parts::Many(parts) => parts,
        }
    }
}

impl Part {
    pub(super) fn flat(array: Array) -> Self {
        Self::Flat(Rc::new(array))
    }

    /// `[batch, length, features]`.
    pub(super) fn to_flat(&self, graph: &Graph) -> Result<Rc<Array>> {
        match self {
            Self::Flat(array) => Ok(Rc::clone(array)),
            Self::Heads(array) => Ok(Rc::new(join_heads(graph, array)?)),
        }
    }

    /// `[batch, heads, length, head_dim]`.
    pub(super) fn to_heads(&self, graph: &Graph, head_dim: usize) -> Result<Rc<Array>> {
        match self {
            Self::Heads(array) => Ok(Rc::clone(array)),
            other => Ok(Rc::new(split_heads(graph, &*other.to_flat(graph)?, head_dim)?)),
        }
    }

    /// How many features each line has.
    pub(super) fn features(&self) -> usize {
        match self {
            Self::Flat(array) => array.dim(2) as usize,
            Self::Heads(array) => (array.dim(1) * array.dim(3)) as usize,
        }
    }
}

/// `[batch, length, heads * head_dim]` as `[batch, heads, length, head_dim]`.
pub(super) fn split_heads(graph: &Graph, x: &Array, head_dim: usize) -> Result<Array> {
    let (batch, length, width) = (x.dim(0), x.dim(1), x.dim(2));
    let head_dim = head_dim as i32;
    if length == 1 {
        // With one token the two orders are the same elements in the same places.
        return graph.reshape(x, &[batch, width / head_dim, 1, head_dim]);
    }
    let split = graph.reshape(x, &[batch, length, width / head_dim, head_dim])?;
    graph.transpose(&split, &[0, 2, 1, 3])
}

/// `[batch, heads, length, head_dim]` as `[batch, length, heads * head_dim]`.
pub(super) fn join_heads(graph: &Graph, x: &Array) -> Result<Array> {
    let (batch, heads, length, head_dim) = (x.dim(0), x.dim(1), x.dim(2), x.dim(3));
    if length == 1 {
        return graph.reshape(x, &[batch, 1, heads * head_dim]);
    }
    let joined = graph.transpose(x, &[0, 2, 1, 3])?;
    graph.reshape(&joined, &[batch, length, heads * head_dim])
}
