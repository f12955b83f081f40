//! Room: models.

mod chat_template;
mod special_tokens;

pub use chat_template::{ChatTemplate, ClockTime, TemplateError, TemplateInput};
pub use special_tokens::{JsonFileError, SpecialTokens};
