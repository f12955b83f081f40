//! Methods of Python's `str`.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::arguments::Arguments;
use super::python_text::{is_space, strip, strip_end};

/// Calls `text.method(values)`; `None` where the method is left to minijinja's own set.
pub(super) fn call(state: &State, text: &str, method: &str, values: &[Value]) -> Result<Option<Value>, Error> {
    let maximum = match method {
        "find" | "rfind" | "index" | "rindex" | "count" | "startswith" | "endswith" => 3,
        "split" | "rsplit" | "ljust" | "rjust" | "center" => 2,
        "strip" | "lstrip" | "rstrip" | "splitlines" | "partition" | "rpartition" | "removeprefix" | "removesuffix"
        | "zfill" | "expandtabs" | "join" => 1,
        "title" | "swapcase" | "casefold" | "isdigit" | "isdecimal" | "isspace" | "istitle" | "isidentifier" => 0,
        _ => return Ok(None),
    };
    let arguments = Arguments::bind(method, maximum, values)?;
    let result = match method {
        "strip" | "lstrip" | "rstrip" => Value::from(stripped(text, method, arguments.text_or_none(0)?)),
        "split" | "rsplit" => split(text, method == "rsplit", &arguments)?,
        "splitlines" => {
            let keep = arguments.get(0, "keepends")?.is_some_and(|value| value.is_true());
            split_lines(text, keep).into_iter().collect()
        }
        "partition" | "rpartition" => partition(text, separator(arguments.text(0)?)?, method == "rpartition"),
        "removeprefix" => Value::from(text.strip_prefix(arguments.text(0)?).unwrap_or(text)),
        "removesuffix" => Value::from(text.strip_suffix(arguments.text(0)?).unwrap_or(text)),
        "find" | "rfind" | "index" | "rindex" => find(text, method, &arguments)?,
        "count" => {
            let (_, window) = window(text, &arguments)?;
            Value::from(window.matches(arguments.text(0)?).count())
        }
        "startswith" | "endswith" => affix(text, method, &arguments)?,
        "join" => join(state, text, &arguments)?,
        "ljust" | "rjust" | "center" | "zfill" => padded(text, method, &arguments)?,
        "expandtabs" => expand_tabs(state, text, width(arguments.integer(0, "tabsize")?.unwrap_or(8))?)?,
        "title" => Value::from(title(text)),
        "swapcase" => Value::from(swap_case(text)),
        // Full case folding differs from lower case for few characters; `ß` is the one in use.
        "casefold" => Value::from(text.to_lowercase().replace('ß', "ss")),
        "isdigit" => all(text, is_digit),
        "isdecimal" => all(text, is_decimal),
        "isspace" => all(text, is_space),
        "istitle" => Value::from(text.chars().any(char::is_alphabetic) && title(text) == text),
        _ => Value::from(is_identifier(text)),
    };
    arguments.finish()?;
    Ok(Some(result))
}

fn invalid(detail: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail.to_owned())
}

fn all(text: &str, test: impl Fn(char) -> bool) -> Value {
    Value::from(!text.is_empty() && text.chars().all(test))
}

/// Superscripts, subscripts and circled digits are digits without being decimal; fractions and Roman numerals are
/// neither.
fn is_digit(character: char) -> bool {
    is_decimal(character)
        || matches!(character, '²' | '³' | '¹' | '\u{2070}' | '\u{2074}'..='\u{2079}' | '\u{2080}'..='\u{2089}')
        || matches!(character, '\u{2460}'..='\u{2468}' | '\u{2474}'..='\u{247c}' | '\u{2488}'..='\u{2490}' | '\u{24ea}')
}

/// ASCII digits and the decimal digits of the scripts in the basic plane (Unicode `Nd`).
fn is_decimal(character: char) -> bool {
    const ZEROS: [u32; 36] = [
        0x30, 0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xde6, 0xe50, 0xed0,
        0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90, 0x1b50, 0x1bb0, 0x1c40, 0x1c50, 0xa620,
        0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xff10,
    ];
    let code = u32::from(character);
    ZEROS.iter().any(|zero| (*zero..zero + 10).contains(&code))
}

fn is_identifier(text: &str) -> bool {
    let mut characters = text.chars();
    characters.next().is_some_and(|c| c == '_' || c.is_alphabetic())
        && characters.all(|c| c == '_' || c.is_alphanumeric())
}

fn stripped<'a>(text: &'a str, method: &str, characters: Option<&str>) -> &'a str {
    let drop = |c: char| characters.map_or_else(|| is_space(c), |characters| characters.contains(c));
    match method {
        "lstrip" => text.trim_start_matches(drop),
        "rstrip" => text.trim_end_matches(drop),
        _ => text.trim_matches(drop),
    }
}

fn separator(text: &str) -> Result<&str, Error> {
    if text.is_empty() { Err(invalid("the separator is empty")) } else { Ok(text) }
}

fn split(text: &str, from_end: bool, arguments: &Arguments<'_>) -> Result<Value, Error> {
    let given = arguments.get_some(0, "sep")?;
    let most = arguments.integer(1, "maxsplit")?.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    let parts: Vec<&str> = match given.as_ref().map(|given| given.as_str().ok_or_else(|| invalid("sep must be text"))) {
        Some(by) => {
            let by = separator(by?)?;
            let count = most.saturating_add(1);
            if from_end { reversed(text.rsplitn(count, by)) } else { text.splitn(count, by).collect() }
        }
        None if from_end => reversed(words_from_end(text, most).into_iter()),
        None => words(text, most),
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

fn reversed<'a>(parts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut parts: Vec<&str> = parts.collect();
    parts.reverse();
    parts
}

fn words(text: &str, most: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        match rest.find(is_space).filter(|_| parts.len() < most) {
            Some(end) => {
                parts.push(&rest[..end]);
                rest = rest[end..].trim_start_matches(is_space);
            }
            None => {
                // The last part keeps what follows it only where no split is left.
                parts.push(if parts.len() < most { strip_end(rest) } else { rest });
                break;
            }
        }
    }
    parts
}

fn words_from_end(text: &str, most: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = strip_end(text);
    while !rest.is_empty() {
        match rest.char_indices().rev().find(|(_, c)| is_space(*c)).filter(|_| parts.len() < most) {
            Some((start, space)) => {
                parts.push(&rest[start + space.len_utf8()..]);
                rest = strip_end(&rest[..start]);
            }
            None => {
                parts.push(if parts.len() < most { strip(rest) } else { rest });
                break;
            }
        }
    }
    parts
}

fn split_lines(text: &str, keep: bool) -> Vec<&str> {
    let is_end = |c: char| {
        matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let Some((start, character)) = rest.char_indices().find(|(_, c)| is_end(*c)) else {
            lines.push(rest);
            break;
        };
        let end = start + if rest[start..].starts_with("\r\n") { 2 } else { character.len_utf8() };
        lines.push(&rest[..if keep { end } else { start }]);
        rest = &rest[end..];
    }
    lines
}

fn partition(text: &str, by: &str, from_end: bool) -> Value {
    let split = if from_end { text.rsplit_once(by) } else { text.split_once(by) };
    let parts = match split {
        Some((before, after)) => [before, by, after],
        None if from_end => ["", "", text],
        None => [text, "", ""],
    };
    Value::from(Tuple::from(parts.map(Value::from)))
}

/// The part of `text` between the arguments `start` and `end` (the second and third), counted as slices are, and the
/// number of characters before it.
fn window<'a>(text: &'a str, arguments: &Arguments<'_>) -> Result<(usize, &'a str), Error> {
    let length = text.chars().count();
    let position = |given: Option<i64>, default: usize| match given {
        None => default,
        Some(index) if index < 0 => length.saturating_sub(usize::try_from(index.unsigned_abs()).unwrap_or(usize::MAX)),
        Some(index) => usize::try_from(index).unwrap_or(usize::MAX).min(length),
    };
    let start = position(arguments.integer(1, "start")?, 0);
    let end = position(arguments.integer(2, "end")?, length).max(start);
    let byte = |characters: usize| text.char_indices().nth(characters).map_or(text.len(), |(offset, _)| offset);
    Ok((start, &text[byte(start)..byte(end)]))
}

fn find(text: &str, method: &str, arguments: &Arguments<'_>) -> Result<Value, Error> {
    let (before, window) = window(text, arguments)?;
    let wanted = arguments.text(0)?;
    let offset = if method.starts_with('r') { window.rfind(wanted) } else { window.find(wanted) };
    match offset {
        Some(offset) => Ok(Value::from(before + window[..offset].chars().count())),
        None if method.ends_with("find") => Ok(Value::from(-1)),
        None => Err(invalid("the text to look for does not occur")),
    }
}

fn affix(text: &str, method: &str, arguments: &Arguments<'_>) -> Result<Value, Error> {
    let (_, window) = window(text, arguments)?;
    let has = |affix: &str| if method == "startswith" { window.starts_with(affix) } else { window.ends_with(affix) };
    let wrong = || invalid("startswith and endswith take a text or a tuple of texts");
    let wanted = arguments.get(0, "prefix")?.ok_or_else(wrong)?;
    if let Some(affix) = wanted.as_str() {
        return Ok(Value::from(has(affix)));
    }
    let affixes = wanted.downcast_object_ref::<Tuple>().ok_or_else(wrong)?;
    let mut found = false;
    for affix in affixes.iter() {
        found |= has(affix.as_str().ok_or_else(wrong)?);
    }
    Ok(Value::from(found))
}

fn join(state: &State, text: &str, arguments: &Arguments<'_>) -> Result<Value, Error> {
    let items = arguments.get(0, "iterable")?.ok_or_else(|| invalid("join takes a list of texts"))?;
    if matches!(items.kind(), ValueKind::None | ValueKind::Undefined) {
        return Err(invalid("join takes a list of texts"));
    }
    let mut joined = String::new();
    for (index, item) in items.try_iter()?.enumerate() {
        let item = item.as_str().ok_or_else(|| invalid("join takes texts only")).map(str::to_owned)?;
        state.consume_fuel(1 + ((text.len() + item.len()) / 64) as u64)?;
        if index > 0 {
            joined.push_str(text);
        }
        joined.push_str(&item);
    }
    Ok(Value::from(joined))
}

/// The widest that padding makes a text.
const MAXIMUM_WIDTH: i64 = 65_536;

fn width(given: i64) -> Result<usize, Error> {
    if given > MAXIMUM_WIDTH {
        return Err(invalid(&format!("the width {given} is above {MAXIMUM_WIDTH}")));
    }
    Ok(usize::try_from(given).unwrap_or(0))
}

fn padded(text: &str, method: &str, arguments: &Arguments<'_>) -> Result<Value, Error> {
    let wanted = arguments.integer(0, "width")?.ok_or_else(|| invalid("a width is needed"))?;
    let length = text.chars().count();
    let missing = width(wanted)?.saturating_sub(length);
    let fill = if method == "zfill" { "0" } else { arguments.text_or_none(1)?.unwrap_or(" ") };
    if fill.chars().count() != 1 {
        return Err(invalid("the fill must be one character"));
    }
    let (before, after) = match method {
        "ljust" => (0, missing),
        "center" => {
            // Python puts the odd character to the left where the width is odd.
            let left = missing / 2 + (missing & (length + missing) & 1);
            (left, missing - left)
        }
        _ => (missing, 0),
    };
    let (sign, digits) = match method {
        "zfill" if text.starts_with(['+', '-']) => text.split_at(1),
        _ => ("", text),
    };
    Ok(Value::from(format!("{sign}{}{digits}{}", fill.repeat(before), fill.repeat(after))))
}

fn expand_tabs(state: &State, text: &str, size: usize) -> Result<Value, Error> {
    let mut out = String::new();
    let mut column = 0;
    for character in text.chars() {
        match character {
            '\t' if size > 0 => {
                let blanks = size - column % size;
                state.consume_fuel(1 + (blanks / 64) as u64)?;
                out.push_str(&" ".repeat(blanks));
                column += blanks;
            }
            '\t' => {}
            _ => {
                column = if matches!(character, '\n' | '\r') { 0 } else { column + 1 };
                out.push(character);
            }
        }
    }
    Ok(Value::from(out))
}

/// `str.title`: upper case after everything that is no letter, so also after an apostrophe.
fn title(text: &str) -> String {
    let mut out = String::new();
    let mut inside = false;
    for character in text.chars() {
        if inside {
            out.extend(character.to_lowercase())
        } else {
            out.extend(character.to_uppercase())
        }
        inside = character.is_alphabetic();
    }
    out
}

fn swap_case(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        if character.is_uppercase() {
            out.extend(character.to_lowercase());
        } else {
            out.extend(character.to_uppercase());
        }
    }
    out
}
