//! `POST /v1/chat/completions`.
//!
//! Tools are shown to the model through its template. Their calls are not parsed yet: what the model writes comes back
//! as content.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use linnet_models::TemplateInput;
use serde_json::Value;
use tokio::time::Instant;

use crate::answer::{AnswerHead, AnswerOptions, answer};
use crate::body::read_json;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::prompt::{encode, off_the_executor};
use crate::provider::ServedModel;
use crate::state::ApiState;
use crate::wire::chat_request::ChatRequest;
use crate::wire::chat_response::ChatAnswer;
use crate::wire::messages::fit_to_template;
use crate::wire::request_context::RequestContext;

/// Answers a conversation.
pub(super) async fn create(
    State(state): State<Arc<ApiState>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let body = read_json(&headers, body, state.options.body_limit).await?;
    let received = Instant::now();
    let request = ChatRequest::read(&body)?;
    let context = RequestContext::read(&Fields::root(&body)?, &headers)?;
    let model = state.text_model(request.generation.model.as_deref()).await?;
    let generation = request.generation.clone();
    let top_logprobs = request.top_logprobs;
    let prompt = off_the_executor({
        let model = Arc::clone(model.model());
        move || render(&model, request)
    })
    .await?;
    let lower = state.options.sampling.or(&model.sampling);
    let options = AnswerOptions {
        wants_logprobs: top_logprobs.is_some(),
        include_usage: generation.include_usage,
        service_tier: context.service_tier,
        received,
    };
    let head = AnswerHead::new("chatcmpl", model, options);
    let stream = generation.stream;
    let request = generation.into_request(prompt, top_logprobs, &lower, context);
    answer(&state, request, ChatAnswer { head }, stream, "messages").await
}

/// Makes every null content an empty text, and says whether there was one.
fn silence_to_empty_text(messages: &mut [Value]) -> bool {
    let silent = messages.iter_mut().filter_map(|message| message.get_mut("content")).filter(|text| text.is_null());
    silent.map(|text| *text = Value::String(String::new())).count() > 0
}

/// The conversation as the model's tokens.
fn render(model: &ServedModel, mut request: ChatRequest) -> Result<Vec<u32>, ApiError> {
    let Some(template) = &model.template else {
        return Err(ApiError::NoTemplate { model: model.id.clone() });
    };
    fit_to_template(&mut request.messages, template.text(request.tools.is_some()));
    let write = |messages: &[Value]| {
        let input = TemplateInput {
            tools: request.tools.as_deref(),
            variables: request.variables.clone(),
            ..TemplateInput::new(messages)
        };
        template.render(&input)
    };
    let rendered = write(&request.messages).or_else(|error| {
        // An assistant's turn that only calls tools has no content. Some templates look for that, others add it to a
        // text whatever it is; mlx-lm hands both an empty text.
        if silence_to_empty_text(&mut request.messages) { write(&request.messages) } else { Err(error) }
    });
    let text = rendered.map_err(|error| {
        let (model, reason) = (model.id.clone(), error.to_string());
        if error.is_request_fault() {
            ApiError::TemplateRefused { model, reason }
        } else {
            ApiError::TemplateBroken { model, reason }
        }
    })?;
    // The template writes the special tokens itself.
    encode(model, &text, false, "messages")
}
