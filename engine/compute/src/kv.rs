//! What the runtime may ask of a backend's store of keys and values.

use crate::{ComputeError, Dtype, Result, Slot};
use std::ops::Range;

/// What each layer keeps of a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvLayout {
    /// The layers, in order.
    pub layers: Vec<LayerKv>,
}

/// One attention layer's keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerKv {
    /// How many heads keys and values have.
    pub kv_heads: usize,
    /// Elements per head, of keys and of values.
    pub head_dim: usize,
    /// How many of the latest tokens the layer ever looks at. `None`: all.
    pub window: Option<usize>,
}

/// Some tokens of a sequence that are kept for others: a counted share of the memory they lie in, which outlives the
/// sequence. Whoever was given one gives it back with [`KvStore::release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeptBlock(pub u64);

/// How full a store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvUsage {
    /// Tokens held by open sequences, rounded up to what was reserved for them; what several share counts once.
    pub used_tokens: usize,
    /// Tokens that are only kept, rounded up to whole blocks: no open sequence shares their memory.
    pub kept_tokens: usize,
    /// Tokens that fit.
    pub capacity_tokens: usize,
    /// Tokens of the unit in which a sequence takes room.
    pub page_tokens: usize,
    /// Whether each sequence takes as much room as the longest one.
    pub is_padded: bool,
    /// Bytes taken from the system.
    pub bytes: usize,
}

/// Sequences and what they hold. How it is laid out is the backend's own business; which sequence holds what is the
/// runtime's.
pub trait KvStore {
    /// Opens an empty sequence.
    fn open(&mut self) -> Slot;

    /// Forgets a sequence and frees what it held. Unknown slots are ignored.
    fn close(&mut self, slot: Slot);

    /// How many tokens a sequence holds.
    ///
    /// # Errors
    /// When the slot is not open.
    fn length(&self, slot: Slot) -> Result<usize>;

    /// Forgets all tokens from `length` on.
    ///
    /// # Errors
    /// When the slot is not open, holds fewer, or a layer's window no longer holds what would be seen from there
    /// ([`ComputeError::WindowPassed`]).
    fn truncate(&mut self, slot: Slot, length: usize) -> Result<()>;

    /// Keys and values of some of a sequence's tokens, as bytes on the host. Layers with a window give what they still
    /// hold of them.
    ///
    /// # Errors
    /// When the slot is not open or holds fewer tokens.
    fn export(&mut self, slot: Slot, range: Range<usize>) -> Result<KvBlock>;

    /// Appends exported tokens to the sequence that holds just those before them.
    ///
    /// # Errors
    /// When the slot is not open, does not end where the block begins, the block does not fit the store, or there is no
    /// room. The sequence stays as it was.
    fn import(&mut self, slot: Slot, block: &KvBlock) -> Result<()>;

    /// How full the store is.
    fn usage(&self) -> KvUsage;

    // --- Sharing -----------------------------------------------------------------------------------------------------

    /// Tokens of a block, the unit in which sequences share: a block begins at a multiple of it.
    fn block_tokens(&self) -> usize;

    /// Keeps tokens `start..start + tokens` of a sequence, at most one block of them, beyond its end. Nothing is copied
    /// before it has to be. Call it only for tokens whose step is through.
    ///
    /// # Errors
    /// When the slot is not open or does not hold these tokens, or they are not the beginning of a block.
    fn keep(&mut self, slot: Slot, start: usize, tokens: usize) -> Result<KeptBlock>;

    /// Gives a kept block back. Its memory is free once no sequence shares it either.
    fn release(&mut self, kept: KeptBlock);

    /// How many of the first `tokens` tokens of these blocks, the beginning of a sequence in order, another sequence can
    /// take over. Fewer than asked for where a layer with a window, or with a state, misses what it would need.
    fn adoptable(&self, blocks: &[KeptBlock], tokens: usize) -> usize;

    /// Makes the first `tokens` tokens of these blocks the beginning of an empty sequence. Every block but the last is a
    /// whole one. The sequence goes on as it would have after computing them; blocks stay kept and are never written to.
    ///
    /// # Errors
    /// When the slot is not open or not empty, a block is unknown, or as many tokens are not [`KvStore::adoptable`].
    fn adopt(&mut self, slot: Slot, blocks: &[KeptBlock], tokens: usize) -> Result<()>;

    /// Opens a sequence that holds what another one does, in memory that both share as far as the store can: what the
    /// branches of a beam search begin with. Call it only for a sequence whose step is through.
    ///
    /// # Errors
    /// When the slot is not open or the backend fails.
    fn fork(&mut self, slot: Slot) -> Result<Slot> {
        let (length, block) = (self.length(slot)?, self.block_tokens());
        let mut kept = Vec::with_capacity(length.div_ceil(block));
        let mut start = 0;
        let mut result = Ok(());
        while start < length && result.is_ok() {
            result = self.keep(slot, start, block.min(length - start)).map(|share| kept.push(share));
            start += block;
        }
        let forked = self.open();
        if result.is_ok() && length > 0 {
            result = self.adopt(forked, &kept, length);
        }
        for share in kept {
            self.release(share);
        }
        if result.is_err() {
            self.close(forked);
        }
        result.map(|()| forked)
    }

    /// How many kept blocks that nobody shares would have to be released so that sequences can take in as many tokens
    /// each as said; 0 when there is room.
    fn lacking(&self, rows: &[(Slot, usize)]) -> usize;

    /// Bytes of a kept block of `tokens` tokens.
    fn kept_bytes(&self, tokens: usize) -> usize;

    /// What the contents of kept blocks depend on beside the model: equal for stores that can use each other's.
    fn kept_format(&self) -> String;

    /// Tokens `range` of a sequence, with which a kept block begins, on the host, for a disk.
    ///
    /// # Errors
    /// When the block is unknown or has fewer tokens, or the backend fails.
    fn read_kept(&mut self, kept: KeptBlock, range: Range<usize>) -> Result<KvBlock>;

    /// Makes a kept block out of what [`KvStore::read_kept`] gave, of a store of the same [`KvStore::kept_format`].
    ///
    /// # Errors
    /// When it does not fit the store's layers, is no block of its, or there is no room.
    fn write_kept(&mut self, block: &KvBlock) -> Result<KeptBlock>;
}

/// Keys and values of a run of tokens of one sequence, for all layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvBlock {
    /// The position of the first token.
    pub start: usize,
    /// How many tokens there are.
    pub tokens: usize,
    /// The layers, in order.
    pub layers: Vec<LayerBlock>,
}

impl KvBlock {
    /// Bytes of keys and values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let data = self.layers.iter().flat_map(|layer| [&layer.keys, &layer.values]);
        data.flat_map(|data| &data.parts).map(Vec::len).sum()
    }

    /// Checks what a block says about itself: its parts are as long as they must be, keys and values are of the same
    /// tokens, and those are the last of the block.
    ///
    /// # Errors
    /// Names the layer and the figures.
    pub fn validate(&self) -> Result<()> {
        let end = self.start.checked_add(self.tokens);
        for (number, layer) in self.layers.iter().enumerate() {
            layer.keys.validate(number)?;
            layer.values.validate(number)?;
            let (keys, values) = (layer.keys.tokens, layer.values.tokens);
            if keys != values || keys > self.tokens || end.is_none() || layer.first.checked_add(keys) != end {
                let detail = format!(
                    "layer {number} has {keys} keys and {values} values from {} on in a block of {} tokens from {} on; \
                     the block is damaged",
                    layer.first, self.tokens, self.start
                );
                return Err(ComputeError::Shape { operation: "import", detail });
            }
        }
        Ok(())
    }
}

/// One layer's part of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerBlock {
    /// The position of the first token that is in it: the block's, or a later one where a window dropped the others.
    pub first: usize,
    /// The keys.
    pub keys: KvData,
    /// The values.
    pub values: KvData,
}

/// Keys or values on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvData {
    /// How the elements are held.
    pub format: KvFormat,
    /// How many heads there are.
    pub heads: usize,
    /// How many tokens there are.
    pub tokens: usize,
    /// Elements per head and token.
    pub head_dim: usize,
    /// The elements, `[heads, tokens, head_dim]`, as one part; or three parts of the same first two dimensions: words of
    /// packed elements, scales, biases.
    pub parts: Vec<Vec<u8>>,
}

/// How keys and values are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvFormat {
    /// Floats.
    Plain(Dtype),
    /// Affine-quantized along each head.
    Affine {
        /// Bits per element.
        bits: u32,
        /// Elements per group.
        group_size: usize,
        /// The type of scales and biases.
        dtype: Dtype,
    },
}

impl KvData {
    /// How many bytes each part must have; `None` for sizes whose product is none.
    #[must_use]
    pub fn part_bytes(&self) -> Option<Vec<usize>> {
        let elements = self.heads.checked_mul(self.tokens)?.checked_mul(self.head_dim)?;
        match self.format {
            KvFormat::Plain(dtype) => Some(vec![elements.checked_mul(dtype.size())?]),
            KvFormat::Affine { bits, group_size, dtype } => {
                let floats = elements.checked_div(group_size)?.checked_mul(dtype.size())?;
                Some(vec![elements.checked_mul(bits as usize)? / 8, floats, floats])
            }
        }
    }

    /// Checks that the parts are as long as they must be.
    ///
    /// # Errors
    /// Names the layer and the lengths.
    pub fn validate(&self, layer: usize) -> Result<()> {
        let expected = self.part_bytes();
        let found: Vec<usize> = self.parts.iter().map(Vec::len).collect();
        if expected.as_ref() == Some(&found) {
            return Ok(());
        }
        let expected = expected.map_or_else(|| "what no memory holds".to_owned(), |bytes| format!("{bytes:?}"));
        let detail = format!("layer {layer} has parts of {found:?} bytes instead of {expected}; the block is damaged");
        Err(ComputeError::Shape { operation: "import", detail })
    }
}

/// How a store quantizes keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvQuantization {
    /// Bits per element: 4 or 8.
    pub bits: u32,
    /// Elements per group: 32, 64 or 128.
    pub group_size: usize,
    /// From how many tokens of a sequence on. What a prompt's first step processes is never quantized during that step.
    pub start: usize,
}

/// The sizes of groups that kernels read.
const GROUP_SIZES: [usize; 3] = [128, 64, 32];

impl KvQuantization {
    /// The same in the largest groups, at most these, of which heads of this size are made. Where none fits it stays as
    /// it is, and [`KvQuantization::check`] says so.
    #[must_use]
    pub fn for_heads(self, head_dim: usize) -> Self {
        let fits = |size: &usize| *size <= self.group_size && head_dim.is_multiple_of(*size);
        Self { group_size: GROUP_SIZES.into_iter().find(fits).unwrap_or(self.group_size), ..self }
    }

    /// Whether heads of this size can be quantized so.
    ///
    /// # Errors
    /// [`ComputeError::KvQuantization`] with what can.
    pub fn check(&self, head_dim: usize) -> Result<()> {
        let Self { bits, group_size, .. } = *self;
        let fits = matches!(bits, 4 | 8) && GROUP_SIZES.contains(&group_size) && head_dim.is_multiple_of(group_size);
        if fits { Ok(()) } else { Err(ComputeError::KvQuantization { bits, group_size, head_dim }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_that_smaller_groups_divide_are_not_refused() {
        let wish = KvQuantization { bits: 4, group_size: 64, start: 0 };
        for (head_dim, group_size) in [(64, 64), (128, 64), (96, 32), (160, 32), (32, 32)] {
            let fitted = wish.for_heads(head_dim);
            assert_eq!(fitted, KvQuantization { group_size, ..wish }, "{head_dim}");
            fitted.check(head_dim).unwrap();
        }
        // No group divides 80; the refusal says what to leave out.
        let text = wish.for_heads(80).check(80).unwrap_err().to_string();
        assert!(text.contains("80") && text.contains("--kv-bits"), "{text}");
    }
}
