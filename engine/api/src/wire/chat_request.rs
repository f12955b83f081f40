//! The body of `POST /v1/chat/completions`.

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::{Field, Fields};
use crate::wire::generation_fields::GenerationFields;
use crate::wire::messages::read_messages;

/// The most alternatives per token, as on OpenAI's wire.
const MOST_TOP_LOGPROBS: i64 = 20;

/// A chat request, checked.
#[derive(Debug, Clone)]
pub(crate) struct ChatRequest {
    /// What it shares with text completions.
    pub(crate) generation: GenerationFields,
    /// The conversation, ready for the template.
    pub(crate) messages: Vec<Value>,
    /// The tools on offer; `None` also when the request forbids calling any.
    pub(crate) tools: Option<Vec<Value>>,
    /// Further variables of the template.
    pub(crate) variables: Map<String, Value>,
    /// How many alternatives to report per token, if probabilities are asked for at all.
    pub(crate) top_logprobs: Option<usize>,
}

impl ChatRequest {
    /// Reads a request body.
    pub(crate) fn read(body: &Value) -> Result<Self, ApiError> {
        let fields = Fields::root(body)?;
        let generation = GenerationFields::read(&fields, &["max_completion_tokens", "max_tokens"])?;
        refuse_what_is_missing(&fields)?;
        Ok(Self {
            generation,
            messages: read_messages(&fields)?,
            tools: read_tools(&fields)?,
            variables: read_variables(&fields)?,
            top_logprobs: read_logprobs(&fields)?,
        })
    }
}

/// Refuses what this server would otherwise have to ignore while the client relies on it.
fn refuse_what_is_missing(fields: &Fields<'_>) -> Result<(), ApiError> {
    if let Some(format) = fields.get("response_format") {
        let kind = format.object()?.require("type", "\"text\"")?;
        match kind.text()? {
            "text" => {}
            "json_object" | "json_schema" => {
                return Err(kind.unsupported(format!(
                    "{} is not supported yet: answers cannot be held to a schema; leave response_format out and ask \
                     for JSON in the prompt",
                    kind.value
                )));
            }
            _ => return Err(kind.expected("\"text\"")),
        }
    }
    for name in ["functions", "function_call"] {
        if let Some(field) = fields.get(name) {
            return Err(field.unsupported("this older form is not supported; use tools"));
        }
    }
    if let Some(modalities) = fields.get("modalities") {
        for kind in modalities.list("a list such as [\"text\"]")? {
            if kind.value != "text" {
                return Err(kind.expected("\"text\": answers are text only"));
            }
        }
    }
    Ok(())
}

fn read_tools(fields: &Fields<'_>) -> Result<Option<Vec<Value>>, ApiError> {
    const EXPECTED: &str = "a list of tools";
    let tools = match fields.get("tools") {
        Some(field) => field.list(EXPECTED)?.iter().map(read_tool).collect::<Result<Vec<_>, _>>()?,
        None => Vec::new(),
    };
    let may_call = match fields.get("tool_choice") {
        Some(choice) => read_tool_choice(&choice)?,
        None => true,
    };
    Ok((may_call && !tools.is_empty()).then_some(tools))
}

fn read_tool(tool: &Field<'_>) -> Result<Value, ApiError> {
    let object = tool.object()?;
    let kind = object.require("type", "\"function\"")?;
    if kind.text()? != "function" {
        return Err(kind.expected("\"function\""));
    }
    let function = object.require("function", "an object with name and parameters")?.object()?;
    function.require("name", "a string")?.text()?;
    Ok(tool.value.clone())
}

/// Whether the model may call tools.
fn read_tool_choice(choice: &Field<'_>) -> Result<bool, ApiError> {
    match choice.value.as_str() {
        Some("auto") => Ok(true),
        Some("none") => Ok(false),
        None if !choice.value.is_object() => Err(choice.expected("\"auto\" or \"none\"")),
        Some(other) if other != "required" => Err(choice.expected("\"auto\" or \"none\"")),
        _ => Err(choice.unsupported(
            "a call cannot be forced yet: tools are shown to the model and its answer comes back as text; use \"auto\" \
             or \"none\"",
        )),
    }
}

fn read_variables(fields: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let mut variables = match fields.get("chat_template_kwargs") {
        Some(field) => field.object()?.entries().map(|(name, field)| (name.clone(), field.value.clone())).collect(),
        None => Map::new(),
    };
    // Templates of reasoning models read it under the name it has on the wire.
    if let Some(effort) = fields.optional_text("reasoning_effort")? {
        variables.entry("reasoning_effort").or_insert_with(|| json!(effort));
    }
    Ok(variables)
}

fn read_logprobs(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    let wanted = fields.optional_flag("logprobs")?.unwrap_or(false);
    let top = fields.optional_integer("top_logprobs", 0..=MOST_TOP_LOGPROBS)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.and_then(|top| usize::try_from(top).ok()).unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::InvalidField {
            field: "top_logprobs".to_owned(),
            problem: "needs `logprobs` to be true".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mut body: Value) -> Result<ChatRequest, ApiError> {
        body["messages"] = json!([{"role": "user", "content": "hi"}]);
        ChatRequest::read(&body)
    }

    #[test]
    fn a_response_format_is_never_ignored() {
        assert!(read(json!({"response_format": {"type": "text"}})).is_ok());
        for kind in ["json_object", "json_schema"] {
            let error = read(json!({"response_format": {"type": kind}})).unwrap_err();
            assert_eq!(error.code(), "unsupported_value");
            assert!(error.to_string().contains("not supported yet"), "{error}");
        }
        for format in [json!({"type": "xml"}), json!({}), json!("json"), json!({"type": 1})] {
            assert_eq!(read(json!({ "response_format": format })).unwrap_err().code(), "invalid_value");
        }
    }

    #[test]
    fn tools_reach_the_template_unless_the_request_forbids_calls() {
        let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
        assert_eq!(read(json!({ "tools": tools })).unwrap().tools, tools.as_array().cloned());
        assert_eq!(read(json!({"tools": tools, "tool_choice": "none"})).unwrap().tools, None);
        assert_eq!(read(json!({"tools": []})).unwrap().tools, None);
        for choice in [json!("required"), json!({"type": "function", "function": {"name": "f"}})] {
            let error = read(json!({"tools": tools, "tool_choice": choice})).unwrap_err();
            assert!(error.to_string().contains("cannot be forced yet"), "{error}");
        }
        assert_eq!(read(json!({"tool_choice": 7})).unwrap_err().code(), "invalid_value");
        let error = read(json!({"tools": [{"type": "function", "function": {}}]})).unwrap_err();
        assert_eq!(error.to_string(), "`tools[0].function.name`: expected a string, but it is missing");
    }

    #[test]
    fn template_variables_come_from_kwargs_and_reasoning_effort() {
        let request =
            read(json!({"chat_template_kwargs": {"enable_thinking": false}, "reasoning_effort": "low"})).unwrap();
        assert_eq!(Value::Object(request.variables), json!({"enable_thinking": false, "reasoning_effort": "low"}));
    }

    #[test]
    fn alternatives_need_probabilities_to_be_asked_for() {
        assert_eq!(read(json!({"logprobs": true})).unwrap().top_logprobs, Some(0));
        assert_eq!(read(json!({"logprobs": true, "top_logprobs": 5})).unwrap().top_logprobs, Some(5));
        assert_eq!(read(json!({"logprobs": false, "top_logprobs": 0})).unwrap().top_logprobs, None);
        assert!(read(json!({"top_logprobs": 5})).is_err());
        assert!(read(json!({"logprobs": true, "top_logprobs": 21})).is_err());
    }
}
