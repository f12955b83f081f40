//! Attention masks with the same elements as mlx-lm 0.32.2's `create_attention_mask` and caches make them.

use super::{
    graph::{Graph, Mask, Result, data},
    kv::{Batch, Rotation},
};
use mlx_rs::Array;

/// The mask of layers without a window, before a batch takes in `length` places.
pub(super) fn full(graph: &Graph, batch: &Batch, length: usize) -> Result<Mask> {
    if batch.lone {
        return Ok(if length == 1 { Mask::None } else { Mask::Causal });
    }
    let padding: Vec<i64> = batch.left_padding.iter().map(|&padding| padding as i64).collect();
    Ok(Mask::Array(causal(graph, batch.index, length, None, Some(&padding))?))
}

/// The mask of layers with a window, before they take in `length` places.
pub(super) fn windowed(graph: &Graph, rotation: &Rotation, lone: bool, length: usize) -> Result<Mask> {
    let window = rotation.window;
    let offset = rotation.offset.min(window - 1);
    if lone {
        return Ok(match length {
            1 => Mask::None,
            _ if offset + length > window => Mask::Array(causal(graph, offset, length, Some(window), None)?),
            _ => Mask::Causal,
        });
    }
    let dropped = (rotation.index + usize::from(length > 1)).saturating_sub(window);
    let rotated = length == 1 && (rotation.rotated || rotation.index >= window);
    let padding: Vec<i64> =
        rotation.left_padding.iter().map(|padding| padding - dropped as i64 - i64::from(rotated)).collect();
    let mask = causal(graph, offset, length, Some(window), Some(&padding))?;
    if !rotated {
        return Ok(Mask::Array(mask));
    }
    let index = if rotation.index >= window { 0 } else { rotation.index };
    Ok(Mask::Array(graph.roll(&mask, index as i32 + 1, -1)?))
}

/// Which of `offset + length` keys each of the last `length` places sees: none after itself, none before its window,
/// none that is padding.
fn causal(
    graph: &Graph,
    offset: usize,
    length: usize,
    window: Option<usize>,
    left_padding: Option<&[i64]>,
) -> Result<Array> {
    let total = (offset + length) as i32;
    let keys = graph.arange(0, total)?;
    let padded = |keys: &Array| match left_padding {
        None => Ok(None),
        Some(padding) => {
            let padding: Vec<i32> = padding.iter().map(|&padding| padding as i32).collect();
            let padding = data::from_i32(&padding, &[padding.len() as i32, 1, 1, 1])?;
            graph.less_equal(&padding, keys).map(Some)
        }
    };
    let within_window = window.is_none_or(|window| offset < window);
    if length == 1
        && within_window
        && let Some(visible) = padded(&keys)?
    {
        // The one place is the last, and sees all that is not padding.
        return Ok(visible);
    }
    let places = graph.reshape(&graph.arange(offset as i32, total)?, &[length as i32, 1])?;
    let mut mask = graph.greater_equal(&places, &keys)?;
    if let Some(window) = window {
        let end = graph.add(&keys, &data::integer(window as i32)?)?;
        mask = graph.logical_and(&mask, &graph.less(&places, &end)?)?;
    }
    if let Some(visible) = padded(&keys)? {
        mask = graph.logical_and(&mask, &visible)?;
    }
    Ok(mask)
}
