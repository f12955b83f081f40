//! What tests drive the engine with: a model that follows a script, and a tokenizer whose tokens are bytes.

mod byte_text;
mod scripted_model;

pub use byte_text::{BYTE_EOS, BYTE_VOCABULARY, ByteDetokenizer, byte_text, byte_tokens};
pub use scripted_model::{Next, Probe, ScriptedModel};
