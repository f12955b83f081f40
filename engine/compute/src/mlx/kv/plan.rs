//! Which rows of a step are computed together, and what each batch does in it.

use super::{Built, MlxKv, rotation::Write};
use crate::{
    Outputs, Result, Row,
    mlx::{
        graph::{Graph, Mask, data},
        mask,
    },
};
use mlx_rs::Array;
use std::{cell::OnceCell, rc::Rc};

/// Prompts of at most this many tokens in a step are processed together; a longer one fills a GPU by itself.
const SHARED_PROMPT: usize = 256;

/// Places that padding may cost whatever the rows are.
const FREE_PADDING: usize = 4096;

/// Rows that are computed together.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// Their numbers in the step, in the order of the batch.
    pub(super) members: Vec<usize>,
    /// Whether each is the latest token of a sequence that generates.
    pub(super) generates: bool,
}

/// What one batch does in a step.
pub(crate) struct GroupPlan {
    pub(crate) graph: Rc<Graph>,
    pub(crate) batch: u64,
    /// The step's row for each row of the batch.
    pub(crate) members: Vec<usize>,
    /// How many places each row takes, padding included.
    pub(crate) length: usize,
    /// How many tokens each row held before.
    pub(crate) positions: Vec<usize>,
    /// The same for MLX: one number for a row alone, else one each.
    pub(crate) offset: Array,
    /// Places before each row's first token, and where all rows end, in layers without a window.
    left_padding: Vec<usize>,
    end: usize,
    spans: OnceCell<Array>,
    pub(super) full: Write,
    pub(super) windows: Vec<Write>,
    pub(super) full_mask: Mask,
    pub(super) window_masks: Vec<Mask>,
}

impl GroupPlan {
    /// The mask of layers with this window, or of those without one.
    pub(crate) fn mask(&self, window_number: Option<usize>) -> &Mask {
        window_number.and_then(|number| self.window_masks.get(number)).unwrap_or(&self.full_mask)
    }

    /// For layers without a window: each row's left padding and its end, `[rows, 2]`.
    pub(crate) fn spans(&self) -> Built<&Array> {
        if let Some(spans) = self.spans.get() {
            return Ok(spans);
        }
        let pairs: Vec<i32> = self.left_padding.iter().flat_map(|&padding| [padding as i32, self.end as i32]).collect();
        let spans = data::from_i32(&pairs, &[self.left_padding.len() as i32, 2])?;
        Ok(self.spans.get_or_init(|| spans))
    }

    /// The most tokens that a row sees in layers without a window.
    pub(crate) fn longest_span(&self) -> usize {
        self.end - self.left_padding.iter().copied().min().unwrap_or(0).min(self.end)
    }
}

/// Whether rows of these lengths may be padded to the longest: padding at most doubles them, or is small.
fn is_padding_worthwhile(lengths: impl Iterator<Item = usize>) -> bool {
    let (mut rows, mut sum, mut longest) = (0, 0, 0);
    for length in lengths {
        rows += 1;
        sum += length;
        longest = longest.max(length);
    }
    rows * longest <= 2 * sum + FREE_PADDING
}

impl MlxKv {
    /// Cuts a step into groups as mlx-lm's `BatchGenerator` does: what generates already, then what begins to, then the
    /// prompts.
    pub(super) fn partition(&self, rows: &[Row]) -> Vec<Group> {
        let generates = |row: &Row| row.length == 1 && row.outputs != Outputs::None;
        let lengths =
            |members: &[usize]| members.iter().map(|&row| rows[row].start + rows[row].length).collect::<Vec<_>>();
        let worthwhile = |members: &[usize]| is_padding_worthwhile(lengths(members).into_iter());
        // By batch and row; sequences without a batch come last, in the step's order.
        let ordered = |filter: &dyn Fn(&Row) -> bool| {
            let mut members: Vec<usize> = (0..rows.len()).filter(|&row| filter(&rows[row])).collect();
            members.sort_by_key(|&row| match self.place(rows[row].slot) {
                Some((batch, line)) => (self.since(batch), self.batches[batch].number, line),
                None => (u64::MAX, u64::MAX, row),
            });
            members
        };
        let mut groups = Vec::new();
        let mut generating: Vec<(u64, Vec<usize>)> = Vec::new();
        let mut beginning = Vec::new();
        for row in ordered(&generates) {
            match self.place(rows[row].slot).filter(|&(batch, _)| self.since(batch) < u64::MAX) {
                None => beginning.push(row),
                Some((batch, _)) => {
                    let number = self.batches[batch].number;
                    match generating.last_mut().filter(|(last, _)| *last == number) {
                        Some((_, members)) => members.push(row),
                        None => generating.push((number, vec![row])),
                    }
                }
            }
        }
        let mut together: Vec<usize> = Vec::new();
        for (_, members) in generating {
            let joined = [together.as_slice(), members.as_slice()].concat();
            if together.is_empty() || worthwhile(&joined) {
                together = joined;
            } else {
                groups.push(Group { members: std::mem::replace(&mut together, members), generates: true });
            }
        }
        if !together.is_empty() {
            groups.push(Group { members: together, generates: true });
        }
        add(&mut groups, beginning, true, |members| worthwhile(members));
        let prompts = ordered(&|row| !generates(row));
        add(&mut groups, prompts, false, |members| {
            members.iter().all(|&row| rows[row].length <= SHARED_PROMPT) && worthwhile(members)
        });
        groups
    }

    fn since(&self, batch: usize) -> u64 {
        self.batches[batch].batch.generating_since.unwrap_or(u64::MAX)
    }

    /// What a batch does in a step; counts its tokens in.
    pub(super) fn plan(&mut self, index: usize, rows: &[Row], members: Vec<usize>) -> Result<GroupPlan> {
        let graph = Rc::clone(&self.graph);
        let numbered = &mut self.batches[index];
        let batch = &mut numbered.batch;
        let lengths: Vec<usize> = members.iter().map(|&row| rows[row].length).collect();
        let length = lengths.iter().copied().max().unwrap_or(0);
        let positions: Vec<usize> = batch.rows.iter().map(|row| row.length).collect();
        let build = || -> Built<(Array, Mask, Vec<Mask>)> {
            let offset = if batch.lone {
                data::integer(positions[0] as i32)?
            } else {
                let positions: Vec<i32> = positions.iter().map(|&position| position as i32).collect();
                data::from_i32(&positions, &[positions.len() as i32])?
            };
            let has_full = self.shape.layers.iter().any(|layer| layer.window.is_none());
            let full = if has_full { mask::full(&graph, batch, length)? } else { Mask::None };
            let windows = batch
                .rotations
                .iter()
                .map(|rotation| mask::windowed(&graph, rotation, batch.lone, length))
                .collect::<Built<Vec<_>>>()?;
            Ok((offset, full, windows))
        };
        let (offset, full_mask, window_masks) = build()?;
        let left_padding = if batch.lone { vec![0] } else { batch.left_padding.clone() };
        let end = batch.index + length;
        let room = batch.room(&self.shape);
        let (full, windows) = batch.advance(room, length, &lengths);
        Ok(GroupPlan {
            graph,
            batch: numbered.number,
            members,
            length,
            positions,
            offset,
            left_padding,
            end,
            spans: OnceCell::new(),
            full,
            windows,
            full_mask,
            window_masks,
        })
    }
}

/// One group of all of them if they go together, else one for each.
fn add(groups: &mut Vec<Group>, members: Vec<usize>, generates: bool, together: impl Fn(&[usize]) -> bool) {
    if members.is_empty() {
        return;
    }
    if together(&members) {
        groups.push(Group { members, generates });
    } else {
        groups.extend(members.into_iter().map(|row| Group { members: vec![row], generates }));
    }
}

#[cfg(test)]
mod tests {
    use super::is_padding_worthwhile;

    #[test]
    fn padding_is_refused_only_where_it_costs_much() {
        let worthwhile = |lengths: &[usize]| is_padding_worthwhile(lengths.iter().copied());
        assert!(worthwhile(&[5, 900, 30]));
        assert!(worthwhile(&[8000, 8000, 9000]));
        assert!(worthwhile(&[10_000, 5000]));
        assert!(!worthwhile(&[30_000, 100, 100, 100]));
    }
}
