//! What every operation of a step needs to know of it.

use crate::{ComputeError, Result, Row};
use std::rc::Rc;

/// A step's tokens, flat, and the rows they are cut into.
#[derive(Debug)]
pub struct CpuStep {
    rows: Vec<Row>,
    tokens: Rc<[u32]>,
    positions: Vec<u32>,
    outputs: Vec<usize>,
}

impl CpuStep {
    pub(super) fn new(rows: &[Row], tokens: &Rc<[u32]>) -> Result<Self> {
        Row::check_all(rows, tokens.len())?;
        let mut positions = Vec::with_capacity(tokens.len());
        let mut outputs = Vec::new();
        for row in rows {
            let first = positions.len();
            for position in row.start..row.start + row.length {
                positions.push(u32::try_from(position).map_err(|_| ComputeError::Shape {
                    operation: "step",
                    detail: format!("position {position} is beyond 32 bits"),
                })?);
            }
            outputs.extend(row.outputs.places(row.length).map(|place| first + place));
        }
        Ok(Self { rows: rows.to_vec(), tokens: Rc::clone(tokens), positions, outputs })
    }

    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Each token's position in its sequence.
    pub(super) fn positions(&self) -> &[u32] {
        &self.positions
    }

    /// The tokens, by their place in the flat list, that reach the output head.
    pub(super) fn outputs(&self) -> &[usize] {
        &self.outputs
    }

    /// Each row and the place of its first token in the flat list.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&Row, usize)> {
        self.rows.iter().scan(0, |first, row| {
            let begin = *first;
            *first += row.length;
            Some((row, begin))
        })
    }
}
