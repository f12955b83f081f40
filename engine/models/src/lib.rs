//! Room: models.

mod chat_prompt;
mod chat_template;
mod generation_defaults;
mod special_tokens;
mod tokenizer;

pub use chat_prompt::{PromptError, prompt_tokens};
pub use chat_template::{ChatTemplate, ClockTime, TemplateError, TemplateInput};
pub use generation_defaults::GenerationDefaults;
pub use special_tokens::{JsonFileError, SpecialTokens};
pub use tokenizer::{TextStream, Tokenizer, TokenizerError};
