//! Keys and values in pages: a sequence's tokens lie in blocks of [`PAGE_TOKENS`], each with a page for every layer.
//! Sequences share blocks, and blocks are kept beyond their sequences ([`kept`]); only a block that has a single holder is
//! written to. A block holds f16, or is quantized ([`form`]).

mod form;
mod kept;
mod transfer;

pub(crate) use self::form::LayerPlace;
use self::{
    form::{Form, place_layers},
    kept::Holders,
};
use crate::{ComputeError, KeptBlock, KvBlock, KvLayout, KvQuantization, KvStore, KvUsage, Result, Row, Slot};
use linnet_kernels::{PAGE_TOKENS, Page, PageFormat};
use std::{collections::BTreeMap, ops::Range};

/// How many free blocks are kept for the next sequence; more go back to the system.
const IDLE_BLOCKS: usize = 8;

/// The store of one model.
#[derive(Debug)]
pub struct CpuKv {
    layers: Vec<LayerPlace>,
    /// The 16-bit elements of a block of each form.
    elements: [usize; 2],
    quantization: Option<KvQuantization>,
    capacity_blocks: usize,
    /// Blocks by number; `None` is a number whose memory went back to the system.
    blocks: Vec<Option<Box<[u16]>>>,
    /// How each block is held.
    forms: Vec<Form>,
    /// Who holds each block.
    holders: Vec<Holders>,
    free: Vec<usize>,
    sequences: BTreeMap<Slot, Sequence>,
    next_slot: u32,
}

#[derive(Debug, Default)]
struct Sequence {
    blocks: Vec<usize>,
    length: usize,
    /// Whether new blocks are quantized.
    is_quantized: bool,
    /// How many of the blocks were looked at since.
    settled: usize,
}

impl CpuKv {
    pub(crate) fn new(layout: &KvLayout, capacity: usize) -> Self {
        let (layers, elements) = place_layers(layout, None);
        Self {
            layers,
            elements,
            quantization: None,
            capacity_blocks: capacity.div_ceil(PAGE_TOKENS),
            blocks: Vec::new(),
            forms: Vec::new(),
            holders: Vec::new(),
            free: Vec::new(),
            sequences: BTreeMap::new(),
            next_slot: 0,
        }
    }

    /// Checks that the rows continue their sequences, makes room for them and counts them in. Changes nothing when it
    /// fails.
    pub(crate) fn extend(&mut self, rows: &[Row]) -> Result<()> {
        let mut wanted = 0;
        for (number, row) in rows.iter().enumerate() {
            let sequence = self.sequence(row.slot)?;
            let is_repeated = rows[..number].iter().any(|earlier| earlier.slot == row.slot);
            if sequence.length != row.start || is_repeated {
                let held = sequence.length;
                return Err(ComputeError::WrongStart { slot: row.slot.0, held, start: row.start });
            }
            wanted += self.wanted_blocks(sequence, row.length);
        }
        let used = self.used_blocks();
        if used + wanted > self.capacity_blocks {
            return Err(ComputeError::KvFull {
                used: used * PAGE_TOKENS,
                capacity: self.capacity_blocks * PAGE_TOKENS,
                wanted: rows.iter().map(|row| row.length).sum(),
            });
        }
        for row in rows {
            let end = row.start + row.length;
            self.own_last_block(row.slot)?;
            let sequence = self.sequence(row.slot)?;
            let (held, form) = (sequence.blocks.len(), if sequence.is_quantized { Form::Affine } else { Form::F16 });
            let fresh: Vec<usize> = (held..end.div_ceil(PAGE_TOKENS)).map(|_| self.take_block(form)).collect();
            if let Some(sequence) = self.sequences.get_mut(&row.slot) {
                sequence.blocks.extend(fresh);
                sequence.length = end;
            }
        }
        Ok(())
    }

    pub(crate) fn layer(&self, layer: usize) -> Result<LayerPlace> {
        self.layers.get(layer).copied().ok_or_else(|| ComputeError::Shape {
            operation: "attention",
            detail: format!("layer {layer} of a store with {} layers", self.layers.len()),
        })
    }

    /// Writes a row's keys and values, `[length, kv_heads * head_dim]` each, into its pages.
    pub(crate) fn write(&mut self, place: LayerPlace, row: &Row, keys: &[f32], values: &[f32]) -> Result<()> {
        let width = place.geometry.kv_heads * place.geometry.head_dim;
        let sequence = self.sequences.get(&row.slot).ok_or(ComputeError::UnknownSlot { slot: row.slot.0 })?;
        let mut done = 0;
        while done < row.length {
            let position = row.start + done;
            let within = position % PAGE_TOKENS;
            let count = (PAGE_TOKENS - within).min(row.length - done);
            let number = sequence.blocks.get(position / PAGE_TOKENS).copied();
            let Some((form, block)) =
                number.and_then(|number| Some((self.forms[number], self.blocks[number].as_deref_mut()?)))
            else {
                return Err(ComputeError::WrongStart { slot: row.slot.0, held: sequence.length, start: position });
            };
            let (geometry, page) = (place.geometry, &mut block[place.range(form)]);
            let range = done * width..(done + count) * width;
            let (keys, values) = (&keys[range.clone()], &values[range]);
            match place.format(form) {
                PageFormat::F16 => linnet_kernels::append(geometry, page, within, keys, values, count),
                PageFormat::Affine(affine) => {
                    linnet_kernels::append_affine(geometry, affine, page, within, (keys, values), count);
                }
            }
            done += count;
        }
        Ok(())
    }

    /// A layer's pages of a sequence, in order.
    pub(crate) fn pages(&self, place: LayerPlace, slot: Slot) -> Result<Vec<Page<'_>>> {
        let page = |&number: &usize| {
            let form = self.forms[number];
            let block = self.blocks[number].as_deref()?;
            Some(Page { format: place.format(form), data: &block[place.range(form)] })
        };
        Ok(self.sequence(slot)?.blocks.iter().filter_map(page).collect())
    }

    fn sequence(&self, slot: Slot) -> Result<&Sequence> {
        self.sequences.get(&slot).ok_or(ComputeError::UnknownSlot { slot: slot.0 })
    }

    fn used_blocks(&self) -> usize {
        self.blocks.len() - self.free.len()
    }

    fn take_block(&mut self, form: Form) -> usize {
        let number = self.free.pop().unwrap_or_else(|| {
            self.blocks.push(None);
            self.forms.push(form);
            self.holders.push(Holders::default());
            self.blocks.len() - 1
        });
        self.holders[number] = Holders { sequences: 1, kept: 0 };
        self.forms[number] = form;
        let elements = self.elements[form as usize];
        let memory = self.blocks[number].take().filter(|memory| memory.len() == elements);
        self.blocks[number] = Some(memory.unwrap_or_else(|| vec![0; elements].into_boxed_slice()));
        number
    }

    /// A sequence does without some blocks; those that nobody else holds are free.
    fn give_back(&mut self, blocks: impl IntoIterator<Item = usize>) {
        for number in blocks {
            let holders = &mut self.holders[number];
            holders.sequences -= 1;
            if holders.is_none() {
                self.free.push(number);
            }
        }
        self.trim_idle();
    }

    fn trim_idle(&mut self) {
        // The latest freed are reused first; memory of those at the bottom of the stack goes back to the system.
        let idle = self.free.len().saturating_sub(IDLE_BLOCKS);
        for &number in &self.free[..idle] {
            self.blocks[number] = None;
        }
    }
}

impl KvStore for CpuKv {
    fn open(&mut self) -> Slot {
        let slot = Slot(self.next_slot);
        self.next_slot = self.next_slot.wrapping_add(1);
        self.sequences.insert(slot, Sequence::default());
        slot
    }

    fn close(&mut self, slot: Slot) {
        if let Some(sequence) = self.sequences.remove(&slot) {
            self.give_back(sequence.blocks);
        }
    }

    fn length(&self, slot: Slot) -> Result<usize> {
        Ok(self.sequence(slot)?.length)
    }

    fn truncate(&mut self, slot: Slot, length: usize) -> Result<()> {
        let sequence = self.sequences.get_mut(&slot).ok_or(ComputeError::UnknownSlot { slot: slot.0 })?;
        if length > sequence.length {
            return Err(ComputeError::WrongStart { slot: slot.0, held: sequence.length, start: length });
        }
        sequence.length = length;
        // One that begins again begins as any other.
        sequence.is_quantized &= length > 0;
        let freed = sequence.blocks.split_off(length.div_ceil(PAGE_TOKENS));
        self.give_back(freed);
        Ok(())
    }

    fn export(&mut self, slot: Slot, range: Range<usize>) -> Result<KvBlock> {
        let held = self.length(slot)?;
        if range.start > range.end || range.end > held {
            return Err(ComputeError::WrongStart { slot: slot.0, held, start: range.end });
        }
        let layers =
            (0..self.layers.len()).map(|layer| self.export_layer(slot, layer, range.clone())).collect::<Result<_>>()?;
        Ok(KvBlock { start: range.start, tokens: range.len(), layers })
    }

    fn import(&mut self, slot: Slot, block: &KvBlock) -> Result<()> {
        if block.tokens == 0 {
            return Ok(());
        }
        self.import_block(slot, block)
    }

    fn usage(&self) -> KvUsage {
        let held: usize = self.blocks.iter().flatten().map(|block| block.len()).sum();
        let kept = self.kept_only_blocks();
        KvUsage {
            used_tokens: (self.used_blocks() - kept) * PAGE_TOKENS,
            kept_tokens: kept * PAGE_TOKENS,
            capacity_tokens: self.capacity_blocks * PAGE_TOKENS,
            page_tokens: PAGE_TOKENS,
            is_padded: false,
            bytes: held * size_of::<u16>(),
        }
    }

    fn block_tokens(&self) -> usize {
        PAGE_TOKENS
    }

    fn keep(&mut self, slot: Slot, start: usize, tokens: usize) -> Result<KeptBlock> {
        self.keep_block(slot, start, tokens)
    }

    fn release(&mut self, kept: KeptBlock) {
        self.release_block(kept);
    }

    fn adoptable(&self, blocks: &[KeptBlock], tokens: usize) -> usize {
        // Pages of layers with a window stay as long as those of the others.
        tokens.min(blocks.len() * PAGE_TOKENS)
    }

    fn adopt(&mut self, slot: Slot, blocks: &[KeptBlock], tokens: usize) -> Result<()> {
        self.adopt_blocks(slot, blocks, tokens)
    }

    fn lacking(&self, rows: &[(Slot, usize)]) -> usize {
        let wanted = |&(slot, tokens): &(Slot, usize)| match self.sequences.get(&slot) {
            Some(sequence) => self.wanted_blocks(sequence, tokens),
            None => tokens.div_ceil(PAGE_TOKENS),
        };
        (self.used_blocks() + rows.iter().map(wanted).sum::<usize>()).saturating_sub(self.capacity_blocks)
    }

    fn kept_bytes(&self, _tokens: usize) -> usize {
        // A block is kept in the form of the sequence it is from.
        let is_affine = self.quantization.is_some_and(|quantization| quantization.start == 0);
        self.elements[usize::from(is_affine)] * size_of::<u16>()
    }

    fn kept_format(&self) -> String {
        self.format_name()
    }

    fn read_kept(&mut self, kept: KeptBlock, range: Range<usize>) -> Result<KvBlock> {
        self.read_block(kept, range.start, range.len())
    }

    fn write_kept(&mut self, block: &KvBlock) -> Result<KeptBlock> {
        self.write_block(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LayerKv, Outputs};

    fn store(capacity: usize) -> CpuKv {
        let layer = LayerKv { kv_heads: 2, head_dim: 8, window: None };
        CpuKv::new(&KvLayout { layers: vec![layer; 3] }, capacity)
    }

    fn row(slot: Slot, start: usize, length: usize) -> Row {
        Row { slot, start, length, outputs: Outputs::Last }
    }

    #[test]
    fn a_row_must_begin_where_its_sequence_ends() {
        let mut kv = store(1024);
        let slot = kv.open();
        kv.extend(&[row(slot, 0, 5)]).unwrap();
        assert!(matches!(kv.extend(&[row(slot, 4, 1)]), Err(ComputeError::WrongStart { held: 5, start: 4, .. })));
        kv.extend(&[row(slot, 5, 1)]).unwrap();
        assert_eq!(kv.length(slot).unwrap(), 6);
    }

    #[test]
    fn a_sequence_that_is_twice_in_a_step_is_refused_and_counts_no_token_in() {
        let mut kv = store(1024);
        let (a, b) = (kv.open(), kv.open());
        kv.extend(&[row(a, 0, 5)]).unwrap();
        let before = kv.usage();
        let refused = kv.extend(&[row(a, 5, 1), row(b, 0, 1), row(a, 5, 2)]);
        assert!(matches!(refused, Err(ComputeError::WrongStart { held: 5, start: 5, .. })), "{refused:?}");
        assert_eq!((kv.usage(), kv.length(a).unwrap(), kv.length(b).unwrap()), (before, 5, 0));
    }

    #[test]
    fn a_full_store_refuses_with_figures_and_stays_as_it_was() {
        let mut kv = store(2 * PAGE_TOKENS);
        let (a, b) = (kv.open(), kv.open());
        kv.extend(&[row(a, 0, PAGE_TOKENS)]).unwrap();
        let before = kv.usage();
        let refused = kv.extend(&[row(a, PAGE_TOKENS, 1), row(b, 0, 1)]);
        assert!(matches!(refused, Err(ComputeError::KvFull { wanted: 2, .. })));
        assert_eq!((kv.usage(), kv.length(a).unwrap(), kv.length(b).unwrap()), (before, PAGE_TOKENS, 0));
    }

    #[test]
    fn closing_and_truncating_give_memory_back() {
        let mut kv = store(1 << 20);
        let slots: Vec<Slot> = (0..4).map(|_| kv.open()).collect();
        for &slot in &slots {
            kv.extend(&[row(slot, 0, 40 * PAGE_TOKENS)]).unwrap();
        }
        kv.truncate(slots[0], PAGE_TOKENS + 1).unwrap();
        assert_eq!(kv.usage().used_tokens, (2 + 3 * 40) * PAGE_TOKENS);
        for slot in slots {
            kv.close(slot);
        }
        let usage = kv.usage();
        assert_eq!(usage.used_tokens, 0);
        assert!(usage.bytes <= IDLE_BLOCKS * kv.elements[0] * 2, "{usage:?}");
    }

    #[test]
    fn an_exported_block_imports_to_the_same_pages_and_a_wrong_one_changes_nothing() {
        let mut kv = store(1024);
        let (from, to) = (kv.open(), kv.open());
        let (width, total) = (16, PAGE_TOKENS + 9);
        let keys: Vec<f32> = (0..total * width).map(|i| (i % 509) as f32 / 8.0).collect();
        let values: Vec<f32> = keys.iter().map(|key| 1.0 - key).collect();
        let whole = row(from, 0, total);
        kv.extend(&[whole]).unwrap();
        for layer in 0..3 {
            let place = kv.layer(layer).unwrap();
            kv.write(place, &whole, &keys, &values).unwrap();
        }
        for range in [0..5, 5..PAGE_TOKENS + 2, PAGE_TOKENS + 2..total] {
            let block = kv.export(from, range).unwrap();
            assert!(kv.import(from, &block).is_err(), "it does not follow what the sequence holds");
            kv.import(to, &block).unwrap();
        }
        assert_eq!(kv.export(to, 0..total).unwrap(), kv.export(from, 0..total).unwrap());
        let mut damaged = kv.export(from, 0..4).unwrap();
        damaged.layers[1].keys.parts[0].pop();
        let slot = kv.open();
        let message = kv.import(slot, &damaged).unwrap_err().to_string();
        assert!(message.contains("layer 1") && message.contains("damaged"), "{message}");
        assert_eq!(kv.length(slot).unwrap(), 0);
        assert!(kv.export(from, 3..total + 1).is_err());
    }

    #[test]
    fn pages_hold_what_was_written_across_their_borders() {
        let mut kv = store(1024);
        let slot = kv.open();
        let width = 16;
        let total = PAGE_TOKENS + 7;
        let keys: Vec<f32> = (0..total * width).map(|i| (i % 251) as f32).collect();
        let values: Vec<f32> = keys.iter().map(|key| -key).collect();
        let place = kv.layer(1).unwrap();
        for (start, length) in [(0, PAGE_TOKENS - 3), (PAGE_TOKENS - 3, 10)] {
            let row = row(slot, start, length);
            kv.extend(&[row]).unwrap();
            let range = start * width..(start + length) * width;
            kv.write(place, &row, &keys[range.clone()], &values[range]).unwrap();
        }
        let pages = kv.pages(place, slot).unwrap();
        assert_eq!(pages.len(), 2);
        let mut found_keys = vec![0.0; 7 * width];
        let mut found_values = vec![0.0; 7 * width];
        linnet_kernels::read_page(place.geometry, pages[1].data, 0, &mut found_keys, &mut found_values, 7);
        assert_eq!(found_keys, keys[PAGE_TOKENS * width..]);
        assert_eq!(found_values, values[PAGE_TOKENS * width..]);
    }
}
