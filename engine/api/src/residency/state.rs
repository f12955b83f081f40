//! Who is in memory and who uses whom: what the manager's lock guards.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use linnet_runtime::EngineHealth;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::decision::{Resident, Use};
use super::source::ModelFacts;
use crate::error::ApiError;
use crate::provider::{ModelResidency, ModelState, ServedModel};

/// How many names of requests are remembered.
const MOST_NAMES: usize = 256;

/// What a load came to; `None` while it is under way.
pub(super) type Outcome = Option<Result<Arc<ServedModel>, ApiError>>;

/// The requests of one model.
#[derive(Debug)]
pub(super) struct Requests {
    count: AtomicUsize,
    last_used: Mutex<Instant>,
}

impl Requests {
    fn new() -> Arc<Self> {
        Arc::new(Self { count: AtomicUsize::new(0), last_used: Mutex::new(Instant::now()) })
    }

    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    fn last_used(&self) -> Instant {
        *self.last_used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One request's hold on its model. Taken only under the manager's lock, so that a model without any can be taken away
/// under the same lock.
#[derive(Debug)]
pub(super) struct Hold {
    requests: Arc<Requests>,
    changed: Arc<Notify>,
}

impl Hold {
    fn new(requests: &Arc<Requests>, changed: &Arc<Notify>) -> Self {
        requests.count.fetch_add(1, Ordering::AcqRel);
        Self { requests: Arc::clone(requests), changed: Arc::clone(changed) }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        *self.requests.last_used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.requests.count.fetch_sub(1, Ordering::AcqRel);
        self.changed.notify_waiters();
    }
}

/// How far a model is.
pub(super) enum Phase {
    /// On its way in; the receiver hears what came of it.
    Loading(watch::Receiver<Outcome>),
    /// In memory.
    Ready(Arc<ServedModel>),
    /// On its way out.
    Unloading,
}

/// A model in memory or on its way.
pub(super) struct Entry {
    pub(super) facts: ModelFacts,
    pub(super) phase: Phase,
    pub(super) requests: Arc<Requests>,
    pub(super) pinned: bool,
    /// What it takes; nothing while it is loading.
    pub(super) memory: ModelMemory,
}

/// What a model takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ModelMemory {
    /// Bytes of its weights, as measured or computed.
    pub(super) weights: u64,
    /// Bytes of conversations that it was promised.
    pub(super) conversations: u64,
}

impl ModelMemory {
    /// Bytes in all, if conversations take `held` now.
    pub(super) fn total(self, held: u64) -> u64 {
        self.weights.saturating_add(self.conversations.max(held))
    }
}

impl Entry {
    /// Bytes that it takes and has been promised.
    pub(super) fn bytes(&self) -> u64 {
        let held = match &self.phase {
            Phase::Ready(model) => {
                let (kv, cache) = (model.engine.status().kv.bytes, model.engine.cache_status().ram.bytes);
                // What is kept for later lies in the KV store where the backend shares it, else beside it.
                kv.max(cache) as u64
            }
            Phase::Loading(_) | Phase::Unloading => 0,
        };
        self.memory.total(held)
    }

    pub(super) fn residency(&self, now: Instant) -> ModelResidency {
        let state = match self.phase {
            Phase::Loading(_) => ModelState::Loading,
            Phase::Ready(_) => ModelState::Ready,
            Phase::Unloading => ModelState::Unloading,
        };
        let requests = self.requests.count();
        let idle_for = if requests > 0 { Default::default() } else { now.duration_since(self.requests.last_used()) };
        ModelResidency { state, pinned: self.pinned, requests, memory_bytes: self.bytes(), idle_for }
    }
}

/// All models in memory or on their way, and how they came there.
#[derive(Default)]
pub(super) struct State {
    pub(super) models: BTreeMap<String, Entry>,
    /// The names that requests used, and the models that they mean.
    names: HashMap<String, String>,
    pub(super) closing: bool,
    pub(super) loads: u64,
    pub(super) failed_loads: u64,
    pub(super) evictions: u64,
    pub(super) idle_unloads: u64,
}

/// What a request finds.
pub(super) enum Found {
    /// The model, in memory.
    Ready(Arc<ServedModel>, Hold),
    /// A load under way.
    Loading(watch::Receiver<Outcome>, Hold),
    /// It is on its way out; look again when something changed.
    Leaving,
    /// The server ends.
    Closing,
    /// Nothing; the load must be started.
    Started(watch::Sender<Outcome>, watch::Receiver<Outcome>, Hold),
}

impl State {
    /// Takes hold of a model, and makes its entry if there is none.
    pub(super) fn take(&mut self, facts: &ModelFacts, changed: &Arc<Notify>) -> Found {
        if self.closing {
            return Found::Closing;
        }
        if let Some(entry) = self.models.get(&facts.id) {
            match &entry.phase {
                Phase::Loading(outcome) => {
                    return Found::Loading(outcome.clone(), Hold::new(&entry.requests, changed));
                }
                Phase::Unloading => return Found::Leaving,
                Phase::Ready(model) => {
                    if !matches!(model.engine.status().health, EngineHealth::Gone(_)) {
                        return Found::Ready(Arc::clone(model), Hold::new(&entry.requests, changed));
                    }
                    // Its thread is gone and its memory with it; another one takes its place.
                    tracing::warn!(model = facts.id, "the engine ended by itself; loading the model again");
                }
            }
        }
        let pinned = self.models.get(&facts.id).is_some_and(|entry| entry.pinned);
        let (sender, receiver) = watch::channel(None);
        let requests = Requests::new();
        let hold = Hold::new(&requests, changed);
        let phase = Phase::Loading(receiver.clone());
        self.models.insert(
            facts.id.clone(),
            Entry { facts: facts.clone(), phase, requests, pinned, memory: ModelMemory::default() },
        );
        Found::Started(sender, receiver, hold)
    }

    /// The facts of the model that goes by `name`, if it is in memory or on its way and the name was used before.
    pub(super) fn known(&self, name: &str) -> Option<&ModelFacts> {
        let id = self.names.get(name).map_or(name, String::as_str);
        self.models.get(id).map(|entry| &entry.facts)
    }

    /// Remembers which model a name means, until that model leaves.
    pub(super) fn remember(&mut self, name: &str, id: &str) {
        if self.names.len() >= MOST_NAMES {
            self.names.clear();
        }
        self.names.insert(name.to_owned(), id.to_owned());
    }

    /// Forgets a model and the names that mean it.
    pub(super) fn remove(&mut self, id: &str) {
        self.models.remove(id);
        self.names.retain(|_, known| known != id);
    }

    /// What the decisions look at.
    pub(super) fn residents(&self, now: Instant) -> Vec<Resident> {
        let in_memory = self.models.iter().filter(|(_, entry)| !matches!(entry.phase, Phase::Loading(_)));
        in_memory
            .map(|(id, entry)| {
                let residency = entry.residency(now);
                let usage = match (&entry.phase, residency) {
                    (Phase::Ready(_), ModelResidency { pinned: true, .. }) => Use::Pinned,
                    (Phase::Ready(_), ModelResidency { requests: 0, .. }) => Use::Idle,
                    _ => Use::Busy,
                };
                Resident { id: id.clone(), bytes: residency.memory_bytes, usage, idle_for: residency.idle_for }
            })
            .collect()
    }
}
