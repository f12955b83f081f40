//! A template's text as minijinja takes it, changed only where the two engines read the same text differently. Line
//! numbers stay as they are, so that errors name the template's own lines.
//!
//! - Line ends become `\n`, as in Jinja.
//! - `{% generation %}` blocks of transformers, which mark the assistant's text for training, only render.
//! - What `{% for %}` runs over goes through [`ITERATED`], which refuses `none` as Python does; minijinja takes it for
//!   an empty list.
//! - A line end right after `{% raw %}` is part of the raw text.

use std::ops::Range;

/// Name of the function that stands around what a `for` runs over. No template has a name like it.
pub(super) const ITERATED: &str = "__linnet_iterated";

pub(super) fn prepare(text: &str) -> String {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut prepared = String::with_capacity(text.len() + 256);
    let mut position = 0;
    while let Some(start) = text[position..].find("{").map(|offset| position + offset) {
        prepared.push_str(&text[position..start]);
        let rest = &text[start..];
        let end = match rest.as_bytes().get(1) {
            Some(b'#') => rest.find("#}").map(|length| start + length + 2),
            Some(b'{') => end_of(&text, start + 2, "}}"),
            Some(b'%') => end_of(&text, start + 2, "%}"),
            _ => Some(start + 1),
        };
        // An unfinished tag: the parser will say so.
        let Some(end) = end else {
            position = start;
            break;
        };
        position = end;
        let whole = &text[start..end];
        let Some(inner) = whole.strip_prefix("{%").and_then(|tag| tag.strip_suffix("%}")) else {
            prepared.push_str(whole);
            continue;
        };
        match inner
            .trim_start_matches(['-', '+'])
            .split_whitespace()
            .next()
            .map(|name| name.trim_end_matches(['-', '+']))
        {
            // `with` opens a scope of its own, as the macro that transformers makes of the block does.
            Some("generation") => prepared.push_str(&whole.replace("generation", "with")),
            Some("endgeneration") => prepared.push_str(&whole.replace("endgeneration", "endwith")),
            Some("for") => prepared.push_str(&with_iterated(whole)),
            Some("raw") => {
                let keep = text[end..].starts_with('\n') && !inner.ends_with(['-', '+']);
                if keep {
                    prepared.push_str(&format!("{{%{inner}+%}}"));
                } else {
                    prepared.push_str(whole);
                }
                let raw_end = end_of_raw(&text, end);
                prepared.push_str(&text[end..raw_end]);
                position = raw_end;
            }
            _ => prepared.push_str(whole),
        }
    }
    prepared.push_str(&text[position..]);
    prepared
}

/// Where the tag that began before `from` ends, past `close`; strings and brackets are skipped.
fn end_of(text: &str, from: usize, close: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut position = from;
    loop {
        let rest = text.get(position..)?;
        if depth == 0 && rest.starts_with(close) {
            return Some(position + close.len());
        }
        let character = rest.chars().next()?;
        position = match character {
            '\'' | '"' => end_of_string(text, position, character)?,
            _ => position + character.len_utf8(),
        };
        depth = deeper(depth, character);
    }
}

fn deeper(depth: usize, character: char) -> usize {
    match character {
        '(' | '[' | '{' => depth + 1,
        ')' | ']' | '}' => depth.saturating_sub(1),
        _ => depth,
    }
}

fn end_of_string(text: &str, start: usize, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (offset, character) in text[start + 1..].char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return Some(start + 1 + offset + 1),
            _ => {}
        }
    }
    None
}

fn end_of_raw(text: &str, from: usize) -> usize {
    let mut position = from;
    while let Some(start) = text[position..].find("{%").map(|offset| position + offset) {
        let inner = text[start + 2..].trim_start_matches(['-', '+']).trim_start();
        if inner.starts_with("endraw") {
            return start;
        }
        position = start + 2;
    }
    text.len()
}

/// `{% for x in xs if y %}` with `xs` inside a call of [`ITERATED`].
fn with_iterated(tag: &str) -> String {
    match iterated_part(tag) {
        // Two pairs of brackets, so that `1, 2` is one tuple and not two arguments.
        Some(Range { start, end }) => {
            format!("{} {ITERATED}(({})) {}", &tag[..start], tag[start..end].trim(), &tag[end..])
        }
        None => tag.to_owned(),
    }
}

/// Where the expression stands that a `for` tag runs over: from `in` to `if`, `recursive` or the end. Jinja takes
/// the first `if` outside brackets for the loop's condition, never for a choice between values.
fn iterated_part(tag: &str) -> Option<Range<usize>> {
    let close = tag.len() - if tag[..tag.len() - 2].ends_with(['-', '+']) { 3 } else { 2 };
    let mut depth = 0_usize;
    let mut position = 2;
    let mut begin = None;
    while position < close {
        let character = tag[position..].chars().next()?;
        if character == '\'' || character == '"' {
            position = end_of_string(tag, position, character)?;
            continue;
        }
        if character == '_' || character.is_alphanumeric() {
            let length = tag[position..close].find(|c: char| c != '_' && !c.is_alphanumeric());
            let end = length.map_or(close, |length| position + length);
            match (&tag[position..end], begin) {
                ("in", None) if depth == 0 => begin = Some(end),
                ("if" | "recursive", Some(begin)) if depth == 0 && !tag[begin..position].trim().is_empty() => {
                    return Some(begin..position);
                }
                _ => {}
            }
            position = end;
            continue;
        }
        depth = deeper(depth, character);
        position += character.len_utf8();
    }
    begin.map(|begin| begin..close).filter(|range| !tag[range.clone()].trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_for_runs_over_is_found_whatever_stands_around_it() {
        for (tag, wanted) in [
            ("{% for x in xs %}", "xs"),
            ("{%- for a, b in d.items() -%}", "d.items()"),
            ("{% for x in xs[1:] if x in ' if ' recursive %}", "xs[1:]"),
            ("{% for x in (a if b else c) if d %}", "(a if b else c)"),
            ("{% for inner in '%} if' ~ inner_in %}", "'%} if' ~ inner_in"),
            ("{% for x in 1, 2 %}", "1, 2"),
        ] {
            let part = iterated_part(tag).map(|range| tag[range].trim());
            assert_eq!(part, Some(wanted), "{tag}");
        }
        assert_eq!(iterated_part("{% for x in %}"), None);
    }

    #[test]
    fn text_outside_for_raw_and_generation_tags_stays() {
        let text =
            "{# {% for x in y %} #}{{ '{% for x in y %}' }}{% raw %}{% for x in y %}{% endraw %}{ {{ {'a': {}} }}{%";
        assert_eq!(prepare(text), text);
        assert_eq!(prepare("{%- generation -%} a {% endgeneration %}"), "{%- with -%} a {% endwith %}");
    }
}
