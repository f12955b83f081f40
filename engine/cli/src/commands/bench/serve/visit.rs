//! One visit: the whole workload against one server.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::task::JoinSet;

use super::arm::{Arm, Server, Source};
use super::client::{Client, Setting};
use super::record::{Cell, Exchange, Failure, Phase, Workload};
use super::workload::{
    AGGREGATE_TOKENS, AGGREGATES, CONTEXT_ANSWER, DECODE_RUNS, FIRST_TOKEN_PROMPT, FIRST_TOKEN_RUNS, PREFIX_PROMPT,
    PREFIX_RUNS, Questions, SHORT_ANSWER, STALL_PROMPT, STALL_STREAM_TOKENS, STALL_STREAMS, WAVE_SPACING_MS,
    WAVE_TOKENS, WAVES,
};

/// Tokens that each running answer has got before the long prompt of the stall phase arrives.
const STALL_LEAD: usize = 16;

/// Carries the workload out. What fails is noted in the cell, and the rest goes on.
pub(crate) async fn visit(
    number: usize,
    arm: &Arm,
    round: usize,
    workload: &Workload,
    setting: &Setting,
    log: &Path,
) -> Cell {
    let mut visit = Visit {
        cell: Cell {
            arm: number,
            round,
            ready_ms: None,
            peak_memory: None,
            flush: None,
            exchanges: Vec::new(),
            failures: Vec::new(),
        },
        questions: Questions::new(workload, round),
        context_tokens: workload.context_tokens,
    };
    let zero = Instant::now();
    match start(arm, setting, log, zero).await {
        Ok((mut server, mut client, ready_ms)) => {
            visit.cell.ready_ms = ready_ms;
            for &phase in &workload.phases {
                if phase == Phase::Restart {
                    let Some(running) = server.take() else {
                        visit.fail(phase, "a server that was not started here is not restarted".to_owned());
                        continue;
                    };
                    visit.flush(&client).await;
                    visit.note_memory(running.stop());
                    match start(arm, setting, log, zero).await {
                        Ok((again, reached, _)) => (server, client) = (again, reached),
                        Err(error) => {
                            visit.fail(phase, format!("{error:#}"));
                            break;
                        }
                    }
                }
                visit.phase(phase, &client).await;
            }
            visit.note_memory(server.and_then(Server::stop));
        }
        Err(error) => visit.fail(Phase::WarmUp, format!("{error:#}")),
    }
    visit.cell
}

/// Starts the arm's server, if it is to be started, and waits until it answers.
async fn start(
    arm: &Arm,
    setting: &Setting,
    log: &Path,
    zero: Instant,
) -> anyhow::Result<(Option<Server>, Client, Option<f64>)> {
    match &arm.source {
        Source::Address(base) => {
            let client = Client::new(base, setting, zero)?;
            anyhow::ensure!(client.is_ready().await, "nothing answers at {base}");
            Ok((None, client, None))
        }
        Source::Command(command) => {
            let mut server = Server::start(command, log)?;
            let client = Client::new(&server.base, setting, zero)?;
            let ready_ms = server.wait_until_ready(&client).await?;
            Ok((Some(server), client, Some(ready_ms)))
        }
    }
}

struct Visit<'a> {
    cell: Cell,
    questions: Questions<'a>,
    context_tokens: usize,
}

impl Visit<'_> {
    fn fail(&mut self, phase: Phase, reason: String) {
        self.cell.failures.push(Failure { phase, reason });
    }

    fn note_memory(&mut self, peak: Option<u64>) {
        self.cell.peak_memory = self.cell.peak_memory.max(peak);
    }

    async fn phase(&mut self, phase: Phase, client: &Client) {
        let questions = self.questions;
        match phase {
            Phase::WarmUp => self.ask(client, "warm-up", 0, questions.warm_up()).await,
            Phase::Decode => {
                for index in 0..DECODE_RUNS {
                    self.ask(client, "decode", index, questions.decode(index)).await;
                }
            }
            Phase::FirstToken => {
                for index in 0..FIRST_TOKEN_RUNS {
                    let body = questions.long("first-token", index, FIRST_TOKEN_PROMPT, SHORT_ANSWER);
                    self.ask(client, "first-token-cold", index, body.clone()).await;
                    self.ask(client, "first-token-cached", index, body).await;
                }
            }
            Phase::Prefix => {
                let body = |index| questions.shared("prefix", index, PREFIX_PROMPT, SHORT_ANSWER);
                self.ask(client, "prefix-cold", 0, body(0)).await;
                for index in 1..=PREFIX_RUNS {
                    self.ask(client, "prefix-cached", index, body(index)).await;
                }
            }
            Phase::Context => {
                let body = questions.long("context", 0, self.context_tokens, CONTEXT_ANSWER);
                self.ask(client, "context-cold", 0, body.clone()).await;
                for index in 0..2 {
                    self.ask(client, "context-cached", index, body.clone()).await;
                }
            }
            Phase::Restart => {
                let body = questions.long("context", 0, self.context_tokens, SHORT_ANSWER);
                self.ask(client, "restart", 0, body).await;
            }
            Phase::Aggregate => {
                for streams in AGGREGATES {
                    let group = format!("aggregate-{streams}");
                    let bodies = (0..streams).map(|index| questions.stream(&group, index, AGGREGATE_TOKENS)).collect();
                    self.ask_all(client, &group, bodies, Duration::ZERO).await;
                }
            }
            Phase::Waves => {
                for arrivals in WAVES {
                    let group = format!("wave-{arrivals}");
                    let bodies = (0..arrivals).map(|index| questions.stream(&group, index, WAVE_TOKENS)).collect();
                    self.ask_all(client, &group, bodies, Duration::from_millis(WAVE_SPACING_MS)).await;
                }
            }
            Phase::Stall => self.stall(client).await,
        }
    }

    async fn ask(&mut self, client: &Client, group: &str, index: usize, body: Value) {
        let exchange = client.ask(group, index, body, Arc::default()).await;
        self.cell.exchanges.push(exchange);
    }

    /// Sends all requests, one `spacing` after the other, and waits for all answers.
    async fn ask_all(&mut self, client: &Client, group: &str, bodies: Vec<Value>, spacing: Duration) {
        let mut running = JoinSet::new();
        for (index, body) in bodies.into_iter().enumerate() {
            if index > 0 && !spacing.is_zero() {
                tokio::time::sleep(spacing).await;
            }
            let (client, group) = (client.clone(), group.to_owned());
            running.spawn(async move { client.ask(&group, index, body, Arc::default()).await });
        }
        self.gather(running).await;
    }

    /// Lets answers stream, then sends a long prompt beside them.
    async fn stall(&mut self, client: &Client) {
        let mut running = JoinSet::new();
        let counters: Vec<Arc<AtomicUsize>> = (0..STALL_STREAMS).map(|_| Arc::default()).collect();
        for (index, seen) in counters.iter().enumerate() {
            let body = self.questions.stream("stall-stream", index, STALL_STREAM_TOKENS);
            let (client, seen) = (client.clone(), Arc::clone(seen));
            running.spawn(async move { client.ask("stall-stream", index, body, seen).await });
        }
        let begun = Instant::now();
        let is_under_way = || counters.iter().all(|seen| seen.load(Ordering::Relaxed) >= STALL_LEAD);
        while !is_under_way() && begun.elapsed() < Duration::from_secs(30) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if is_under_way() {
            let body = self.questions.long("stall-prompt", 0, STALL_PROMPT, SHORT_ANSWER);
            self.ask(client, "stall-prompt", 0, body).await;
        } else {
            self.fail(Phase::Stall, "the answers did not come under way within 30 s".to_owned());
        }
        self.gather(running).await;
    }

    async fn gather(&mut self, mut running: JoinSet<Exchange>) {
        let first = self.cell.exchanges.len();
        while let Some(exchange) = running.join_next().await {
            match exchange {
                Ok(exchange) => self.cell.exchanges.push(exchange),
                Err(error) => self.fail(Phase::WarmUp, format!("a request was lost: {error}")),
            }
        }
        self.cell.exchanges[first..].sort_by_key(|exchange| exchange.index);
    }

    async fn flush(&mut self, client: &Client) {
        match client.flush().await {
            Ok(flush) => self.cell.flush = flush,
            Err(error) => self.fail(Phase::Restart, format!("{error:#}")),
        }
    }
}
