//! Clients that behave badly on real sockets, and the server's own end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use linnet_api::ServerOptions;
use linnet_runtime::testing::ScriptedModel;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::harness::{Harness, says, user};

/// How soon an abandoned request must be out of the engine.
const GONE_WITHIN: Duration = Duration::from_secs(1);

fn raw_chat(body: &Value) -> String {
    let body = body.to_string();
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Sends a request and reads until `count` data events have come.
pub(crate) async fn open_and_read(address: SocketAddr, body: &Value, count: usize) -> TcpStream {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(raw_chat(body).as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    while seen.windows(6).filter(|window| *window == b"data: ").count() < count {
        let mut buffer = [0; 1024];
        let length = socket.read(&mut buffer).await.unwrap();
        assert!(length > 0, "closed early: {}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&buffer[..length]);
    }
    socket
}

async fn chat_over_http(address: SocketAddr) -> reqwest::Response {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = client.post(format!("http://{address}/v1/chat/completions"));
    request.json(&json!({"messages": user("hi"), "max_tokens": 5})).send().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_streams_dropped_after_three_tokens_leave_nothing_behind() {
    let harness = Harness::new(ScriptedModel::noise().delay(Duration::from_millis(1)));
    let address = harness.listen().await;
    let body = json!({"messages": user("hi"), "stream": true});
    // Fifty at a time: more than run at once, fewer than may wait.
    for _ in 0..2 {
        let clients: Vec<_> = (0..50)
            .map(|_| {
                let body = body.clone();
                // The opening chunk and three tokens.
                tokio::spawn(async move { drop(open_and_read(address, &body, 4).await) })
            })
            .collect();
        for client in clients {
            client.await.unwrap();
        }
    }
    harness.idle_within(GONE_WITHIN).await;
    let status = harness.engine().status();
    assert_eq!((status.cancelled, status.finished, status.failed), (100, 0, 0), "{status:?}");
    assert_eq!(chat_over_http(address).await.status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_a_whole_answer_cancels_it() {
    let harness = Harness::new(ScriptedModel::noise().delay(Duration::from_millis(2)));
    let address = harness.listen().await;
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(raw_chat(&json!({ "messages": user("hi") })).as_bytes()).await.unwrap();
    while harness.engine().status().active == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(socket);
    harness.idle_within(GONE_WITHIN).await;
    assert_eq!(harness.engine().status().cancelled, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_during_prefill_cancels_it() {
    // 3000 prompt tokens in chunks of 32, 20 ms each: two seconds of prefill.
    let harness = Harness::new(ScriptedModel::noise().delay(Duration::from_millis(20)));
    let address = harness.listen().await;
    let body = json!({"messages": user(&"x".repeat(3000)), "stream": true});
    let socket = open_and_read(address, &body, 1).await;
    drop(socket);
    harness.idle_within(GONE_WITHIN).await;
    assert!(harness.probe().tokens() < 3000, "{} tokens were processed", harness.probe().tokens());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_requests_and_half_closed_sockets_harm_nobody() {
    let harness = Harness::new(says("ok"));
    let address = harness.listen().await;
    let chat = raw_chat(&json!({ "messages": user("hi") }));
    let pieces =
        ["", "GET", "POST /v1/chat/completions HTTP/1.1\r\nHost: loc", &chat[..chat.len() - 5], "\0\0\0\r\n\r\n"];
    let mut open = Vec::new();
    for piece in pieces {
        // Left open.
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(piece.as_bytes()).await.unwrap();
        open.push(socket);
        // Half closed: the server must end the connection, with or without words.
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(piece.as_bytes()).await.unwrap();
        socket.shutdown().await.unwrap();
        let mut rest = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(5), socket.read_to_end(&mut rest)).await;
        assert!(read.is_ok(), "{piece:?} was left hanging");
        assert!(!rest.starts_with(b"HTTP/1.1 200"), "{piece:?}");
    }
    assert_eq!(chat_over_http(address).await.status(), 200);
    drop(open);
    harness.idle_within(GONE_WITHIN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_still_writing_reads_its_413() {
    let options = ServerOptions { body_limit: 1 << 20, ..ServerOptions::default() };
    let harness = Harness::with_options(says("ok"), options);
    let address = harness.listen().await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = client.post(format!("http://{address}/v1/chat/completions")).body(vec![b' '; 3 << 20]);
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 413);
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["error"]["code"], "body_too_large");
}

/// A server with its own off switch.
async fn start(harness: &Harness) -> (SocketAddr, tokio::sync::oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    assert_ne!(address.port(), 0);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let shutdown = async {
        let _ = stopped.await;
    };
    let state = Arc::clone(&harness.state);
    let server = tokio::spawn(async move { linnet_api::serve(listener, state, shutdown).await.unwrap() });
    (address, stop, server)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_lets_short_answers_finish() {
    let harness = Harness::new(says("a short answer").delay(Duration::from_millis(10)));
    let (address, stop, server) = start(&harness).await;
    let mut socket = open_and_read(address, &json!({"messages": user("hi"), "stream": true}), 2).await;
    stop.send(()).unwrap();
    let mut rest = String::new();
    socket.read_to_string(&mut rest).await.unwrap();
    assert!(rest.contains("\"finish_reason\":\"stop\"") && rest.contains("data: [DONE]"), "{rest}");
    tokio::time::timeout(Duration::from_secs(2), server).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_ends_long_answers_with_an_error_event_and_done() {
    let options = ServerOptions { shutdown_grace: Duration::from_millis(100), ..ServerOptions::default() };
    let harness = Harness::with_options(ScriptedModel::noise().delay(Duration::from_millis(5)), options);
    let (address, stop, server) = start(&harness).await;
    let mut socket = open_and_read(address, &json!({"messages": user("hi"), "stream": true}), 2).await;
    // A connection that never says anything must not hold the server up either.
    let silent = TcpStream::connect(address).await.unwrap();
    stop.send(()).unwrap();
    let mut rest = String::new();
    socket.read_to_string(&mut rest).await.unwrap();
    assert!(rest.contains("shutting_down") && rest.contains("data: [DONE]"), "{rest}");
    tokio::time::timeout(Duration::from_secs(4), server).await.unwrap().unwrap();
    harness.idle_within(GONE_WITHIN).await;
    drop(silent);
}
