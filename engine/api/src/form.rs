//! Reads a `multipart/form-data` body: texts as fields, one file as bytes.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Multipart, Request};
use axum::http::{HeaderMap, header};
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::quote::shortened;

/// How long a client may leave a form unfinished without sending anything.
const STALL_LIMIT: Duration = Duration::from_secs(30);

/// The longest text of a field, in bytes.
const LONGEST_TEXT: usize = 256 * 1024;

/// A form.
#[derive(Debug, Default)]
pub(crate) struct Form {
    /// Its texts by name, as JSON strings; a name that ends in `[]` or comes twice is a list.
    pub(crate) fields: Map<String, Value>,
    /// The bytes of the part called `file`.
    pub(crate) file: Option<Vec<u8>>,
    /// The file's name.
    pub(crate) file_name: Option<String>,
}

/// Whether a request's body is such a form.
pub(crate) fn is_form(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    kind.trim_start().to_ascii_lowercase().starts_with("multipart/form-data")
}

/// Reads a form of at most `limit` bytes.
///
/// # Errors
/// When it is too large, stalls, breaks off, or is no form.
pub(crate) async fn read_form(headers: &HeaderMap, body: Body, limit: usize) -> Result<Form, ApiError> {
    let mut request = Request::new(body);
    request.headers_mut().clone_from(headers);
    let broken = |error: &dyn std::error::Error| ApiError::BrokenForm(error.to_string());
    let mut parts = Multipart::from_request(request, &()).await.map_err(|error| broken(&error))?;
    let mut form = Form::default();
    let mut left = limit;
    while let Some(mut part) = in_time(parts.next_field()).await?.map_err(|error| broken(&error))? {
        let name = part.name().unwrap_or_default().to_owned();
        let file_name = part.file_name().map(str::to_owned);
        let is_file = name == "file";
        let most = if is_file { left } else { left.min(LONGEST_TEXT) };
        let mut bytes = Vec::new();
        while let Some(chunk) = in_time(part.chunk()).await?.map_err(|error| broken(&error))? {
            if bytes.len() + chunk.len() > most {
                return Err(if most == left {
                    ApiError::BodyTooLarge { limit }
                } else {
                    let problem = format!("is longer than {LONGEST_TEXT} bytes; send less text");
                    ApiError::InvalidField { field: shortened(&name), problem }
                });
            }
            bytes.extend_from_slice(&chunk);
        }
        left -= bytes.len();
        if is_file {
            if form.file.replace(bytes).is_some() {
                let problem = "is there twice; send one file per request".to_owned();
                return Err(ApiError::InvalidField { field: name, problem });
            }
            form.file_name = file_name;
            continue;
        }
        let text = String::from_utf8(bytes)
            .map_err(|_| ApiError::InvalidField { field: shortened(&name), problem: "is not UTF-8 text".to_owned() })?;
        put(&mut form.fields, &name, text)?;
    }
    Ok(form)
}

fn put(fields: &mut Map<String, Value>, name: &str, text: String) -> Result<(), ApiError> {
    let (name, is_list) = name.strip_suffix("[]").map_or((name, false), |name| (name, true));
    match fields.get_mut(name) {
        Some(Value::Array(list)) if is_list => list.push(text.into()),
        Some(_) => {
            let problem = "is there twice; send it once".to_owned();
            return Err(ApiError::InvalidField { field: shortened(name), problem });
        }
        None if is_list => drop(fields.insert(name.to_owned(), vec![text].into())),
        None => drop(fields.insert(name.to_owned(), text.into())),
    }
    Ok(())
}

async fn in_time<T>(read: impl Future<Output = T>) -> Result<T, ApiError> {
    let stalled = |_| ApiError::BodyStalled { seconds: STALL_LIMIT.as_secs() };
    tokio::time::timeout(STALL_LIMIT, read).await.map_err(stalled)
}
