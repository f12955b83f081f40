//! The engine thread: takes requests, plans steps, runs them, and outlives every fault in them.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Instant,
};

use super::{
    EngineHealth,
    inbox::{Arrival, Inbox, Submission},
    plan::{PlannedRow, StepPlan, View, plan_step},
    sequence::{Progress, Sequence},
};
use crate::{EngineText, GenerationEvent, Slot, StepModel, StepModelError, StepRow, samplers::Scratch};

/// A request's index and its last event.
type Ending = (usize, GenerationEvent);

/// The thread's own state. The model lives and dies here.
pub(super) struct Worker<M: StepModel> {
    model: M,
    inbox: Arc<Inbox>,
    text: EngineText,
    max_concurrent: usize,
    /// The requests that run, oldest first.
    sequences: Vec<Sequence>,
    views: Vec<View>,
    tokens: Vec<u32>,
    scratch: Scratch,
}

impl<M: StepModel> Worker<M> {
    pub(super) fn new(model: M, inbox: Arc<Inbox>, text: EngineText, max_concurrent: usize) -> Self {
        Self {
            model,
            inbox,
            text,
            max_concurrent,
            sequences: Vec::new(),
            views: Vec::new(),
            tokens: Vec::new(),
            scratch: Scratch::default(),
        }
    }

    /// Serves until the inbox says to stop.
    pub(super) fn run(mut self) {
        let reason = loop {
            self.drop_cancelled();
            if let Some(reason) = self.admit() {
                break reason;
            }
            if !self.sequences.is_empty() {
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
            match self.inbox.take(self.sequences.is_empty()) {
                Arrival::Request(submission) => self.begin(submission),
                Arrival::Nothing => return None,
                Arrival::Stop(reason) => return Some(reason),
            }
        }
        self.inbox.stop_reason()
    }

    fn begin(&mut self, submission: Submission) {
        let events = submission.events.clone();
        let text = &self.text;
        match catch_unwind(AssertUnwindSafe(|| Sequence::new(submission, text))) {
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

    fn step(&mut self) {
        self.views.clear();
        self.views.extend(self.sequences.iter().map(Sequence::view));
        let StepPlan { set_back, rows } = plan_step(&self.views, self.model.prefill_chunk(), self.model.kv_budget());
        for index in set_back {
            if let Some(slot) = self.sequences[index].set_back() {
                self.close(slot);
            }
        }
        let (rows, mut ended) = self.open_slots(rows);
        let now = Instant::now();
        for row in &rows {
            self.sequences[row.sequence].begin(now);
        }
        match self.run_model(&rows) {
            Ok(()) => ended.extend(self.advance(&rows)),
            Err(error) => {
                tracing::error!(%error, rows = rows.len(), "a step failed; its requests are given up");
                self.note_failed_step(&error);
                ended.extend(rows.iter().map(|row| (row.sequence, GenerationEvent::Failed(error.clone()))));
            }
        }
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

    fn run_model(&mut self, rows: &[PlannedRow]) -> Result<(), StepModelError> {
        if rows.is_empty() {
            return Ok(());
        }
        // The tokens are copied so that the requests are free to choose their next ones during the step.
        self.tokens.clear();
        for row in rows {
            self.tokens.extend_from_slice(self.sequences[row.sequence].pending(row.tokens));
        }
        let mut rest = self.tokens.as_slice();
        let mut step_rows = Vec::with_capacity(rows.len());
        for row in rows {
            let (tokens, after) = rest.split_at(row.tokens);
            rest = after;
            let slot = self.sequences[row.sequence]
                .slot
                .ok_or_else(|| StepModelError::Compute("a row of the step has no slot".into()))?;
            step_rows.push(StepRow { slot, tokens, wants_logits: row.wants_logits });
        }
        let (model, sequences, scratch) = (&mut self.model, &mut self.sequences, &mut self.scratch);
        catch_unwind(AssertUnwindSafe(|| {
            model.step(&step_rows, &mut |row, logits| {
                if let Some(row) = rows.get(row) {
                    sequences[row.sequence].choose(logits, scratch);
                }
            })
        }))
        .unwrap_or_else(|panic| Err(panicked(&*panic)))
    }

    /// Carries the step's requests on. Returns those that ended.
    fn advance(&mut self, rows: &[PlannedRow]) -> Vec<Ending> {
        let now = Instant::now();
        let (mut prompt_tokens, mut generated_tokens) = (0, 0);
        let mut ended = Vec::new();
        for row in rows {
            let sequence = &mut self.sequences[row.sequence];
            let before = sequence.generated();
            if before == 0 {
                prompt_tokens += row.tokens as u64;
            }
            // The tokenizer works in here; a panic of its must not reach the others.
            let progress = catch_unwind(AssertUnwindSafe(|| sequence.advance(row.tokens, now)))
                .unwrap_or_else(|panic| Progress::Ended(GenerationEvent::Failed(panicked(&*panic))));
            if let Progress::Ended(event) = progress {
                ended.push((row.sequence, event));
            }
            generated_tokens += (sequence.generated() - before) as u64;
        }
        self.inbox.update(|status| {
            status.prompt_tokens += prompt_tokens;
            status.generated_tokens += generated_tokens;
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
        match event {
            GenerationEvent::Failed(_) => self.inbox.update(|status| status.failed += 1),
            _ => self.inbox.note_finished(sequence.submitted().elapsed()),
        }
        sequence.send(event);
    }

    fn free(&mut self, index: usize) -> Sequence {
        let mut sequence = self.sequences.remove(index);
        if let Some(slot) = sequence.set_back() {
            self.close(slot);
        }
        let active = self.sequences.len();
        self.inbox.update(|status| status.active = active);
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
