//! Which kept block goes first when room is needed.

/// How blocks to give up are chosen. Only the ends of histories are ever given up, so that what is left can be used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Eviction {
    /// The least recently used first.
    Lru,
    /// GreedyDual: a block is worth what it costs to compute again for its bytes, more the more often it was used, and ages
    /// as others are given up.
    GreedyDual,
    /// The least recently used first, but what nobody has come back to goes before what a session points to, or what was
    /// used again, as long as that is not much older.
    #[default]
    SessionLru,
}

/// At this position a token's attention costs about as much as all the rest of the model for it.
const EVEN_POSITION: f64 = 4096.0;

/// How much longer a block stays that a session points to or that was used again: as long as it takes to use this many
/// times what is kept.
const CREDIT: f64 = 0.5;

/// What a block's rank depends on beside its latest use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    /// Where it begins in its history.
    pub(super) start: usize,
    pub(super) tokens: usize,
    pub(super) bytes: usize,
    /// Whether a session points to it.
    pub(super) is_session: bool,
    /// How many later look-ups used it.
    pub(super) uses: u32,
    /// When it was used last.
    pub(super) used: Moment,
}

/// A point in time, counted in uses of blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Moment {
    number: u64,
    /// What the latest block given up was worth.
    floor: f64,
    /// How many blocks there were.
    blocks: usize,
}

/// Ranks blocks: the lowest goes first.
#[derive(Debug)]
pub(super) struct Ranking {
    eviction: Eviction,
    now: Moment,
}

impl Ranking {
    pub(super) fn new(eviction: Eviction) -> Self {
        Self { eviction, now: Moment::default() }
    }

    /// The moment of another use, while there are so many blocks.
    pub(super) fn use_one(&mut self, blocks: usize) -> Moment {
        self.now.number += 1;
        self.now.blocks = blocks;
        self.now
    }

    pub(super) fn rank(&self, facts: &Facts) -> Rank {
        let used = facts.used;
        let value = match self.eviction {
            Eviction::Lru => 0.0,
            Eviction::GreedyDual => used.floor + worth(facts),
            Eviction::SessionLru => {
                let is_wanted = facts.is_session || facts.uses > 0;
                let credit = if is_wanted { CREDIT * used.blocks as f64 } else { 0.0 };
                used.number as f64 + credit
            }
        };
        Rank { value: value.to_bits(), used: used.number }
    }

    /// A block of this rank was given up.
    pub(super) fn note_evicted(&mut self, rank: Rank) {
        self.now.floor = self.now.floor.max(f64::from_bits(rank.value));
    }
}

/// What a block costs to compute again for each of its bytes.
fn worth(facts: &Facts) -> f64 {
    let middle = facts.start as f64 + facts.tokens as f64 / 2.0;
    let cost = facts.tokens as f64 * (1.0 + middle / EVEN_POSITION);
    cost / facts.bytes.max(1) as f64 * f64::from(1 + facts.uses.min(15))
}

/// A block's place in the order in which blocks are given up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// A number of at least 0, whose bits are in its order.
    value: u64,
    used: u64,
}
