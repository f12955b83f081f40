//! The engine thread: takes requests, plans steps, runs them, and outlives every fault in them.
//!
//! A model that [runs ahead](StepModel::runs_ahead) is given the next step before the one before it is collected, so that
//! it never waits for this thread. The tokens between the two are known to the model alone. Where a token must be chosen
//! here, the step before is collected first.

mod prefixes;

use std::{
    any::Any,
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc::SyncSender},
    time::{Duration, Instant},
};

use self::prefixes::leave;
use super::{
    EngineHealth,
    cache::Cache,
    cost::{CostModel, StepLoad},
    inbox::{Arrival, Command, Inbox, Places, Submission},
    plan::{Limits, PlannedRow, View},
    sequence::{Progress, Sequence},
};
use crate::{
    CacheFlush, EngineOptions, EngineText, GenerationEvent, RowOutput, Slot, StepModel, StepModelError, StepRow,
    samplers::{Chosen, Scratch},
    ssd::SsdTier,
};

/// How many steps may be submitted and not collected while the next one is planned.
const AHEAD: usize = 1;

/// How long a flush may take, and the one when the engine ends.
const FLUSH_LIMIT: Duration = Duration::from_secs(120);

/// How long to wait at a time for the disk while nothing else is to be done.
const DISK_WAIT: Duration = Duration::from_millis(20);

/// A request's index and its last event.
type Ending = (usize, GenerationEvent);

/// A step in work.
struct Submitted {
    rows: Vec<SubmittedRow>,
    /// Whether a token must be chosen on this thread before the next step can be planned.
    needs_choice: bool,
    load: StepLoad,
    begun: Instant,
}

/// One request's row of a step in work.
struct SubmittedRow {
    /// The request's number.
    sequence: u64,
    slot: Slot,
    /// Its tokens in the step.
    tokens: usize,
    /// Its tokens in the KV store once the step is through.
    held: usize,
    wants_token: bool,
}

/// The thread's own state. The model lives and dies here.
pub(super) struct Worker<M: StepModel> {
    model: M,
    inbox: Arc<Inbox>,
    text: EngineText,
    max_concurrent: usize,
    max_stall: Duration,
    /// The requests that run, oldest first.
    sequences: Vec<Sequence>,
    /// The number of the next request.
    next_number: u64,
    /// Steps in work, oldest first.
    submitted: VecDeque<Submitted>,
    views: Vec<View>,
    scratch: Scratch,
    costs: CostModel,
    cache: Cache,
    /// Who waits for a flush, and since when.
    flushes: Vec<(SyncSender<CacheFlush>, Instant)>,
    /// When the latest step was collected.
    collected: Option<Instant>,
}

impl<M: StepModel> Worker<M> {
    pub(super) fn new(
        model: M,
        inbox: Arc<Inbox>,
        text: EngineText,
        options: &EngineOptions,
        disk: Option<Arc<SsdTier>>,
    ) -> Self {
        let cache = Cache::new(&model, options, disk);
        let worker = Self {
            model,
            cache,
            flushes: Vec::new(),
            inbox,
            text,
            max_concurrent: options.max_concurrent,
            max_stall: options.max_stall,
            sequences: Vec::new(),
            next_number: 0,
            submitted: VecDeque::new(),
            views: Vec::new(),
            scratch: Scratch::default(),
            costs: CostModel::default(),
            collected: None,
        };
        worker.publish_cache_status();
        worker
    }

    /// Serves until the inbox says to stop.
    pub(super) fn run(mut self) {
        let reason = loop {
            self.drop_cancelled();
            self.obey();
            if let Some(reason) = self.admit() {
                break reason;
            }
            if !self.is_idle() {
                self.inbox.give_way();
                self.step();
            }
            self.tend_disk();
            self.publish_cache_status();
        };
        let gone = GenerationEvent::Failed(StepModelError::EngineGone(reason.clone()));
        for index in (0..self.sequences.len()).rev() {
            self.end(index, gone.clone());
        }
        let Self { mut model, mut cache, inbox, .. } = self;
        cache.flush_now(&mut model, FLUSH_LIMIT);
        // The model is freed before the engine counts as gone, so that another one finds its memory.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(model))) {
            tracing::error!(panic = panic_message(&*panic), "freeing the model panicked");
        }
        inbox.close(&reason);
    }

    /// Takes waiting requests while places are free; sleeps while there is nothing to do. Returns why to stop, if so.
    fn admit(&mut self) -> Option<String> {
        while self.sequences.len() < self.max_concurrent {
            let places = Places::of(self.max_concurrent - self.sequences.len(), self.max_concurrent);
            match self.inbox.take(self.is_idle() && !self.has_disk_work(), places) {
                Arrival::Request(submission) => self.begin(*submission),
                Arrival::Nothing => return None,
                Arrival::Stop(reason) => return Some(reason),
            }
        }
        self.inbox.stop_reason()
    }

    /// Does what handles asked for beside requests.
    fn obey(&mut self) {
        while let Some(command) = self.inbox.take_command() {
            // Whoever asked may be gone by now.
            match command {
                Command::Flush(answer) => self.flushes.push((answer, Instant::now())),
                Command::CloseSession(name, answer) => {
                    let was_known = self.cache.close_session(&name);
                    self.publish_cache_status();
                    let _ = answer.send(was_known);
                }
                Command::Clear(answer) => {
                    self.cache.clear(&mut self.model);
                    self.publish_cache_status();
                    let _ = answer.send(());
                }
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.sequences.is_empty() && self.submitted.is_empty()
    }

    fn begin(&mut self, submission: Submission) {
        let events = submission.events.clone();
        let text = &self.text;
        self.next_number += 1;
        let number = self.next_number;
        match catch_unwind(AssertUnwindSafe(|| Sequence::new(number, submission, text))) {
            Ok(sequence) => self.sequences.push(sequence),
            Err(panic) => {
                let active = self.sequences.len();
                self.inbox.update(|status| {
                    status.active = active;
                    status.failed += 1;
                });
                drop(events.send(GenerationEvent::Failed(panicked(&*panic))));
            }
        }
    }

    fn drop_cancelled(&mut self) {
        for index in (0..self.sequences.len()).rev() {
            if self.sequences[index].is_cancelled() {
                self.free(index);
                self.inbox.update(|status| status.cancelled += 1);
            }
        }
    }

    /// Submits the next step, if there is one, and collects what need not be in work any longer.
    fn step(&mut self) {
        while self.submitted.iter().any(|step| step.needs_choice) {
            self.collect();
        }
        self.restore(false);
        let has_submitted = self.submit();
        if !has_submitted && self.submitted.is_empty() {
            // Only the disk can carry anybody on.
            self.restore(true);
        }
        let most = if has_submitted && self.model.runs_ahead() { AHEAD } else { 0 };
        while self.submitted.len() > most {
            self.collect();
        }
    }

    /// Plans and submits a step. Returns whether one was submitted.
    fn submit(&mut self) -> bool {
        let now = Instant::now();
        let mut limits = Limits {
            chunk: self.model.prefill_chunk(),
            budget: self.model.kv_budget(),
            splits_last_token: self.model.splits_last_token(),
            max_stall: self.max_stall,
        };
        let mut ended = Vec::new();
        let rows = loop {
            let rows = self.plan(now, &limits);
            let (rows, failed) = self.open_slots(rows);
            ended.extend(failed);
            if !ended.is_empty() {
                break rows;
            }
            let wanted: Vec<(Slot, usize)> =
                rows.iter().filter_map(|row| Some((self.sequences[row.sequence].slot?, row.tokens))).collect();
            let lacking = self.cache.make_room(&mut self.model, &wanted);
            let started = self.sequences.iter().filter(|sequence| sequence.slot.is_some()).count();
            if lacking == 0 || started < 2 {
                break rows;
            }
            // The store has less room than it seemed: somebody is set back for it.
            let room = self.views.iter().map(|view| view.held + view.kept + view.pending).sum();
            let capacity = limits.budget.capacity.min(room);
            limits.budget.capacity = capacity.saturating_sub(lacking * self.cache.block());
        };
        for row in &rows {
            self.sequences[row.sequence].begin(now);
        }
        let submitted = match self.submit_rows(&rows) {
            Ok(submitted) => submitted,
            Err(error) => {
                let numbers: Vec<u64> = rows.iter().map(|row| self.sequences[row.sequence].number).collect();
                self.end_all(ended);
                // What was computed before still belongs to the requests.
                while !self.submitted.is_empty() {
                    self.collect();
                }
                self.fail(&numbers, &error);
                return false;
            }
        };
        self.end_all(ended);
        submitted
    }

    fn submit_rows(&mut self, rows: &[PlannedRow]) -> Result<bool, StepModelError> {
        if rows.is_empty() {
            return Ok(false);
        }
        // A step in which some tokens are chosen here and some by the model would have to be waited for anyway.
        let model_chooses =
            self.model.runs_ahead() && rows.iter().all(|row| self.sequences[row.sequence].leaves_choice());
        let outputs: Vec<RowOutput> = rows
            .iter()
            .map(|row| match row.wants_logits {
                true => self.sequences[row.sequence].output(model_chooses),
                false => RowOutput::None,
            })
            .collect();
        let mut step_rows = Vec::with_capacity(rows.len());
        for (row, &output) in rows.iter().zip(&outputs) {
            let sequence = &self.sequences[row.sequence];
            let slot = sequence.slot.ok_or_else(|| StepModelError::Compute("a row of the step has no slot".into()))?;
            step_rows.push(StepRow { slot, tokens: sequence.pending(row.tokens), output });
        }
        let model = &mut self.model;
        let begun = Instant::now();
        guarded(|| model.submit(&step_rows))?;
        let mut submitted = Vec::with_capacity(rows.len());
        let mut load = StepLoad::default();
        for row in rows {
            let sequence = &mut self.sequences[row.sequence];
            let Some(slot) = sequence.slot else { continue };
            let held = sequence.submitted(row.tokens, row.wants_logits);
            load.add(held - row.tokens, row.tokens);
            submitted.push(SubmittedRow {
                sequence: sequence.number,
                slot,
                tokens: row.tokens,
                held,
                wants_token: row.wants_logits,
            });
        }
        let needs_choice = outputs.iter().any(|output| matches!(output, RowOutput::Logits));
        self.submitted.push_back(Submitted { rows: submitted, needs_choice, load, begun });
        Ok(true)
    }

    /// Waits for the oldest step in work and carries its requests on.
    fn collect(&mut self) {
        let Some(step) = self.submitted.pop_front() else { return };
        let mut chosen: Vec<Option<Result<Chosen, StepModelError>>> = step.rows.iter().map(|_| None).collect();
        let (model, sequences, scratch) = (&mut self.model, &mut self.sequences, &mut self.scratch);
        let collected = catch_unwind(AssertUnwindSafe(|| {
            model.collect(&mut |result| {
                // A request that ended meanwhile has no use for it.
                let row = step.rows.get(result.row);
                let sequence = row.and_then(|row| sequences.iter_mut().find(|other| other.number == row.sequence));
                if let (Some(sequence), Some(place)) = (sequence, chosen.get_mut(result.row)) {
                    *place = Some(sequence.choose(result.token, result.logits, scratch));
                }
            })
        }))
        .unwrap_or_else(|panic| Err(panicked(&*panic)));
        match collected {
            Ok(()) => {
                let ended = self.advance(&step.rows, chosen);
                self.end_all(ended);
                // Where steps run ahead, this one began when the one before it was through.
                let now = Instant::now();
                let begun = self.collected.map_or(step.begun, |collected| collected.max(step.begun));
                let took = now.saturating_duration_since(begun);
                tracing::trace!(load = ?step.load, expected = self.costs.predict(&step.load), ?took, "a step is through");
                self.costs.observe(&step.load, took);
                self.collected = Some(now);
            }
            Err(error) => {
                let numbers: Vec<u64> = step.rows.iter().map(|row| row.sequence).collect();
                self.fail(&numbers, &error);
            }
        }
    }

    /// A step failed: its requests are given up.
    fn fail(&mut self, numbers: &[u64], error: &StepModelError) {
        tracing::error!(%error, rows = numbers.len(), "a step failed; its requests are given up");
        self.note_failed_step(error);
        let failed = self.sequences.iter().enumerate().filter(|(_, sequence)| numbers.contains(&sequence.number));
        self.end_all(failed.map(|(index, _)| (index, GenerationEvent::Failed(error.clone()))).collect());
    }

    fn end_all(&mut self, mut ended: Vec<Ending>) {
        // From the back, so that the indices stay right.
        ended.sort_unstable_by_key(|&(index, _)| std::cmp::Reverse(index));
        for (index, event) in ended {
            self.end(index, event);
        }
    }

    /// Gives each row's request a slot. Those that get none drop out of the step and end.
    fn open_slots(&mut self, rows: Vec<PlannedRow>) -> (Vec<PlannedRow>, Vec<Ending>) {
        let mut ended = Vec::new();
        let splits_last_token = self.model.splits_last_token();
        let mut rows = rows;
        rows.retain_mut(|row| {
            if self.sequences[row.sequence].slot.is_some() {
                return true;
            }
            match self.open(row.sequence) {
                Ok(()) => {
                    let rest = self.sequences[row.sequence].rest();
                    let most = if splits_last_token && rest > 1 { rest - 1 } else { rest };
                    row.tokens = row.tokens.min(most);
                    row.wants_logits = row.tokens == rest;
                    true
                }
                Err(error) => {
                    ended.push((row.sequence, GenerationEvent::Failed(error)));
                    false
                }
            }
        });
        (rows, ended)
    }

    /// Carries a step's requests on. Returns those that ended.
    fn advance(&mut self, rows: &[SubmittedRow], chosen: Vec<Option<Result<Chosen, StepModelError>>>) -> Vec<Ending> {
        let now = Instant::now();
        let (mut prompt_tokens, mut generated_tokens) = (0, 0);
        let mut ended = Vec::new();
        for (row, chosen) in rows.iter().zip(chosen) {
            let Some(index) = self.sequences.iter().position(|sequence| sequence.number == row.sequence) else {
                continue;
            };
            let sequence = &mut self.sequences[index];
            let before = sequence.generated();
            if before == 0 {
                prompt_tokens += row.tokens as u64;
            }
            let chosen = match chosen {
                None if row.wants_token => {
                    let message = "the model gave no logits for a row that wanted them";
                    Some(Err(StepModelError::Compute(message.into())))
                }
                chosen => chosen,
            };
            // The tokenizer works in here; a panic of its must not reach the others.
            let progress = catch_unwind(AssertUnwindSafe(|| sequence.collected(row.held, chosen, now)))
                .unwrap_or_else(|panic| Progress::Ended(GenerationEvent::Failed(panicked(&*panic))));
            generated_tokens += (sequence.generated() - before) as u64;
            sequence.note_through(row.slot, row.held);
            match progress {
                Progress::Ended(event) => ended.push((index, event)),
                Progress::Continues => self.publish(index),
            }
        }
        let kv = self.model.kv_status();
        self.inbox.update(|status| {
            status.prompt_tokens += prompt_tokens;
            status.generated_tokens += generated_tokens;
            status.kv = kv;
            status.health = EngineHealth::Serving;
        });
        ended
    }

    fn note_failed_step(&self, error: &StepModelError) {
        self.inbox.update(|status| {
            let before = match &status.health {
                EngineHealth::Failing { consecutive, .. } => *consecutive,
                EngineHealth::Serving | EngineHealth::Gone(_) => 0,
            };
            status.health = EngineHealth::Failing { consecutive: before + 1, last: error.to_string() };
        });
    }

    /// Ends a request: what it held is free before its receiver hears of it.
    fn end(&mut self, index: usize, event: GenerationEvent) {
        if let GenerationEvent::Failed(error) = &event
            && !matches!(error, StepModelError::EngineGone(_))
        {
            let Self { model, cache, sequences, .. } = self;
            cache.condemn(model, &mut sequences[index].path);
            sequences[index].spoil();
        }
        let sequence = self.free(index);
        match &event {
            GenerationEvent::Finished { usage, .. } => {
                let ran = usage.prefill_seconds + usage.decode_seconds;
                self.inbox.note_finished(Duration::try_from_secs_f64(ran).unwrap_or_default());
            }
            _ => self.inbox.update(|status| status.failed += 1),
        }
        sequence.send(event);
    }

    fn free(&mut self, index: usize) -> Sequence {
        let mut sequence = self.sequences.remove(index);
        leave(&mut self.cache, &mut self.model, &mut sequence, true);
        if let Some(slot) = sequence.set_back() {
            self.close(slot);
        }
        let (active, kv) = (self.sequences.len(), self.model.kv_status());
        self.inbox.update(|status| {
            status.active = active;
            status.kv = kv;
        });
        self.publish_cache_status();
        sequence
    }

    fn close(&mut self, slot: Slot) {
        let model = &mut self.model;
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| model.close(slot))) {
            tracing::error!(slot = slot.0, panic = panic_message(&*panic), "closing a sequence panicked");
        }
    }
}

/// A call of the model whose panic is an error like any other.
pub(super) fn guarded<T>(call: impl FnOnce() -> Result<T, StepModelError>) -> Result<T, StepModelError> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| Err(panicked(&*panic)))
}

fn panicked(panic: &(dyn Any + Send)) -> StepModelError {
    StepModelError::Panicked(panic_message(panic))
}

/// What a panic said.
pub(super) fn panic_message(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".into())
}
