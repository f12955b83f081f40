//! `POST /v1/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;

use crate::answer::{AnswerHead, answer};
use crate::body::read_json;
use crate::error::ApiError;
use crate::prompt::{encode, off_the_executor};
use crate::state::ApiState;
use crate::wire::completion_request::{CompletionRequest, Prompt};
use crate::wire::completion_response::CompletionAnswer;

/// Continues a text.
pub(super) async fn create(
    State(state): State<Arc<ApiState>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let body = read_json(&headers, body, state.options.body_limit).await?;
    let CompletionRequest { generation, prompt, logprobs } = CompletionRequest::read(&body)?;
    let model = state.provider.get(generation.model.as_deref()).await?;
    let prompt = match prompt {
        Prompt::Tokens(tokens) => tokens,
        Prompt::Text(text) => {
            let model = Arc::clone(&model);
            off_the_executor(move || encode(&model, &text, true, "prompt")).await?
        }
    };
    let lower = state.options.sampling.or(&model.sampling);
    let head = AnswerHead::new("cmpl", model, logprobs.is_some(), generation.include_usage);
    let stream = generation.stream;
    let request = generation.into_request(prompt, logprobs, &lower);
    answer(&state, request, CompletionAnswer { head, text_offset: 0 }, stream, "prompt").await
}
