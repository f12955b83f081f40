//! Who may talk to this server: the `Host`, `Origin` and API-key checks, made before anything is routed.
//!
//! A server on loopback is still reachable from every web page the user opens. Two headers tell such a page apart: a
//! page whose DNS name was changed to point at 127.0.0.1 still sends its own name as `Host`, and any other page sends
//! its own address as `Origin`. Both are checked against loopback names and short allow-lists; nothing is ever
//! answered with a wildcard.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;
use crate::options::ServerOptions;
use crate::state::ApiState;

/// How long a browser may remember a preflight's answer, in seconds.
const PREFLIGHT_MAX_AGE: &str = "600";

/// Refuses what must not reach a route, answers preflights, and names allowed origins in responses.
pub(crate) async fn guard(State(state): State<Arc<ApiState>>, request: Request, next: Next) -> Response {
    let options = &state.options;
    if let Err(error) = check_host(request.uri(), request.headers(), options) {
        return error.into_response();
    }
    let origin = match check_origin(request.headers(), options) {
        Ok(origin) => origin,
        Err(error) => return error.into_response(),
    };
    let is_preflight =
        request.method() == Method::OPTIONS && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = match &origin {
        Some(_) if is_preflight => preflight(request.headers()),
        _ => match check_key(request.uri().path(), request.headers(), options) {
            Ok(()) => next.run(request).await,
            Err(error) => error.into_response(),
        },
    };
    if let Some(origin) = origin {
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("x-request-id"));
        headers.append(header::VARY, HeaderValue::from_static("Origin"));
    }
    response
}

fn check_host(uri: &Uri, headers: &HeaderMap, options: &ServerOptions) -> Result<(), ApiError> {
    // HTTP/2 carries the host in the URI. Two Host headers are a smuggling attempt.
    let mut values = headers.get_all(header::HOST).iter();
    let host = match (values.next(), values.next(), uri.authority()) {
        (Some(value), None, _) => value.to_str().map_err(|_| ApiError::MissingHost)?,
        (None, None, Some(authority)) => authority.as_str(),
        _ => return Err(ApiError::MissingHost),
    };
    match host_name(host) {
        Some(name) if is_host_allowed(name, options) => Ok(()),
        // The name alone: that is what the list holds, and what the remedy tells the user to add to it.
        Some(name) => Err(ApiError::ForbiddenHost { host: printable(name) }),
        None => Err(ApiError::MissingHost),
    }
}

fn is_host_allowed(name: &str, options: &ServerOptions) -> bool {
    is_loopback(name)
        || (options.allow_ip_hosts && ip_address(name).is_some())
        || options.allowed_hosts.iter().any(|allowed| is_same_host(allowed, name))
}

/// Whether an entry of the list, with or without a port or the brackets of an address, means this name.
fn is_same_host(allowed: &str, name: &str) -> bool {
    let allowed = allowed.trim();
    let is_same_address = || {
        let address: IpAddr = allowed.parse().ok()?;
        Some(ip_address(name)? == address)
    };
    host_name(allowed).is_some_and(|allowed| allowed.eq_ignore_ascii_case(name)) || is_same_address() == Some(true)
}

/// Whether an entry of the list means this origin. Origins have no path, but the address in a browser's bar ends with a
/// slash, and so do the ones that people copy from there.
fn is_same_origin(allowed: &str, origin: &str) -> bool {
    allowed.trim().trim_end_matches('/').eq_ignore_ascii_case(origin)
}

/// The name in `name`, `name:port`, `[v6]` or `[v6]:port`; `None` when it is none of these.
fn host_name(host: &str) -> Option<&str> {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let end = rest.find(']')?;
            (&host[..end + 2], &rest[end + 1..])
        }
        None => host.split_once(':').map_or((host, ""), |(name, _)| (name, &host[name.len()..])),
    };
    let port_is_sound = port.is_empty()
        || port.strip_prefix(':').is_some_and(|digits| digits.parse::<u16>().is_ok() || digits.is_empty());
    (port_is_sound && !name.is_empty()).then_some(name)
}

fn ip_address(name: &str) -> Option<IpAddr> {
    match name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(v6) => v6.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => name.parse().ok().filter(IpAddr::is_ipv4),
    }
}

fn is_loopback(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost")
        || ip_address(name).is_some_and(|address| address.to_canonical().is_loopback())
}

/// The origin to name in the response: `None` when the request carries none.
fn check_origin(headers: &HeaderMap, options: &ServerOptions) -> Result<Option<HeaderValue>, ApiError> {
    let mut values = headers.get_all(header::ORIGIN).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let origin = value.to_str().unwrap_or_default();
    let is_allowed =
        is_loopback_origin(origin) || options.allowed_origins.iter().any(|allowed| is_same_origin(allowed, origin));
    if is_allowed && values.next().is_none() {
        return Ok(Some(value.clone()));
    }
    Err(ApiError::ForbiddenOrigin { origin: printable(origin) })
}

fn is_loopback_origin(origin: &str) -> bool {
    let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    rest.and_then(host_name).is_some_and(is_loopback)
}

fn preflight(headers: &HeaderMap) -> Response {
    const PRIVATE_NETWORK_REQUEST: &str = "access-control-request-private-network";
    let mut response = StatusCode::NO_CONTENT.into_response();
    let answer = response.headers_mut();
    answer.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE, OPTIONS"));
    answer.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(PREFLIGHT_MAX_AGE));
    // SDKs add headers of their own; the origin is trusted, so what it asks for is granted.
    if let Some(asked) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        answer.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
    }
    if headers.contains_key(PRIVATE_NETWORK_REQUEST) {
        answer
            .insert(HeaderName::from_static("access-control-allow-private-network"), HeaderValue::from_static("true"));
    }
    response
}

/// Health is open, so that whoever starts the server can wait for it; it tells nothing about content.
fn check_key(path: &str, headers: &HeaderMap, options: &ServerOptions) -> Result<(), ApiError> {
    let Some(key) = &options.api_key else { return Ok(()) };
    if path == "/health" {
        return Ok(());
    }
    let Some(value) = headers.get(header::AUTHORIZATION) else {
        return Err(ApiError::Unauthorized("this server asks for an API key and the request carries none"));
    };
    let presented = value.to_str().ok().and_then(bearer_token).unwrap_or_default();
    if equal_in_constant_time(presented.as_bytes(), key.as_bytes()) {
        return Ok(());
    }
    Err(ApiError::Unauthorized("the API key is wrong"))
}

fn bearer_token(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Takes as long for a nearly right key as for a wrong one; only the length may show.
fn equal_in_constant_time(left: &[u8], right: &[u8]) -> bool {
    let difference = left.iter().zip(right).fold(0u8, |sum, (a, b)| std::hint::black_box(sum | (a ^ b)));
    left.len() == right.len() && difference == 0
}

/// A header value fit for an error text: short and without control characters.
fn printable(value: &str) -> String {
    value.chars().filter(|c| !c.is_control()).take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host_passes(host: &str, options: &ServerOptions) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
        check_host(&Uri::from_static("/"), &headers, options).is_ok()
    }

    #[test]
    fn loopback_hosts_pass_in_every_form_and_foreign_ones_do_not() {
        let options = ServerOptions::default();
        for host in [
            "localhost",
            "LocalHost:5466",
            "127.0.0.1",
            "127.0.0.1:80",
            "127.9.9.9:1",
            "[::1]",
            "[::1]:5466",
            "[::ffff:127.0.0.1]:80",
        ] {
            assert!(host_passes(host, &options), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:5466",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1@evil.example",
            "192.168.1.5",
            "0.0.0.0:5466",
            "[::1",
            "::1",
            "[::2]:80",
            "localhost:port",
            "localhost:80:80",
            ":80",
            "",
        ] {
            assert!(!host_passes(host, &options), "{host}");
        }
    }

    #[test]
    fn allow_lists_and_bare_addresses_pass_only_when_asked_for() {
        let named = ServerOptions { allowed_hosts: vec!["studio.local".into()], ..ServerOptions::default() };
        assert!(host_passes("Studio.local:5466", &named));
        assert!(!host_passes("192.168.1.5", &named));
        let addresses = ServerOptions { allow_ip_hosts: true, ..ServerOptions::default() };
        assert!(host_passes("192.168.1.5:5466", &addresses));
        assert!(host_passes("[fe80::1]:5466", &addresses));
        assert!(!host_passes("evil.example", &addresses));
    }

    #[test]
    fn what_a_refusal_tells_the_user_to_allow_is_then_allowed() {
        let refusal = |name: HeaderName, value: &str, options: &ServerOptions| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static("localhost"));
            headers.insert(name, HeaderValue::from_str(value).unwrap());
            let checked = check_host(&Uri::from_static("/"), &headers, options)
                .and_then(|()| check_origin(&headers, options).map(drop));
            checked.err().map(|error| error.to_string())
        };
        let advised = |text: &str, option: &str| {
            let rest = text.split(&format!("{option} ")).nth(1).unwrap();
            rest.split(' ').next().unwrap().to_owned()
        };
        for host in ["evil.example:5466", "evil.example", "Studio.local:80", "192.168.1.5:5466", "[fe80::1]:5466"] {
            let text = refusal(header::HOST, host, &ServerOptions::default()).unwrap();
            let allowed_hosts = vec![advised(&text, "--allow-host")];
            let options = ServerOptions { allowed_hosts, ..ServerOptions::default() };
            assert_eq!(refusal(header::HOST, host, &options), None, "{text}");
        }
        for origin in ["https://chat.example", "https://chat.example:8080"] {
            let text = refusal(header::ORIGIN, origin, &ServerOptions::default()).unwrap();
            let allowed_origins = vec![advised(&text, "--allow-origin")];
            let options = ServerOptions { allowed_origins, ..ServerOptions::default() };
            assert_eq!(refusal(header::ORIGIN, origin, &options), None, "{text}");
        }
    }

    #[test]
    fn a_listed_host_with_its_port_and_a_listed_origin_with_a_slash_mean_the_same() {
        for allowed in ["studio.local", "studio.local:5466", " Studio.local "] {
            assert!(is_same_host(allowed, "studio.local"), "{allowed}");
        }
        for allowed in ["fe80::1", "[fe80::1]", "[FE80::1]:5466"] {
            assert!(is_same_host(allowed, "[fe80::1]"), "{allowed}");
        }
        for allowed in ["", "local", "*", "studio.local.evil.example", "studio.local:port"] {
            assert!(!is_same_host(allowed, "studio.local"), "{allowed}");
        }
        assert!(is_same_origin("https://chat.example/", "https://chat.example"));
        assert!(!is_same_origin("https://chat.example/path", "https://chat.example"));
        assert!(!is_same_origin("/", "null"));
    }

    #[test]
    fn no_host_and_two_hosts_are_refused() {
        let options = ServerOptions::default();
        let mut headers = HeaderMap::new();
        assert!(matches!(check_host(&Uri::from_static("/"), &headers, &options), Err(ApiError::MissingHost)));
        headers.append(header::HOST, HeaderValue::from_static("localhost"));
        headers.append(header::HOST, HeaderValue::from_static("evil.example"));
        assert!(check_host(&Uri::from_static("/"), &headers, &options).is_err());
    }

    #[test]
    fn origins_of_loopback_pages_and_listed_ones_pass() {
        let options =
            ServerOptions { allowed_origins: vec!["https://chat.example".into()], ..ServerOptions::default() };
        let passes = |origin: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ORIGIN, HeaderValue::from_str(origin).unwrap());
            check_origin(&headers, &options).is_ok()
        };
        for origin in ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:8080", "https://chat.example"] {
            assert!(passes(origin), "{origin}");
        }
        for origin in [
            "null",
            "http://evil.example",
            "https://chat.example.evil.example",
            "http://localhost.evil.example",
            "http://localhost/path",
            "file://",
            "",
        ] {
            assert!(!passes(origin), "{origin}");
        }
        assert!(check_origin(&HeaderMap::new(), &options).unwrap().is_none());
    }

    #[test]
    fn keys_are_compared_whole() {
        assert!(equal_in_constant_time(b"secret", b"secret"));
        for wrong in ["", "s", "secre", "secret1", "Secret"] {
            assert!(!equal_in_constant_time(wrong.as_bytes(), b"secret"), "{wrong}");
        }
        assert!(!equal_in_constant_time(b"x", b""));
    }
}
