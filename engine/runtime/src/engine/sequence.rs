//! One request's state, from its prompt to its last token.

use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;

use super::{inbox::Submission, output::Output, plan::View};
use crate::{
    EngineText, FinishReason, GenerationEvent, Slot, StepModelError, Usage,
    samplers::{Chosen, Sampler, Scratch},
};

/// A request that runs.
pub(super) struct Sequence {
    events: UnboundedSender<GenerationEvent>,
    sampler: Sampler,
    output: Output,
    /// Prompt and generated tokens. The KV store holds the first `held` of them.
    history: Vec<u32>,
    held: usize,
    prompt_tokens: usize,
    /// The place in the KV store, while it has one.
    pub(super) slot: Option<Slot>,
    limit: usize,
    /// Tokens generated, a final end-of-sequence token included.
    generated: usize,
    end_of_sequence: Vec<u32>,
    top_logprobs: Option<usize>,
    chosen: Option<Result<Chosen, StepModelError>>,
    submitted: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

/// Whether a request goes on after a step.
#[derive(Debug)]
pub(super) enum Progress {
    /// There is more to process or to generate.
    Continues,
    /// It ended. The event is the last one, to be sent when all that the request held is free.
    Ended(GenerationEvent),
}

impl Sequence {
    pub(super) fn new(submission: Submission, text: &EngineText) -> Self {
        let Submission { request, limit, events, submitted } = submission;
        let output =
            Output::new((text.detokenizer)(request.show_special_tokens), &request.stop, request.top_logprobs.is_some());
        let sampler = Sampler::new(request.sampling, &request.prompt, text.xtc_exempt.clone());
        let sequence = Self {
            events,
            sampler,
            output,
            held: 0,
            prompt_tokens: request.prompt.len(),
            history: request.prompt,
            slot: None,
            limit,
            generated: 0,
            end_of_sequence: if request.ignore_eos { Vec::new() } else { text.end_of_sequence.clone() },
            top_logprobs: request.top_logprobs,
            chosen: None,
            submitted,
            started: None,
            first_token: None,
            last_token: None,
        };
        sequence.send(GenerationEvent::Prefill { done: 0, total: sequence.prompt_tokens });
        sequence
    }

    pub(super) fn view(&self) -> View {
        View { held: self.held, pending: self.history.len() - self.held }
    }

    /// The next `count` tokens to process.
    pub(super) fn pending(&self, count: usize) -> &[u32] {
        &self.history[self.held..self.held + count]
    }

    /// Whether nobody waits for the answer any more.
    pub(super) fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }

    pub(super) fn generated(&self) -> usize {
        self.generated
    }

    pub(super) fn submitted(&self) -> Instant {
        self.submitted
    }

    /// Gives up its place in the KV store; all its tokens must be processed again.
    pub(super) fn set_back(&mut self) -> Option<Slot> {
        self.held = 0;
        self.slot.take()
    }

    /// Notes that a step with tokens of this request begins.
    pub(super) fn begin(&mut self, now: Instant) {
        self.started.get_or_insert(now);
    }

    /// Chooses the next token from the logits that follow its last token.
    pub(super) fn choose(&mut self, logits: &mut [f32], scratch: &mut Scratch) {
        self.chosen = Some(self.sampler.choose(logits, self.top_logprobs, scratch));
    }

    /// Notes that a step processed `count` of its tokens, and goes on with the token it chose.
    pub(super) fn advance(&mut self, count: usize, now: Instant) -> Progress {
        self.held += count;
        // A request that was set back goes over its tokens again, but its prompt was done before.
        if self.generated == 0 {
            self.send(GenerationEvent::Prefill { done: self.held, total: self.prompt_tokens });
        }
        if self.held < self.history.len() {
            return Progress::Continues;
        }
        match self.chosen.take() {
            Some(Ok(chosen)) => self.accept(chosen, now),
            Some(Err(error)) => failed(error),
            None => failed(StepModelError::Compute("the model gave no logits for a row that wanted them".into())),
        }
    }

    fn accept(&mut self, Chosen { token, logprob }: Chosen, now: Instant) -> Progress {
        self.generated += 1;
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        if self.end_of_sequence.contains(&token) {
            self.output.finish();
            return self.finish(FinishReason::Stop);
        }
        match self.output.push(token, logprob) {
            Err(error) => return failed(error),
            Ok(true) => return self.finish(FinishReason::Stop),
            Ok(false) => {}
        }
        if self.generated >= self.limit {
            let stopped = self.output.finish();
            return self.finish(if stopped { FinishReason::Stop } else { FinishReason::Length });
        }
        if let Some(event) = self.output.take_event() {
            self.send(event);
        }
        self.history.push(token);
        self.sampler.accept(&self.history);
        Progress::Continues
    }

    fn finish(&mut self, reason: FinishReason) -> Progress {
        if let Some(event) = self.output.take_event() {
            self.send(event);
        }
        Progress::Ended(GenerationEvent::Finished { reason, usage: self.usage() })
    }

    fn usage(&self) -> Usage {
        let seconds = |from: Option<Instant>, to: Option<Instant>| match (from, to) {
            (Some(from), Some(to)) => to.saturating_duration_since(from).as_secs_f64(),
            _ => 0.0,
        };
        Usage {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: 0,
            completion_tokens: self.generated,
            queue_seconds: seconds(Some(self.submitted), self.started),
            prefill_seconds: seconds(self.started, self.first_token),
            decode_seconds: seconds(self.first_token, self.last_token),
        }
    }

    // A receiver that is gone is found by `is_cancelled` before the next step.
    pub(super) fn send(&self, event: GenerationEvent) {
        drop(self.events.send(event));
    }
}

fn failed(error: StepModelError) -> Progress {
    Progress::Ended(GenerationEvent::Failed(error))
}
