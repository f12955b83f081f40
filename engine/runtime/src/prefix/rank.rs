//! Which kept block goes first when room is needed.

/// How blocks to give up are chosen. Only the ends of histories are ever given up, so that what is left can be used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Eviction {
    /// The least recently used first.
    Lru,
    /// GreedyDual: a block is worth what it costs to compute again for its bytes, and ages as others are given up. What a
    /// session points to is worth more.
    #[default]
    CostAware,
}

/// At this position a token's attention costs about as much as all the rest of the model for it.
const EVEN_POSITION: f64 = 4096.0;

/// How much more the end of a session is worth.
const SESSION_FACTOR: f64 = 4.0;

/// One block's age and worth, as far as they matter for its rank.
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
}

/// Ranks blocks: the lowest goes first.
#[derive(Debug)]
pub(super) struct Ranking {
    eviction: Eviction,
    /// Counts uses.
    clock: u64,
    /// What the latest block given up was worth.
    floor: f64,
}

impl Ranking {
    pub(super) fn new(eviction: Eviction) -> Self {
        Self { eviction, clock: 0, floor: 0.0 }
    }

    /// The rank of a block that was used just now.
    pub(super) fn rank(&mut self, facts: &Facts) -> Rank {
        self.clock += 1;
        let value = match self.eviction {
            Eviction::Lru => 0.0,
            Eviction::CostAware => self.floor + worth(facts),
        };
        Rank { value: value.to_bits(), used: self.clock }
    }

    /// A block of this rank was given up.
    pub(super) fn note_evicted(&mut self, rank: Rank) {
        self.floor = self.floor.max(f64::from_bits(rank.value));
    }
}

/// What a block costs to compute again for each of its bytes, in units of a first block of usual size.
fn worth(facts: &Facts) -> f64 {
    let middle = facts.start as f64 + facts.tokens as f64 / 2.0;
    let cost = facts.tokens as f64 * (1.0 + middle / EVEN_POSITION);
    let session = if facts.is_session { SESSION_FACTOR } else { 1.0 };
    cost / facts.bytes.max(1) as f64 * session * f64::from(1 + facts.uses.min(15))
}

/// A block's place in the order in which blocks are given up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// A number above 0, whose bits are in its order.
    value: u64,
    used: u64,
}
