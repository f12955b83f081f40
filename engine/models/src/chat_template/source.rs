//! Where a model folder keeps its chat templates.

use std::path::{Component, Path};

use serde_json::Value;

use super::TemplateError;
use crate::special_tokens::read_json_object;

/// The name of the template that serves unless another fits better.
pub(super) const DEFAULT: &str = "default";
/// The name of the template that serves requests with tools.
pub(super) const TOOL_USE: &str = "tool_use";

/// The folder's templates: name and text. Empty where it has none.
pub(super) fn find(folder: &Path) -> Result<Vec<(String, String)>, TemplateError> {
    let mut named = Vec::new();
    if let Some(text) = read_text(&folder.join("chat_template.jinja"))? {
        named.push((DEFAULT.to_owned(), text));
    }
    named.extend(additional(&folder.join("additional_chat_templates"))?);
    for file in ["tokenizer_config.json", "chat_template.json"] {
        if !named.is_empty() {
            break;
        }
        let path = folder.join(file);
        if let Some(field) = read_json_object(&path)?.and_then(|mut object| object.remove("chat_template")) {
            named = from_field(folder, &path, &field)?;
        }
    }
    Ok(named)
}

fn additional(folder: &Path) -> Result<Vec<(String, String)>, TemplateError> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(source) => return Err(TemplateError::Read { path: folder.to_owned(), source }),
    };
    let mut named = Vec::new();
    for entry in entries {
        let path = entry.map_err(|source| TemplateError::Read { path: folder.to_owned(), source })?.path();
        let is_template = path.extension().is_some_and(|extension| extension == "jinja");
        let Some(name) = path.file_stem().and_then(|name| name.to_str()).filter(|_| is_template) else { continue };
        if let Some(text) = read_text(&path)? {
            named.push((name.to_owned(), text));
        }
    }
    named.sort();
    Ok(named)
}

fn from_field(folder: &Path, path: &Path, field: &Value) -> Result<Vec<(String, String)>, TemplateError> {
    let unknown = |detail: String| TemplateError::UnknownForm { path: path.to_owned(), detail };
    match field {
        Value::Null => Ok(Vec::new()),
        Value::String(text) if text.is_empty() => Ok(Vec::new()),
        Value::String(text) => Ok(vec![(DEFAULT.to_owned(), follow(folder, text)?)]),
        Value::Array(entries) => entries
            .iter()
            .map(|entry| match (entry.get("name"), entry.get("template")) {
                (Some(Value::String(name)), Some(Value::String(text))) => Ok((name.clone(), follow(folder, text)?)),
                _ => Err(unknown(format!("the list holds {entry}"))),
            })
            .collect(),
        Value::Object(by_name) => by_name
            .iter()
            .map(|(name, text)| match text {
                Value::String(text) => Ok((name.clone(), follow(folder, text)?)),
                other => Err(unknown(format!("{name} is {other}"))),
            })
            .collect(),
        other => Err(unknown(other.to_string())),
    }
}

/// A field can name a file of the folder instead of holding the template. Only a plain path ending in `.jinja`
/// counts, and only inside the folder, so that a template's own text is never taken for a path.
fn follow(folder: &Path, text: &str) -> Result<String, TemplateError> {
    let name = text.trim();
    let is_path = name.ends_with(".jinja") && !name.contains(['{', '\n']);
    if !is_path {
        return Ok(text.to_owned());
    }
    let path = folder.join(name);
    if !Path::new(name).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, "it lies outside the model folder");
        return Err(TemplateError::Read { path, source });
    }
    read_text(&path)?
        .ok_or_else(|| TemplateError::Read { path, source: std::io::Error::from(std::io::ErrorKind::NotFound) })
}

fn read_text(path: &Path) -> Result<Option<String>, TemplateError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TemplateError::Read { path: path.to_owned(), source }),
    }
}
