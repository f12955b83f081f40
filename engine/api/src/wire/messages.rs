//! A conversation as it comes over the wire, made ready for a chat template.

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::{Field, Fields};
use crate::quote::shortened;

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// What `content` may be.
const CONTENT: &str = "a string or a list of parts";

/// Reads `messages`. Every message becomes an object with `role` and `content` as a plain string (or null where an
/// assistant said nothing), and keeps what templates look for: `name`, `tool_calls`, `tool_call_id`,
/// `reasoning_content`.
pub(crate) fn read_messages(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let model = fields.optional_text("model")?.filter(|name| !name.is_empty());
    let reader = model.map_or_else(|| "the model".to_owned(), |name| format!("the model `{}`", shortened(name)));
    const EXPECTED: &str = "a list of at least one message";
    let messages = fields.require("messages", EXPECTED)?;
    let items = messages.list(EXPECTED)?;
    if items.is_empty() {
        return Err(messages.expected(EXPECTED));
    }
    items.iter().map(|message| read_message(&message.object()?, &reader)).collect()
}

fn read_message(message: &Fields<'_>, reader: &str) -> Result<Value, ApiError> {
    let expected_role = format!("one of {}", ROLES.join(", "));
    let role_field = message.require("role", &expected_role)?;
    let role = role_field.value.as_str().filter(|role| ROLES.contains(role));
    let role = role.ok_or_else(|| role_field.expected(&expected_role))?;

    let mut out = Map::new();
    out.insert("role".to_owned(), json!(role));
    let tool_calls = message.get("tool_calls").map(|calls| read_tool_calls(&calls)).transpose()?;
    let reasoning = match message.optional_text("reasoning_content")? {
        Some(text) => Some(text),
        None => message.optional_text("reasoning")?,
    };
    let content = match message.get("content") {
        Some(content) => Value::String(read_content(&content, reader)?),
        // An assistant turn may consist of tool calls or of reasoning alone.
        None if role == "assistant" && (tool_calls.is_some() || reasoning.is_some()) => Value::Null,
        None => Value::String(read_content(&message.require("content", CONTENT)?, reader)?),
    };
    out.insert("content".to_owned(), content);
    if let Some(reasoning) = reasoning {
        out.insert("reasoning_content".to_owned(), json!(reasoning));
    }
    if let Some(calls) = tool_calls {
        out.insert("tool_calls".to_owned(), calls);
    }
    for name in ["name", "tool_call_id"] {
        if let Some(text) = message.optional_text(name)? {
            out.insert(name.to_owned(), json!(text));
        }
    }
    Ok(Value::Object(out))
}

/// The text of a content: the string itself, or all text parts joined in order.
fn read_content(content: &Field<'_>, reader: &str) -> Result<String, ApiError> {
    if let Some(text) = content.value.as_str() {
        return Ok(text.to_owned());
    }
    let parts = content.list(CONTENT)?;
    parts.iter().map(|part| read_part(part, reader)).collect()
}

fn read_part(part: &Field<'_>, reader: &str) -> Result<String, ApiError> {
    let object = part.object()?;
    let kind = object.require("type", "the kind of the part, such as \"text\"")?;
    let unsupported = |what: &str| {
        kind.unsupported(format!("{what} parts are not supported: {reader} reads text only; send text parts"))
    };
    match kind.text()? {
        "text" | "input_text" => Ok(object.require("text", "a string")?.text()?.to_owned()),
        "refusal" => Ok(object.require("refusal", "a string")?.text()?.to_owned()),
        "image_url" | "input_image" | "image" => Err(unsupported("image")),
        "input_audio" | "audio" => Err(unsupported("audio")),
        "file" | "input_file" => Err(unsupported("file")),
        "video_url" | "video" => Err(unsupported("video")),
        _ => Err(kind.expected("\"text\"")),
    }
}

/// The calls of an earlier assistant turn. On the wire `arguments` is JSON in a string; templates print it with
/// `tojson` and so expect the value.
fn read_tool_calls(calls: &Field<'_>) -> Result<Value, ApiError> {
    let calls = calls.list("a list of tool calls")?;
    let read = |call: &Field<'_>| -> Result<Value, ApiError> {
        let object = call.object()?;
        let function = object.require("function", "an object with name and arguments")?.object()?;
        let name = function.require("name", "a string")?.text()?;
        let arguments = match function.get("arguments") {
            None => json!({}),
            Some(field) => match field.value {
                Value::String(text) if text.trim().is_empty() => json!({}),
                Value::String(text) => {
                    serde_json::from_str(text).map_err(|_| field.expected("a string that holds JSON"))?
                }
                Value::Object(_) => field.value.clone(),
                _ => return Err(field.expected("a string that holds JSON")),
            },
        };
        let mut out = Map::new();
        if let Some(id) = object.optional_text("id")? {
            out.insert("id".to_owned(), json!(id));
        }
        out.insert("type".to_owned(), json!("function"));
        out.insert("function".to_owned(), json!({ "name": name, "arguments": arguments }));
        Ok(Value::Object(out))
    };
    calls.iter().map(read).collect::<Result<Vec<_>, _>>().map(Value::Array)
}

/// Renames `developer` messages to `system` for a template that knows no developers.
pub(crate) fn fit_to_template(messages: &mut [Value], template_text: &str) {
    if template_text.contains("developer") {
        return;
    }
    for message in messages {
        if message["role"] == "developer" {
            message["role"] = json!("system");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "json! reads best by value")]
    fn read(messages: Value) -> Result<Vec<Value>, ApiError> {
        read_messages(&Fields::root(&json!({ "messages": messages }))?)
    }

    #[test]
    fn all_text_parts_count_and_in_order() {
        let parts = json!([{"type": "text", "text": "one "}, {"type": "text", "text": "two "},
            {"type": "text", "text": "three"}]);
        assert_eq!(read(json!([{"role": "user", "content": parts}])).unwrap()[0]["content"], "one two three");
    }

    #[test]
    fn an_assistant_turn_may_be_empty_only_when_it_called_or_thought() {
        let call = json!([{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\": [1]}"}}]);
        let read_ok = read(json!([{"role": "assistant", "content": null, "tool_calls": call}])).unwrap();
        assert_eq!(read_ok[0]["content"], Value::Null);
        assert_eq!(read_ok[0]["tool_calls"][0]["function"]["arguments"], json!({"a": [1]}));
        let thought = read(json!([{"role": "assistant", "reasoning": "hm"}])).unwrap();
        assert_eq!(thought[0]["reasoning_content"], "hm");
        let error = read(json!([{"role": "assistant", "content": null}])).unwrap_err();
        assert_eq!(error.to_string(), "`messages[0].content`: expected a string or a list of parts, got null");
    }

    #[test]
    fn what_is_wrong_is_named_by_path() {
        for (messages, text) in [
            (json!([]), "`messages`: expected a list of at least one message, got a list of 0"),
            (json!("hi"), "`messages`: expected a list of at least one message, got the string \"hi\""),
            (json!(["hi"]), "`messages[0]`: expected an object, got the string \"hi\""),
            (
                json!([{"role": "wizard", "content": ""}]),
                "`messages[0].role`: expected one of system, developer, user, assistant, tool, got the string \"wizard\"",
            ),
            (
                json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]),
                "`messages[0].content[0].type`: image parts are not supported: the model reads text only; \
                 send text parts",
            ),
            (
                json!([{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text"}]}]),
                "`messages[1].content[0].text`: expected a string, but it is missing",
            ),
        ] {
            assert_eq!(read(messages).unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn developers_become_system_unless_the_template_knows_them() {
        let mut messages = vec![json!({"role": "developer", "content": "x"})];
        fit_to_template(&mut messages, "{% if role == 'developer' %}");
        assert_eq!(messages[0]["role"], "developer");
        fit_to_template(&mut messages, "{{ messages }}");
        assert_eq!(messages[0]["role"], "system");
    }
}
