//! What a model may be called.

use crate::error::LibraryError;
use crate::starter::STARTER;

/// Bytes of a part of a name; file systems allow 255, and a suffix may be added.
const PART_LIMIT: usize = 200;

/// Accepts `model` and `organisation/model`, and nothing that could lead out of the store or hide in it.
pub(crate) fn check_name(name: &str) -> Result<(), LibraryError> {
    let refuse = |reason: &str| Err(LibraryError::InvalidName { name: name.to_owned(), reason: reason.to_owned() });
    if name.eq_ignore_ascii_case(STARTER) {
        return refuse("it stands for the starter model");
    }
    let parts: Vec<&str> = name.split('/').collect();
    if parts.len() > 2 {
        return refuse("it has more than one slash");
    }
    for part in parts {
        if part.is_empty() {
            return refuse("a part of it is empty");
        }
        if part.starts_with('.') {
            return refuse("a part of it begins with a dot");
        }
        if part.len() > PART_LIMIT {
            return refuse("a part of it is longer than 200 bytes");
        }
        if part.trim() != part {
            return refuse("it begins or ends with a space");
        }
        if part.contains(['\\', ':']) || part.chars().any(char::is_control) {
            return refuse("it has a character that names cannot have");
        }
    }
    Ok(())
}

/// A name made from a file's or folder's name: what is not allowed becomes a dash.
pub(crate) fn name_from(text: &str) -> String {
    let cleaned: String = text
        .trim()
        .chars()
        .map(|character| if matches!(character, '/' | '\\' | ':') || character.is_control() { '-' } else { character })
        .collect();
    let mut name = cleaned.trim_start_matches('.').trim().to_owned();
    while name.len() > PART_LIMIT {
        name.pop();
    }
    if name.is_empty() || name.eq_ignore_ascii_case(STARTER) { "model".into() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_in_any_script_are_accepted() {
        for name in ["SmolLM2-135M", "mlx-community/Qwen3-4B-4bit", "Modell für Öl", "模型/小", "a..b", "v1.0"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn names_that_leave_or_hide_in_the_store_or_mean_another_model_are_refused() {
        for name in [
            "",
            "..",
            "../x",
            "a/../b",
            "/etc",
            "a/",
            "a//b",
            "a/b/c",
            ".staging-1",
            "org/.x",
            "a\\b",
            "c:x",
            "a\nb",
            " a",
            "starter",
            "Starter",
        ] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_name_made_from_any_text_is_accepted() {
        for text in ["", "...", "a/b", "über: \"alles\"", "  x ", &"é".repeat(300), "\u{7}", "starter"] {
            assert!(check_name(&name_from(text)).is_ok(), "{text:?} became {:?}", name_from(text));
        }
    }
}
