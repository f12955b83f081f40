//! `POST /v1/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use tokio::time::Instant;

use crate::answer::{AnswerHead, AnswerOptions, answer};
use crate::body::read_json;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::prompt::{encode, off_the_executor};
use crate::state::ApiState;
use crate::wire::completion_request::{CompletionRequest, Prompt};
use crate::wire::completion_response::CompletionAnswer;
use crate::wire::request_context::RequestContext;

/// Continues a text.
pub(super) async fn create(
    State(state): State<Arc<ApiState>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let body = read_json(&headers, body, state.options.body_limit).await?;
    let received = Instant::now();
    let CompletionRequest { generation, prompt, logprobs } = CompletionRequest::read(&body)?;
    let context = RequestContext::read(&Fields::root(&body)?, &headers)?;
    let model = state.text_model(generation.model.as_deref()).await?;
    let prompt = match prompt {
        Prompt::Tokens(tokens) => tokens,
        Prompt::Text(text) => {
            let model = Arc::clone(model.model());
            off_the_executor(move || encode(&model, &text, true, "prompt")).await?
        }
    };
    let lower = state.options.sampling.or(&model.sampling);
    let options = AnswerOptions {
        wants_logprobs: logprobs.is_some(),
        include_usage: generation.include_usage,
        service_tier: context.service_tier,
        received,
    };
    let head = AnswerHead::new("cmpl", model, options);
    let stream = generation.stream;
    let request = generation.into_request(prompt, logprobs, &lower, context);
    answer(&state, request, CompletionAnswer { head, text_offset: 0 }, stream, "prompt").await
}
