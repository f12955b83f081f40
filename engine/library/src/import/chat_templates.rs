//! Where a folder keeps its chat templates: all of them come along, in the same places.

use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use crate::disk;
use crate::error::LibraryError;

/// The folder of templates for special uses.
const ADDITIONAL: &str = "additional_chat_templates";
/// Files whose field `chat_template` holds a template, or names the file that does.
const WITH_FIELD: [&str; 2] = ["tokenizer_config.json", "chat_template.json"];
/// The largest tokenizer_config.json has some megabytes.
const FIELD_LIMIT: u64 = 16 << 20;

/// The files that hold nothing but a template: name below the folder, and path.
///
/// # Errors
/// When a folder cannot be listed.
pub(super) fn files(folder: &Path) -> Result<Vec<(String, PathBuf)>, LibraryError> {
    let mut found: Vec<(String, PathBuf)> = Vec::new();
    for path in disk::files_of(folder)? {
        found.push((disk::file_name_text(&path), path));
    }
    let additional = folder.join(ADDITIONAL);
    if additional.is_dir() {
        for path in disk::files_of(&additional)? {
            found.push((format!("{ADDITIONAL}/{}", disk::file_name_text(&path)), path));
        }
    }
    found.retain(|(name, path)| name.ends_with(".jinja") && path.is_file());
    for name in WITH_FIELD.into_iter().flat_map(|file| texts(&field(folder, file))) {
        let Some(name) = plain_name(&name) else { continue };
        let path = folder.join(&name);
        if path.is_file() && found.iter().all(|(known, _)| *known != name) {
            found.push((name, path));
        }
    }
    Ok(found)
}

/// Whether the folder has a template of any kind.
pub(super) fn are_there(folder: &Path) -> bool {
    files(folder).is_ok_and(|files| !files.is_empty())
        || WITH_FIELD.into_iter().any(|file| !texts(&field(folder, file)).is_empty())
}

fn field(folder: &Path, file: &str) -> Value {
    disk::read_json(&folder.join(file), FIELD_LIMIT).map_or(Value::Null, |mut content| content["chat_template"].take())
}

/// The texts of a field: one, a list of named ones, or an object by name.
fn texts(field: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    match field {
        Value::Array(entries) => entries.iter().filter_map(|entry| text(entry.get("template")?)).collect(),
        Value::Object(by_name) => by_name.values().filter_map(text).collect(),
        one => text(one).into_iter().collect(),
    }
}

/// The name of the file that a text is, where it is one and not a template itself: a plain path below the folder that
/// ends in `.jinja`, as the engine reads it.
fn plain_name(text: &str) -> Option<String> {
    let name = text.trim();
    if !name.ends_with(".jinja") || name.contains(['{', '\n']) {
        return None;
    }
    let mut parts = Vec::new();
    for part in Path::new(name).components() {
        match part {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::CurDir => {}
            _ => return None,
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}
