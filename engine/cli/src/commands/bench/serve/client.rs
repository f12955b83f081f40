//! One streamed request to an OpenAI-compatible server, timed as a client sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::record::{Exchange, Flush};
use super::workload::hex;

/// What all requests of a run have in common.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    /// Named in every request, where the server needs that.
    pub(crate) model: Option<String>,
    /// The key that the servers ask for.
    pub(crate) key: Option<String>,
    /// How long a request may take.
    pub(crate) limit: Duration,
}

/// A server, and the clock of the visit.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    base: String,
    /// Sent with every request, if the server needs one.
    model: Option<String>,
    key: Option<String>,
    limit: Duration,
    zero: Instant,
}

impl Client {
    /// A client of the server at `base`, in a visit that began at `zero`.
    ///
    /// # Errors
    /// When no HTTP client can be set up.
    pub(crate) fn new(base: &str, setting: &Setting, zero: Instant) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder()
            .no_proxy()
            .tcp_nodelay(true)
            // A connection of its own for each request: some servers close one after an answer without saying so.
            .pool_max_idle_per_host(0)
            .connect_timeout(Duration::from_secs(10))
            .build()
            .context("cannot set up an HTTP client")?;
        let base = base.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        let Setting { model, key, limit } = setting.clone();
        Ok(Self { http, base, model, key, limit, zero })
    }

    /// Whether the server answers.
    pub(crate) async fn is_ready(&self) -> bool {
        let request = self.http.get(format!("{}/v1/models", self.base)).timeout(Duration::from_secs(2));
        matches!(self.authorized(request).send().await, Ok(response) if response.status().is_success())
    }

    /// Asks the server to write its cache down. `None` if it has no such thing.
    ///
    /// # Errors
    /// When the server does not answer.
    pub(crate) async fn flush(&self) -> anyhow::Result<Option<Flush>> {
        let begun = Instant::now();
        let request = self.http.post(format!("{}/admin/cache/flush", self.base)).timeout(self.limit);
        let response = self.authorized(request).send().await.context("the flush was not answered")?;
        let status = response.status().as_u16();
        if matches!(status, 404 | 405 | 501) {
            return Ok(None);
        }
        let answer: Value = response.json().await.unwrap_or_default();
        let durable = answer.get("durable").and_then(Value::as_bool);
        Ok(Some(Flush { status, durable, took_ms: milliseconds(begun.elapsed()) }))
    }

    /// Milliseconds since the visit began.
    pub(crate) fn now_ms(&self) -> f64 {
        milliseconds(self.zero.elapsed())
    }

    /// Sends a request and follows its answer to the end. `seen` counts the events as they come. A failure is part of the
    /// result.
    pub(crate) async fn ask(&self, group: &str, index: usize, body: Value, seen: Arc<AtomicUsize>) -> Exchange {
        let mut exchange = Exchange {
            group: group.to_owned(),
            index,
            request_sha256: hex(&Sha256::digest(body.to_string())),
            begun_ms: self.now_ms(),
            ..Exchange::default()
        };
        let begun = Instant::now();
        let followed = tokio::time::timeout(self.limit, self.follow(&mut exchange, begun, body, &seen)).await;
        exchange.finished_ms = Some(milliseconds(begun.elapsed()));
        exchange.error = match followed {
            Ok(Ok(())) => missing(&exchange).map(str::to_owned),
            Ok(Err(error)) => Some(format!("{error:#}")),
            Err(_) => Some(format!("not finished within {} s", self.limit.as_secs())),
        };
        exchange
    }

    async fn follow(
        &self,
        exchange: &mut Exchange,
        begun: Instant,
        mut body: Value,
        seen: &AtomicUsize,
    ) -> anyhow::Result<()> {
        if let (Some(model), Some(fields)) = (&self.model, body.as_object_mut()) {
            fields.insert("model".to_owned(), Value::String(model.clone()));
        }
        let request = self.http.post(format!("{}/v1/chat/completions", self.base)).json(&body);
        let mut response = self.authorized(request).send().await.context("not answered")?;
        exchange.headers_ms = Some(milliseconds(begun.elapsed()));
        let status = response.status();
        if !status.is_success() {
            let text = response.text().await.unwrap_or_default();
            anyhow::bail!("status {}: {}", status.as_u16(), text.chars().take(300).collect::<String>());
        }
        let mut answer = Answer::default();
        while let Some(bytes) = response.chunk().await.context("the stream broke off")? {
            let now = milliseconds(begun.elapsed());
            for _ in 0..answer.push(&bytes)? {
                exchange.events_ms.push(now);
                seen.fetch_add(1, Ordering::Relaxed);
            }
        }
        answer.into_exchange(exchange)
    }

    fn authorized(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }
}

/// What an answer lacks that ended without an error.
fn missing(exchange: &Exchange) -> Option<&'static str> {
    if exchange.completion_tokens.is_none() || exchange.prompt_tokens.is_none() {
        return Some("no usage came with the answer");
    }
    exchange.events_ms.is_empty().then_some("no text came")
}

/// A stream of server-sent events, read as it comes.
#[derive(Debug, Default)]
struct Answer {
    unread: Vec<u8>,
    text: Sha256,
    has_ended: bool,
    usage: Option<Value>,
    finish_reason: Option<String>,
}

impl Answer {
    /// Takes bytes of the stream. Returns how many events with text they completed.
    fn push(&mut self, bytes: &[u8]) -> anyhow::Result<usize> {
        self.unread.extend_from_slice(bytes);
        let mut events = 0;
        while let Some(end) = self.unread.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.unread.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            if let Some(data) = line.trim_end().strip_prefix("data:") {
                events += usize::from(self.event(data.trim_start())?);
            }
        }
        Ok(events)
    }

    /// Takes one event. Returns whether it brought text.
    fn event(&mut self, data: &str) -> anyhow::Result<bool> {
        if data == "[DONE]" {
            self.has_ended = true;
            return Ok(false);
        }
        let event: Value = serde_json::from_str(data).context("an event is not JSON")?;
        if let Some(error) = event.get("error") {
            anyhow::bail!(
                "the server broke off: {}",
                error.get("message").and_then(Value::as_str).unwrap_or("no reason")
            );
        }
        if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) {
            self.usage = Some(usage.clone());
        }
        let Some(choice) = event.pointer("/choices/0") else { return Ok(false) };
        if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
            self.finish_reason = Some(reason.to_owned());
        }
        let mut has_text = false;
        for field in ["/delta/reasoning_content", "/delta/content"] {
            let Some(text) = choice.pointer(field).and_then(Value::as_str).filter(|text| !text.is_empty()) else {
                continue;
            };
            self.text.update(text);
            has_text = true;
        }
        Ok(has_text)
    }

    fn into_exchange(self, exchange: &mut Exchange) -> anyhow::Result<()> {
        let count = |path: &str| self.usage.as_ref().and_then(|usage| usage.pointer(path)).and_then(Value::as_u64);
        exchange.prompt_tokens = count("/prompt_tokens");
        exchange.completion_tokens = count("/completion_tokens");
        exchange.cached_tokens = count("/prompt_tokens_details/cached_tokens");
        exchange.finish_reason = self.finish_reason;
        exchange.output_sha256 = Some(hex(&self.text.finalize()));
        anyhow::ensure!(self.has_ended, "the stream ended without [DONE]");
        Ok(())
    }
}

/// Milliseconds with the precision that is worth keeping.
fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e5).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pieces: &[&str]) -> anyhow::Result<(usize, Exchange)> {
        let mut answer = Answer::default();
        let mut events = 0;
        for piece in pieces {
            events += answer.push(piece.as_bytes())?;
        }
        let mut exchange = Exchange::default();
        answer.into_exchange(&mut exchange)?;
        Ok((events, exchange))
    }

    const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,\
        \"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n";

    fn delta(text: &str) -> String {
        format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}},\"finish_reason\":null}}]}}\r\n\r\n")
    }

    #[test]
    fn an_answer_in_any_pieces_is_the_same_answer() {
        let whole = [": keep-alive\n\n", &delta("a"), &delta(""), &delta("bc"), USAGE].concat();
        let (events, exchange) = read(&[&whole]).unwrap();
        assert_eq!(events, 2);
        assert_eq!(
            (exchange.prompt_tokens, exchange.completion_tokens, exchange.cached_tokens),
            (Some(7), Some(3), Some(4))
        );
        assert_eq!(exchange.output_sha256, Some(hex(&Sha256::digest("abc"))));
        for cut in 1..whole.len() {
            let pieces = [&whole[..cut], &whole[cut..]];
            assert_eq!(read(&pieces).unwrap(), (events, exchange.clone()));
        }
    }

    #[test]
    fn what_breaks_off_is_a_failure() {
        assert!(read(&[&delta("a")]).unwrap_err().to_string().contains("[DONE]"));
        let error = read(&["data: {\"error\":{\"message\":\"out of memory\"}}\n\n"]).unwrap_err();
        assert!(error.to_string().contains("out of memory"), "{error}");
        assert!(read(&["data: {oops\n"]).is_err());
        let (_, exchange) = read(&["data: [DONE]\n"]).unwrap();
        assert_eq!(missing(&exchange), Some("no usage came with the answer"));
        let counted = Exchange { completion_tokens: Some(1), prompt_tokens: Some(1), ..Exchange::default() };
        assert_eq!(missing(&counted), Some("no text came"));
    }
}
