//! OpenAI's shapes on the wire: requests read into checked values, answers written as JSON.

pub(crate) mod audio_request;
pub(crate) mod audio_session;
pub(crate) mod chat_request;
pub(crate) mod chat_response;
pub(crate) mod completion_request;
pub(crate) mod completion_response;
pub(crate) mod generation_fields;
pub(crate) mod logprobs;
pub(crate) mod messages;
pub(crate) mod request_context;
pub(crate) mod transcript_response;
pub(crate) mod usage;
