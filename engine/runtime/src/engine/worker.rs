//! The engine thread: takes requests, plans steps, runs them, and outlives every fault in them.
//!
//! A model that [runs ahead](StepModel::runs_ahead) is given the next step before the one before it is collected, so that
//! it never waits for this thread. The tokens between the two are known to the model alone. Where a token must be chosen
//! here, the step before is collected first.

use std::{
    any::Any,
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    EngineHealth,
    cost::{CostModel, StepLoad},
    inbox::{Arrival, Command, Inbox, Places, Submission},
    plan::{Limits, PlannedRow, StepPlan, View, plan_step},
    sequence::{Progress, Sequence},
};
use crate::{
    CacheFlush, EngineOptions, EngineText, GenerationEvent, RowOutput, Slot, StepModel, StepModelError, StepRow,
    samplers::{Chosen, Scratch},
};

/// How many steps may be submitted and not collected while the next one is planned.
const AHEAD: usize = 1;

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
    /// When the latest step was collected.
    collected: Option<Instant>,
}

impl<M: StepModel> Worker<M> {
    pub(super) fn new(model: M, inbox: Arc<Inbox>, text: EngineText, options: &EngineOptions) -> Self {
        Self {
            model,
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
        }
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
                self.step();
            }
        };
        let gone = GenerationEvent::Failed(StepModelError::EngineGone(reason.clone()));
        for index in (0..self.sequences.len()).rev() {
            self.end(index, gone.clone());
        }
        let Self { model, inbox, .. } = self;
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
            match self.inbox.take(self.is_idle(), places) {
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
                // Nothing is kept yet, so nothing is missing.
                Command::Flush(answer) => drop(answer.send(CacheFlush { durable: true, ..CacheFlush::default() })),
                Command::CloseSession(_, answer) => drop(answer.send(false)),
                Command::Clear(answer) => drop(answer.send(())),
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
        let most = if self.submit() && self.model.runs_ahead() { AHEAD } else { 0 };
        while self.submitted.len() > most {
            self.collect();
        }
    }

    /// Plans and submits a step. Returns whether one was submitted.
    fn submit(&mut self) -> bool {
        let now = Instant::now();
        self.views.clear();
        self.views.extend(self.sequences.iter().map(|sequence| sequence.view(now)));
        let limits = Limits {
            chunk: self.model.prefill_chunk(),
            budget: self.model.kv_budget(),
            splits_last_token: self.model.splits_last_token(),
            max_stall: self.max_stall,
        };
        let StepPlan { set_back, rows } = plan_step(&self.views, &limits, &self.costs);
        for index in set_back {
            if let Some(slot) = self.sequences[index].set_back() {
                self.close(slot);
            }
        }
        let (rows, ended) = self.open_slots(rows);
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
        catch_unwind(AssertUnwindSafe(|| model.submit(&step_rows))).unwrap_or_else(|panic| Err(panicked(&*panic)))?;
        let mut submitted = Vec::with_capacity(rows.len());
        let mut load = StepLoad::default();
        for row in rows {
            load.add(self.views[row.sequence].held, row.tokens);
            let sequence = &mut self.sequences[row.sequence];
            let held = sequence.submitted(row.tokens, row.wants_logits);
            submitted.push(SubmittedRow {
                sequence: sequence.number,
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
                self.costs.observe(&step.load, now.saturating_duration_since(begun));
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
        let rows = rows
            .into_iter()
            .filter(|row| {
                if self.sequences[row.sequence].slot.is_some() {
                    return true;
                }
                let model = &mut self.model;
                match catch_unwind(AssertUnwindSafe(|| model.open())).unwrap_or_else(|panic| Err(panicked(&*panic))) {
                    Ok(slot) => {
                        self.sequences[row.sequence].slot = Some(slot);
                        true
                    }
                    Err(error) => {
                        ended.push((row.sequence, GenerationEvent::Failed(error)));
                        false
                    }
                }
            })
            .collect();
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
            if let Progress::Ended(event) = progress {
                ended.push((index, event));
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
        if let Some(slot) = sequence.set_back() {
            self.close(slot);
        }
        let (active, kv) = (self.sequences.len(), self.model.kv_status());
        self.inbox.update(|status| {
            status.active = active;
            status.kv = kv;
        });
        sequence
    }

    fn close(&mut self, slot: Slot) {
        let model = &mut self.model;
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| model.close(slot))) {
            tracing::error!(slot = slot.0, panic = panic_message(&*panic), "closing a sequence panicked");
        }
    }
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
