//! What every window is told: the user's prompt and vocabulary, as far as they fit.

use super::{TranscribeError, TranscribeOptions, tokenizer::WhisperTokenizer};

/// What a model is told before each window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InitialPrompt {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Terms of the vocabulary that are in it.
    pub included: Vec<String>,
    /// Terms that did not fit.
    pub omitted: Vec<String>,
    /// Tokens there is room for.
    pub budget: usize,
}

impl InitialPrompt {
    /// Puts together what fits into `budget` tokens: first of all the end of the prompt, then whole terms of the vocabulary
    /// in their order. The vocabulary stands before the prompt, which reads on into the transcript.
    ///
    /// # Errors
    /// When the tokenizer fails.
    pub fn new(
        tokenizer: &WhisperTokenizer,
        options: &TranscribeOptions,
        budget: usize,
    ) -> Result<Self, TranscribeError> {
        let mut prompt = match options.initial_prompt.as_deref().map(str::trim) {
            Some(prompt) if !prompt.is_empty() => tokenizer.encode(&format!(" {prompt}"))?,
            _ => Vec::new(),
        };
        prompt.drain(..prompt.len().saturating_sub(budget));
        let mut found = Self { budget, ..Self::default() };
        let stop = tokenizer.encode(".")?;
        for term in options.vocabulary.iter().map(|term| term.trim()).filter(|term| !term.is_empty()) {
            let separator = if found.tokens.is_empty() { " " } else { ", " };
            let tokens = tokenizer.encode(&format!("{separator}{term}"))?;
            if found.tokens.len() + tokens.len() + stop.len() + prompt.len() <= budget {
                found.tokens.extend(tokens);
                found.included.push(term.to_owned());
            } else {
                found.omitted.push(term.to_owned());
            }
        }
        if !found.tokens.is_empty() {
            found.tokens.extend(stop);
        }
        found.tokens.extend(prompt);
        Ok(found)
    }
}
