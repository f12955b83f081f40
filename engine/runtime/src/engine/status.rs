//! What an engine says about itself.

/// A snapshot of an engine's work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineStatus {
    /// Requests that run now.
    pub active: usize,
    /// Requests that wait now.
    pub queued: usize,
    /// Requests taken since the start.
    pub requests: u64,
    /// Requests that ended well.
    pub finished: u64,
    /// Requests whose receiver was dropped before the end.
    pub cancelled: u64,
    /// Requests that ended with an error.
    pub failed: u64,
    /// Prompt tokens processed.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// How full the KV store is.
    pub kv: KvStatus,
    /// Whether the model works.
    pub health: EngineHealth,
}

/// How full a KV store is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KvStatus {
    /// Tokens held, rounded up to what was reserved for them.
    pub used_tokens: usize,
    /// Tokens that fit; `usize::MAX` where nothing limits them.
    pub capacity_tokens: usize,
    /// Bytes taken from the system.
    pub bytes: usize,
}

/// Whether an engine's model works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineHealth {
    /// The last step went well, or none was made yet.
    Serving,
    /// The latest steps all failed; a few in a row mean that the model should be loaded again.
    Failing {
        /// How many steps failed in a row.
        consecutive: usize,
        /// What the last one said.
        last: String,
    },
    /// The engine thread ended, and why.
    Gone(String),
}
