//! What a request says about itself beside what it asks for: whose conversation it continues, and who waits for it.

use axum::http::HeaderMap;
use linnet_runtime::Priority;

use crate::error::ApiError;
use crate::fields::Fields;

/// The longest name of a session, in bytes.
const LONGEST_SESSION: usize = 512;

/// The names of a session, the strongest first: fields of the body, then headers.
const SESSION_FIELDS: [&str; 2] = ["session_id", "prompt_cache_key"];
const SESSION_HEADERS: [&str; 2] = ["x-session-affinity", "session_id"];

/// The header that says who waits, for clients that cannot set a field.
const PRIORITY_HEADER: &str = "x-priority";

/// Whose conversation a request continues, and who waits for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RequestContext {
    /// The session's name. Chosen by the client, so it reaches no log.
    pub(crate) session: Option<String>,
    /// Who goes first where not all can.
    pub(crate) priority: Priority,
    /// The tier to name in the answer, if the request named one.
    pub(crate) service_tier: Option<&'static str>,
}

impl RequestContext {
    /// Reads body and headers. An empty name is none.
    pub(crate) fn read(fields: &Fields<'_>, headers: &HeaderMap) -> Result<Self, ApiError> {
        let (tier, service_tier) = read_tier(fields)?;
        let priority = match tier {
            Some(priority) => priority,
            None => read_priority_header(headers)?.unwrap_or_default(),
        };
        Ok(Self { session: read_session(fields, headers)?, priority, service_tier })
    }
}

fn read_session(fields: &Fields<'_>, headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let mut session = None;
    // All are checked, whichever counts.
    for name in SESSION_FIELDS {
        if let Some(text) = fields.optional_text(name)?.filter(|text| !text.is_empty()) {
            check_length(name, text)?;
            session.get_or_insert(text);
        }
    }
    for name in SESSION_HEADERS {
        if let Some(text) = header_text(headers, name)?.filter(|text| !text.is_empty()) {
            check_length(name, text)?;
            session.get_or_insert(text);
        }
    }
    Ok(session.map(str::to_owned))
}

fn check_length(name: &str, text: &str) -> Result<(), ApiError> {
    if text.len() <= LONGEST_SESSION {
        return Ok(());
    }
    let problem = format!("expected at most {LONGEST_SESSION} bytes, got {}", text.len());
    Err(ApiError::InvalidField { field: name.to_owned(), problem })
}

/// OpenAI's `service_tier`: `flex` is work that may wait. All other tiers are paid for differently there and the same here.
fn read_tier(fields: &Fields<'_>) -> Result<(Option<Priority>, Option<&'static str>), ApiError> {
    let Some(tier) = fields.get("service_tier") else { return Ok((None, None)) };
    match tier.text()? {
        "flex" => Ok((Some(Priority::Background), Some("flex"))),
        "auto" => Ok((None, Some("default"))),
        "default" | "priority" | "scale" => Ok((Some(Priority::Interactive), Some("default"))),
        _ => Err(tier.expected("\"auto\", \"default\", \"flex\" or \"priority\"")),
    }
}

fn read_priority_header(headers: &HeaderMap) -> Result<Option<Priority>, ApiError> {
    match header_text(headers, PRIORITY_HEADER)? {
        None | Some("") => Ok(None),
        Some(text) if text.eq_ignore_ascii_case("interactive") => Ok(Some(Priority::Interactive)),
        Some(text) if text.eq_ignore_ascii_case("background") => Ok(Some(Priority::Background)),
        Some(_) => Err(ApiError::InvalidField {
            field: PRIORITY_HEADER.to_owned(),
            problem: "expected interactive or background in this header".to_owned(),
        }),
    }
}

fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, ApiError> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    value.to_str().map(|text| Some(text.trim())).map_err(|_| ApiError::InvalidField {
        field: name.to_owned(),
        problem: "expected visible ASCII characters in this header".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[allow(clippy::needless_pass_by_value, reason = "json! reads best by value")]
    fn read(body: Value, headers: &[(&'static str, &str)]) -> Result<RequestContext, ApiError> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        RequestContext::read(&Fields::root(&body).unwrap(), &map)
    }

    #[test]
    fn the_strongest_name_of_a_session_counts() {
        let headers = [("x-session-affinity", "affinity"), ("session_id", "header")];
        let session = |body: Value, headers: &[(&'static str, &str)]| read(body, headers).unwrap().session;
        let both = json!({"session_id": "field", "prompt_cache_key": "key"});
        assert_eq!(session(both, &headers).as_deref(), Some("field"));
        assert_eq!(session(json!({"prompt_cache_key": "key"}), &headers).as_deref(), Some("key"));
        assert_eq!(session(json!({}), &headers).as_deref(), Some("affinity"));
        assert_eq!(session(json!({}), &headers[1..]).as_deref(), Some("header"));
        assert_eq!(session(json!({}), &[]), None);
        // Empty and null are absent.
        let empty = json!({"session_id": "", "prompt_cache_key": null});
        assert_eq!(session(empty, &[("x-session-affinity", " "), ("session_id", "s")]).as_deref(), Some("s"));
    }

    #[test]
    fn a_name_that_is_none_is_refused_even_where_another_counts() {
        for body in [json!({"session_id": 5}), json!({"session_id": "a", "prompt_cache_key": ["b"]})] {
            assert_eq!(read(body, &[]).unwrap_err().code(), "invalid_value");
        }
        let error = read(json!({"session_id": "x".repeat(513)}), &[]).unwrap_err().to_string();
        assert_eq!(error, "`session_id`: expected at most 512 bytes, got 513");
        assert!(read(json!({"session_id": "x".repeat(512)}), &[]).is_ok());
    }

    #[test]
    fn flex_and_the_header_mark_what_may_wait() {
        let context = |body: Value, headers: &[(&'static str, &str)]| {
            let context = read(body, headers).unwrap();
            (context.priority, context.service_tier)
        };
        let background = [("x-priority", "Background")];
        assert_eq!(context(json!({}), &[]), (Priority::Interactive, None));
        assert_eq!(context(json!({"service_tier": "flex"}), &[]), (Priority::Background, Some("flex")));
        assert_eq!(context(json!({"service_tier": "priority"}), &[]), (Priority::Interactive, Some("default")));
        assert_eq!(context(json!({}), &background), (Priority::Background, None));
        // The body says it closer to the request than a header that a proxy may have set.
        assert_eq!(context(json!({"service_tier": "default"}), &background), (Priority::Interactive, Some("default")));
        assert_eq!(context(json!({"service_tier": "auto"}), &background), (Priority::Background, Some("default")));
        assert!(read(json!({"service_tier": "gold"}), &[]).is_err());
        assert!(read(json!({}), &[("x-priority", "urgent")]).unwrap_err().to_string().contains("background"));
    }
}
