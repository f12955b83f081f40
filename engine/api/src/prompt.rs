//! From text to a model's tokens, away from the threads that serve sockets.

use crate::error::ApiError;
use crate::provider::ServedModel;

/// Runs work that may take long (templates, tokenizing a book) on a thread that may block.
pub(crate) async fn off_the_executor<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        // The net around all handlers turns the panic into an answer and a line in the log.
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(ApiError::ShuttingDown),
        },
    }
}

/// From this size on a text is judged by its bytes first: tokenizing it takes seconds, and it hardly ever fits.
const LONG_TEXT: usize = 1 << 20;

/// The tokens of `text`, which came in the request's `field`.
pub(crate) fn encode(
    model: &ServedModel,
    text: &str,
    add_special_tokens: bool,
    field: &'static str,
) -> Result<Vec<u32>, ApiError> {
    let context = model.engine.context_length();
    let fewest = model.fewest_tokens(text.len());
    if text.len() >= LONG_TEXT && fewest > context {
        let text = format!(
            "the prompt's {} bytes are at least {fewest} tokens, but the context holds {context} tokens; shorten the prompt",
            text.len()
        );
        return Err(ApiError::ContextOverflow { field, text });
    }
    model
        .tokenizer
        .encode(text, add_special_tokens)
        .map_err(|error| ApiError::TokenizerFailed { model: model.id.clone(), reason: error.to_string() })
}
