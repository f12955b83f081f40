//! Fifty odd inputs: each gets the right status and a text that helps, and the next request works.

use axum::body::Body;
use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

use super::harness::{Harness, request, says, user};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// Path, body, expected status, and a piece of the expected text.
type Case = (&'static str, Vec<u8>, u16, &'static str);

/// A chat request with one field changed.
fn chat_with(name: &str, value: Value) -> Vec<u8> {
    let mut body = json!({ "messages": user("hi") });
    body[name] = value;
    body.to_string().into_bytes()
}

fn text_with(name: &str, value: Value) -> Vec<u8> {
    let mut body = json!({ "prompt": "hi" });
    body[name] = value;
    body.to_string().into_bytes()
}

fn broken_bodies() -> Vec<Case> {
    vec![
        (CHAT, b"".to_vec(), 400, "it is empty"),
        (CHAT, b"{".to_vec(), 400, "line 1, column 1"),
        (CHAT, b"{\"messages\": [}".to_vec(), 400, "line 1, column 15"),
        (CHAT, b"hello".to_vec(), 400, "not valid JSON"),
        (CHAT, b"{'messages': []}".to_vec(), 400, "line 1, column 2"),
        (CHAT, b"{\"messages\": []} trailing".to_vec(), 400, "trailing characters"),
        (CHAT, b"\xff\xfe\x00".to_vec(), 400, "not valid JSON"),
        (CHAT, br#"{"messages":[{"role":"user","content":"\ud83d"}]}"#.to_vec(), 400, "surrogate"),
        (CHAT, br#"{"messages":[{"role":"user","content":"\ude00 x"}]}"#.to_vec(), 400, "surrogate"),
        (CHAT, b"{\"messages\": \"\xc3\x28\"}".to_vec(), 400, "unicode"),
        (CHAT, br#"{"temperature": NaN, "messages": []}"#.to_vec(), 400, "line 1"),
        (CHAT, br#"{"temperature": 1e999, "messages": []}"#.to_vec(), 400, "number out of range"),
        (CHAT, [b"[".repeat(10_000), b"]".repeat(10_000)].concat(), 400, "recursion limit"),
        (CHAT, b"[]".to_vec(), 400, "expected an object, got a list of 0"),
        (CHAT, b"null".to_vec(), 400, "expected an object, got null"),
        (CHAT, b"{}".to_vec(), 400, "`messages`: expected a list of at least one message, but it is missing"),
    ]
}

fn odd_messages() -> Vec<Case> {
    let messages = |messages: Value| json!({ "messages": messages }).to_string().into_bytes();
    vec![
        (CHAT, messages(json!([])), 400, "at least one message"),
        (CHAT, messages(json!("hi")), 400, "`messages`: expected a list"),
        (CHAT, messages(json!([null])), 400, "`messages[0]`: expected an object, got null"),
        (CHAT, messages(json!([{"content": "hi"}])), 400, "`messages[0].role`: expected one of system, developer"),
        (CHAT, messages(json!([{"role": "User", "content": "hi"}])), 400, "got the string \"User\""),
        (CHAT, messages(json!([{"role": 5, "content": "hi"}])), 400, "`messages[0].role`"),
        (CHAT, messages(json!([{"role": "user"}])), 400, "`messages[0].content`: expected a string or a list of parts"),
        (CHAT, messages(json!([{"role": "user", "content": 5}])), 400, "got 5"),
        (CHAT, messages(json!([{"role": "user", "content": [5]}])), 400, "`messages[0].content[0]`"),
        (
            CHAT,
            json!({"model": "scripted",
                "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]})
            .to_string()
            .into_bytes(),
            400,
            "image parts are not supported: the model `scripted` reads text only",
        ),
        (
            CHAT,
            messages(json!([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}])),
            400,
            "audio parts are not supported",
        ),
        (
            CHAT,
            messages(json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}])),
            400,
            "`messages[0].tool_calls[0].function.arguments`: expected a string that holds JSON",
        ),
        // What is quoted is cut, wherever it stands.
        (
            CHAT,
            json!({"model": "m".repeat(1_000_000),
                "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]})
            .to_string()
            .into_bytes(),
            400,
            "mmm...` reads text only",
        ),
        (CHAT, messages(json!([{"role": "r".repeat(1_000_000), "content": "x"}])), 400, "rrr...\""),
        (CHAT, messages(user("forbidden")), 400, "no such talk here"),
        // Longer than the context of 4096, far below the body limit.
        (
            CHAT,
            messages(user(&"x".repeat(10_000_000))),
            400,
            "10000016 bytes are at least 10000016 tokens, but the context holds 4096",
        ),
    ]
}

fn odd_fields() -> Vec<Case> {
    vec![
        (CHAT, chat_with("n", json!(2)), 400, "`n`: this server gives one answer per request"),
        (CHAT, chat_with("n", json!("1")), 400, "`n`: expected a whole number"),
        (CHAT, chat_with("temperature", json!("hot")), 400, "`temperature`: expected a number from 0 to 2"),
        (CHAT, chat_with("temperature", json!(2.5)), 400, "got 2.5"),
        (CHAT, chat_with("top_p", json!(-0.1)), 400, "`top_p`: expected a number from 0 to 1"),
        (CHAT, chat_with("top_k", json!(1.5)), 400, "`top_k`: expected a whole number"),
        (CHAT, chat_with("min_p", json!([0.1])), 400, "`min_p`"),
        (CHAT, chat_with("repetition_penalty", json!(0)), 400, "`repetition_penalty`"),
        (CHAT, chat_with("presence_penalty", json!(3)), 400, "a number from -2 to 2"),
        (CHAT, chat_with("max_tokens", json!(0)), 400, "`max_tokens`: expected a whole number of at least 1"),
        (CHAT, chat_with("max_tokens", json!(1e30)), 400, "`max_tokens`"),
        (CHAT, chat_with("max_tokens", json!(9_000_000_000_000_000_000_u64)), 400, "4096"),
        (CHAT, chat_with("stop", json!("")), 400, "`stop`: expected a stop text of at least one character"),
        (CHAT, chat_with("stop", json!(["a", 1])), 400, "`stop[1]`: expected a string, got 1"),
        (CHAT, chat_with("stop", json!(vec!["x"; 17])), 400, "at most 16 stop texts"),
        (CHAT, chat_with("seed", json!("lucky")), 400, "`seed`"),
        (CHAT, chat_with("logit_bias", json!({"abc": 1})), 400, "expected token ids as keys"),
        (CHAT, chat_with("logit_bias", json!({"1": 101})), 400, "`logit_bias.1`: expected a number from -100 to 100"),
        (CHAT, chat_with("logit_bias", json!({"99999": 1})), 400, "99999"),
        (CHAT, chat_with("top_logprobs", json!(3)), 400, "needs `logprobs` to be true"),
        (CHAT, chat_with("stream", json!("yes")), 400, "`stream`: expected true or false"),
        (CHAT, chat_with("stream_options", json!(true)), 400, "`stream_options`: expected an object"),
        (CHAT, chat_with("response_format", json!({"type": "json_object"})), 400, "not supported yet"),
        (CHAT, chat_with("response_format", json!({"type": "yaml"})), 400, "`response_format.type`"),
        (CHAT, chat_with("tool_choice", json!("required")), 400, "cannot be forced yet"),
        (CHAT, chat_with("tools", json!({"type": "function"})), 400, "`tools`: expected a list"),
        (CHAT, chat_with("chat_template_kwargs", json!([])), 400, "`chat_template_kwargs`"),
        (CHAT, chat_with("model", json!(7)), 400, "`model`: expected a string, got 7"),
        (CHAT, chat_with("model", json!("../../etc/passwd")), 404, "there is no model `../../etc/passwd` here"),
        (CHAT, chat_with("model", json!("m".repeat(1_000_000))), 404, "mmm...` here; installed: scripted"),
        (CHAT, chat_with("logit_bias", json!({"k".repeat(1_000_000): 1})), 400, "kkk...\""),
        (CHAT, chat_with("stop", json!("x".repeat(1_000_000))), 400, "`stop`: is 1000000 bytes long in all"),
        (CHAT, chat_with("seed", json!(1e30)), 400, "`seed`: expected a whole number of 64 bits"),
        (TEXT, b"{}".to_vec(), 400, "`prompt`"),
        (TEXT, text_with("prompt", json!(["a", "b"])), 400, "one prompt per request"),
        (TEXT, text_with("prompt", json!([1, -1])), 400, "`prompt[1]`"),
        (TEXT, text_with("prompt", json!([[1, 2.5]])), 400, "`prompt[0][1]`: expected a whole number"),
        (TEXT, text_with("prompt", json!([])), 400, "at least one token"),
        (TEXT, text_with("prompt", json!([[]])), 400, "the prompt is empty"),
        (TEXT, text_with("prompt", json!([[1], [2]])), 400, "one prompt per request"),
        (TEXT, text_with("prompt", json!([70_000])), 400, "`prompt`: holds token 70000"),
        (TEXT, text_with("prompt", json!("")), 400, "`prompt`"),
        (TEXT, text_with("logprobs", json!(6)), 400, "from 0 to 5"),
        (TEXT, text_with("echo", json!(true)), 400, "`echo`"),
        (TEXT, text_with("best_of", json!(3)), 400, "`best_of`"),
    ]
}

#[tokio::test]
async fn each_odd_input_gets_its_answer_and_the_next_request_works() {
    let harness = Harness::new(says("ok"));
    let cases: Vec<Case> = [broken_bodies(), odd_messages(), odd_fields()].concat();
    assert!(cases.len() >= 50, "{} cases", cases.len());
    let mut wrong = Vec::new();
    for (path, body, status, text) in cases {
        let shown = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
        let answer = harness.post(path, body).await;
        let error = &answer.json()["error"];
        let is_right = answer.status.as_u16() == status
            && error["type"].is_string()
            && error["code"].is_string()
            && error.get("param").is_some()
            && answer.message().contains(text)
            // An error must not repeat the whole input.
            && answer.text.len() < 2000;
        if !is_right {
            wrong.push(format!("{shown}\n  expected {status} {text}\n  got {} {}", answer.status, answer.text));
        }
        let next = harness.chat(json!({ "messages": user("hi") })).await;
        assert_eq!(next.status, StatusCode::OK, "after {shown}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(harness.engine().status().failed, 0);
}

#[tokio::test]
async fn odd_but_sound_inputs_are_answered() {
    let harness = Harness::new(says("ok"));
    for body in [
        chat_with("something_unknown", json!({"deep": [1, 2]})),
        chat_with("temperature", json!(null)),
        chat_with("max_tokens", json!(5.0)),
        chat_with("n", json!(1)),
        chat_with("stop", json!([])),
        chat_with("tools", json!([])),
        chat_with("tool_choice", json!("auto")),
        chat_with("user", json!("someone")),
        chat_with("metadata", json!({"a": "b"})),
        chat_with("top_k", json!(-1)),
        chat_with("logit_bias", json!({})),
        chat_with("messages", json!([{"role": "user", "content": ""}])),
        chat_with("messages", json!([{"role": "user", "content": []}])),
        chat_with("messages", json!([{"role": "user", "content": "nul \u{0} and \u{FFFD} and \u{10FFFF}"}])),
    ] {
        let shown = String::from_utf8_lossy(&body).into_owned();
        let answer = harness.post(CHAT, body).await;
        assert_eq!(answer.status, StatusCode::OK, "{shown}: {}", answer.text);
        assert_eq!(answer.json()["choices"][0]["message"]["content"], "ok");
    }
}

#[tokio::test]
async fn odd_addresses_are_answered_in_json_too() {
    let harness = Harness::new(says("ok"));
    let long = format!("/{}", "a".repeat(50_000));
    for (path, text) in [
        ("/v1/models/%ff%fe", "there is no model"),
        ("/v1/models/a%00b", "there is no model"),
        ("//v1/models", "there is no `GET //v1/models`"),
        (long.as_str(), "aaa...` here"),
    ] {
        let answer = harness.get(path).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{}", answer.text);
        assert!(answer.message().contains(text) && answer.text.len() < 2000, "{}", answer.text);
    }
}

#[tokio::test]
async fn the_content_type_does_not_matter_when_the_body_is_json() {
    let harness = Harness::new(says("ok"));
    let mut plain = request(Method::POST, CHAT, Body::from(chat_with("n", json!(1))));
    plain.headers_mut().remove("content-type");
    assert_eq!(harness.send(plain).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_413() {
    let harness = Harness::new(says("ok"));
    let body = chat_with("messages", user(&"x".repeat(33 * 1024 * 1024)));
    let answer = harness.post(CHAT, body).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(answer.message().contains("33554432 bytes"), "{}", answer.text);
}
