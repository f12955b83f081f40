//! One request's state, from its prompt to its last token.

use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;

use super::{
    cache::{Path, Restore},
    inbox::Submission,
    output::Output,
    plan::View,
};
use crate::{
    EngineText, FinishReason, GenerationEvent, PrefixMatch, Priority, RowOutput, RowTokens, Slot, StepModelError,
    Usage,
    samplers::{Chosen, Sampler, Scratch},
};

/// What the model gives for a token that it could not choose.
const NO_TOKEN: u32 = u32::MAX;

/// How long a background request lets others start before it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether a request that has not started lets others start first.
pub(super) fn lets_others_start(priority: Priority, waited: Duration) -> bool {
    priority == Priority::Background && waited < PATIENCE
}

/// A request that runs.
pub(super) struct Sequence {
    /// Its number, which stays while indices move.
    pub(super) number: u64,
    events: UnboundedSender<GenerationEvent>,
    sampler: Sampler,
    output: Output,
    /// Prompt and generated tokens, as far as they are known.
    history: Vec<u32>,
    /// How many tokens the KV store holds once the submitted steps are through: all of the history and, where steps run
    /// ahead, tokens that the model chose and nobody has seen yet.
    held: usize,
    /// Submitted rows whose next token was not collected yet.
    awaited: usize,
    prompt_tokens: usize,
    /// How many tokens the KV store holds whose step is through.
    through: usize,
    /// Its whole blocks in the prefix cache.
    pub(super) path: Path,
    /// What the prefix cache has of a request that has not started.
    found: Found,
    /// Blocks that are on their way from the disk, once that was asked.
    pub(super) restore: Option<Restoring>,
    /// Prompt tokens that did not have to be processed, once it has started.
    cached: Option<usize>,
    pub(super) session: Option<String>,
    /// The place in the KV store, while it has one.
    pub(super) slot: Option<Slot>,
    limit: usize,
    /// Tokens generated, a final end-of-sequence token included.
    generated: usize,
    end_of_sequence: Vec<u32>,
    top_logprobs: Option<usize>,
    priority: Priority,
    submitted: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

/// What the prefix cache has of a request's tokens.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) prefix: PrefixMatch,
    /// Whether its session led there.
    pub(super) is_session: bool,
    /// The cache's version at that time.
    pub(super) version: Option<u64>,
}

/// Where a request's look-up on the disk stands.
#[derive(Debug)]
pub(super) enum Restoring {
    /// The request waits for blocks.
    Pending(Restore),
    /// What could be had is in memory, and held until the request starts.
    Ready(Restore),
    /// There was nothing, or it is no longer needed.
    Over,
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
    pub(super) fn new(number: u64, submission: Submission, text: &EngineText) -> Self {
        let Submission { request, limit, events, submitted } = submission;
        let output =
            Output::new((text.detokenizer)(request.show_special_tokens), &request.stop, request.top_logprobs.is_some());
        let sampler = Sampler::new(request.sampling, &request.prompt, text.xtc_exempt.clone());
        let sequence = Self {
            number,
            events,
            sampler,
            output,
            held: 0,
            awaited: 0,
            through: 0,
            path: Path::default(),
            found: Found::default(),
            restore: None,
            cached: None,
            session: request.session,
            prompt_tokens: request.prompt.len(),
            history: request.prompt,
            slot: None,
            limit,
            generated: 0,
            end_of_sequence: if request.ignore_eos { Vec::new() } else { text.end_of_sequence.clone() },
            top_logprobs: request.top_logprobs,
            priority: request.priority,
            submitted,
            started: None,
            first_token: None,
            last_token: None,
        };
        sequence.send(GenerationEvent::Prefill { done: 0, total: sequence.prompt_tokens });
        sequence
    }

    pub(super) fn view(&self, now: Instant) -> View {
        let is_started = self.slot.is_some();
        let kept = if is_started { 0 } else { self.found.prefix.tokens };
        let (known, held) = (self.history.len(), self.held + kept);
        // The token that follows may have been chosen without being known; it is worth a step unless it is the last.
        let unseen = (known + self.awaited).saturating_sub(held);
        let pending = match known.checked_sub(held).filter(|known| *known > 0) {
            // What was set back waits for its tokens in work before it begins anew.
            Some(_) if self.awaited > 0 => 0,
            Some(known) => known,
            None => usize::from(unseen > 0 && self.leaves_choice() && self.generated + self.awaited < self.limit),
        };
        let yields = if is_started {
            self.priority == Priority::Background
        } else {
            lets_others_start(self.priority, now.saturating_duration_since(self.submitted))
        };
        View { held: self.held, kept, shared: 0, pending, yields }
    }

    /// How many known tokens are not in the KV store.
    pub(super) fn rest(&self) -> usize {
        self.history.len().saturating_sub(self.held)
    }

    /// All tokens that are known.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.history
    }

    /// The known tokens that the KV store holds and whose step is through.
    pub(super) fn tokens_through(&self) -> &[u32] {
        &self.history[..self.through.min(self.history.len())]
    }

    /// Whether it is still reading its prompt.
    pub(super) fn is_reading(&self) -> bool {
        self.slot.is_some() && self.generated == 0
    }

    pub(super) fn found(&self) -> &Found {
        &self.found
    }

    pub(super) fn set_found(&mut self, found: Found) {
        self.found = found;
    }

    /// Takes note that it begins with `tokens` tokens that are there already. Whether it begins for the first time.
    pub(super) fn adopted(&mut self, tokens: usize) -> bool {
        self.held = tokens;
        self.through = tokens;
        let is_first = self.cached.is_none();
        self.cached.get_or_insert(tokens);
        is_first
    }

    /// Takes note that a step is through which left `held` tokens in its slot.
    pub(super) fn note_through(&mut self, slot: Slot, held: usize) {
        if self.slot == Some(slot) {
            self.through = self.through.max(held);
        }
    }

    /// Nothing that its KV store holds may be used again.
    pub(super) fn spoil(&mut self) {
        self.through = 0;
    }

    /// The next `count` tokens to process.
    pub(super) fn pending(&self, count: usize) -> RowTokens<'_> {
        match self.history.get(self.held..self.held + count) {
            Some(tokens) => RowTokens::Known(tokens),
            None => RowTokens::Chosen,
        }
    }

    /// Whether the model can choose this request's tokens itself, if it is able to choose any.
    pub(super) fn leaves_choice(&self) -> bool {
        self.sampler.can_leave_choice()
    }

    /// What a row wants after its last token, if it wants anything.
    pub(super) fn output(&mut self, model_chooses: bool) -> RowOutput {
        match if model_chooses { self.sampler.draw() } else { None } {
            Some(draw) => RowOutput::Token { draw, logits: self.top_logprobs.is_some() },
            None => RowOutput::Logits,
        }
    }

    /// Notes that a step with `count` of its tokens was submitted. Returns how many are held then.
    pub(super) fn submitted(&mut self, count: usize, wants_token: bool) -> usize {
        self.held += count;
        self.awaited += usize::from(wants_token);
        self.held
    }

    /// Whether nobody waits for the answer any more.
    pub(super) fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }

    pub(super) fn generated(&self) -> usize {
        self.generated
    }

    /// Gives up its place in the KV store; all its tokens must be processed again.
    pub(super) fn set_back(&mut self) -> Option<Slot> {
        self.held = 0;
        self.through = 0;
        self.found = Found::default();
        // What was given up in memory meanwhile may be on the disk.
        self.restore = None;
        self.slot.take()
    }

    /// Notes that a step with tokens of this request begins.
    pub(super) fn begin(&mut self, now: Instant) {
        self.started.get_or_insert(now);
    }

    /// Chooses the next token from the logits that follow the last one, or takes the one that the model chose.
    pub(super) fn choose(
        &mut self,
        token: Option<u32>,
        logits: Option<&mut [f32]>,
        scratch: &mut Scratch,
    ) -> Result<Chosen, StepModelError> {
        match (token, logits) {
            (Some(NO_TOKEN), _) => Err(StepModelError::InvalidLogits("NaN, or none is finite")),
            (Some(token), logits) => {
                let report = |(logits, count): (&mut [f32], usize)| Sampler::report(logits, token, count, scratch);
                Ok(Chosen { token, logprob: logits.zip(self.top_logprobs).map(report).transpose()? })
            }
            (None, Some(logits)) => self.sampler.choose(logits, self.top_logprobs, scratch),
            (None, None) => Err(StepModelError::Compute("the model gave nothing for a row that wanted a token".into())),
        }
    }

    /// Notes that a step is through which left `held` tokens in the KV store, and goes on with the token that it gave, if
    /// it was to give one.
    pub(super) fn collected(
        &mut self,
        held: usize,
        chosen: Option<Result<Chosen, StepModelError>>,
        now: Instant,
    ) -> Progress {
        // A request that was set back goes over its tokens again, but its prompt was done before.
        if self.generated == 0 {
            self.send(GenerationEvent::Prefill { done: held, total: self.prompt_tokens });
        }
        let Some(chosen) = chosen else { return Progress::Continues };
        self.awaited = self.awaited.saturating_sub(1);
        match chosen {
            Ok(chosen) => self.accept(chosen, now),
            Err(error) => failed(error),
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
            cached_tokens: self.cached.unwrap_or(0).min(self.prompt_tokens),
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
