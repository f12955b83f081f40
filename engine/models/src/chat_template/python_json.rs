//! The `tojson` filter of transformers: Python's `json.dumps` without HTML escapes.

use std::fmt::Write;

use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Error, ErrorKind, State, Value};

use super::arguments::Arguments;
use super::python_text::{self, MAXIMUM_DEPTH};

/// `json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(state: &State, value: &Value, arguments: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let values = arguments.into_values();
    let arguments = Arguments::bind("tojson", 4, &values)?;
    let ensure_ascii = arguments.get(0, "ensure_ascii")?.is_some_and(|value| value.is_true());
    let indent = arguments.get_some(1, "indent")?.map(|value| indentation(&value)).transpose()?;
    let separators = arguments.get_some(2, "separators")?.map(|value| pair(&value)).transpose()?;
    let sort_keys = arguments.get(3, "sort_keys")?.is_some_and(|value| value.is_true());
    arguments.finish()?;

    let (item, key) =
        separators.unwrap_or_else(|| (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()));
    let mut writer = Writer { out: String::new(), ensure_ascii, indent, item, key, sort_keys, depth: 0 };
    writer.value(state, value)?;
    Ok(writer.out)
}

fn indentation(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let width = i64::try_from(value.clone())
        .or_else(|_| bool::try_from(value.clone()).map(i64::from))
        .map_err(|_| invalid(format!("tojson: indent is {value}, a number or text is needed")))?;
    match usize::try_from(width.max(0)) {
        Ok(width) if width <= 1024 => Ok(" ".repeat(width)),
        _ => Err(invalid(format!("tojson: indent {width} is too large"))),
    }
}

fn pair(value: &Value) -> Result<(String, String), Error> {
    let texts: Vec<Value> = value.try_iter()?.collect();
    match texts.as_slice() {
        [item, key] => match (item.as_str(), key.as_str()) {
            (Some(item), Some(key)) => Ok((item.to_owned(), key.to_owned())),
            _ => Err(invalid("tojson: separators are two texts".to_owned())),
        },
        _ => Err(invalid("tojson: separators are two texts".to_owned())),
    }
}

fn invalid(detail: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

struct Writer {
    out: String,
    ensure_ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort_keys: bool,
    depth: usize,
}

impl Writer {
    fn value(&mut self, state: &State, value: &Value) -> Result<(), Error> {
        state.consume_fuel(1 + value.as_str().map_or(0, |text| text.len() / 64) as u64)?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)),
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            ValueKind::Seq => {
                let items = charged(state, value.try_iter()?)?;
                self.container(state, '[', ']', items.len(), |writer, index| writer.value(state, &items[index]))?;
            }
            ValueKind::Map => {
                let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
                let mut pairs: Vec<(Value, Value)> = charged(state, pairs.ok_or_else(|| not_serializable(value))?)?;
                if self.sort_keys {
                    pairs.sort_by(|(left, _), (right, _)| left.cmp(right));
                }
                self.container(state, '{', '}', pairs.len(), |writer, index| {
                    let (key, item) = &pairs[index];
                    writer.text(&key_text(key)?);
                    let separator = writer.key.clone();
                    writer.out.push_str(&separator);
                    writer.value(state, item)
                })?;
            }
            _ => return Err(not_serializable(value)),
        }
        Ok(())
    }

    fn container(
        &mut self,
        state: &State,
        open: char,
        close: char,
        length: usize,
        mut write: impl FnMut(&mut Self, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.depth >= MAXIMUM_DEPTH {
            return Err(invalid(format!("tojson: the value is nested deeper than {MAXIMUM_DEPTH} levels")));
        }
        self.out.push(open);
        self.depth += 1;
        for index in 0..length {
            if index > 0 {
                let separator = self.item.clone();
                self.out.push_str(&separator);
            }
            self.line_break(state)?;
            write(self, index)?;
        }
        self.depth -= 1;
        if length > 0 {
            self.line_break(state)?;
        }
        self.out.push(close);
        Ok(())
    }

    fn line_break(&mut self, state: &State) -> Result<(), Error> {
        if let Some(indent) = &self.indent {
            state.consume_fuel((indent.len() * self.depth / 64) as u64)?;
            self.out.push('\n');
            for _ in 0..self.depth {
                self.out.push_str(indent);
            }
        }
        Ok(())
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                '\0'..='\u{1f}' => self.escape(u32::from(character)),
                _ if self.ensure_ascii && !matches!(character, ' '..='~') => {
                    let mut units = [0; 2];
                    for unit in character.encode_utf16(&mut units) {
                        self.escape(u32::from(*unit));
                    }
                }
                _ => self.out.push(character),
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, unit: u32) {
        let _ = write!(self.out, "\\u{unit:04x}");
    }
}

/// Collects what a list shares or makes on the fly only as far as the template's budget pays for it.
fn charged<T>(state: &State, items: impl Iterator<Item = T>) -> Result<Vec<T>, Error> {
    items.map(|item| state.consume_fuel(1).map(|()| item)).collect()
}

fn not_serializable(value: &Value) -> Error {
    let kind = value.kind();
    Error::new(ErrorKind::BadSerialization, format!("tojson: a value of type {kind} has no JSON form"))
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(float) if float.is_nan() => "NaN".to_owned(),
        Ok(float) if float.is_infinite() => if float > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
        Ok(float) => python_text::float(float),
        Err(_) => value.to_string(),
    }
}

fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::Number => Ok(number(key)),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        kind => Err(invalid(format!("tojson: a key of type {kind} has no JSON form"))),
    }
}
