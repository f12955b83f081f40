//! How Python writes values as text, where Rust writes them differently.

use std::fmt::Write;

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Whether Python's `str.isspace` holds: Unicode white space and the four separators U+001C to U+001F.
pub(super) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

/// `str.strip()`.
pub(super) fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// `str.rstrip()`.
pub(super) fn strip_end(text: &str) -> &str {
    text.trim_end_matches(is_space)
}

/// `repr(float)`: the shortest digits that read back as the same number, with an exponent below 1e-4 and from 1e16.
pub(super) fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = value.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

/// `str(value)`.
///
/// # Errors
/// When the value is nested too deep or the template's budget does not pay for writing it.
pub(super) fn text(state: &State, value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None if value.is_undefined() => Ok(String::new()),
        None => {
            let mut out = String::new();
            write_repr(state, value, MAXIMUM_DEPTH, &mut out)?;
            Ok(out)
        }
    }
}

/// Values nested deeper than this are not written, so that a template cannot exhaust the stack.
pub(super) const MAXIMUM_DEPTH: usize = 300;

fn write_repr(state: &State, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    // Lists can share their parts, so what they print bears no relation to what they cost to build.
    state.consume_fuel(1 + value.as_str().map_or(0, |text| text.len() / 64) as u64)?;
    let Some(depth) = depth.checked_sub(1) else {
        let detail = format!("a value is nested deeper than {MAXIMUM_DEPTH} levels");
        return Err(Error::new(ErrorKind::InvalidOperation, detail));
    };
    match value.kind() {
        ValueKind::String => write_text_repr(value.as_str().unwrap_or_default(), out),
        ValueKind::Number if !value.is_integer() => {
            out.push_str(&f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float));
        }
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Seq | ValueKind::Iterable => {
            let tuple = value.downcast_object_ref::<Tuple>().is_some();
            out.push(if tuple { '(' } else { '[' });
            let mut count = 0;
            for item in value.try_iter()? {
                if count > 0 {
                    out.push_str(", ");
                }
                write_repr(state, &item, depth, out)?;
                count += 1;
            }
            if tuple && count == 1 {
                out.push(',');
            }
            out.push(if tuple { ')' } else { ']' });
        }
        ValueKind::Map if value.as_object().is_some_and(|object| object.try_iter_pairs().is_some()) => {
            out.push('{');
            let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
            for (index, (key, item)) in pairs.into_iter().flatten().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_repr(state, &key, depth, out)?;
                out.push_str(": ");
                write_repr(state, &item, depth, out)?;
            }
            out.push('}');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
    Ok(())
}

/// `repr(str)`: single quotes unless only the text holds single ones, escapes for what does not print.
fn write_text_repr(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if character == quote => {
                out.push('\\');
                out.push(character);
            }
            _ if is_printable(character) => out.push(character),
            _ => {
                let code = u32::from(character);
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// `str.isprintable` of one character, near enough: Python escapes what Unicode calls "other" or "separator", save
/// the blank. Rust's own escaping of debug text knows the same classes; combining marks, which it also escapes, print.
fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return !character.is_ascii_control();
    }
    if character.is_whitespace() || character.is_control() {
        return false;
    }
    // After a letter, a combining mark is not escaped by Rust either, so what stays escaped does not print.
    let shown = format!("{:?}", format!("a{character}"));
    !shown.contains("\\u")
}
