//! Blocks with several holders: sequences that begin alike, and whoever keeps a block beyond its sequence.

use super::{
    CpuKv, LayerPlace, Sequence,
    transfer::{affine_data, write_affine_data},
};
use crate::{ComputeError, Dtype, KeptBlock, KvBlock, KvData, KvFormat, LayerBlock, Result, Slot};
use linnet_kernels::{Half, PAGE_TOKENS, Page, PageFormat, PageGeometry};

/// How many hold a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Holders {
    /// Open sequences.
    pub(super) sequences: u32,
    /// Kept blocks given out and not released.
    pub(super) kept: u32,
}

impl Holders {
    pub(super) fn is_none(self) -> bool {
        self.sequences == 0 && self.kept == 0
    }

    /// Whether somebody would see a change that one sequence makes.
    pub(super) fn are_several(self) -> bool {
        self.sequences + self.kept > 1
    }
}

impl CpuKv {
    pub(super) fn keep_block(&mut self, slot: Slot, start: usize, tokens: usize) -> Result<KeptBlock> {
        let sequence = self.sequence(slot)?;
        if start + tokens > sequence.length {
            return Err(ComputeError::WrongStart { slot: slot.0, held: sequence.length, start: start + tokens });
        }
        let block = sequence.blocks.get(start / PAGE_TOKENS).copied();
        let Some(block) = block.filter(|_| is_block(start, tokens)) else {
            return Err(ComputeError::Shape { operation: "keep", detail: no_block(start, tokens) });
        };
        self.holders[block].kept += 1;
        Ok(KeptBlock(block as u64))
    }

    pub(super) fn release_block(&mut self, kept: KeptBlock) {
        let Ok(number) = self.kept_number(kept) else { return };
        let holders = &mut self.holders[number];
        holders.kept -= 1;
        if holders.is_none() {
            self.free.push(number);
            self.trim_idle();
        }
    }

    pub(super) fn adopt_blocks(&mut self, slot: Slot, blocks: &[KeptBlock], tokens: usize) -> Result<()> {
        let held = self.sequence(slot)?.length;
        if held > 0 {
            return Err(ComputeError::WrongStart { slot: slot.0, held, start: 0 });
        }
        if tokens.div_ceil(PAGE_TOKENS) != blocks.len() {
            let detail = format!("{tokens} tokens do not end in the last of {} blocks", blocks.len());
            return Err(ComputeError::Shape { operation: "adopt", detail });
        }
        let numbers = blocks.iter().map(|&kept| self.kept_number(kept)).collect::<Result<Vec<_>>>()?;
        for &number in &numbers {
            self.holders[number].sequences += 1;
        }
        if let Some(sequence) = self.sequences.get_mut(&slot) {
            let is_quantized = self.quantization.is_some_and(|quantization| tokens >= quantization.start.max(1));
            *sequence = Sequence { settled: numbers.len(), blocks: numbers, length: tokens, is_quantized };
        }
        Ok(())
    }

    /// How many new blocks a sequence needs to take in `tokens` more: those beyond its last one, and a copy of that one if
    /// it is shared.
    pub(super) fn wanted_blocks(&self, sequence: &Sequence, tokens: usize) -> usize {
        let beyond = (sequence.length + tokens).div_ceil(PAGE_TOKENS).saturating_sub(sequence.blocks.len());
        beyond + usize::from(tokens > 0 && self.shared_last_block(sequence).is_some())
    }

    /// The block that a sequence goes on in, if somebody else holds it too.
    fn shared_last_block(&self, sequence: &Sequence) -> Option<usize> {
        let block = sequence.blocks.get(sequence.length / PAGE_TOKENS).copied()?;
        self.holders[block].are_several().then_some(block)
    }

    /// Copies the block that a sequence goes on in, if somebody else holds it too.
    pub(super) fn own_last_block(&mut self, slot: Slot) -> Result<()> {
        let sequence = self.sequence(slot)?;
        let Some(shared) = self.shared_last_block(sequence) else { return Ok(()) };
        let place = sequence.length / PAGE_TOKENS;
        let own = self.take_block(self.forms[shared]);
        let copy = self.blocks[own].take();
        if let (Some(from), Some(mut copy)) = (self.blocks[shared].as_deref(), copy) {
            copy.copy_from_slice(from);
            self.blocks[own] = Some(copy);
        }
        if let Some(sequence) = self.sequences.get_mut(&slot) {
            sequence.blocks[place] = own;
            sequence.settled = sequence.settled.min(place);
        }
        self.give_back([shared]);
        Ok(())
    }

    /// Blocks that no sequence holds.
    pub(super) fn kept_only_blocks(&self) -> usize {
        self.holders.iter().filter(|holders| holders.kept > 0 && holders.sequences == 0).count()
    }

    pub(super) fn format_name(&self) -> String {
        let layers: Vec<String> = self
            .layers
            .iter()
            .map(|layer| format!("{}x{}", layer.geometry.kv_heads, layer.geometry.head_dim))
            .collect();
        let format = match self.quantization {
            None => "f16".into(),
            Some(affine) => {
                format!("affine {} bits, groups of {}, from {}", affine.bits, affine.group_size, affine.start)
            }
        };
        format!("cpu pages of {PAGE_TOKENS} {format} {}", layers.join(","))
    }

    pub(super) fn read_block(&self, kept: KeptBlock, start: usize, tokens: usize) -> Result<KvBlock> {
        let number = self.kept_number(kept)?;
        let Some(block) = self.blocks[number].as_deref().filter(|_| is_block(start, tokens)) else {
            return Err(ComputeError::UnknownBlock { kept: kept.0 });
        };
        let form = self.forms[number];
        let layer = |place: &LayerPlace| {
            let PageGeometry { kv_heads, head_dim } = place.geometry;
            let page = &block[place.range(form)];
            if let PageFormat::Affine(affine) = place.format(form) {
                let pages = [Page { format: place.format(form), data: page }];
                let data = |half| affine_data(place, affine, &pages, 0..tokens, half);
                return (data(Half::Keys), data(Half::Values));
            }
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            for head in 0..kv_heads {
                let lines = &page[place.geometry.keys_start(head)..][..head_dim * PAGE_TOKENS];
                for token in 0..tokens {
                    keys.extend(lines[token..].iter().step_by(PAGE_TOKENS).flat_map(|element| element.to_le_bytes()));
                }
                let lines = &page[place.geometry.values_start(head)..][..tokens * head_dim];
                values.extend(lines.iter().flat_map(|element| element.to_le_bytes()));
            }
            let format = KvFormat::Plain(Dtype::F16);
            let data = |part| KvData { format, heads: kv_heads, tokens, head_dim, parts: vec![part] };
            (data(keys), data(values))
        };
        let layers = self.layers.iter().map(layer);
        let layers = layers.map(|(keys, values)| LayerBlock { first: start, keys, values }).collect();
        Ok(KvBlock { start, tokens, layers })
    }

    pub(super) fn write_block(&mut self, from: &KvBlock) -> Result<KeptBlock> {
        let form = self.check_block(from)?;
        if !is_block(from.start, from.tokens) {
            return Err(ComputeError::Shape { operation: "write_kept", detail: no_block(from.start, from.tokens) });
        }
        let used = self.used_blocks();
        if used >= self.capacity_blocks {
            let (used, capacity) = (used * PAGE_TOKENS, self.capacity_blocks * PAGE_TOKENS);
            return Err(ComputeError::KvFull { used, capacity, wanted: from.tokens });
        }
        let number = self.take_block(form);
        self.holders[number] = Holders { sequences: 0, kept: 1 };
        let Some(block) = self.blocks[number].as_deref_mut() else {
            return Err(ComputeError::UnknownBlock { kept: number as u64 });
        };
        for (place, layer) in self.layers.iter().zip(&from.layers) {
            let PageGeometry { kv_heads, head_dim } = place.geometry;
            let page = &mut block[place.range(form)];
            if place.format(form) != PageFormat::F16 {
                for (half, data) in [(Half::Keys, &layer.keys), (Half::Values, &layer.values)] {
                    write_affine_data(place, form, page, half, (data, 0), 0..from.tokens);
                }
                continue;
            }
            let bytes = from.tokens * head_dim;
            let (keys, values) = (layer.keys.parts[0].as_chunks::<2>().0, layer.values.parts[0].as_chunks::<2>().0);
            for head in 0..kv_heads {
                let lines = &mut page[place.geometry.keys_start(head)..][..head_dim * PAGE_TOKENS];
                for (token, line) in keys[head * bytes..(head + 1) * bytes].chunks_exact(head_dim).enumerate() {
                    for (to, pair) in lines[token..].iter_mut().step_by(PAGE_TOKENS).zip(line) {
                        *to = u16::from_le_bytes(*pair);
                    }
                }
                let lines = &mut page[place.geometry.values_start(head)..][..bytes];
                for (to, pair) in lines.iter_mut().zip(&values[head * bytes..(head + 1) * bytes]) {
                    *to = u16::from_le_bytes(*pair);
                }
            }
        }
        Ok(KeptBlock(number as u64))
    }

    fn kept_number(&self, kept: KeptBlock) -> Result<usize> {
        let number = usize::try_from(kept.0)
            .ok()
            .filter(|&number| self.holders.get(number).is_some_and(|holders| holders.kept > 0));
        number.ok_or(ComputeError::UnknownBlock { kept: kept.0 })
    }

    /// Checks that counts and lists say the same.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut sequences = vec![0; self.blocks.len()];
        for sequence in self.sequences.values() {
            assert_eq!(sequence.blocks.len(), sequence.length.div_ceil(PAGE_TOKENS));
            for &block in &sequence.blocks {
                sequences[block] += 1;
            }
        }
        let mut free = self.free.clone();
        free.sort_unstable();
        let unheld = |&number: &usize| self.holders[number].is_none();
        assert_eq!(free, (0..self.blocks.len()).filter(unheld).collect::<Vec<_>>());
        for (number, holders) in self.holders.iter().enumerate() {
            assert_eq!(holders.sequences, sequences[number], "block {number}");
            assert!(holders.is_none() || self.blocks[number].is_some(), "block {number} has no memory");
        }
        assert!(self.used_blocks() <= self.capacity_blocks);
    }
}

fn is_block(start: usize, tokens: usize) -> bool {
    start.is_multiple_of(PAGE_TOKENS) && (1..=PAGE_TOKENS).contains(&tokens)
}

fn no_block(start: usize, tokens: usize) -> String {
    format!("{tokens} tokens from {start} on are no block of {PAGE_TOKENS}")
}

#[cfg(test)]
mod tests;
