//! Loads and unloads models as the decisions say.
//!
//! A request takes hold of its model before it waits for anything, so that nothing it waits for can be taken away again.
//! Loads run one after the other, each in a task of its own: a client that leaves does not end a load that others wait
//! for, and what a load did to the process's memory can be told from what the one before did.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use linnet_runtime::MemoryEstimate;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::decision::{LoadDecision, MemoryState, Shortage, decide_load, next_idle_unload};
use super::memory::MemoryMeter;
use super::source::{ModelFacts, ModelSource};
use super::state::{Found, Hold, ModelMemory, Outcome, Phase, State};
use crate::error::ApiError;
use crate::provider::{LoadedCard, ModelCard, ModelLease, ModelProvider, ModelResidency, ResidencyStatus, ServedModel};

/// How models share the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResidencyOptions {
    /// Bytes that models may take in all.
    pub budget: u64,
    /// How long a model that nobody uses stays in memory; `None`: until others need its room.
    pub idle_unload: Option<Duration>,
    /// How long a request waits for memory that requests of other models hold.
    pub wait_limit: Duration,
}

impl ResidencyOptions {
    /// How long a model that nobody uses stays in memory unless told otherwise.
    pub const DEFAULT_IDLE_UNLOAD: Duration = Duration::from_secs(30 * 60);

    /// Options with the given budget.
    #[must_use]
    pub fn with_budget(budget: u64) -> Self {
        Self { budget, idle_unload: Some(Self::DEFAULT_IDLE_UNLOAD), wait_limit: Duration::from_secs(60) }
    }
}

/// The models of a store, in memory as long as they are of use.
pub struct ModelManager {
    inner: Arc<Inner>,
}

struct Inner {
    source: Arc<dyn ModelSource>,
    memory: Arc<dyn MemoryMeter>,
    options: ResidencyOptions,
    state: Mutex<State>,
    /// A request ended, a model came or went.
    changed: Arc<Notify>,
    /// Held by the load under way.
    turn: tokio::sync::Mutex<()>,
}

/// Why a model is taken out of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnloadReason {
    Evicted,
    Idle,
    Asked,
    Closing,
}

impl ModelManager {
    /// A manager of the models of `source`. Must be called in a tokio runtime, in which it unloads idle models.
    #[must_use]
    pub fn start(source: Arc<dyn ModelSource>, memory: Arc<dyn MemoryMeter>, options: ResidencyOptions) -> Self {
        let inner = Arc::new(Inner {
            source,
            memory,
            options,
            state: Mutex::default(),
            changed: Arc::new(Notify::new()),
            turn: tokio::sync::Mutex::default(),
        });
        if let Some(limit) = options.idle_unload {
            tokio::spawn(unload_when_idle(Arc::downgrade(&inner), Arc::clone(&inner.changed), limit));
        }
        Self { inner }
    }

    /// Takes no more requests, writes what the caches hold and frees all models. Answers that still run end with an error.
    pub async fn close(&self) {
        let ids: Vec<String> = {
            let mut state = self.inner.state();
            state.closing = true;
            state.models.keys().cloned().collect()
        };
        join_all(ids.iter().map(|id| self.inner.unload(id, UnloadReason::Closing))).await;
    }
}

impl Drop for ModelManager {
    fn drop(&mut self) {
        self.inner.changed.notify_waiters();
    }
}

impl Inner {
    // Nothing in here can panic half-way through a change, so a poisoned lock still guards a whole state.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The facts of the model that goes by that name; the disk is asked only about models that are not in memory.
    async fn find(&self, name: Option<&str>) -> Result<ModelFacts, ApiError> {
        // No model has an empty name, so that stands for the default model.
        let key = name.unwrap_or_default().to_owned();
        if let Some(facts) = self.state().known(&key) {
            return Ok(facts.clone());
        }
        let source = Arc::clone(&self.source);
        let name = name.map(str::to_owned);
        let facts = blocking("looking for the model", move || source.find(name.as_deref())).await?;
        self.state().remember(&key, &facts.id);
        Ok(facts)
    }

    /// Takes hold of a model, loading it if need be.
    async fn acquire(self: &Arc<Self>, facts: &ModelFacts) -> Result<(Arc<ServedModel>, Hold), ApiError> {
        loop {
            let mut changed = pin!(self.changed.notified());
            // From here on a change is not missed.
            changed.as_mut().enable();
            let found = self.state().take(facts, &self.changed);
            let (mut outcome, hold) = match found {
                Found::Ready(model, hold) => return Ok((model, hold)),
                Found::Closing => return Err(ApiError::ShuttingDown),
                Found::Leaving => {
                    changed.await;
                    continue;
                }
                Found::Loading(outcome, hold) => (outcome, hold),
                Found::Started(sender, outcome, hold) => {
                    tokio::spawn(Arc::clone(self).load(facts.id.clone(), sender));
                    (outcome, hold)
                }
            };
            let result = outcome.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
            // Without a word the load's task was dropped, as it is when the runtime ends.
            return result.unwrap_or(Err(ApiError::ShuttingDown)).map(|model| (model, hold));
        }
    }

    async fn load(self: Arc<Self>, id: String, sender: watch::Sender<Outcome>) {
        let turn = self.turn.lock().await;
        let result = if self.is_wanted(&id) { self.load_in_turn(&id).await } else { Err(ApiError::ShuttingDown) };
        {
            let mut state = self.state();
            match &result {
                Ok((model, memory)) => {
                    state.loads += 1;
                    if let Some(entry) = state.models.get_mut(&id) {
                        entry.phase = Phase::Ready(Arc::clone(model));
                        entry.memory = *memory;
                        entry.facts.context_length = Some(model.engine.context_length());
                    }
                }
                Err(error) => {
                    state.failed_loads += 1;
                    state.remove(&id);
                    tracing::warn!(model = id, code = error.code(), "the model was not loaded");
                }
            }
            sender.send_replace(Some(result.map(|(model, _)| model)));
        }
        drop(turn);
        self.changed.notify_waiters();
    }

    /// Whether anybody still waits for the load.
    fn is_wanted(&self, id: &str) -> bool {
        let state = self.state();
        !state.closing && state.models.get(id).is_some_and(|entry| entry.requests.count() > 0)
    }

    /// Makes room and loads. Returns the model and what it takes.
    async fn load_in_turn(self: &Arc<Self>, id: &str) -> Result<(Arc<ServedModel>, ModelMemory), ApiError> {
        let need = self.on_disk(id, |source, id| source.estimate(id)).await?;
        self.make_room(id, need).await?;
        let before = self.memory.process();
        let started = Instant::now();
        let model = self.on_disk(id, |source, id| source.load(id)).await?;
        let measured = self.memory.process().zip(before).map_or(0, |(after, before)| after.saturating_sub(before));
        let memory = ModelMemory { weights: need.weights.max(measured), conversations: need.kv };
        let seconds = started.elapsed().as_secs_f64();
        tracing::info!(model = id, seconds, estimated = need.total(), measured, "model loaded");
        Ok((Arc::new(model), memory))
    }

    /// Unloads what must go; waits for requests of other models to end if only that gives room.
    async fn make_room(self: &Arc<Self>, id: &str, need: MemoryEstimate) -> Result<(), ApiError> {
        let started = Instant::now();
        let refuse = |shortage: Shortage| ApiError::MemoryShort { model: id.to_owned(), shortage: Box::new(shortage) };
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let residents = self.state().residents(Instant::now());
            match decide_load(need.total(), self.memory_state(), &residents) {
                LoadDecision::Load => return Ok(()),
                LoadDecision::Refuse(shortage) => return Err(refuse(shortage)),
                LoadDecision::Unload(ids) => {
                    // One that was taken into use meanwhile stays; then the next look decides anew.
                    join_all(ids.iter().map(|id| self.unload(id, UnloadReason::Evicted))).await;
                }
                LoadDecision::Wait(shortage) => {
                    let left = self.options.wait_limit.saturating_sub(started.elapsed());
                    if tokio::time::timeout(left, changed).await.is_err() {
                        let waited_seconds = started.elapsed().as_secs();
                        let (model, shortage) = (id.to_owned(), Box::new(shortage));
                        return Err(ApiError::MemoryBusy { model, shortage, waited_seconds });
                    }
                }
            }
        }
    }

    fn memory_state(&self) -> MemoryState {
        MemoryState { budget: self.options.budget, process: self.memory.process(), available: self.memory.available() }
    }

    /// Takes a model out of memory. Returns whether it is out; it stays when requests use it, unless the server ends.
    async fn unload(self: &Arc<Self>, id: &str, reason: UnloadReason) -> bool {
        let model = loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let mut state = self.state();
                let Some(entry) = state.models.get_mut(id) else { return true };
                let is_free = reason == UnloadReason::Closing || entry.requests.count() == 0;
                match &entry.phase {
                    Phase::Ready(model) if is_free => {
                        let model = Arc::clone(model);
                        entry.phase = Phase::Unloading;
                        break model;
                    }
                    Phase::Unloading => {}
                    Phase::Ready(_) | Phase::Loading(_) => return false,
                }
            }
            changed.await;
        };
        let inner = Arc::clone(self);
        let name = id.to_owned();
        // In a task: a request that gave up half-way must not leave a model that is neither in nor out.
        let work = tokio::spawn(async move {
            let freed = tokio::task::spawn_blocking(move || {
                let flush = model.engine.flush_cache();
                model.engine.stop();
                flush
            })
            .await;
            {
                let mut state = inner.state();
                match reason {
                    UnloadReason::Evicted => state.evictions += 1,
                    UnloadReason::Idle => state.idle_unloads += 1,
                    UnloadReason::Asked | UnloadReason::Closing => {}
                }
                state.remove(&name);
            }
            inner.changed.notify_waiters();
            let durable = freed.is_ok_and(|flush| flush.durable);
            tracing::info!(model = name, ?reason, durable, "model unloaded");
        });
        work.await.is_ok()
    }

    async fn on_disk<T: Send + 'static>(
        &self,
        id: &str,
        work: impl FnOnce(&dyn ModelSource, &str) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let source = Arc::clone(&self.source);
        let id = id.to_owned();
        blocking("loading it", move || work(&*source, &id)).await
    }

    fn card(&self, facts: ModelFacts) -> ModelCard {
        let state = self.state();
        let residency = state.models.get(&facts.id).map(|entry| entry.residency(Instant::now()));
        ModelCard { facts, residency: residency.unwrap_or_default() }
    }
}

/// Runs work that may block; a panic in it becomes an error of the model it was for.
async fn blocking<T: Send + 'static>(
    what: &'static str,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => Err(ApiError::ModelLoadFailed {
            model: "the model".to_owned(),
            reason: format!("{what} met an internal fault; please report this"),
        }),
        Err(_) => Err(ApiError::ShuttingDown),
    }
}

/// Unloads models that nobody used for `limit`, until the manager is gone.
async fn unload_when_idle(inner: std::sync::Weak<Inner>, changed: Arc<Notify>, limit: Duration) {
    loop {
        let mut something = pin!(changed.notified());
        something.as_mut().enable();
        let Some(inner) = inner.upgrade() else { return };
        let (due, next) = next_idle_unload(&inner.state().residents(Instant::now()), limit);
        join_all(due.iter().map(|id| inner.unload(id, UnloadReason::Idle))).await;
        drop(inner);
        match next {
            Some(next) => drop(tokio::time::timeout(next, something).await),
            None => something.await,
        }
    }
}

impl ModelProvider for ModelManager {
    fn list(&self) -> BoxFuture<'_, Result<Vec<ModelCard>, ApiError>> {
        Box::pin(async {
            let source = Arc::clone(&self.inner.source);
            let facts = blocking("listing the models", move || source.list()).await?;
            let mut cards: Vec<ModelCard> = facts.into_iter().map(|facts| self.inner.card(facts)).collect();
            // A model that was removed from disk answers on while it is in memory.
            let state = self.inner.state();
            for (id, entry) in &state.models {
                if !cards.iter().any(|card| card.facts.id == *id) {
                    cards.push(ModelCard { facts: entry.facts.clone(), residency: entry.residency(Instant::now()) });
                }
            }
            Ok(cards)
        })
    }

    fn card<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<ModelCard, ApiError>> {
        Box::pin(async move { Ok(self.inner.card(self.inner.find(Some(name)).await?)) })
    }

    fn loaded(&self) -> Vec<LoadedCard> {
        let state = self.inner.state();
        let ready = state.models.values().filter_map(|entry| match &entry.phase {
            Phase::Ready(model) => {
                Some(LoadedCard { model: Arc::clone(model), residency: entry.residency(Instant::now()) })
            }
            Phase::Loading(_) | Phase::Unloading => None,
        });
        ready.collect()
    }

    fn get<'a>(&'a self, name: Option<&'a str>) -> BoxFuture<'a, Result<ModelLease, ApiError>> {
        Box::pin(async move {
            let facts = self.inner.find(name).await?;
            let (model, hold) = self.inner.acquire(&facts).await?;
            Ok(ModelLease::holding(model, hold))
        })
    }

    fn residency(&self) -> ResidencyStatus {
        let memory = self.inner.memory_state();
        let state = self.inner.state();
        ResidencyStatus {
            budget_bytes: Some(memory.budget),
            used_bytes: state.models.values().map(|entry| entry.bytes()).sum(),
            process_bytes: memory.process,
            available_bytes: memory.available,
            loads: state.loads,
            failed_loads: state.failed_loads,
            evictions: state.evictions,
            idle_unloads: state.idle_unloads,
        }
    }

    fn unload<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<ModelCard, ApiError>> {
        Box::pin(async move {
            let facts = self.inner.find(Some(name)).await?;
            if !self.inner.unload(&facts.id, UnloadReason::Asked).await {
                let card = self.inner.card(facts);
                let ModelResidency { requests, .. } = card.residency;
                return Err(ApiError::ModelInUse { model: card.facts.id, requests });
            }
            Ok(self.inner.card(facts))
        })
    }

    fn pin<'a>(&'a self, name: &'a str, pinned: bool) -> BoxFuture<'a, Result<ModelCard, ApiError>> {
        Box::pin(async move {
            let facts = self.inner.find(Some(name)).await?;
            // Held meanwhile, so that it is not unloaded before it is pinned.
            let _hold = if pinned { Some(self.inner.acquire(&facts).await?) } else { None };
            if let Some(entry) = self.inner.state().models.get_mut(&facts.id) {
                entry.pinned = pinned;
            }
            Ok(self.inner.card(facts))
        })
    }
}
