//! The minijinja environment that behaves as the sandboxed Jinja of transformers.

use std::error::Error as _;
use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior, Value};

use super::{TemplateError, prepare, python_filters, python_json, python_methods, python_text};

/// Work that one rendering may do: roughly one step an instruction and one for each 64 bytes it makes or handles, so
/// it bounds time and memory. The largest real prompts (a megabyte of chat, long tool lists) need a tenth of it.
pub(super) const FUEL: u64 = 4_000_000;

pub(super) fn python_environment() -> Environment<'static> {
    let mut environment = Environment::new();
    // Cannot fail: only custom delimiters can be invalid.
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_debug(false);
    environment.set_formatter(|out, state, value| {
        match value.as_str() {
            Some(text) => out.write_str(text)?,
            None => out.write_str(&python_text::text(state, value)?)?,
        }
        Ok(())
    });
    environment.set_unknown_method_callback(python_methods::call);
    environment.add_filter("tojson", python_json::tojson);
    environment.add_function("raise_exception", |state: &State, message: &Value| -> Result<Value, Error> {
        let raised = RaisedException(python_text::text(state, message)?);
        Err(Error::new(ErrorKind::InvalidOperation, raised.0.clone()).with_source(raised))
    });
    environment.add_function(prepare::ITERATED, |value: &Value| -> Result<Value, Error> {
        if value.is_none() {
            return Err(Error::new(ErrorKind::InvalidOperation, "none is not iterable"));
        }
        Ok(value.clone())
    });
    // Not in Jinja without its debug extension.
    environment.remove_global("debug");
    python_filters::add(&mut environment);
    environment
}

/// What `raise_exception` was called with, carried through minijinja's error.
#[derive(Debug)]
struct RaisedException(String);

impl fmt::Display for RaisedException {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for RaisedException {}

/// Sorts an error of minijinja into ours.
pub(super) fn template_error(error: &Error) -> TemplateError {
    let line = error.line().unwrap_or(0);
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(raised) = current.downcast_ref::<RaisedException>() {
            return TemplateError::Raised { line, message: raised.0.clone() };
        }
        if current.downcast_ref::<Error>().is_some_and(|error| error.kind() == ErrorKind::OutOfFuel) {
            return TemplateError::TooExpensive { line, budget: FUEL };
        }
        cause = current.source();
    }
    let message = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    match error.kind() {
        ErrorKind::SyntaxError | ErrorKind::BadEscape => TemplateError::Syntax { line, message },
        _ => {
            let cause = error.source().map(|source| format!(" ({source})")).unwrap_or_default();
            TemplateError::Render { line, message: message + &cause }
        }
    }
}

/// A JSON value as a template sees it; the order of keys is kept.
pub(super) fn template_value(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(value) => Value::from(*value),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::from(value),
            (None, Some(value)) => Value::from(value),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => items.iter().map(template_value).collect::<Vec<_>>().into(),
        serde_json::Value::Object(object) => {
            Value::from_pairs(object.iter().map(|(key, value)| (key.as_str(), template_value(value))))
        }
    }
}
