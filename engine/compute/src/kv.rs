//! What the runtime may ask of a backend's store of keys and values.

use crate::{Result, Slot};

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

/// How full a store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvUsage {
    /// Tokens held by open sequences, rounded up to what was reserved for them.
    pub used_tokens: usize,
    /// Tokens that fit.
    pub capacity_tokens: usize,
    /// Tokens of the unit in which a sequence takes room.
    pub page_tokens: usize,
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
    /// When the slot is not open or holds fewer.
    fn truncate(&mut self, slot: Slot, length: usize) -> Result<()>;

    /// How full the store is.
    fn usage(&self) -> KvUsage;
}
