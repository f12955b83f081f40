//! One answer, streamed to standard output.

use super::conversation::Conversation;
use anyhow::Context;
use linnet_models::{ChatTemplate, TemplateInput, prompt_tokens};
use linnet_runtime::{FinishReason, GenerationEvent, GenerationRequest, LoadedModel, SamplingParameters, SubmitError};
use std::io::{IsTerminal, Write};

/// A loaded model and how it answers.
pub(super) struct Answerer {
    model: LoadedModel,
    template: ChatTemplate,
    sampling: SamplingParameters,
    max_tokens: Option<usize>,
    runtime: tokio::runtime::Runtime,
}

/// How an answer ended.
pub(super) struct Answer {
    /// What was said.
    pub(super) text: String,
    /// Whether the user stopped it.
    pub(super) is_interrupted: bool,
}

impl Answerer {
    pub(super) fn new(
        model: LoadedModel,
        sampling: SamplingParameters,
        max_tokens: Option<usize>,
    ) -> anyhow::Result<Self> {
        let template = model.template.clone().with_context(|| {
            format!(
                "{} has no chat template: it is a base model, which completes text but does not chat",
                model.engine.name()
            )
        })?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { model, template, sampling, max_tokens, runtime })
    }

    /// The same way to answer, with another model.
    pub(super) fn with_model(&self, model: LoadedModel) -> anyhow::Result<Self> {
        Self::new(model, self.sampling.clone(), self.max_tokens)
    }

    /// Answers the conversation's last question. Ctrl-C ends the answer early.
    pub(super) fn answer(&self, conversation: &Conversation) -> anyhow::Result<Answer> {
        let messages = conversation.messages();
        let input = TemplateInput { messages: &messages, add_generation_prompt: true, ..TemplateInput::default() };
        let request = GenerationRequest {
            prompt: prompt_tokens(&self.model.tokenizer, &self.template, &input)?,
            sampling: self.sampling.clone(),
            max_tokens: self.max_tokens,
            ..GenerationRequest::default()
        };
        self.runtime.block_on(self.stream(request))
    }

    async fn stream(&self, request: GenerationRequest) -> anyhow::Result<Answer> {
        let mut generation = self.model.engine.submit(request).map_err(explain)?;
        let mut stdout = std::io::stdout();
        let mut text = String::new();
        loop {
            let event = tokio::select! {
                event = generation.next() => event,
                _ = tokio::signal::ctrl_c() => {
                    writeln!(stdout)?;
                    return Ok(Answer { text, is_interrupted: true });
                }
            };
            match event {
                Some(GenerationEvent::Text { text: piece, .. }) => {
                    stdout.write_all(piece.as_bytes())?;
                    stdout.flush()?;
                    text.push_str(&piece);
                }
                Some(GenerationEvent::Finished { reason, usage }) => {
                    writeln!(stdout)?;
                    if std::io::stderr().is_terminal() {
                        let tokens = usage.completion_tokens;
                        let speed = tokens.saturating_sub(1) as f64 / usage.decode_seconds.max(1e-9);
                        let cut = if reason == FinishReason::Length { ", cut at the token limit" } else { "" };
                        eprintln!("\x1b[2m{tokens} tokens, {speed:.0} tok/s{cut}\x1b[0m");
                    }
                    return Ok(Answer { text, is_interrupted: false });
                }
                Some(GenerationEvent::Failed(error)) => return Err(error.into()),
                Some(GenerationEvent::Prefill { .. }) => {}
                None => anyhow::bail!("the engine ended without an answer"),
            }
        }
    }
}

/// In a chat the context fills up turn by turn; say what helps there.
fn explain(error: SubmitError) -> anyhow::Error {
    let is_full = matches!(error, SubmitError::ContextOverflow { .. });
    let error = anyhow::Error::from(error);
    if is_full { error.context("the conversation is too long for the model; /clear begins a new one") } else { error }
}
