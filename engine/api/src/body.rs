//! Reads a request body as JSON, within the size limit and with errors a person can act on.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use futures::StreamExt;
use serde_json::Value;

use crate::error::ApiError;
use crate::json::UniqueKeys;

/// How long a client may leave a body unfinished without sending anything.
const STALL_LIMIT: Duration = Duration::from_secs(30);

/// How much of an oversized body is read and thrown away, as a multiple of the limit. A client that is still writing
/// when the connection closes sees a reset instead of the answer.
const DRAIN_FACTOR: usize = 4;

/// The most memory that a request's word alone is worth.
const RESERVED: usize = 1 << 20;

/// How the parser words an escape that is half of a character.
const LONE_SURROGATE: [&str; 2] = ["unexpected end of hex escape", "lone leading surrogate"];

/// The body as a JSON value. Its content type is not looked at: what parses as JSON is JSON.
///
/// # Errors
/// When the body is too large, stalls, breaks off or is not JSON (a lone surrogate escape included).
pub(crate) async fn read_json(headers: &HeaderMap, body: Body, limit: usize) -> Result<Value, ApiError> {
    let bytes = read(headers, body, limit).await?;
    let parsed = serde_json::from_slice::<UniqueKeys>(&bytes);
    parsed.map(|json| json.0).map_err(|error| invalid_json(&bytes, &error))
}

/// As [`read_json`], for routes that ask for nothing: without a body the value is an empty object.
pub(crate) async fn read_optional_json(headers: &HeaderMap, body: Body, limit: usize) -> Result<Value, ApiError> {
    let bytes = read(headers, body, limit).await?;
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    let parsed = serde_json::from_slice::<UniqueKeys>(&bytes);
    parsed.map(|json| json.0).map_err(|error| invalid_json(&bytes, &error))
}

/// The body as it is.
///
/// # Errors
/// When it is too large, stalls or breaks off.
pub(crate) async fn read_bytes(headers: &HeaderMap, body: Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    read(headers, body, limit).await
}

async fn read(headers: &HeaderMap, body: Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let mut stream = body.into_data_stream();
    let mut bytes = Vec::with_capacity(announced.unwrap_or(0).min(limit).min(RESERVED));
    let mut received = 0usize;
    while let Some(chunk) = next_chunk(&mut stream).await? {
        received += chunk.len();
        if received <= limit {
            bytes.extend_from_slice(&chunk);
        } else if received > limit.saturating_mul(DRAIN_FACTOR) {
            break;
        } else {
            bytes = Vec::new();
        }
    }
    if received > limit { Err(ApiError::BodyTooLarge { limit }) } else { Ok(bytes) }
}

async fn next_chunk(stream: &mut axum::body::BodyDataStream) -> Result<Option<Bytes>, ApiError> {
    match tokio::time::timeout(STALL_LIMIT, stream.next()).await {
        Err(_) => Err(ApiError::BodyStalled { seconds: STALL_LIMIT.as_secs() }),
        Ok(None) => Ok(None),
        Ok(Some(Ok(chunk))) => Ok(Some(chunk)),
        Ok(Some(Err(error))) => Err(ApiError::BodyBroken(error.to_string())),
    }
}

fn invalid_json(bytes: &[u8], error: &serde_json::Error) -> ApiError {
    let detail = if bytes.is_empty() {
        "it is empty".to_owned()
    } else {
        // The parser's text ends in its own "at line 1 column 2", which stands in the error's fields already.
        let text = error.to_string();
        let detail = text.rsplit_once(" at line ").map_or(text.as_str(), |(detail, _)| detail);
        if LONE_SURROGATE.iter().any(|words| detail.contains(words)) {
            "a \\u escape from \\uD800 to \\uDFFF stands without its other half (a lone surrogate)".to_owned()
        } else {
            detail.to_owned()
        }
    };
    ApiError::InvalidJson { detail, line: error.line(), column: error.column() }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn parse(body: &[u8]) -> Result<Value, ApiError> {
        read_json(&HeaderMap::new(), Body::from(body.to_vec()), 1000).await
    }

    #[tokio::test]
    async fn broken_json_is_reported_with_line_and_column() {
        let error = parse(b"{\n  \"a\": 1,\n}").await.unwrap_err();
        assert_eq!(error.to_string(), "the request body is not valid JSON: trailing comma (line 3, column 1)");
        assert!(parse(b"").await.unwrap_err().to_string().contains("it is empty"));
        assert!(parse(b"{\"a\": 1} x").await.unwrap_err().to_string().contains("trailing characters"));
    }

    #[tokio::test]
    async fn a_lone_surrogate_is_not_json() {
        for text in [r#"{"a": "\ud83d"}"#, r#"{"a": "\ud83d x"}"#, r#"{"a": "\udc00"}"#, r#"{"\ud83d": 1}"#] {
            let error = parse(text.as_bytes()).await.unwrap_err().to_string();
            assert!(error.contains("lone surrogate"), "{text}: {error}");
        }
        assert_eq!(parse(br#"{"a": "\ud83d\ude00"}"#).await.unwrap()["a"], "\u{1F600}");
        assert!(matches!(parse(b"{\"a\": \"\xff\"}").await, Err(ApiError::InvalidJson { .. })));
    }

    #[tokio::test]
    async fn nesting_without_end_is_an_error_and_not_a_full_stack() {
        let body = vec![b'['; 900];
        assert!(matches!(parse(&body).await, Err(ApiError::InvalidJson { .. })));
    }

    #[tokio::test]
    async fn the_limit_counts_what_arrives() {
        let text = format!("\"{}\"", "a".repeat(998));
        assert!(parse(text.as_bytes()).await.is_ok());
        let text = format!("\"{}\"", "a".repeat(999));
        assert!(matches!(parse(text.as_bytes()).await, Err(ApiError::BodyTooLarge { limit: 1000 })));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stalls_is_given_up() {
        let never = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
        let error = read_json(&HeaderMap::new(), never, 1000).await.unwrap_err();
        assert!(matches!(error, ApiError::BodyStalled { seconds: 30 }));
    }
}
