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

/// The tokens of `text`.
pub(crate) fn encode(model: &ServedModel, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, ApiError> {
    model
        .tokenizer
        .encode(text, add_special_tokens)
        .map_err(|error| ApiError::TokenizerFailed { model: model.id.clone(), reason: error.to_string() })
}
