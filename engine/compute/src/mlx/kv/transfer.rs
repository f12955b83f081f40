//! Tokens of a sequence to host bytes and back.

use super::{
    Batch, MlxKv,
    layer::in_order,
    rotation::{Order, Rotation},
    stored::Stored,
};
use crate::{
    ComputeError, Dtype, KvBlock, KvData, KvFormat, KvStore, LayerBlock, Result, Slot,
    mlx::graph::{Graph, Packing, Result as GraphResult, data, dtype},
};
use mlx_rs::Array;
use mlx_sys::mlx_dtype;
use std::{ops::Range, rc::Rc};

/// One layer's keys and values of some tokens.
#[derive(Debug, Clone)]
pub(super) struct LayerPart {
    /// The position of the first of them.
    pub(super) first: usize,
    pub(super) keys: Stored,
    pub(super) values: Stored,
}

/// The keys and values of tokens `range` of a sequence.
pub(super) fn export(kv: &mut MlxKv, slot: Slot, range: Range<usize>) -> Result<KvBlock> {
    let held = kv.length(slot)?;
    if range.start > range.end || range.end > held {
        return Err(ComputeError::WrongStart { slot: slot.0, held, start: range.end });
    }
    if range.is_empty() || kv.place(slot).is_none() {
        return Ok(KvBlock { start: range.start, tokens: 0, layers: Vec::new() });
    }
    let parts = cut(kv, slot, range.clone())?;
    Ok(KvBlock { start: range.start, tokens: range.len(), layers: to_layer_blocks(kv, &parts)? })
}

/// Layers on the host.
pub(super) fn to_layer_blocks(kv: &MlxKv, parts: &[LayerPart]) -> Result<Vec<LayerBlock>> {
    let (graph, packing) = (&kv.graph, kv.shape.packing);
    let block = |part: &LayerPart| {
        let (keys, values) = (to_bytes(graph, &part.keys, packing)?, to_bytes(graph, &part.values, packing)?);
        Ok(LayerBlock { first: part.first, keys, values })
    };
    parts.iter().map(block).collect()
}

/// Each layer's part of tokens `range`, which the sequence holds; of windows, what they still have of it.
pub(super) fn cut(kv: &mut MlxKv, slot: Slot, range: Range<usize>) -> Result<Vec<LayerPart>> {
    let graph = Rc::clone(&kv.graph);
    let Some((index, _)) = kv.place(slot) else { return Err(ComputeError::UnknownSlot { slot: slot.0 }) };
    kv.batches[index].batch.settle(&graph, &kv.shape)?;
    // Settling moved rows within their batch, not between batches.
    let Some((index, row)) = kv.place(slot) else { return Err(ComputeError::UnknownSlot { slot: slot.0 }) };
    let batch = &kv.batches[index].batch;
    let mut layers = Vec::with_capacity(kv.shape.layers.len());
    for (layer, store) in kv.shape.layers.iter().zip(&batch.layers) {
        let Some((keys, values)) = &store.held else {
            return Err(ComputeError::Shape { operation: "export", detail: "a layer holds nothing yet".into() });
        };
        let view = match layer.window_number {
            None => Window { order: Order::Kept, first: batch.left_padding[row], oldest: 0 },
            Some(number) => window(&batch.rotations[number], batch, row),
        };
        // What a window has dropped is not there any more.
        let first = range.start.max(view.oldest).min(range.end);
        let cut = |stored: &Stored| -> GraphResult<Stored> {
            let line = stored.keep_rows(&graph, &[row])?;
            // Nothing is left of tokens that are all before the window.
            let start = (view.first + first).saturating_sub(view.oldest);
            in_order(&graph, &line, view.order)?.cut(&graph, start, start + range.end - first)
        };
        layers.push(LayerPart { first, keys: cut(keys)?, values: cut(values)? });
    }
    Ok(layers)
}

/// Where a row's tokens stand in a window.
struct Window {
    order: Order,
    /// The place of the oldest, once they are in order.
    first: usize,
    /// Its position in the sequence.
    oldest: usize,
}

fn window(rotation: &Rotation, batch: &Batch, row: usize) -> Window {
    let (order, places) = rotation.order();
    let length = batch.rows[row].length;
    let padding = rotation.left_padding.get(row).map_or(0, |&padding| padding.max(0) as usize);
    let held = (places - padding).min(length);
    Window { order, first: places - held, oldest: length - held }
}

/// Appends a block to a sequence.
pub(super) fn import(kv: &mut MlxKv, slot: Slot, block: &KvBlock) -> Result<()> {
    let held = kv.length(slot)?;
    if held != block.start {
        return Err(ComputeError::WrongStart { slot: slot.0, held, start: block.start });
    }
    if block.tokens == 0 {
        return Ok(());
    }
    let used = kv.usage().used_tokens;
    let wanted = (held + block.tokens).next_multiple_of(super::GROWTH) - held.next_multiple_of(super::GROWTH);
    if used + wanted > kv.capacity {
        return Err(ComputeError::KvFull { used, capacity: kv.capacity, wanted: block.tokens });
    }
    kv.memory.admit("the KV cache", block.bytes())?;
    let layers = read(kv, block)?;
    let graph = Rc::clone(&kv.graph);
    let index = kv.isolate(slot)?;
    // Beside the batch, which stays as it is until all is there.
    let mut batch = kv.batches[index].batch.clone();
    // A sequence whose own tokens are held otherwise than the block's takes on the block's form.
    if let Some(packing) = kv.shape.packing
        && layers.iter().any(|(keys, _)| matches!(keys, Stored::Affine(_)))
    {
        batch.quantize(&graph, &kv.shape, packing)?;
    }
    let room = batch.room(&kv.shape);
    let before = batch.rotations.clone();
    let (full, windows) = batch.advance(room, block.tokens, &[block.tokens]);
    for (number, (keys, values)) in layers.into_iter().enumerate() {
        let store = &mut batch.layers[number];
        match kv.shape.layers[number].window_number {
            None => {
                let keys = adapt(&graph, store, keys, kv.shape.packing)?;
                let values = adapt(&graph, store, values, kv.shape.packing)?;
                store.take_in(&graph, &full, &keys, &values)?;
            }
            Some(window) if keys.tokens() == block.tokens => {
                // One token may turn a window; it is appended like several.
                let write = if block.tokens == 1 { before[window].clone().append(1) } else { windows[window].clone() };
                store.take_in(&graph, &write, &keys, &values)?;
            }
            Some(_) => store.held = Some((keys, values)),
        }
    }
    for (number, rotation) in batch.rotations.iter_mut().enumerate() {
        let shape = &kv.shape;
        let layer = shape.layers.iter().position(|layer| layer.window_number == Some(number));
        let tokens = layer.and_then(|layer| block.layers.get(layer)).map_or(0, |layer| layer.keys.tokens);
        if tokens < block.tokens {
            // The window begins anew with the latest of what the block still had.
            let left_padding = vec![0];
            let (offset, tokens) = (block.start + block.tokens, tokens.min(rotation.window));
            *rotation =
                Rotation { offset, index: tokens, size: tokens, rotated: false, left_padding, ..rotation.clone() };
        } else if block.tokens == 1 {
            *rotation = before[number].clone();
            rotation.append(1);
        }
    }
    kv.batches[index].batch = batch;
    Ok(())
}

/// Brings new tokens into the form that a layer holds already.
fn adapt(
    graph: &Graph,
    store: &super::layer::LayerStore,
    new: Stored,
    packing: Option<Packing>,
) -> GraphResult<Stored> {
    match (&store.held, packing) {
        (Some((Stored::Affine(_), _)), Some(packing)) => new.quantized(graph, packing),
        _ => Ok(new),
    }
}

/// The block's arrays, checked against the store before anything changes.
fn read(kv: &MlxKv, block: &KvBlock) -> Result<Vec<(Stored, Stored)>> {
    check(kv, block)?;
    let graph = &kv.graph;
    let mut arrays = Vec::with_capacity(block.layers.len());
    for (layer, shape) in block.layers.iter().zip(&kv.shape.layers) {
        // A window that begins anew keeps as many tokens as it sees.
        let most = if layer.keys.tokens < block.tokens { shape.window.unwrap_or(usize::MAX) } else { usize::MAX };
        arrays.push((to_stored(graph, &layer.keys, most)?, to_stored(graph, &layer.values, most)?));
    }
    Ok(arrays)
}

/// The block's arrays as they are, checked against the store.
pub(super) fn read_parts(kv: &MlxKv, block: &KvBlock) -> Result<Vec<LayerPart>> {
    check(kv, block)?;
    let part = |layer: &LayerBlock| {
        let keys = to_stored(&kv.graph, &layer.keys, usize::MAX)?;
        let values = to_stored(&kv.graph, &layer.values, usize::MAX)?;
        Ok(LayerPart { first: layer.first, keys, values })
    };
    block.layers.iter().map(part).collect()
}

fn check(kv: &MlxKv, block: &KvBlock) -> Result<()> {
    let refuse = |detail: String| ComputeError::Shape { operation: "import", detail };
    if block.layers.len() != kv.shape.layers.len() {
        return Err(refuse(format!("a block of {} layers for {}", block.layers.len(), kv.shape.layers.len())));
    }
    block.validate()?;
    for (number, (layer, shape)) in block.layers.iter().zip(&kv.shape.layers).enumerate() {
        let float = held_float(kv, number);
        for data in [&layer.keys, &layer.values] {
            let (KvFormat::Plain(found) | KvFormat::Affine { dtype: found, .. }) = data.format;
            if found == Dtype::U32 || float.is_some_and(|float| float != mlx_type(found)) {
                return Err(refuse(format!("layer {number} is held as {found:?}, in this store otherwise")));
            }
            let enough = block.tokens.min(shape.window.unwrap_or(block.tokens));
            if (data.heads, data.head_dim) != (shape.kv_heads, shape.head_dim) || data.tokens < enough {
                return Err(refuse(format!(
                    "layer {number} has {} tokens of {} heads of {}; at least {enough} of {} heads of {} are needed",
                    data.tokens, data.heads, data.head_dim, shape.kv_heads, shape.head_dim
                )));
            }
            let wanted = kv.shape.packing.filter(|_| shape.window.is_none());
            if let KvFormat::Affine { bits, group_size, .. } = data.format
                && wanted != Some(Packing { group_size: group_size as i32, bits: bits as i32 })
            {
                return Err(refuse(format!(
                    "layer {number} is quantized as {bits} bits in groups of {group_size}, this store otherwise"
                )));
            }
        }
    }
    Ok(())
}

/// The type of floats that a layer's keys have now, whether plain or the scales of quantized ones.
fn held_float(kv: &MlxKv, layer: usize) -> Option<mlx_dtype> {
    let held = kv.batches.iter().find_map(|numbered| numbered.batch.layers.get(layer)?.held.as_ref());
    held.map(|(keys, _)| match keys {
        Stored::Plain([array]) => data::dtype_of(array),
        Stored::Affine([_, scales, _]) => data::dtype_of(scales),
    })
}

fn to_bytes(graph: &Graph, stored: &Stored, packing: Option<Packing>) -> Result<KvData> {
    let arrays = stored.arrays();
    let shape = arrays[0].shape();
    let (heads, tokens) = (shape[1] as usize, shape[2] as usize);
    let (format, head_dim) = match (stored, packing) {
        (Stored::Affine([packed, scales, _]), Some(packing)) => {
            let head_dim = packed.dim(3) as usize * 32 / packing.bits as usize;
            let dtype = float_type(data::dtype_of(scales))?;
            let (bits, group_size) = (packing.bits as u32, packing.group_size as usize);
            (KvFormat::Affine { bits, group_size, dtype }, head_dim)
        }
        _ => (KvFormat::Plain(float_type(data::dtype_of(&arrays[0]))?), shape[3] as usize),
    };
    let parts = arrays.iter().map(|array| graph.bytes(array)).collect::<GraphResult<Vec<_>>>()?;
    Ok(KvData { format, heads, tokens, head_dim, parts })
}

fn to_stored(graph: &Graph, data: &KvData, most_tokens: usize) -> Result<Stored> {
    let array = |part: usize, width: usize, dtype: mlx_dtype| -> GraphResult<Array> {
        let shape = [1, data.heads as i32, data.tokens as i32, width as i32];
        data::from_bytes(&data.parts[part], &shape, dtype)
    };
    let stored = match data.format {
        KvFormat::Plain(dtype) => Stored::plain(array(0, data.head_dim, mlx_type(dtype))?),
        KvFormat::Affine { bits, group_size, dtype } => {
            let (words, groups) = (data.head_dim * bits as usize / 32, data.head_dim / group_size);
            let dtype = mlx_type(dtype);
            Stored::Affine([array(0, words, dtype::U32)?, array(1, groups, dtype)?, array(2, groups, dtype)?])
        }
    };
    let first = data.tokens.saturating_sub(most_tokens);
    Ok(stored.cut(graph, first, data.tokens)?)
}

fn float_type(dtype: mlx_dtype) -> Result<Dtype> {
    match dtype {
        dtype::F32 => Ok(Dtype::F32),
        dtype::F16 => Ok(Dtype::F16),
        dtype::BF16 => Ok(Dtype::BF16),
        other => Err(ComputeError::Shape { operation: "export", detail: format!("keys of MLX's type {other}") }),
    }
}

fn mlx_type(dtype: Dtype) -> mlx_dtype {
    match dtype {
        Dtype::F32 => dtype::F32,
        Dtype::F16 => dtype::F16,
        Dtype::BF16 => dtype::BF16,
        Dtype::U32 => dtype::U32,
    }
}
