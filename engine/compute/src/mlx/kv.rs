//! Keys and values in padded arrays `[rows, heads, tokens, head_dim]`, as mlx-lm 0.32.2 keeps them.
//!
//! Sequences that are computed together share a [`Batch`]. One that runs alone runs exactly as mlx-lm's `generate_step`
//! runs it; several run as its `BatchGenerator` does: prompts padded on the right and then moved, a finished prompt's
//! last token by itself, and what generates in one batch that grows and shrinks with its rows.

mod batch;
mod kept;
mod layer;
mod plan;
mod rotation;
mod stored;
mod transfer;

pub(crate) use plan::GroupPlan;
pub(crate) use stored::Stored;
pub(super) use {batch::Batch, rotation::Rotation};

use super::{
    MlxOptions,
    graph::{Graph, Packing, Result as GraphResult, data},
    memory::Memory,
};
use crate::{ComputeError, KeptBlock, KvBlock, KvLayout, KvStore, KvUsage, Result, Row, Slot};
use mlx_rs::Array;
use std::{ops::Range, rc::Rc};

/// Tokens by which arrays grow.
pub(super) const GROWTH: usize = 256;

/// The store of one model.
pub struct MlxKv {
    graph: Rc<Graph>,
    memory: Rc<Memory>,
    shape: KvShape,
    batches: Vec<Numbered>,
    capacity: usize,
    next_slot: u32,
    next_batch: u64,
    /// Counts steps, so that batches know which of them is older.
    steps: u64,
    /// Keeps sequences that run alone in the form of a batch of one.
    always_padded: bool,
    /// Open slots that hold nothing yet.
    fresh: Vec<Slot>,
    kept: kept::KeptBlocks,
}

/// A step that was begun: what its batches knew before.
#[derive(Debug)]
pub(super) struct Begun(Vec<(u64, Batch)>);

/// A batch by its number, which stays while indices move.
struct Numbered {
    number: u64,
    batch: Batch,
}

/// What is the same for all batches of a store.
#[derive(Debug)]
pub(super) struct KvShape {
    pub(super) layers: Vec<LayerShape>,
    /// The sizes of windows that occur.
    pub(super) windows: Vec<usize>,
    /// How layers without a window are quantized, if they are.
    pub(super) packing: Option<Packing>,
    /// From how many tokens on.
    pub(super) quantized_from: usize,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct LayerShape {
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) window: Option<usize>,
    /// Which of [`KvShape::windows`].
    pub(super) window_number: Option<usize>,
}

impl KvShape {
    fn new(layout: &KvLayout, options: &MlxOptions) -> Result<Self> {
        let mut windows = Vec::new();
        let mut layers = Vec::with_capacity(layout.layers.len());
        for layer in &layout.layers {
            let window_number = layer.window.map(|window| {
                windows.iter().position(|known| *known == window).unwrap_or_else(|| {
                    windows.push(window);
                    windows.len() - 1
                })
            });
            layers.push(LayerShape {
                kv_heads: layer.kv_heads,
                head_dim: layer.head_dim,
                window: layer.window,
                window_number,
            });
        }
        let packing = match options.kv_quantization {
            None => None,
            Some(quantization) => {
                for layer in layers.iter().filter(|layer| layer.window.is_none()) {
                    quantization.check(layer.head_dim)?;
                }
                Some(Packing { group_size: quantization.group_size as i32, bits: quantization.bits as i32 })
            }
        };
        let quantized_from = options.kv_quantization.map_or(0, |quantization| quantization.start);
        Ok(Self { layers, windows, packing, quantized_from })
    }

    /// Bytes of keys and values for one token, in floats of `element` bytes where they are not quantized.
    pub(super) fn bytes_per_token(&self, element: usize) -> usize {
        let bytes = |layer: &LayerShape| {
            let elements = 2 * layer.kv_heads * layer.head_dim;
            match self.packing.filter(|_| layer.window.is_none()) {
                None => elements * element,
                Some(Packing { group_size, bits }) => {
                    elements * bits as usize / 8 + elements / group_size as usize * 2 * element
                }
            }
        };
        self.layers.iter().map(bytes).sum()
    }
}

impl MlxKv {
    pub(super) fn new(
        graph: Rc<Graph>,
        memory: Rc<Memory>,
        layout: &KvLayout,
        options: &MlxOptions,
        capacity: usize,
    ) -> Result<Self> {
        Ok(Self {
            graph,
            memory,
            shape: KvShape::new(layout, options)?,
            batches: Vec::new(),
            capacity: capacity.next_multiple_of(GROWTH),
            next_slot: 0,
            next_batch: 0,
            steps: 0,
            always_padded: options.always_padded,
            fresh: Vec::new(),
            kept: kept::KeptBlocks::default(),
        })
    }

    /// Checks the rows, brings sequences that are computed together into one batch, makes room, and counts the tokens
    /// in. Returns one plan for each batch, and what takes the tokens back as long as nothing is written. When it fails
    /// every sequence holds what it held.
    pub(super) fn begin(&mut self, rows: &[Row]) -> Result<(Vec<GroupPlan>, Begun)> {
        self.check(rows)?;
        let groups = self.partition(rows);
        self.check_memory(rows, &groups)?;
        self.steps += 1;
        let mut plans = Vec::with_capacity(groups.len());
        let mut begun = Begun(Vec::with_capacity(groups.len()));
        for group in groups {
            let slots: Vec<Slot> = group.members.iter().map(|&row| rows[row].slot).collect();
            let planned = self.gather(&slots, group.generates).and_then(|index| {
                let Numbered { number, batch } = &self.batches[index];
                begun.0.push((*number, batch.bookkeeping()));
                self.plan(index, rows, group.members)
            });
            match planned {
                Ok(plan) => plans.push(plan),
                Err(error) => {
                    self.undo(begun);
                    return Err(error);
                }
            }
        }
        Ok((plans, begun))
    }

    /// Takes back the tokens of a step that was begun and came to nothing.
    pub(super) fn undo(&mut self, begun: Begun) {
        for (number, bookkeeping) in begun.0 {
            if let Some(numbered) = self.batches.iter_mut().find(|batch| batch.number == number) {
                numbered.batch.restore(bookkeeping);
            }
        }
    }

    /// Takes in a layer's keys and values for a plan's tokens; returns what its attention sees.
    pub(super) fn write(
        &mut self,
        plan: &GroupPlan,
        layer: usize,
        keys: &Array,
        values: &Array,
    ) -> Result<(Stored, Stored)> {
        let description = self.shape.layers.get(layer).copied().ok_or_else(|| ComputeError::Shape {
            operation: "attention",
            detail: format!("layer {layer} of a store with {} layers", self.shape.layers.len()),
        })?;
        let write = match description.window_number {
            None => &plan.full,
            Some(number) => &plan.windows[number],
        };
        let packing = self.shape.packing.filter(|_| description.window.is_none());
        let batch = self.numbered(plan.batch)?;
        let store = &mut batch.batch.layers[layer];
        Ok(store.write(&plan.graph, write, packing, keys, values)?)
    }

    /// The arrays that hold what a plan's batch knows, once the step is through: what a step without results leaves.
    pub(super) fn settle(&mut self, number: u64) -> Result<Vec<Array>> {
        let graph = Rc::clone(&self.graph);
        let Some(index) = self.batches.iter().position(|batch| batch.number == number) else { return Ok(Vec::new()) };
        let batch = &mut self.batches[index].batch;
        batch.settle(&graph, &self.shape)?;
        Ok(batch.layers.iter().flat_map(|layer| layer.arrays().cloned()).collect())
    }

    /// How many layers there are.
    pub(super) fn layers(&self) -> usize {
        self.shape.layers.len()
    }

    pub(super) fn layer(&self, layer: usize) -> Result<LayerShape> {
        self.shape.layers.get(layer).copied().ok_or_else(|| ComputeError::Shape {
            operation: "attention",
            detail: format!("layer {layer} of a store with {} layers", self.shape.layers.len()),
        })
    }

    /// Bytes that one token takes.
    pub(super) fn bytes_per_token(&self) -> usize {
        self.shape.bytes_per_token(self.memory.element_bytes())
    }

    pub(super) fn packing(&self) -> Option<Packing> {
        self.shape.packing
    }

    fn numbered(&mut self, number: u64) -> Result<&mut Numbered> {
        self.batches.iter_mut().find(|batch| batch.number == number).ok_or_else(|| ComputeError::Shape {
            operation: "attention",
            detail: "the step's sequences were closed or belong to another step by now".into(),
        })
    }

    /// Where a sequence is: the index of its batch and its row there.
    fn place(&self, slot: Slot) -> Option<(usize, usize)> {
        self.batches.iter().enumerate().find_map(|(index, numbered)| {
            let row = numbered.batch.rows.iter().position(|row| row.slot == slot && row.is_open)?;
            Some((index, row))
        })
    }

    fn check(&self, rows: &[Row]) -> Result<()> {
        let mut wanted = 0;
        for (number, row) in rows.iter().enumerate() {
            let held = self.length(row.slot)?;
            if held != row.start || rows[..number].iter().any(|earlier| earlier.slot == row.slot) {
                return Err(ComputeError::WrongStart { slot: row.slot.0, held, start: row.start });
            }
            wanted += (held + row.length).next_multiple_of(GROWTH) - held.next_multiple_of(GROWTH);
        }
        let used = self.usage().used_tokens;
        if used + wanted > self.capacity {
            let wanted = rows.iter().map(|row| row.length).sum();
            return Err(ComputeError::KvFull { used, capacity: self.capacity, wanted });
        }
        Ok(())
    }

    /// Refuses a step whose arrays would not fit into memory.
    fn check_memory(&self, rows: &[Row], groups: &[plan::Group]) -> Result<()> {
        let needed = self.needed_bytes(rows, groups);
        if needed == 0 { Ok(()) } else { self.memory.admit("the KV cache", needed) }
    }

    /// Bytes of the arrays that a step makes anew.
    fn needed_bytes(&self, rows: &[Row], groups: &[plan::Group]) -> usize {
        let mut needed = 0;
        for group in groups {
            let places = |row: usize| rows[row].start + rows[row].length;
            let longest = group.members.iter().map(|&row| places(row)).max().unwrap_or(0);
            let batch = group.members.first().and_then(|&row| self.place(rows[row].slot)).map(|(index, _)| index);
            let fits = batch.is_some_and(|index| {
                let batch = &self.batches[index].batch;
                batch.rows.len() == group.members.len() && longest <= batch.room(&self.shape)
            });
            if !fits {
                let places = group.members.len() * (longest.next_multiple_of(GROWTH) + GROWTH);
                needed += places * self.bytes_per_token();
            }
        }
        needed
    }

    /// Brings exactly these sequences into one batch, in this order, and returns its index.
    fn gather(&mut self, slots: &[Slot], generates: bool) -> Result<usize> {
        let graph = Rc::clone(&self.graph);
        let index = match self.gathered(slots) {
            Some(index) => {
                self.batches[index].batch.settle(&graph, &self.shape)?;
                index
            }
            None => {
                let batch = self.regroup(&graph, slots)?;
                self.next_batch += 1;
                self.batches.push(Numbered { number: self.next_batch, batch });
                self.batches.len() - 1
            }
        };
        if generates {
            let steps = self.steps;
            self.batches[index].batch.generating_since.get_or_insert(steps);
        }
        Ok(index)
    }

    /// The batch that already is just these sequences.
    fn gathered(&self, slots: &[Slot]) -> Option<usize> {
        let (index, _) = self.place(*slots.first()?)?;
        let batch = &self.batches[index].batch;
        let same = batch.rows.len() == slots.len()
            && batch.rows.iter().zip(slots).all(|(row, slot)| row.is_open && row.slot == *slot)
            && batch.lone == (batch.can_be_lone() && !self.always_padded);
        same.then_some(index)
    }

    /// Takes these sequences out of their batches and joins them. All is built beside what there is, and takes its place
    /// in the end: an operation that fails leaves every sequence where it was.
    fn regroup(&mut self, graph: &Graph, slots: &[Slot]) -> Result<Batch> {
        let is_wanted = |row: &batch::HeldRow| row.is_open && slots.contains(&row.slot);
        let mut pieces = Vec::new();
        let mut rests = Vec::new();
        for (index, numbered) in self.batches.iter().enumerate() {
            if !numbered.batch.rows.iter().any(is_wanted) {
                continue;
            }
            let mut batch = numbered.batch.clone();
            batch.settle(graph, &self.shape)?;
            if batch.rows.iter().any(|row| !row.is_open) {
                let open: Vec<usize> =
                    batch.rows.iter().enumerate().filter(|(_, row)| row.is_open).map(|(index, _)| index).collect();
                batch.filter(graph, &open, &self.shape)?;
            }
            let taken: Vec<usize> =
                batch.rows.iter().enumerate().filter(|(_, row)| is_wanted(row)).map(|(index, _)| index).collect();
            if taken.len() == batch.rows.len() {
                pieces.push(batch);
                rests.push((index, None));
            } else {
                pieces.push(batch.split(graph, &taken, &self.shape)?);
                rests.push((index, Some(batch)));
            }
        }
        let new: Vec<Slot> = slots.iter().copied().filter(|slot| self.fresh.contains(slot)).collect();
        if !new.is_empty() {
            pieces.push(Batch::empty(&self.shape, &new));
        }
        let place = |batch: &Batch| batch.rows.first().and_then(|row| slots.iter().position(|slot| *slot == row.slot));
        pieces.sort_by_key(place);
        let mut pieces = pieces.into_iter();
        let mut joined = pieces.next().unwrap_or_else(|| Batch::empty(&self.shape, &[]));
        for piece in pieces {
            joined.extend(graph, piece, &self.shape)?;
        }
        joined.lone = joined.can_be_lone() && !self.always_padded;
        for (index, rest) in rests.into_iter().rev() {
            match rest {
                Some(batch) => self.batches[index].batch = batch,
                None => drop(self.batches.remove(index)),
            }
        }
        self.fresh.retain(|slot| !new.contains(slot));
        Ok(joined)
    }

    /// A sequence in a batch of its own, and the index of that batch.
    fn isolate(&mut self, slot: Slot) -> Result<usize> {
        self.length(slot)?;
        self.gather(&[slot], false)
    }
}

impl KvStore for MlxKv {
    fn open(&mut self) -> Slot {
        let slot = Slot(self.next_slot);
        self.next_slot = self.next_slot.wrapping_add(1);
        self.fresh.push(slot);
        slot
    }

    fn close(&mut self, slot: Slot) {
        kept::rescue(self, slot, 0);
        self.fresh.retain(|fresh| *fresh != slot);
        if let Some((index, row)) = self.place(slot) {
            let batch = &mut self.batches[index].batch;
            batch.rows[row].is_open = false;
            if batch.rows.iter().all(|row| !row.is_open) {
                self.batches.remove(index);
            }
        }
        if self.batches.is_empty() && self.fresh.is_empty() {
            // Nobody is served now: what MLX keeps for the next step goes back to the system.
            data::clear_cache();
        }
    }

    fn length(&self, slot: Slot) -> Result<usize> {
        match self.place(slot) {
            Some((index, row)) => Ok(self.batches[index].batch.rows[row].length),
            None if self.fresh.contains(&slot) => Ok(0),
            None => Err(ComputeError::UnknownSlot { slot: slot.0 }),
        }
    }

    fn truncate(&mut self, slot: Slot, length: usize) -> Result<()> {
        let held = self.length(slot)?;
        if length > held {
            return Err(ComputeError::WrongStart { slot: slot.0, held, start: length });
        }
        if length == held {
            return Ok(());
        }
        if length == 0 {
            self.close(slot);
            self.fresh.push(slot);
            return Ok(());
        }
        // A window that has dropped tokens cannot bring them back.
        if let Some(&window) = self.shape.windows.iter().find(|window| held > **window) {
            return Err(ComputeError::WindowPassed { slot: slot.0, window, held, wanted: length });
        }
        kept::rescue(self, slot, length);
        let index = self.isolate(slot)?;
        let graph = Rc::clone(&self.graph);
        Ok(self.batches[index].batch.trim(&graph, &self.shape, held - length)?)
    }

    fn usage(&self) -> KvUsage {
        let rows = self.batches.iter().flat_map(|numbered| &numbered.batch.rows).filter(|row| row.is_open);
        KvUsage {
            used_tokens: rows.map(|row| row.length.next_multiple_of(GROWTH)).sum(),
            kept_tokens: self.kept.tokens(),
            capacity_tokens: self.capacity,
            page_tokens: GROWTH,
            is_padded: true,
            bytes: self.batches.iter().map(|numbered| numbered.batch.bytes()).sum::<usize>() + self.kept.bytes(),
        }
    }

    fn block_tokens(&self) -> usize {
        GROWTH
    }

    fn keep(&mut self, slot: Slot, start: usize, tokens: usize) -> Result<KeptBlock> {
        kept::keep(self, slot, start, tokens)
    }

    fn release(&mut self, kept: KeptBlock) {
        self.kept.release(kept);
    }

    fn adoptable(&self, blocks: &[KeptBlock], tokens: usize) -> usize {
        kept::adoptable(self, blocks, tokens)
    }

    fn adopt(&mut self, slot: Slot, blocks: &[KeptBlock], tokens: usize) -> Result<()> {
        kept::adopt(self, slot, blocks, tokens)
    }

    fn lacking(&self, rows: &[(Slot, usize)]) -> usize {
        kept::lacking(self, rows)
    }

    fn kept_bytes(&self, tokens: usize) -> usize {
        tokens * self.bytes_per_token()
    }

    fn kept_format(&self) -> String {
        kept::format(&self.shape)
    }

    fn read_kept(&mut self, kept: KeptBlock, range: Range<usize>) -> Result<KvBlock> {
        kept::read(self, kept, range)
    }

    fn write_kept(&mut self, block: &KvBlock) -> Result<KeptBlock> {
        kept::write(self, block)
    }

    fn export(&mut self, slot: Slot, range: Range<usize>) -> Result<KvBlock> {
        transfer::export(self, slot, range)
    }

    fn import(&mut self, slot: Slot, block: &KvBlock) -> Result<()> {
        transfer::import(self, slot, block)
    }
}

impl std::fmt::Debug for MlxKv {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("MlxKv").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

/// A result of building a graph inside this store.
type Built<T> = GraphResult<T>;
