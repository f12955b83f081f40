//! Filters and tests of Jinja that minijinja lacks or defines otherwise.

use minijinja::filters;
use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::arguments::Arguments;
use super::python_text::{self, strip};

pub(super) fn add(environment: &mut Environment<'static>) {
    environment.add_filter("string", python_text::text);
    environment.add_filter("trim", trim);
    environment.add_filter("join", join);
    environment.add_filter("e", escape);
    environment.add_filter("escape", escape);
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_filter("default", default);
    environment.add_filter("d", default);
    environment.add_filter("dictsort", dictsort);
    environment.add_filter("indent", indent);
    environment.add_filter("wordcount", wordcount);
    environment.add_filter("center", |state: &State, value: &Value, width: Option<u16>| {
        let text = python_text::text(state, value)?;
        let missing = usize::from(width.unwrap_or(80)).saturating_sub(text.chars().count());
        let left = missing / 2 + (missing & (text.chars().count() + missing) & 1);
        Ok::<_, Error>(format!("{}{text}{}", " ".repeat(left), " ".repeat(missing - left)))
    });
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_sequence);
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
}

fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// Python asks for a length and for items by key, which texts and dicts have too.
fn is_sequence(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined => true,
        ValueKind::Iterable => {
            value.len().is_some() && value.get_item_by_index(0).is_ok_and(|item| !item.is_undefined())
        }
        _ => false,
    }
}

fn trim(state: &State, value: &Value, characters: Option<&str>) -> Result<String, Error> {
    let text = python_text::text(state, value)?;
    Ok(match characters {
        Some(characters) => text.trim_matches(|c| characters.contains(c)).to_owned(),
        None => strip(&text).to_owned(),
    })
}

fn wordcount(state: &State, value: &Value) -> Result<usize, Error> {
    // Jinja counts runs of `\w`.
    let text = python_text::text(state, value)?;
    Ok(text.split(|c: char| c != '_' && !c.is_alphanumeric()).filter(|word| !word.is_empty()).count())
}

fn join(state: &State, value: &Value, arguments: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let values = arguments.into_values();
    let arguments = Arguments::bind("join", 2, &values)?;
    let separator =
        arguments.get(0, "d")?.map(|separator| python_text::text(state, &separator)).transpose()?.unwrap_or_default();
    let attribute = arguments.get_some(1, "attribute")?;
    arguments.finish()?;
    if value.is_none() {
        return Err(Error::new(ErrorKind::InvalidOperation, "none is not iterable"));
    }
    let mut joined = String::new();
    for (index, item) in value.try_iter()?.enumerate() {
        let item = match &attribute {
            Some(attribute) => attribute_of(&item, attribute)?,
            None => item,
        };
        let item = python_text::text(state, &item)?;
        state.consume_fuel(1 + ((separator.len() + item.len()) / 64) as u64)?;
        if index > 0 {
            joined.push_str(&separator);
        }
        joined.push_str(&item);
    }
    Ok(joined)
}

/// `a.b.0` looks up step by step.
fn attribute_of(value: &Value, attribute: &Value) -> Result<Value, Error> {
    let Some(path) = attribute.as_str() else { return value.get_item(attribute) };
    path.split('.').try_fold(value.clone(), |value, part| match part.parse::<usize>() {
        Ok(index) => value.get_item_by_index(index),
        Err(_) => value.get_attr(part),
    })
}

fn escape(state: &State, value: &Value) -> Result<Value, Error> {
    if value.is_safe() {
        return Ok(value.clone());
    }
    let mut escaped = String::new();
    for character in python_text::text(state, value)?.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&#34;"),
            '\'' => escaped.push_str("&#39;"),
            _ => escaped.push(character),
        }
    }
    Ok(Value::from_safe_string(escaped))
}

fn default(value: &Value, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let values = arguments.into_values();
    let arguments = Arguments::bind("default", 2, &values)?;
    let other = arguments.get(0, "default_value")?.unwrap_or_else(|| Value::from(""));
    let falsy_too = arguments.get(1, "boolean")?.is_some_and(|value| value.is_true());
    arguments.finish()?;
    Ok(if value.is_undefined() || (falsy_too && !value.is_true()) { other } else { value.clone() })
}

fn int(value: &Value, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let values = arguments.into_values();
    let arguments = Arguments::bind("int", 2, &values)?;
    let other = arguments.get(0, "default")?.unwrap_or_else(|| Value::from(0));
    let base = arguments.integer(1, "base")?.and_then(|base| u32::try_from(base).ok()).unwrap_or(10);
    arguments.finish()?;
    let parsed = match (value.kind(), value.as_str()) {
        (ValueKind::Undefined, _) => {
            return Err(Error::new(ErrorKind::UndefinedError, "int of an undefined value"));
        }
        (ValueKind::Bool, _) => Some(Value::from(i64::from(value.is_true()))),
        (ValueKind::Number, _) if value.is_integer() => Some(value.clone()),
        (ValueKind::Number, _) => f64::try_from(value.clone()).ok().and_then(truncated),
        (_, Some(text)) => whole_number(text, base).map(Value::from).or_else(|| real_number(text).and_then(truncated)),
        _ => None,
    };
    Ok(parsed.unwrap_or(other))
}

fn truncated(value: f64) -> Option<Value> {
    // Exact within the range of i128, which is where a template's numbers end too.
    (value.is_finite() && value.abs() < 1e38).then(|| Value::from(value.trunc() as i128))
}

fn whole_number(text: &str, base: u32) -> Option<i128> {
    let text = strip(text).replace('_', "");
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(&text)),
    };
    let prefix = match base {
        2 => "0b",
        8 => "0o",
        16 => "0x",
        _ => "",
    };
    let lower = digits.to_lowercase();
    let digits = lower.strip_prefix(prefix).unwrap_or(&lower);
    let valid = (2..=36).contains(&base) && digits.starts_with(|c: char| c.is_digit(base));
    let number = if valid { i128::from_str_radix(digits, base).ok()? } else { return None };
    Some(if negative { -number } else { number })
}

fn real_number(text: &str) -> Option<f64> {
    strip(text).replace('_', "").parse().ok()
}

fn float(value: &Value, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let values = arguments.into_values();
    let arguments = Arguments::bind("float", 1, &values)?;
    let other = arguments.get(0, "default")?.unwrap_or_else(|| Value::from(0.0));
    arguments.finish()?;
    let parsed = match (value.kind(), value.as_str()) {
        (ValueKind::Undefined, _) => {
            return Err(Error::new(ErrorKind::UndefinedError, "float of an undefined value"));
        }
        (ValueKind::Bool, _) => Some(f64::from(u8::from(value.is_true()))),
        (ValueKind::Number, _) => f64::try_from(value.clone()).ok(),
        (_, Some(text)) => real_number(text),
        _ => None,
    };
    Ok(parsed.map_or(other, Value::from))
}

fn dictsort(value: &Value, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let values = arguments.into_values();
    let arguments = Arguments::bind("dictsort", 3, &values)?;
    let mut named = Vec::new();
    for (index, name) in ["case_sensitive", "by", "reverse"].into_iter().enumerate() {
        named.extend(arguments.get(index, name)?.map(|value| (name, value)));
    }
    arguments.finish()?;
    filters::dictsort(value, Kwargs::from_iter(named))
}

fn indent(state: &State, value: &Value, arguments: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let values = arguments.into_values();
    let arguments = Arguments::bind("indent", 3, &values)?;
    let indention = match arguments.get_some(0, "width")? {
        Some(width) => match width.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::from(u16::try_from(width.clone())?)),
        },
        None => "    ".to_owned(),
    };
    let flag = |index, name| arguments.get(index, name).map(|value| value.is_some_and(|value| value.is_true()));
    let (first, blank) = (flag(1, "first")?, flag(2, "blank")?);
    arguments.finish()?;
    let text = python_text::text(state, value)?;
    let mut out = String::new();
    for (index, line) in text.split('\n').enumerate() {
        state.consume_fuel(1 + (indention.len() / 64) as u64)?;
        if index > 0 {
            out.push('\n');
        }
        let indented = if index == 0 { first } else { blank || !line.is_empty() };
        if indented {
            out.push_str(&indention);
        }
        out.push_str(line);
    }
    Ok(out)
}
