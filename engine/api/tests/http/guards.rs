//! Host, Origin and key checks, through the whole router.

use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header};
use linnet_api::ServerOptions;
use serde_json::json;

use super::harness::{Answer, Harness, request, says, user};

fn with_header(path: &str, name: &str, value: &str) -> Request<Body> {
    let mut request = request(Method::GET, path, Body::empty());
    request.headers_mut().insert(
        header::HeaderName::from_bytes(name.as_bytes()).unwrap(),
        header::HeaderValue::from_str(value).unwrap(),
    );
    request
}

fn code(answer: &Answer) -> String {
    answer.json()["error"]["code"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_foreign_host_is_refused_before_routing() {
    let harness = Harness::new(says("ok"));
    for path in ["/health", "/v1/models", "/no/such/path"] {
        let answer = harness.send(with_header(path, "host", "evil.example")).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{path}");
        assert_eq!(code(&answer), "host_not_allowed");
        assert!(answer.message().contains("--allow-host evil.example"), "{}", answer.text);
    }
    let mut post = request(Method::POST, "/v1/chat/completions", json!({"messages": user("hi")}).to_string());
    post.headers_mut().insert("host", header::HeaderValue::from_static("evil.example:5466"));
    let refused = harness.send(post).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert!(refused.message().ends_with("--allow-host evil.example"), "{}", refused.text);
    assert_eq!(harness.engine().status().requests, 0);
    for host in ["localhost", "127.0.0.1:5466", "[::1]:5466"] {
        assert_eq!(harness.send(with_header("/health", "host", host)).await.status, StatusCode::OK, "{host}");
    }
}

#[tokio::test]
async fn only_allowed_pages_get_answers_and_none_gets_a_wildcard() {
    let options = ServerOptions { allowed_origins: vec!["https://chat.example".into()], ..ServerOptions::default() };
    let harness = Harness::with_options(says("ok"), options);
    let foreign = harness.send(with_header("/v1/models", "origin", "https://evil.example")).await;
    assert_eq!(foreign.status, StatusCode::FORBIDDEN);
    assert!(!foreign.headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN));
    for origin in ["http://localhost:3000", "https://chat.example"] {
        let answer = harness.send(with_header("/v1/models", "origin", origin)).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(answer.headers[header::ACCESS_CONTROL_ALLOW_ORIGIN], origin);
        assert_eq!(answer.headers[header::VARY], "Origin");
    }
    let plain = harness.get("/v1/models").await;
    assert!(!plain.headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN));
}

fn preflight(origin: &str) -> Request<Body> {
    Request::builder()
        .method(Method::OPTIONS)
        .uri("/v1/chat/completions")
        .header("host", "localhost:5466")
        .header("origin", origin)
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization, content-type, x-stainless-lang")
        .body(Body::empty())
        .unwrap()
}

#[tokio::test]
async fn preflights_are_answered_without_a_key_for_allowed_pages_only() {
    let options = ServerOptions { api_key: Some("secret".into()), ..ServerOptions::default() };
    let harness = Harness::with_options(says("ok"), options);
    let answer = harness.send(preflight("http://localhost:3000")).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT);
    assert_eq!(answer.headers[header::ACCESS_CONTROL_ALLOW_ORIGIN], "http://localhost:3000");
    let granted = answer.headers[header::ACCESS_CONTROL_ALLOW_HEADERS].to_str().unwrap();
    assert!(granted.contains("x-stainless-lang"), "{granted}");
    let answer = harness.send(preflight("https://evil.example")).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    assert!(!answer.headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN));
}

#[tokio::test]
async fn with_a_key_everything_but_health_asks_for_it() {
    let options = ServerOptions { api_key: Some("secret".into()), ..ServerOptions::default() };
    let harness = Harness::with_options(says("ok"), options);
    assert_eq!(harness.get("/health").await.status, StatusCode::OK);
    let missing = harness.get("/v1/models").await;
    assert_eq!((missing.status, code(&missing).as_str()), (StatusCode::UNAUTHORIZED, "invalid_api_key"));
    assert_eq!(missing.headers[header::WWW_AUTHENTICATE], "Bearer");
    for wrong in ["Bearer wrong", "Bearer secret1", "Bearer ", "secret", "Basic secret"] {
        let answer = harness.send(with_header("/v1/models", "authorization", wrong)).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{wrong}");
        assert!(!answer.text.contains("secret"), "{}", answer.text);
    }
    for right in ["Bearer secret", "bearer secret"] {
        let answer = harness.send(with_header("/v1/models", "authorization", right)).await;
        assert_eq!(answer.status, StatusCode::OK, "{right}");
    }
}

#[tokio::test]
async fn a_request_id_is_echoed_when_sound_and_made_otherwise() {
    let harness = Harness::new(says("ok"));
    let echoed = harness.send(with_header("/health", "x-request-id", "abc-1")).await;
    assert_eq!(echoed.headers["x-request-id"], "abc-1");
    let made = harness.send(with_header("/health", "x-request-id", "has a blank")).await;
    assert_eq!(made.headers["x-request-id"].len(), 32);
    let refused = harness.send(with_header("/health", "host", "evil.example")).await;
    assert!(refused.headers.contains_key("x-request-id"), "refusals are traceable too");
}
