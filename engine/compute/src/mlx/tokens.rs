//! Token ids, on the host or still being computed.

use super::graph::{Graph, Result, data};
use mlx_rs::Array;
use std::{ops::Range, rc::Rc};

/// Token ids of a step, in order. Clones share their arrays.
#[derive(Debug, Clone, Default)]
pub struct MlxTokens {
    ids: Rc<[Id]>,
}

/// One token id.
#[derive(Debug, Clone)]
pub(super) enum Id {
    /// Known.
    Host(u32),
    /// An element of an array of ids, in row-major order.
    Device(Rc<Array>, usize),
}

impl MlxTokens {
    pub(super) fn host(ids: &[u32]) -> Self {
        Self { ids: ids.iter().copied().map(Id::Host).collect() }
    }

    pub(super) fn new(ids: Vec<Id>) -> Self {
        Self { ids: ids.into() }
    }

    pub(super) fn ids(&self) -> &[Id] {
        &self.ids
    }

    /// Some ranges of others, one after the other.
    pub(super) fn join(parts: &[(&Self, Range<usize>)]) -> Option<Self> {
        if let [(tokens, range)] = parts
            && *range == (0..tokens.ids.len())
        {
            return Some((*tokens).clone());
        }
        let mut ids = Vec::new();
        for (tokens, range) in parts {
            ids.extend_from_slice(tokens.ids.get(range.clone())?);
        }
        Some(Self::new(ids))
    }

    /// Different arrays that must be computed to know all ids.
    pub(super) fn arrays(&self) -> Vec<&Rc<Array>> {
        let mut arrays: Vec<&Rc<Array>> = Vec::new();
        for id in &*self.ids {
            if let Id::Device(array, _) = id
                && !arrays.iter().any(|known| Rc::ptr_eq(known, array))
            {
                arrays.push(array);
            }
        }
        arrays
    }
}

/// Ids as an array `[rows, length]`; `None` stands for padding.
pub(super) fn to_array(graph: &Graph, ids: &[Option<&Id>], rows: usize, length: usize) -> Result<Array> {
    let shape = [rows as i32, length as i32];
    // All of one array in its own order, as a decode step feeds the next.
    if let Some(Some(Id::Device(array, 0))) = ids.first() {
        let is_whole = array.size() == ids.len()
            && ids.iter().enumerate().all(
                |(place, id)| matches!(id, Some(Id::Device(other, index)) if Rc::ptr_eq(array, other) && *index == place),
            );
        if is_whole {
            return if array.shape() == shape { Ok((**array).clone()) } else { graph.reshape(array, &shape) };
        }
    }
    let known: Option<Vec<u32>> = ids
        .iter()
        .map(|id| match id {
            None => Some(0),
            Some(Id::Host(id)) => Some(*id),
            Some(Id::Device(..)) => None,
        })
        .collect();
    if let Some(known) = known {
        return data::from_u32(&known, &shape);
    }
    let mut single = Vec::with_capacity(ids.len());
    for id in ids {
        single.push(match id {
            None => data::from_u32(&[0], &[1])?,
            Some(Id::Host(id)) => data::from_u32(&[*id], &[1])?,
            Some(Id::Device(array, index)) => {
                let flat = graph.reshape(array, &[array.size() as i32])?;
                graph.slice(&flat, 0, *index as i32, *index as i32 + 1)?
            }
        });
    }
    graph.reshape(&graph.concatenate(&single.iter().collect::<Vec<_>>(), 0)?, &shape)
}
