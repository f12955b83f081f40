//! Chat templates: a conversation becomes the prompt text that the model saw in training.
//!
//! Templates are Jinja as the Python library transformers runs it (sandboxed Jinja 3.1, `trim_blocks`,
//! `lstrip_blocks`, loop controls, `raise_exception`, `strftime_now`, a `tojson` without HTML escapes). minijinja
//! interprets them; the files beside this one hold what has to differ from it to agree with Python byte for byte.

mod arguments;
mod clock;
mod environment;
mod prepare;
mod python_filters;
mod python_json;
mod python_methods;
mod python_strings;
mod python_text;
mod source;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use minijinja::{Environment, Value as TemplateValue};
use serde_json::{Map, Value};

pub use clock::ClockTime;

use crate::special_tokens::{JsonFileError, SpecialTokens};

/// Why a chat template could not be loaded or rendered.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// A file with a template, or one it points to, cannot be read.
    #[error("cannot read the chat template {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the file system says.
        source: std::io::Error,
    },
    /// A JSON file of the model folder cannot be used.
    #[error(transparent)]
    Json(#[from] JsonFileError),
    /// `chat_template` has a form that is not known.
    #[error(
        "chat_template in {path} is neither text, a list of named templates nor the name of a file in the model folder: \
         {detail}"
    )]
    UnknownForm {
        /// The file that holds the field.
        path: PathBuf,
        /// What was found instead.
        detail: String,
    },
    /// The folder holds several named templates and none that serves this request.
    #[error("the model has chat templates named {names:?} and none named \"default\"; add one to chat_template.jinja")]
    NoDefault {
        /// The names that exist.
        names: Vec<String>,
    },
    /// The template is not valid Jinja.
    #[error("the chat template does not parse: {message} (line {line})")]
    Syntax {
        /// Line of the template, from 1.
        line: usize,
        /// What the parser expected.
        message: String,
    },
    /// The template itself refused the conversation (`raise_exception`). The request is at fault: answer 400.
    #[error("the model's chat template refuses this conversation: {message}")]
    Raised {
        /// Line of the template, from 1.
        line: usize,
        /// The template's own words.
        message: String,
    },
    /// The template met something it cannot handle, such as a missing field or a wrong type.
    #[error("the chat template cannot render this conversation: {message} (line {line})")]
    Render {
        /// Line of the template, from 1.
        line: usize,
        /// What went wrong.
        message: String,
    },
    /// The template used up its budget of work, as an endless or hostile one does.
    #[error("the chat template did not finish within {budget} steps (line {line})")]
    TooExpensive {
        /// Line of the template, from 1.
        line: usize,
        /// Steps allowed.
        budget: u64,
    },
    /// No thread could be started to render on.
    #[error("cannot start a thread for the chat template: {source}")]
    Thread {
        /// What the operating system says.
        source: std::io::Error,
    },
    /// The template interpreter itself failed, which is a fault of Linnet.
    #[error("the chat template interpreter failed; please report the model and the conversation")]
    Panicked,
    /// `continue_final_message` together with `add_generation_prompt`.
    #[error("continue_final_message and add_generation_prompt exclude each other: set one of them to false")]
    ContinueWithGenerationPrompt,
    /// `continue_final_message` where there is no text to continue, or where the template drops or alters it.
    #[error("the final message cannot be continued: {reason}")]
    CannotContinue {
        /// Why.
        reason: &'static str,
    },
}

impl TemplateError {
    /// Whether the conversation, and not the model folder, is at fault, so that a server answers 400 and not 500.
    pub fn is_request_fault(&self) -> bool {
        matches!(
            self,
            Self::Raised { .. }
                | Self::Render { .. }
                | Self::ContinueWithGenerationPrompt
                | Self::CannotContinue { .. }
                | Self::TooExpensive { .. }
        )
    }
}

/// What a template is rendered with.
#[derive(Debug, Clone)]
pub struct TemplateInput<'a> {
    /// The messages: objects with `role`, `content` and whatever else the template reads, in the order of the chat.
    pub messages: &'a [Value],
    /// The tools on offer as JSON schemas; `None` and an empty list differ for some templates.
    pub tools: Option<&'a [Value]>,
    /// Documents for templates with retrieval.
    pub documents: Option<&'a [Value]>,
    /// Whether the prompt ends with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Whether the prompt ends inside the last message, so that the model goes on writing it.
    pub continue_final_message: bool,
    /// Further variables (`chat_template_kwargs`) such as `enable_thinking`; they win over the special tokens.
    pub variables: Map<String, Value>,
    /// The wall-clock time that `strftime_now` shows.
    pub now: ClockTime,
}

impl<'a> TemplateInput<'a> {
    /// A plain conversation that asks for an answer: no tools, no further variables, the machine's clock.
    pub fn new(messages: &'a [Value]) -> Self {
        Self {
            messages,
            tools: None,
            documents: None,
            add_generation_prompt: true,
            continue_final_message: false,
            variables: Map::new(),
            now: ClockTime::local(),
        }
    }
}

/// A model's chat template, parsed once. Cheap to clone and safe to share between threads.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    environment: Environment<'static>,
    sources: Vec<(String, String)>,
    special_tokens: SpecialTokens,
}

impl ChatTemplate {
    /// Finds and parses the chat template of a model folder; `None` where the model has none.
    ///
    /// Looked for in this order: `chat_template.jinja` (with `additional_chat_templates/NAME.jinja`), the
    /// `chat_template` field of `tokenizer_config.json`, that of `chat_template.json`. The field is the template's
    /// text, the name of a file in the folder, or a list of `{name, template}`.
    ///
    /// # Errors
    /// [`TemplateError`] when a file cannot be read, the field has an unknown form, or a template does not parse.
    pub fn load(folder: &Path) -> Result<Option<Self>, TemplateError> {
        let sources = source::find(folder)?;
        if sources.is_empty() {
            return Ok(None);
        }
        Self::from_named(sources, SpecialTokens::load(folder)?).map(Some)
    }

    /// Parses one template's text, with the special tokens that it sees as variables.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`] when it is not valid Jinja.
    pub fn from_text(text: &str, special_tokens: SpecialTokens) -> Result<Self, TemplateError> {
        Self::from_named(vec![(source::DEFAULT.to_owned(), text.to_owned())], special_tokens)
    }

    fn from_named(sources: Vec<(String, String)>, special_tokens: SpecialTokens) -> Result<Self, TemplateError> {
        let mut environment = environment::python_environment();
        for (name, text) in &sources {
            environment
                .add_template_owned(name.clone(), prepare::prepare(text))
                .map_err(|error| environment::template_error(&error))?;
        }
        Ok(Self { inner: Arc::new(Inner { environment, sources, special_tokens }) })
    }

    /// The text of the template that serves requests with or without tools; empty where none does.
    pub fn text(&self, tools: bool) -> &str {
        let Ok(chosen) = self.choose(tools) else { return "" };
        self.inner.sources.iter().find(|(name, _)| name == chosen).map_or("", |(_, text)| text)
    }

    /// The names of the templates; one template alone is called `default`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.inner.sources.iter().map(|(name, _)| name.as_str())
    }

    /// Renders the prompt of a conversation. With tools the template named `tool_use` serves, where there is one.
    ///
    /// # Errors
    /// [`TemplateError::Raised`] with the template's own message when it refuses the conversation, the other
    /// variants for faults of the template or of what it is given.
    pub fn render(&self, conversation: &TemplateInput<'_>) -> Result<String, TemplateError> {
        let name = self.choose(conversation.tools.is_some())?;
        if !conversation.continue_final_message {
            return self.render_messages(name, conversation, conversation.messages);
        }
        if conversation.add_generation_prompt {
            return Err(TemplateError::ContinueWithGenerationPrompt);
        }
        let mut messages = conversation.messages.to_vec();
        let final_text = mark_final_text(&mut messages)?;
        let rendered = self.render_messages(name, conversation, &messages)?;
        cut_at_mark(&rendered, &final_text)
    }

    fn choose(&self, tools: bool) -> Result<&str, TemplateError> {
        let named = |wanted: &str| self.inner.sources.iter().any(|(name, _)| name == wanted);
        if tools && named(source::TOOL_USE) {
            Ok(source::TOOL_USE)
        } else if named(source::DEFAULT) {
            Ok(source::DEFAULT)
        } else {
            Err(TemplateError::NoDefault { names: self.names().map(str::to_owned).collect() })
        }
    }

    /// Renders on a thread of its own with a large stack: values that a hostile template nests are dropped level by
    /// level, a few stack frames for each. The budget bounds the levels, the stack holds them; only what is touched
    /// takes memory.
    fn render_messages(
        &self,
        name: &str,
        conversation: &TemplateInput<'_>,
        messages: &[Value],
    ) -> Result<String, TemplateError> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("chat-template".to_owned()).stack_size(STACK_BYTES);
            let rendering = thread
                .spawn_scoped(scope, || self.render_here(name, conversation, messages))
                .map_err(|source| TemplateError::Thread { source })?;
            rendering.join().unwrap_or(Err(TemplateError::Panicked))
        })
    }

    fn render_here(
        &self,
        name: &str,
        conversation: &TemplateInput<'_>,
        messages: &[Value],
    ) -> Result<String, TemplateError> {
        let mut variables: Vec<(String, TemplateValue)> = Vec::new();
        for (name, text) in self.inner.special_tokens.iter() {
            variables.push((name.to_owned(), text.into()));
        }
        if !self.inner.special_tokens.additional().is_empty() {
            let additional = self.inner.special_tokens.additional();
            variables.push(("additional_special_tokens".into(), additional.iter().map(String::as_str).collect()));
        }
        let now = conversation.now;
        variables.push((
            "strftime_now".into(),
            TemplateValue::from_function(move |format: &str| clock::strftime(now, format)),
        ));
        variables.extend(
            conversation.variables.iter().map(|(name, value)| (name.clone(), environment::template_value(value))),
        );
        let list = |values: Option<&[Value]>| {
            values.map_or(TemplateValue::from(()), |values| values.iter().map(environment::template_value).collect())
        };
        variables.push(("messages".into(), list(Some(messages))));
        variables.push(("tools".into(), list(conversation.tools)));
        variables.push(("documents".into(), list(conversation.documents)));
        variables.push(("add_generation_prompt".into(), conversation.add_generation_prompt.into()));

        let template =
            self.inner.environment.get_template(name).map_err(|error| environment::template_error(&error))?;
        template.render(TemplateValue::from_pairs(variables)).map_err(|error| environment::template_error(&error))
    }
}

/// Stack of the thread that renders, in bytes of address space.
const STACK_BYTES: usize = 512 << 20;

/// Stands at the end of the final message while it is rendered, to find the place afterwards. The blank at its end
/// tells whether the template trims the message.
const FINAL_MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

fn mark_final_text(messages: &mut [Value]) -> Result<String, TemplateError> {
    let no_text = TemplateError::CannotContinue { reason: "it holds no text" };
    match messages.last_mut().and_then(|message| message.get_mut("content")) {
        Some(Value::String(text)) => {
            let original = text.clone();
            text.push_str(FINAL_MARK);
            Ok(original)
        }
        Some(Value::Array(parts)) => {
            let last_text = parts.iter_mut().rev().find_map(|part| part.get_mut("text"));
            let Some(Value::String(text)) = last_text else { return Err(no_text) };
            let original = text.clone();
            text.push_str(FINAL_MARK);
            Ok(original)
        }
        _ => Err(no_text),
    }
}

fn cut_at_mark(rendered: &str, final_text: &str) -> Result<String, TemplateError> {
    let missing = TemplateError::CannotContinue { reason: "the chat template drops or alters it" };
    let position = rendered.rfind(FINAL_MARK.trim_end());
    let (Some(position), true) = (position, rendered.contains(python_text::strip(final_text))) else {
        return Err(missing);
    };
    let before = &rendered[..position];
    let trimmed = !rendered[position..].starts_with(FINAL_MARK);
    Ok(if trimmed { python_text::strip_end(before) } else { before }.to_owned())
}
