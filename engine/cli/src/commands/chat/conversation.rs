//! A conversation with a loaded model.

use std::io;

use anyhow::{Context, bail};
use linnet_api::SamplingOverrides;
use linnet_models::{ChatTemplate, TemplateInput, prompt_tokens};
use linnet_runtime::{GenerationEvent, GenerationRequest, LoadedModel, Usage};
use serde_json::{Value, json};

use super::interrupts::Interrupts;

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
    pub(crate) fn new(loaded: LoadedModel, sampling: &SamplingOverrides) -> anyhow::Result<Self> {
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
        interrupts: &mut Interrupts,
        show: &mut dyn FnMut(&str) -> io::Result<()>,
    ) -> anyhow::Result<End> {
        self.turns.push(json!({ "role": "user", "content": question }));
        let mut answer = String::new();
        let end = self.answer(&mut answer, interrupts, show).await;
        if answer.is_empty() || end.is_err() {
            self.turns.pop();
        } else {
            self.turns.push(json!({ "role": "assistant", "content": answer }));
        }
        end
    }

    async fn answer(
        &self,
        answer: &mut String,
        interrupts: &mut Interrupts,
        show: &mut dyn FnMut(&str) -> io::Result<()>,
    ) -> anyhow::Result<End> {
        let request = GenerationRequest {
            prompt: self.prompt()?,
            sampling: self.sampling.resolve(Vec::new(), self.seed),
            max_tokens: self.max_tokens,
            ..GenerationRequest::default()
        };
        let mut generation = self.loaded.engine.submit(request).context("cannot answer")?;
        loop {
            let event = tokio::select! {
                event = generation.next() => event,
                () = interrupts.next() => return Ok(End::Stopped),
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
        system.chain(self.turns.iter().cloned()).collect()
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
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
    }
}
