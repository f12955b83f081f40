//! What the engine must know to turn tokens into text.

mod tokenizer;

use std::sync::Arc;

use crate::StepModelError;

/// Turns one generation's tokens into text, token by token.
pub trait Detokenizer: Send {
    /// Appends to `text` what `token` completes. A token that ends inside a character appends nothing yet.
    ///
    /// # Errors
    /// When the token is unknown to the tokenizer.
    fn push(&mut self, token: u32, text: &mut String) -> Result<(), StepModelError>;

    /// Appends what is still incomplete, with U+FFFD for the missing bytes.
    fn finish(&mut self, text: &mut String);
}

/// Makes a [`Detokenizer`] for a new generation; the argument says whether special tokens become text.
pub type NewDetokenizer = dyn Fn(bool) -> Box<dyn Detokenizer> + Send + Sync;

/// The tokenizer's part in a generation.
#[derive(Clone)]
pub struct EngineText {
    /// Starts the text of a new generation.
    pub detokenizer: Arc<NewDetokenizer>,
    /// The tokens that end a generation.
    pub end_of_sequence: Vec<u32>,
    /// The tokens that XTC never drops; mlx-lm's server names the end-of-sequence and newline tokens.
    pub xtc_exempt: Vec<u32>,
}

impl EngineText {
    /// The text side of a tokenizer whose generations start with `detokenizer` and end at `end_of_sequence`, which XTC
    /// spares.
    pub fn new(
        detokenizer: impl Fn(bool) -> Box<dyn Detokenizer> + Send + Sync + 'static,
        end_of_sequence: Vec<u32>,
    ) -> Self {
        Self { detokenizer: Arc::new(detokenizer), xtc_exempt: end_of_sequence.clone(), end_of_sequence }
    }
}

impl std::fmt::Debug for EngineText {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("EngineText")
            .field("end_of_sequence", &self.end_of_sequence)
            .field("xtc_exempt", &self.xtc_exempt)
            .finish_non_exhaustive()
    }
}
