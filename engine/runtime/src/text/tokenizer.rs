//! The real tokenizer as a [`Detokenizer`].

use linnet_models::{TextStream, Tokenizer, TokenizerError};

use super::{Detokenizer, EngineText};
use crate::StepModelError;

impl EngineText {
    /// The text side of a model with this tokenizer, whose generations end at `end_of_sequence`. XTC spares those and
    /// the tokens of a line break, as in mlx-lm's server.
    #[must_use]
    pub fn from_tokenizer(tokenizer: Tokenizer, end_of_sequence: Vec<u32>) -> Self {
        let mut xtc_exempt = tokenizer.encode("\n", false).unwrap_or_default();
        xtc_exempt.extend(&end_of_sequence);
        let start = move |show_special| -> Box<dyn Detokenizer> {
            let stream = if show_special { tokenizer.stream_with_special_tokens() } else { tokenizer.stream() };
            Box::new(stream)
        };
        Self { xtc_exempt, ..Self::new(start, end_of_sequence) }
    }
}

impl Detokenizer for TextStream {
    fn push(&mut self, token: u32, text: &mut String) -> Result<(), StepModelError> {
        match Self::push(self, token) {
            Ok(piece) => text.push_str(&piece),
            // Embedding tables are often padded beyond the tokenizer's tokens; mlx-lm shows nothing for these.
            Err(TokenizerError::UnknownToken { .. }) => {}
            Err(error) => return Err(StepModelError::Detokenize { token, reason: error.to_string() }),
        }
        Ok(())
    }

    fn finish(&mut self, text: &mut String) {
        text.push_str(&Self::finish(self));
    }
}
