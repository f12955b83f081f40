//! `linnet serve`.

use std::io::IsTerminal;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use linnet_api::{ApiState, DEFAULT_PORT, SamplingOverrides, ServedModel, ServerOptions, SingleModel};
use linnet_library::{ModelEntry, STARTER, STARTER_NAME, Store};
use linnet_runtime::{EngineOptions, LoadedModel};
use tokio::net::TcpListener;

use crate::exit::Exit;
use crate::models::{self, RunArguments};
use crate::output;
use crate::sampling::SamplingArguments;

/// Arguments of `linnet serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  linnet serve
  linnet serve --model llama-1b --port 8080 --api-key secret
  curl http://127.0.0.1:5466/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is the capital of France?\"}]}'

LINNET_LOG sets what is logged (warn, info, debug). Prompts and answers are never logged.")]
pub(crate) struct ServeArguments {
    /// The model to serve [default: the only one installed, else the starter]
    #[arg(long, short)]
    model: Option<String>,
    /// The address to listen on; anything but a loopback address lets other machines in
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// The port to listen on; 0 takes a free one
    #[arg(long, short, default_value_t = DEFAULT_PORT)]
    port: u16,
    /// Ask every request for this key (`Authorization: Bearer KEY`)
    #[arg(long, value_name = "KEY", env = "LINNET_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Accept requests that name this host; may be given more than once
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Accept requests from web pages of this origin, such as https://chat.example
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// Requests that run at once; more wait
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    max_concurrent: u16,
    /// Requests that may wait; more are refused
    #[arg(long, value_name = "N", default_value_t = 64)]
    max_queued: u16,
    /// Milliseconds that running answers may have to wait for a token while a prompt is read
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    max_stall: u32,
    #[command(flatten)]
    run: RunArguments,
    #[command(flatten)]
    sampling: SamplingArguments,
}

pub(crate) fn run(arguments: &ServeArguments) -> anyhow::Result<Exit> {
    start_log();
    let store = Store::from_environment()?;
    let entry = models::find(&store, arguments.model.as_deref())?;
    let runtime = tokio::runtime::Runtime::new().context("cannot start the server's threads")?;
    // The port first: a port that is taken should not cost the loading of a model.
    let address = SocketAddr::new(arguments.host, arguments.port);
    let listener = runtime.block_on(listen(address))?;
    let engine = EngineOptions {
        max_concurrent: usize::from(arguments.max_concurrent),
        queue_limit: usize::from(arguments.max_queued),
        max_stall: Duration::from_millis(u64::from(arguments.max_stall)),
        ..EngineOptions::default()
    };
    eprintln!("loading {} ...", entry.name);
    let loaded = models::load(&entry, &arguments.run, engine)?;
    let address = listener.local_addr().context("the listener has no address")?;
    if !address.ip().is_loopback() && arguments.api_key.is_none() {
        eprintln!("warning: other machines on the network can use this server; give it an --api-key");
    }
    let state = ApiState::new(server_options(arguments), Arc::new(provider(&entry, loaded)));
    output::line(&format!("serving {} on http://{address}/v1 (Ctrl-C ends it)", entry.name))?;
    runtime.block_on(async { linnet_api::serve(listener, state, stop_signal()).await.context("the server failed") })?;
    // Whatever still runs in the background must not hold the process.
    runtime.shutdown_background();
    Ok(Exit::Done)
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => anyhow!(
            "port {} is in use by another program (another `linnet serve`?); end that one or choose another with --port",
            address.port()
        ),
        std::io::ErrorKind::PermissionDenied => {
            anyhow!("port {} needs administrator rights; choose one above 1023 with --port", address.port())
        }
        _ => anyhow!("cannot listen on {address}: {error}"),
    })
}

fn server_options(arguments: &ServeArguments) -> ServerOptions {
    ServerOptions {
        allowed_hosts: arguments.allow_host.clone(),
        // Whoever lets the network in will be reached by address.
        allow_ip_hosts: !arguments.host.is_loopback(),
        allowed_origins: arguments.allow_origin.clone(),
        api_key: arguments.api_key.clone().filter(|key| !key.is_empty()),
        sampling: arguments.sampling.overrides(),
        ..ServerOptions::default()
    }
}

fn provider(entry: &ModelEntry, loaded: LoadedModel) -> SingleModel {
    let sampling = SamplingOverrides::from(&loaded.defaults);
    let LoadedModel { engine, tokenizer, template, .. } = loaded;
    let served = ServedModel::new(entry.name.clone(), engine, tokenizer, template, sampling);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs());
    let provider = SingleModel::new(served, entry.created.unwrap_or(now));
    if entry.name == STARTER_NAME { provider.with_alias(STARTER) } else { provider }
}

/// Completes when the user or the system asks the process to end; a second time ends it at once.
async fn stop_signal() {
    wait_for_signal().await;
    eprintln!("stopping; running answers may finish (once more to stop at once)");
    tokio::spawn(async {
        wait_for_signal().await;
        std::process::exit(i32::from(Exit::Interrupted as u8));
    });
}

#[cfg(unix)]
async fn wait_for_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
        }
        Err(_) => drop(tokio::signal::ctrl_c().await),
    }
}

#[cfg(not(unix))]
async fn wait_for_signal() {
    let _ = tokio::signal::ctrl_c().await;
}

/// Logs to standard error, by default one line for each request.
fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("LINNET_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
}
