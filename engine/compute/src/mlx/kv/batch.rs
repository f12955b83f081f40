//! Rows that are computed together: the bookkeeping of mlx-lm 0.32.2's `KVCache` (one row alone) and `BatchKVCache`
//! (rows that end at the same place and are padded on the left), for all layers at once.

use super::{
    GROWTH, KvShape,
    layer::{LayerStore, in_order},
    rotation::{Rotation, Write},
    stored::Stored,
};
use crate::{
    Slot,
    mlx::graph::{Graph, Packing, Result},
};

/// Some rows and what every layer holds of them.
#[derive(Debug, Clone)]
pub(in crate::mlx) struct Batch {
    pub(super) rows: Vec<HeldRow>,
    /// One row, without padding and masks.
    pub(in crate::mlx) lone: bool,
    /// When it began to generate, counted in steps; prompts have not.
    pub(super) generating_since: Option<u64>,
    /// Where the next token goes in layers without a window.
    pub(in crate::mlx) index: usize,
    /// Places before each row's first token in layers without a window.
    pub(in crate::mlx) left_padding: Vec<usize>,
    /// One for each window of the model.
    pub(in crate::mlx) rotations: Vec<Rotation>,
    pub(super) layers: Vec<LayerStore>,
    /// Places after each row's last token that still have to be moved to its front.
    pub(super) right_padding: Option<Vec<usize>>,
}

/// A row of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeldRow {
    pub(super) slot: Slot,
    /// Tokens it holds.
    pub(super) length: usize,
    /// Closed rows leave the batch before its next step.
    pub(super) is_open: bool,
}

impl Batch {
    /// Rows that hold nothing yet.
    pub(super) fn empty(shape: &KvShape, slots: &[Slot]) -> Self {
        Self {
            rows: slots.iter().map(|&slot| HeldRow { slot, length: 0, is_open: true }).collect(),
            lone: false,
            generating_since: None,
            index: 0,
            left_padding: vec![0; slots.len()],
            rotations: shape.windows.iter().map(|&window| Rotation::new(window, slots.len())).collect(),
            layers: vec![LayerStore::default(); shape.layers.len()],
            right_padding: None,
        }
    }

    /// The longest row.
    pub(super) fn longest(&self) -> usize {
        self.rows.iter().map(|row| row.length).max().unwrap_or(0)
    }

    /// Bytes of all arrays.
    pub(super) fn bytes(&self) -> usize {
        self.layers.iter().map(LayerStore::bytes).sum()
    }

    /// Tokens that layers without a window have room for.
    pub(super) fn room(&self, shape: &KvShape) -> usize {
        let full = shape.layers.iter().zip(&self.layers).find(|(layer, _)| layer.window.is_none());
        full.and_then(|(_, store)| store.held.as_ref()).map_or(0, |(keys, _)| keys.tokens())
    }

    /// Takes in `length` places for every row, of which `lengths` are tokens and the rest padding on the right. Returns
    /// what layers without a window do, and what those with each window do.
    pub(super) fn advance(&mut self, room: usize, length: usize, lengths: &[usize]) -> (Write, Vec<Write>) {
        let previous = self.index;
        self.index += length;
        let is_full = self.index > room;
        let full = Write::InPlace {
            cut: (is_full && !previous.is_multiple_of(GROWTH)).then_some(previous),
            grow: if is_full { length.next_multiple_of(GROWTH) } else { 0 },
            trim: 0,
            at: previous,
            view: self.index,
        };
        let windows = self.rotations.iter_mut().map(|rotation| rotation.advance(length)).collect();
        for (row, &tokens) in self.rows.iter_mut().zip(lengths) {
            row.length += tokens;
        }
        if lengths.iter().any(|&tokens| tokens < length) {
            self.right_padding = Some(lengths.iter().map(|&tokens| length - tokens).collect());
        }
        (full, windows)
    }

    /// What is known of the rows, without their arrays: what [`Batch::restore`] takes.
    pub(super) fn bookkeeping(&self) -> Self {
        Self {
            rows: self.rows.clone(),
            lone: self.lone,
            generating_since: self.generating_since,
            index: self.index,
            left_padding: self.left_padding.clone(),
            rotations: self.rotations.clone(),
            layers: Vec::new(),
            right_padding: self.right_padding.clone(),
        }
    }

    /// Takes back what was counted in since, as long as nothing was written.
    pub(super) fn restore(&mut self, bookkeeping: Self) {
        let layers = std::mem::take(&mut self.layers);
        *self = Self { layers, ..bookkeeping };
    }

    /// Brings the batch into its settled form after a step: no padding on the right, quantized if it is time. A batch
    /// that cannot be settled stays as it was.
    pub(super) fn settle(&mut self, graph: &Graph, shape: &KvShape) -> Result<()> {
        if self.right_padding.is_none() && !self.is_to_be_quantized(shape) {
            return Ok(());
        }
        let mut settled = self.clone();
        settled.settle_here(graph, shape)?;
        *self = settled;
        Ok(())
    }

    fn is_to_be_quantized(&self, shape: &KvShape) -> bool {
        shape.packing.is_some() && self.is_affine(shape) == Some(false) && self.longest() >= shape.quantized_from
    }

    fn settle_here(&mut self, graph: &Graph, shape: &KvShape) -> Result<()> {
        if let Some(padding) = self.right_padding.take() {
            for layer in &mut self.layers {
                layer.map(|held| held.rolled_each(graph, &padding))?;
            }
            for (left, &moved) in self.left_padding.iter_mut().zip(&padding) {
                *left += moved;
            }
            for rotation in &mut self.rotations {
                for (left, &moved) in rotation.left_padding.iter_mut().zip(&padding) {
                    *left += moved as i64;
                }
            }
        }
        if let Some(packing) = shape.packing.filter(|_| self.is_to_be_quantized(shape)) {
            self.quantize(graph, shape, packing)?;
        }
        Ok(())
    }

    pub(super) fn quantize(&mut self, graph: &Graph, shape: &KvShape, packing: Packing) -> Result<()> {
        for (layer, store) in shape.layers.iter().zip(&mut self.layers) {
            if layer.window.is_none() {
                store.map(|held| held.quantized(graph, packing))?;
            }
        }
        Ok(())
    }

    /// Forgets the last tokens of a batch of one row, none of which a window has dropped.
    ///
    /// A window that was shared with longer rows may have turned, or hold more places than it has tokens, because this
    /// row was padded; what is forgotten then stands in the middle, and would be seen again. Such windows are brought
    /// into the order of time and rid of their padding first.
    pub(super) fn trim(&mut self, graph: &Graph, shape: &KvShape, tokens: usize) -> Result<()> {
        let held = self.longest();
        let mut layers = self.layers.clone();
        let mut rotations = self.rotations.clone();
        for (number, rotation) in rotations.iter_mut().enumerate() {
            let is_padded = rotation.left_padding.iter().any(|&padding| padding > 0);
            if !rotation.rotated && !is_padded && rotation.size <= rotation.window {
                continue;
            }
            let (order, places) = rotation.order();
            for (layer, store) in shape.layers.iter().zip(&mut layers) {
                if layer.window_number == Some(number) {
                    store.map(|stored| {
                        in_order(graph, stored, order)?.cut(graph, places.saturating_sub(held), places)
                    })?;
                }
            }
            let size = held.min(places);
            *rotation = Rotation {
                offset: size,
                index: size,
                size,
                rotated: false,
                left_padding: vec![0; self.rows.len()],
                ..rotation.clone()
            };
        }
        (self.layers, self.rotations) = (layers, rotations);
        self.index = self.index.saturating_sub(tokens);
        for row in &mut self.rows {
            row.length = row.length.saturating_sub(tokens);
        }
        for rotation in &mut self.rotations {
            rotation.offset = rotation.offset.saturating_sub(tokens);
            rotation.index = rotation.index.saturating_sub(tokens);
        }
        Ok(())
    }

    /// Keeps the rows of these numbers, ascending, and drops padding that all of them have.
    pub(super) fn filter(&mut self, graph: &Graph, keep: &[usize], shape: &KvShape) -> Result<()> {
        if keep.len() < self.rows.len() {
            for layer in &mut self.layers {
                layer.map(|held| held.keep_rows(graph, keep))?;
            }
            pick(&mut self.rows, keep);
            pick(&mut self.left_padding, keep);
            for rotation in &mut self.rotations {
                pick(&mut rotation.left_padding, keep);
            }
        }
        let spare = self.left_padding.iter().copied().min().unwrap_or(0);
        if spare > 0 {
            for (layer, store) in shape.layers.iter().zip(&mut self.layers) {
                if layer.window.is_none() {
                    store.map(|held| held.cut(graph, spare, held.tokens()))?;
                }
            }
            self.index -= spare;
            for left in &mut self.left_padding {
                *left -= spare;
            }
        }
        Ok(())
    }

    /// Splits off the rows of these numbers, ascending.
    pub(super) fn split(&mut self, graph: &Graph, taken: &[usize], shape: &KvShape) -> Result<Self> {
        let mut split = Self { layers: self.layers.clone(), right_padding: None, ..self.bookkeeping() };
        let rest: Vec<usize> = (0..self.rows.len()).filter(|row| !taken.contains(row)).collect();
        self.filter(graph, &rest, shape)?;
        split.filter(graph, taken, shape)?;
        Ok(split)
    }

    /// Whether this is one row without padding before it, which needs no mask.
    pub(super) fn can_be_lone(&self) -> bool {
        let windows = self.rotations.iter().flat_map(|rotation| &rotation.left_padding);
        self.rows.len() == 1 && self.left_padding == [0] && windows.into_iter().all(|&padding| padding <= 0)
    }

    /// Takes over the rows of another batch. Both end at the same place afterwards.
    pub(super) fn extend(&mut self, graph: &Graph, mut other: Self, shape: &KvShape) -> Result<()> {
        self.lone = false;
        if self.is_affine(shape) != other.is_affine(shape)
            && let Some(packing) = shape.packing
        {
            self.quantize(graph, shape, packing)?;
            other.quantize(graph, shape, packing)?;
        }
        self.extend_full(graph, &other, shape)?;
        for number in 0..self.rotations.len() {
            self.extend_window(graph, &mut other, shape, number)?;
        }
        self.rows.append(&mut other.rows);
        Ok(())
    }

    fn is_affine(&self, shape: &KvShape) -> Option<bool> {
        let full = shape.layers.iter().zip(&self.layers).find(|(layer, _)| layer.window.is_none());
        full.and_then(|(_, store)| store.held.as_ref()).map(|(keys, _)| matches!(keys, Stored::Affine(_)))
    }

    fn extend_full(&mut self, graph: &Graph, other: &Self, shape: &KvShape) -> Result<()> {
        let index = self.index.max(other.index);
        let (left, other_left) = (index - self.index, index - other.index);
        let size = self.room(shape).max(other.room(shape));
        for (number, layer) in shape.layers.iter().enumerate() {
            if layer.window.is_none() {
                let rows = [self.rows.len(), other.rows.len()];
                join(graph, &mut self.layers[number], &other.layers[number], rows, [left, other_left], size)?;
            }
        }
        self.left_padding = self
            .left_padding
            .iter()
            .map(|padding| padding + left)
            .chain(other.left_padding.iter().map(|padding| padding + other_left))
            .collect();
        self.index = index;
        Ok(())
    }

    fn extend_window(&mut self, graph: &Graph, other: &mut Self, shape: &KvShape, number: usize) -> Result<()> {
        let (ours, theirs) = (&self.rotations[number], &other.rotations[number]);
        if ours.size > 0 || theirs.size > 0 {
            if ours.rotated != theirs.rotated || ours.index != theirs.index {
                self.unroll(graph, shape, number)?;
                other.unroll(graph, shape, number)?;
            }
            let (ours, theirs) = (&self.rotations[number], &other.rotations[number]);
            let index = ours.index.max(theirs.index);
            let lefts = [index - ours.index, index - theirs.index];
            let size = ours.size.max(theirs.size);
            let joined = Rotation {
                window: ours.window,
                offset: ours.offset.max(theirs.offset),
                index,
                size,
                rotated: ours.rotated,
                left_padding: ours
                    .left_padding
                    .iter()
                    .map(|padding| padding + lefts[0] as i64)
                    .chain(theirs.left_padding.iter().map(|padding| padding + lefts[1] as i64))
                    .collect(),
            };
            let rows = [self.rows.len(), other.rows.len()];
            for (layer, description) in shape.layers.iter().enumerate() {
                if description.window_number == Some(number) {
                    join(graph, &mut self.layers[layer], &other.layers[layer], rows, lefts, size)?;
                }
            }
            self.rotations[number] = joined;
        } else {
            let theirs = theirs.left_padding.clone();
            self.rotations[number].left_padding.extend(theirs);
        }
        Ok(())
    }

    /// Puts a window that wraps around into the order of time.
    fn unroll(&mut self, graph: &Graph, shape: &KvShape, number: usize) -> Result<()> {
        let rotation = &mut self.rotations[number];
        if rotation.rotated {
            let shift = rotation.index;
            rotation.index = rotation.size;
            rotation.rotated = false;
            for (layer, store) in shape.layers.iter().zip(&mut self.layers) {
                if layer.window_number == Some(number) {
                    store.map(|held| held.rolled_back(graph, shift))?;
                }
            }
        }
        Ok(())
    }
}

/// Puts the rows of two stores below one another, moved right by `lefts` and brought to `size` places.
fn join(
    graph: &Graph,
    ours: &mut LayerStore,
    theirs: &LayerStore,
    rows: [usize; 2],
    lefts: [usize; 2],
    size: usize,
) -> Result<()> {
    let fit = |held: &Stored, left: usize| -> Result<Stored> {
        let tokens = held.tokens();
        match size.checked_sub(tokens + left) {
            Some(right) => held.padded(graph, left, right),
            None => held.cut(graph, 0, size - left)?.padded(graph, left, 0),
        }
    };
    let both = |ours: Option<&Stored>, theirs: Option<&Stored>| -> Result<Option<Stored>> {
        let Some(like) = ours.or(theirs) else { return Ok(None) };
        let side = |held: Option<&Stored>, number: usize| match held {
            Some(held) => fit(held, lefts[number]),
            None => like.zeros_like(graph, rows[number], size),
        };
        Ok(Some(side(ours, 0)?.above(graph, &side(theirs, 1)?)?))
    };
    let (our_keys, our_values) = ours.held.as_ref().map(|(keys, values)| (keys, values)).unzip();
    let (their_keys, their_values) = theirs.held.as_ref().map(|(keys, values)| (keys, values)).unzip();
    ours.held = both(our_keys, their_keys)?.zip(both(our_values, their_values)?);
    Ok(())
}

fn pick<T: Clone>(items: &mut Vec<T>, keep: &[usize]) {
    *items = keep.iter().filter_map(|&index| items.get(index).cloned()).collect();
}
