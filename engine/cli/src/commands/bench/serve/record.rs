//! What a run leaves behind: every request with its times and counts, hashes instead of texts.

use serde::{Deserialize, Serialize};

use crate::machine::Machine;

/// The version of this form.
pub(crate) const SCHEMA: u32 = 1;

/// A whole run: all arms, all rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// [`SCHEMA`].
    pub(crate) schema: u32,
    /// The version of the program that measured.
    pub(crate) linnet: String,
    /// When it began, in seconds since 1970.
    pub(crate) begun: u64,
    /// Where.
    pub(crate) machine: Machine,
    /// What was asked for.
    pub(crate) workload: Workload,
    /// The arms, ours first.
    pub(crate) arms: Vec<ArmRecord>,
    /// Every visit of every arm, in the order of time.
    pub(crate) cells: Vec<Cell>,
}

/// How much of what is asked. The same for all arms.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Workload {
    /// Makes the prompts of a run its own, so that no cache remembers them from another.
    pub(crate) seed: String,
    /// Tokens of the answers of the decode phase.
    pub(crate) decode_tokens: usize,
    /// Tokens that the long context aims at.
    pub(crate) context_tokens: usize,
    /// How often each arm is visited.
    pub(crate) rounds: usize,
    /// What is measured.
    pub(crate) phases: Vec<Phase>,
}

/// An engine under test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ArmRecord {
    /// Its name.
    pub(crate) name: String,
    /// The command or address it was given as.
    pub(crate) source: String,
}

/// A part of the workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Phase {
    /// A short answer before anything counts.
    WarmUp,
    /// Long answers to short questions, one after the other.
    Decode,
    /// The first token after about 1,000 tokens: new ones, then the same again.
    FirstToken,
    /// Another question after the same 2,000 tokens.
    Prefix,
    /// A long context, new and twice again.
    Context,
    /// The same context again after the server was restarted.
    Restart,
    /// Four and eight answers at once.
    Aggregate,
    /// Two, four and eight requests that arrive one after the other.
    Waves,
    /// Answers that run while somebody sends 4,000 tokens.
    Stall,
}

/// One visit of an arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cell {
    /// The arm's number.
    pub(crate) arm: usize,
    /// The round, counted from 0.
    pub(crate) round: usize,
    /// From the start of the server to its first sign of life, if it was started here.
    pub(crate) ready_ms: Option<f64>,
    /// The most memory that the server had, in bytes, where that can be found out.
    pub(crate) peak_memory: Option<u64>,
    /// What came of `POST /admin/cache/flush` before the restart.
    pub(crate) flush: Option<Flush>,
    /// Everything that was asked.
    pub(crate) exchanges: Vec<Exchange>,
    /// What went wrong apart from single requests, with its phase.
    pub(crate) failures: Vec<Failure>,
}

/// A phase that could not be carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    /// The phase.
    pub(crate) phase: Phase,
    /// What happened.
    pub(crate) reason: String,
}

/// What a server said when it was asked to write its cache down.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Flush {
    /// The answer's status.
    pub(crate) status: u16,
    /// Whether it said that everything is durable.
    pub(crate) durable: Option<bool>,
    /// How long it took.
    pub(crate) took_ms: f64,
}

/// One request and what came back. Times are milliseconds; those of the answer count from the request's beginning.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Exchange {
    /// What it belongs to, such as "decode" or "aggregate-4".
    pub(crate) group: String,
    /// Its number in the group.
    pub(crate) index: usize,
    /// SHA-256 of the request's body without the model's name.
    pub(crate) request_sha256: String,
    /// SHA-256 of the answer's text.
    pub(crate) output_sha256: Option<String>,
    /// When it was sent, from the beginning of the visit.
    pub(crate) begun_ms: f64,
    /// When the status came.
    pub(crate) headers_ms: Option<f64>,
    /// When each event with text came.
    pub(crate) events_ms: Vec<f64>,
    /// When the answer ended.
    pub(crate) finished_ms: Option<f64>,
    /// Tokens of the prompt, as the server counts them.
    pub(crate) prompt_tokens: Option<u64>,
    /// How many of them it had in a cache.
    pub(crate) cached_tokens: Option<u64>,
    /// Tokens of the answer.
    pub(crate) completion_tokens: Option<u64>,
    /// Why the answer ended.
    pub(crate) finish_reason: Option<String>,
    /// What went wrong; then the rest says how far it came.
    pub(crate) error: Option<String>,
}

impl Exchange {
    /// The time to the first text.
    pub(crate) fn first_ms(&self) -> Option<f64> {
        self.events_ms.first().copied()
    }

    /// Tokens per second from the first text to the last.
    pub(crate) fn decode_rate(&self) -> Option<f64> {
        let (first, last) = (self.events_ms.first()?, self.events_ms.last()?);
        let tokens = self.completion_tokens?.checked_sub(1).filter(|tokens| *tokens > 0)?;
        (last > first).then(|| tokens as f64 / (last - first) * 1000.0)
    }
}
