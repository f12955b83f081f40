//! The keys and values that are written: of a conversation that grows.

use linnet_compute::{Dtype, KvBlock, KvData, KvFormat, LayerBlock};
use linnet_runtime::ssd::BlockKey;

const MIB: usize = 1 << 20;
const LAYERS: usize = 16;
const HEADS: usize = 8;
const HEAD_DIM: usize = 128;
/// Of 16-bit floats.
const ROW_BYTES: usize = HEAD_DIM * 2;
/// Bytes of a token: keys and values of all layers.
const TOKEN_BYTES: usize = 2 * LAYERS * HEADS * ROW_BYTES;

/// Keys and values as a backend holds them: one tensor `[heads, tokens, head_dim]` each per layer, with room for all
/// tokens, so that a checkpoint of fewer takes a span of each head.
pub(super) struct State {
    tensors: Vec<Vec<u8>>,
    /// The token ids.
    pub(super) tokens: Vec<u32>,
}

impl State {
    /// A state of so many MiB. Its bytes are the same on every machine, and no disk can compress them.
    pub(super) fn new(mib: usize) -> Self {
        let tokens = (mib * MIB / TOKEN_BYTES).max(super::CHECKPOINTS);
        let mut word = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            // Marsaglia's xorshift64.
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            word
        };
        let mut tensor = || (0..HEADS * tokens * ROW_BYTES / 8).flat_map(|_| next().to_le_bytes()).collect();
        let tensors = (0..2 * LAYERS).map(|_| tensor()).collect();
        let tokens = (0..tokens).map(|_| (next() >> 48) as u32).collect();
        Self { tensors, tokens }
    }

    /// How many tokens each checkpoint has.
    pub(super) fn checkpoints(&self) -> [usize; super::CHECKPOINTS] {
        std::array::from_fn(|at| self.tokens.len() * (at + 1) / super::CHECKPOINTS)
    }

    /// The spans of a checkpoint's heads.
    pub(super) fn spans(&self, tokens: usize) -> impl Iterator<Item = &[u8]> {
        self.tensors.iter().flat_map(move |tensor| Self::heads(tensor, 0, tokens))
    }

    /// A run of tokens as a backend exports it.
    pub(super) fn block(&self, start: usize, tokens: usize) -> KvBlock {
        let data = |tensor: &Vec<u8>| {
            let mut part = Vec::with_capacity(HEADS * tokens * ROW_BYTES);
            Self::heads(tensor, start, tokens).for_each(|span| part.extend_from_slice(span));
            KvData { format: KvFormat::Plain(Dtype::F16), heads: HEADS, tokens, head_dim: HEAD_DIM, parts: vec![part] }
        };
        let layers = self.tensors.chunks_exact(2);
        let layers = layers.map(|pair| LayerBlock { first: start, keys: data(&pair[0]), values: data(&pair[1]) });
        KvBlock { start, tokens, layers: layers.collect() }
    }

    fn heads<'a>(tensor: &'a [u8], start: usize, tokens: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let head = tensor.len() / HEADS;
        tensor.chunks_exact(head).map(move |head| &head[start * ROW_BYTES..(start + tokens) * ROW_BYTES])
    }
}

/// The key of a block that follows another one.
pub(super) fn key(parent: Option<BlockKey>, tokens: &[u32]) -> BlockKey {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&parent.unwrap_or_default());
    for token in tokens {
        hasher.update(&token.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_together_hold_what_the_spans_hold() {
        let state = State::new(1);
        let tokens = state.checkpoints()[1];
        let whole: usize = state.spans(tokens).map(<[u8]>::len).sum();
        let (first, second) = (state.block(0, 3), state.block(3, tokens - 3));
        assert_eq!(whole, tokens * TOKEN_BYTES);
        assert_eq!(first.bytes() + second.bytes(), whole);
        let span = state.spans(tokens).nth(1).unwrap_or_default();
        let head = |block: &KvBlock| {
            let keys = &block.layers[0].keys;
            keys.parts[0][block.tokens * ROW_BYTES..2 * block.tokens * ROW_BYTES].to_vec()
        };
        assert_eq!([head(&first), head(&second)].concat(), span);
    }
}
