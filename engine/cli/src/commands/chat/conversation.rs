<<<<<<< HEAD
//! What was said so far.

use serde_json::{Value, json};

/// A conversation, as chat templates take it.
#[derive(Debug, Clone)]
pub(super) struct Conversation {
    system: Option<String>,
    turns: Vec<Value>,
}

impl Conversation {
    pub(super) fn new(system: Option<String>) -> Self {
        Self { system: system.filter(|text| !text.trim().is_empty()), turns: Vec::new() }
    }

    /// Adds a question.
    pub(super) fn ask(&mut self, text: String) {
        self.turns.push(json!({"role": "user", "content": text}));
    }

    /// Adds the answer to the last question.
    pub(super) fn answered(&mut self, text: String) {
        self.turns.push(json!({"role": "assistant", "content": text}));
    }

    /// Takes back a question that got no answer, so that roles go on alternating.
    pub(super) fn take_back(&mut self) {
        if self.turns.last().is_some_and(|turn| turn["role"] == "user") {
            self.turns.pop();
        }
    }

    /// Begins anew, with other instructions if given.
    pub(super) fn clear(&mut self, system: Option<String>) {
        self.turns.clear();
        if system.is_some() {
            self.system = system.filter(|text| !text.trim().is_empty());
        }
    }

    /// All messages, instructions first.
    pub(super) fn messages(&self) -> Vec<Value> {
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
=======
//! A conversation with a loaded model.

use std::io;

use anyhow::{Context, bail};
use linnet_api::SamplingOverrides;
use linnet_models::{ChatTemplate, TemplateInput, prompt_tokens};
use linnet_runtime::{GenerationEvent, GenerationRequest, LoadedModel, Usage};
use serde_json::{Value, json};

/// A model, what was said, and how to answer.
pub(crate) struct Conversation {
    loaded: LoadedModel,
    template: ChatTemplate,
    sampling: SamplingOverrides,
    turns: Vec<Value>,
    /// Instructions before the first turn.
    pub(crate) system: Option<String>,
    /// The longest answer.
    pub(crate) max_tokens: Option<usize>,
    /// Makes answers repeatable.
    pub(crate) seed: Option<u64>,
}

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum End {
    /// By itself.
    Finished(Usage),
    /// By Ctrl-C.
    Stopped,
}

impl Conversation {
    /// Begins an empty conversation; `sampling` stands above what the model recommends.
    ///
    /// # Errors
    /// When the model has no chat template.
    pub(crate) fn new(loaded: LoadedModel, sampling: SamplingOverrides) -> anyhow::Result<Self> {
        let Some(template) = loaded.template.clone() else {
            bail!("it has no chat template: it continues texts but was not trained to converse; use an instruct model");
        };
        let sampling = sampling.or(&SamplingOverrides::from(&loaded.defaults));
        Ok(Self { loaded, template, sampling, turns: Vec::new(), system: None, max_tokens: None, seed: None })
    }

    /// Forgets what was said; instructions stay.
    pub(crate) fn clear(&mut self) {
        self.turns.clear();
    }

    /// Asks and hands each piece of the answer to `show`. Ctrl-C stops the answer; what was said of it stays in the
    /// conversation, but a question that got no word of answer, or failed, is taken back.
    pub(crate) async fn ask(
        &mut self,
        question: &str,
        show: &mut dyn FnMut(&str) -> io::Result<()>,
    ) -> anyhow::Result<End> {
        self.turns.push(json!({ "role": "user", "content": question }));
        let mut answer = String::new();
        let end = self.answer(&mut answer, show).await;
        if answer.is_empty() || end.is_err() {
            self.turns.pop();
        } else {
            self.turns.push(json!({ "role": "assistant", "content": answer }));
        }
        end
    }

    async fn answer(&self, answer: &mut String, show: &mut dyn FnMut(&str) -> io::Result<()>) -> anyhow::Result<End> {
        let request = GenerationRequest {
            prompt: self.prompt()?,
            sampling: self.sampling.resolve(Vec::new(), self.seed),
            max_tokens: self.max_tokens,
            ..GenerationRequest::default()
        };
        let mut generation = self.loaded.engine.submit(request).context("cannot answer")?;
        let stop = async {
            if tokio::signal::ctrl_c().await.is_err() {
                // Without signals an answer cannot be stopped, but it can be given.
                std::future::pending::<()>().await;
            }
        };
        tokio::pin!(stop);
        loop {
            let event = tokio::select! {
                event = generation.next() => event,
                () = &mut stop => return Ok(End::Stopped),
            };
            match event {
                Some(GenerationEvent::Text { text, .. }) => {
                    answer.push_str(&text);
                    show(&text)?;
                }
                Some(GenerationEvent::Prefill { .. }) => {}
                Some(GenerationEvent::Finished { usage, .. }) => return Ok(End::Finished(usage)),
                Some(GenerationEvent::Failed(error)) => return Err(error).context("the answer broke off"),
                None => bail!("the answer broke off: the engine ended"),
            }
        }
    }

    fn prompt(&self) -> anyhow::Result<Vec<u32>> {
        let messages = self.messages();
        let input = TemplateInput::new(&messages);
        Ok(prompt_tokens(&self.loaded.tokenizer, &self.template, &input)?)
    }

    fn messages(&self) -> Vec<Value> {
        let system = self.system.iter().map(|text| json!({ "role": "system", "content": text }));
>>>>>>> a
        system.chain(self.turns.iter().cloned()).collect()
    }
}

<<<<<<< HEAD
=======
/// The speed of an answer in one line.
pub(crate) fn stats(usage: &Usage) -> String {
    let rate = |tokens: usize, seconds: f64| if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
    let read = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
    format!(
        "read {} tokens at {:.0}/s ({} from the cache), wrote {} at {:.0}/s",
        usage.prompt_tokens,
        rate(read, usage.prefill_seconds),
        usage.cached_tokens,
        usage.completion_tokens,
        rate(usage.completion_tokens.saturating_sub(1), usage.decode_seconds),
    )
}

>>>>>>> a
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
<<<<<<< HEAD
    fn a_question_without_an_answer_is_taken_back() {
        let mut conversation = Conversation::new(Some("be brief".into()));
        conversation.ask("one".into());
        conversation.answered("1".into());
        conversation.take_back();
        conversation.ask("two".into());
        conversation.take_back();
        let roles: Vec<_> = conversation.messages().iter().map(|turn| turn["role"].clone()).collect();
        assert_eq!(roles, ["system", "user", "assistant"]);
=======
    fn stats_leave_out_what_cost_nothing() {
        let usage = Usage {
            prompt_tokens: 100,
            cached_tokens: 50,
            completion_tokens: 11,
            queue_seconds: 0.0,
            prefill_seconds: 0.5,
            decode_seconds: 0.1,
        };
        assert_eq!(stats(&usage), "read 100 tokens at 100/s (50 from the cache), wrote 11 at 100/s");
        assert_eq!(stats(&Usage::default()), "read 0 tokens at 0/s (0 from the cache), wrote 0 at 0/s");
>>>>>>> a
    }
}
