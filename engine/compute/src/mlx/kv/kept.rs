//! Blocks of tokens that are kept for other sequences.
//!
//! A kept block stays where it is, within its sequence's arrays, as long as the sequence is open; only then is it cut out
//! of them. So what runs pays nothing for being kept. Blocks of models with windows are cut out at once, before the windows
//! drop their tokens.

use super::{
    Batch, GROWTH, KvShape, MlxKv, Numbered,
    rotation::Rotation,
    stored::Stored,
    transfer::{self, LayerPart},
};
use crate::{
    ComputeError, KeptBlock, KvBlock, KvStore, Outputs, Result, Row, Slot,
    mlx::graph::{Graph, Result as GraphResult, data},
};
use mlx_rs::Array;
use std::{collections::BTreeMap, ops::Range, rc::Rc};

/// The kept blocks of a store.
#[derive(Debug, Default)]
pub(super) struct KeptBlocks {
    blocks: BTreeMap<u64, Block>,
    next: u64,
}

#[derive(Debug)]
struct Block {
    start: usize,
    tokens: usize,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// Within the arrays of an open sequence.
    Sequence(Slot),
    /// In arrays of its own, one part for each layer.
    Own(Vec<LayerPart>),
    /// Gone, because it could not be cut out.
    Lost,
}

impl KeptBlocks {
    fn insert(&mut self, block: Block) -> KeptBlock {
        self.next += 1;
        self.blocks.insert(self.next, block);
        KeptBlock(self.next)
    }

    fn get(&self, kept: KeptBlock) -> Result<&Block> {
        self.blocks.get(&kept.0).ok_or(ComputeError::UnknownBlock { kept: kept.0 })
    }

    fn own(&self) -> impl Iterator<Item = (&Block, &[LayerPart])> {
        self.blocks.values().filter_map(|block| match &block.place {
            Place::Own(layers) => Some((block, layers.as_slice())),
            Place::Sequence(_) | Place::Lost => None,
        })
    }

    /// Tokens in arrays of their own.
    pub(super) fn tokens(&self) -> usize {
        self.own().map(|(block, _)| block.tokens).sum()
    }

    /// Bytes of those arrays.
    pub(super) fn bytes(&self) -> usize {
        self.own().flat_map(|(_, layers)| layers).map(|layer| layer.keys.bytes() + layer.values.bytes()).sum()
    }

    /// Blocks in arrays of their own.
    fn owned(&self) -> usize {
        self.own().count()
    }

    pub(super) fn release(&mut self, kept: KeptBlock) {
        self.blocks.remove(&kept.0);
    }

    /// The blocks that end beyond `length` in the arrays of a sequence.
    fn within(&self, slot: Slot, length: usize) -> Vec<u64> {
        let beyond = |block: &Block| {
            matches!(block.place, Place::Sequence(place) if place == slot) && block.start + block.tokens > length
        };
        self.blocks.iter().filter(|(_, block)| beyond(block)).map(|(&number, _)| number).collect()
    }
}

pub(super) fn keep(kv: &mut MlxKv, slot: Slot, start: usize, tokens: usize) -> Result<KeptBlock> {
    let held = kv.length(slot)?;
    if start + tokens > held {
        return Err(ComputeError::WrongStart { slot: slot.0, held, start: start + tokens });
    }
    if !is_block(start, tokens) {
        let detail = format!("{tokens} tokens from {start} on are no block of {GROWTH}");
        return Err(ComputeError::Shape { operation: "keep", detail });
    }
    let place = if kv.shape.windows.is_empty() {
        Place::Sequence(slot)
    } else {
        let mut computed = Vec::new();
        let layers = cut_out(kv, slot, start, tokens, &mut computed)?;
        begin(&computed)?;
        Place::Own(layers)
    };
    Ok(kv.kept.insert(Block { start, tokens, place }))
}

/// Cuts out the blocks within a sequence that is about to lose its tokens from `length` on.
pub(super) fn rescue(kv: &mut MlxKv, slot: Slot, length: usize) {
    let mut computed = Vec::new();
    for number in kv.kept.within(slot, length) {
        let Some((start, tokens)) = kv.kept.blocks.get(&number).map(|block| (block.start, block.tokens)) else {
            continue;
        };
        let room = kv.memory.admit("the prefix cache", tokens * kv.bytes_per_token());
        let place = match room.and_then(|()| cut_out(kv, slot, start, tokens, &mut computed)) {
            Ok(layers) => Place::Own(layers),
            Err(_) => Place::Lost,
        };
        if let Some(block) = kv.kept.blocks.get_mut(&number) {
            block.place = place;
        }
    }
    // What cannot be computed is found out when it is adopted.
    drop(begin(&computed));
}

/// A block's tokens in arrays of their own, which `computed` takes note of.
fn cut_out(
    kv: &mut MlxKv,
    slot: Slot,
    start: usize,
    tokens: usize,
    computed: &mut Vec<Array>,
) -> Result<Vec<LayerPart>> {
    let graph = Rc::clone(&kv.graph);
    let mut layers = transfer::cut(kv, slot, start..start + tokens)?;
    for layer in &mut layers {
        for stored in [&mut layer.keys, &mut layer.values] {
            *stored = stored.map(|array| graph.contiguous(array))?;
            computed.extend(stored.arrays().iter().cloned());
        }
    }
    Ok(layers)
}

/// Lets arrays be computed, so that they let go of those that they were cut out of.
fn begin(arrays: &[Array]) -> GraphResult<()> {
    if arrays.is_empty() { Ok(()) } else { data::async_eval(&arrays.iter().collect::<Vec<_>>()) }
}

/// How many of the first `tokens` tokens can be adopted.
pub(super) fn adoptable(kv: &MlxKv, blocks: &[KeptBlock], tokens: usize) -> usize {
    let mut known = Vec::with_capacity(blocks.len());
    for &kept in blocks {
        match kv.kept.get(kept) {
            Ok(block) if !matches!(block.place, Place::Lost) => known.push(block),
            _ => break,
        }
    }
    let mut tokens = tokens.min(known.last().map_or(0, |block| block.start + block.tokens));
    while tokens > 0 {
        let missing = kv
            .shape
            .windows
            .iter()
            .enumerate()
            .any(|(number, &window)| !has_window(&kv.shape, number, &known, tokens.saturating_sub(window), tokens));
        if !missing {
            break;
        }
        tokens = (tokens - 1) / GROWTH * GROWTH;
    }
    tokens
}

/// Whether layers of a window have all of tokens `first..end`.
fn has_window(shape: &KvShape, number: usize, blocks: &[&Block], first: usize, end: usize) -> bool {
    let Some(layer) = shape.layers.iter().position(|layer| layer.window_number == Some(number)) else { return true };
    blocks.iter().filter(|block| block.start < end && block.start + block.tokens > first).all(|block| {
        match &block.place {
            Place::Own(layers) => layers.get(layer).is_some_and(|part| part.first <= first.max(block.start)),
            Place::Sequence(_) => true,
            Place::Lost => false,
        }
    })
}

pub(super) fn adopt(kv: &mut MlxKv, slot: Slot, blocks: &[KeptBlock], tokens: usize) -> Result<()> {
    let held = kv.length(slot)?;
    if held > 0 {
        return Err(ComputeError::WrongStart { slot: slot.0, held, start: 0 });
    }
    let adoptable = adoptable(kv, blocks, tokens);
    if adoptable < tokens || tokens.div_ceil(GROWTH) != blocks.len() {
        let detail = format!("{tokens} tokens of {} blocks, of which {adoptable} are there", blocks.len());
        return Err(ComputeError::Shape { operation: "adopt", detail });
    }
    if tokens == 0 {
        return Ok(());
    }
    let room = (tokens + 1).next_multiple_of(GROWTH);
    let used = kv.usage().used_tokens;
    if used + tokens.next_multiple_of(GROWTH) > kv.capacity {
        return Err(ComputeError::KvFull { used, capacity: kv.capacity, wanted: tokens });
    }
    kv.memory.admit("the KV cache", room * kv.bytes_per_token())?;
    let graph = Rc::clone(&kv.graph);
    let pieces = pieces(kv, &graph, blocks, tokens)?;
    let mut batch = Batch::empty(&kv.shape, &[slot]);
    batch.index = tokens;
    for row in &mut batch.rows {
        row.length = tokens;
    }
    for rotation in &mut batch.rotations {
        let size = rotation.window.min(tokens);
        *rotation = Rotation { offset: tokens, index: size, size, ..rotation.clone() };
    }
    let mut computed = Vec::new();
    for (number, layer) in kv.shape.layers.iter().enumerate() {
        let first = layer.window.map_or(0, |window| tokens.saturating_sub(window));
        let mut parts = pieces.iter().filter(|piece| piece.end > first).map(|piece| {
            let part = &piece.layers[number];
            let skip = first.saturating_sub(part.first);
            let cut = |stored: &Stored| stored.cut(&graph, skip, stored.tokens());
            Ok((cut(&part.keys)?, cut(&part.values)?))
        });
        let is_affine = pieces.iter().any(|piece| matches!(piece.layers[number].keys, Stored::Affine(_)));
        let packing = kv.shape.packing.filter(|_| is_affine);
        let alike = |stored: Stored| match packing {
            Some(packing) => stored.quantized(&graph, packing),
            None => Ok(stored),
        };
        let mut joined: Option<(Vec<Stored>, Vec<Stored>)> = None;
        parts.try_for_each(|part: GraphResult<(Stored, Stored)>| -> GraphResult<()> {
            let (keys, values) = part?;
            let (all_keys, all_values) = joined.get_or_insert_default();
            all_keys.push(alike(keys)?);
            all_values.push(alike(values)?);
            Ok(())
        })?;
        let spare = if layer.window.is_none() { room - tokens } else { 0 };
        if let Some((keys, values)) = joined {
            let keys = Stored::joined(&graph, &keys)?.padded(&graph, 0, spare)?;
            let values = Stored::joined(&graph, &values)?.padded(&graph, 0, spare)?;
            computed.extend(keys.arrays().iter().chain(values.arrays()).cloned());
            batch.layers[number].held = Some((keys, values));
        }
    }
    // The arrays that pieces were cut out of are let go before their sequences write to them again.
    begin(&computed)?;
    batch.lone = batch.can_be_lone() && !kv.always_padded;
    kv.fresh.retain(|fresh| *fresh != slot);
    kv.next_batch += 1;
    kv.batches.push(Numbered { number: kv.next_batch, batch });
    Ok(())
}

/// Tokens up to `end` of a sequence to come.
struct Piece {
    end: usize,
    layers: Vec<LayerPart>,
}

/// The first `tokens` tokens of some blocks. Neighbours in one sequence are one piece.
fn pieces(kv: &mut MlxKv, graph: &Graph, blocks: &[KeptBlock], tokens: usize) -> Result<Vec<Piece>> {
    let mut runs: Vec<(Slot, usize, usize)> = Vec::new();
    let mut pieces: Vec<Piece> = Vec::new();
    let mut order: Vec<Source> = Vec::new();
    for &kept in blocks {
        let block = kv.kept.get(kept)?;
        let (start, end) = (block.start, (block.start + block.tokens).min(tokens));
        match &block.place {
            Place::Sequence(slot) => match (order.last(), runs.last_mut()) {
                (Some(Source::Run), Some(run)) if run.0 == *slot && run.2 == start => run.2 = end,
                _ => {
                    runs.push((*slot, start, end));
                    order.push(Source::Run);
                }
            },
            Place::Own(layers) => {
                let mut layers = layers.clone();
                cut_to(graph, &mut layers, end)?;
                order.push(Source::Own(Piece { end, layers }));
            }
            Place::Lost => return Err(ComputeError::UnknownBlock { kept: kept.0 }),
        }
    }
    let mut runs = runs.into_iter();
    for source in order {
        match source {
            Source::Own(piece) => pieces.push(piece),
            Source::Run => {
                if let Some((slot, start, end)) = runs.next() {
                    pieces.push(Piece { end, layers: transfer::cut(kv, slot, start..end)? });
                }
            }
        }
    }
    Ok(pieces)
}

enum Source {
    Own(Piece),
    /// The next run within a sequence.
    Run,
}

pub(super) fn lacking(kv: &MlxKv, wanted: &[(Slot, usize)]) -> usize {
    let row = |&(slot, length): &(Slot, usize)| {
        let start = kv.length(slot).ok()?;
        let outputs = if length == 1 { Outputs::Last } else { Outputs::None };
        Some(Row { slot, start, length, outputs })
    };
    let rows: Vec<Row> = wanted.iter().filter_map(row).filter(|row| row.length > 0).collect();
    let needed = kv.needed_bytes(&rows, &kv.partition(&rows));
    let missing = match kv.memory.free() {
        Ok(free) => needed.saturating_sub(free),
        Err(_) => 0,
    };
    missing.div_ceil((GROWTH * kv.bytes_per_token()).max(1)).min(kv.kept.owned())
}

pub(super) fn read(kv: &mut MlxKv, kept: KeptBlock, range: Range<usize>) -> Result<KvBlock> {
    let block = kv.kept.get(kept)?;
    let (start, tokens) = (range.start, range.len());
    if block.start != start || tokens > block.tokens {
        let detail = format!("tokens {range:?} of a block of {} from {} on", block.tokens, block.start);
        return Err(ComputeError::Shape { operation: "read_kept", detail });
    }
    let mut layers = match &block.place {
        Place::Own(layers) => layers.clone(),
        Place::Sequence(slot) => {
            let slot = *slot;
            transfer::cut(kv, slot, start..start + tokens)?
        }
        Place::Lost => return Err(ComputeError::UnknownBlock { kept: kept.0 }),
    };
    cut_to(&kv.graph, &mut layers, start + tokens)?;
    let layers = transfer::to_layer_blocks(kv, &layers)?;
    Ok(KvBlock { start, tokens, layers })
}

pub(super) fn write(kv: &mut MlxKv, block: &KvBlock) -> Result<KeptBlock> {
    let KvBlock { start, tokens, .. } = *block;
    if !is_block(start, tokens) {
        let detail = format!("{tokens} tokens from {start} on are no block of {GROWTH}");
        return Err(ComputeError::Shape { operation: "write_kept", detail });
    }
    kv.memory.admit("the prefix cache", block.bytes())?;
    let layers = transfer::read_parts(kv, block)?;
    Ok(kv.kept.insert(Block { start, tokens, place: Place::Own(layers) }))
}

/// Drops tokens from `end` on.
fn cut_to(graph: &Graph, layers: &mut [LayerPart], end: usize) -> GraphResult<()> {
    for layer in layers {
        let wanted = end.saturating_sub(layer.first);
        for stored in [&mut layer.keys, &mut layer.values] {
            if wanted < stored.tokens() {
                *stored = stored.cut(graph, 0, wanted)?;
            }
        }
    }
    Ok(())
}

fn is_block(start: usize, tokens: usize) -> bool {
    start.is_multiple_of(GROWTH) && (1..=GROWTH).contains(&tokens)
}

/// Names what kept bytes depend on.
pub(super) fn format(shape: &KvShape) -> String {
    let layers: Vec<String> = shape
        .layers
        .iter()
        .map(|layer| match layer.window {
            None => format!("{}x{}", layer.kv_heads, layer.head_dim),
            Some(window) => format!("{}x{} window {window}", layer.kv_heads, layer.head_dim),
        })
        .collect();
    let packing = shape.packing.map_or_else(String::new, |packing| {
        format!(" {} bits by {} from {}", packing.bits, packing.group_size, shape.quantized_from)
    });
    format!("mlx blocks of {GROWTH}{packing} {}", layers.join(","))
}
