//! From a conversation to the tokens the model reads.

use crate::chat_template::{ChatTemplate, TemplateError, TemplateInput};
use crate::tokenizer::{Tokenizer, TokenizerError};

/// Why a conversation could not become tokens.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The chat template failed.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The tokenizer failed.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// The prompt of a conversation as token ids. The template writes its special tokens itself, so none are added: a
/// second beginning-of-text token would make answers worse without any error.
///
/// # Errors
/// [`PromptError`] when the template refuses the conversation or the tokenizer the text.
pub fn prompt_tokens(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    conversation: &TemplateInput<'_>,
) -> Result<Vec<u32>, PromptError> {
    let prompt = template.render(conversation)?;
    Ok(tokenizer.encode(&prompt, false)?)
}
