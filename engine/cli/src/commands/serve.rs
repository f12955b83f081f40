//! `linnet serve`.

mod source;

use std::io::IsTerminal;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use linnet_api::{
    ApiState, DEFAULT_PORT, MemoryMeter, ModelManager, ModelProvider, ResidencyOptions, ServerOptions, SpeechManager,
    SystemMemory,
};
use linnet_kernels::CoreTurns;
use linnet_library::{ModelEntry, Store};
use linnet_runtime::EngineOptions;
use linnet_runtime::ssd::SsdTier;
use linnet_speech::SpeechEngineOptions;
use tokio::net::TcpListener;

use crate::exit::Exit;
use crate::models::{self, ChoiceError, RunArguments};
use crate::output;
use crate::prefix_cache::PrefixCacheArguments;
use crate::sampling::SamplingArguments;
use crate::speech;
use crate::units;

use source::{SpeechStoreSource, StoreSource};

/// The share of the machine's memory that models may take unless told otherwise: three quarters, as Apple's GPUs may.
const MEMORY_SHARE: (u64, u64) = (3, 4);

/// Arguments of `linnet serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Every installed model is served: a request's `model` loads it, and it is unloaded when another one
needs the room or nobody has used it for a while. Models named with --model are loaded at once and
stay; the first of them answers requests that name none.

Examples:
  linnet serve
  linnet serve --model llama-1b --port 8080 --api-key secret
  linnet serve --memory 12GB --idle-unload 10m
  curl http://127.0.0.1:5466/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is the capital of France?\"}]}'
  curl http://127.0.0.1:5466/stats

LINNET_LOG sets what is logged (warn, info, debug). Prompts and answers are never logged.")]
pub(crate) struct ServeArguments {
    /// A model to load at once and keep in memory; may be given more than once
    #[arg(long, short, value_name = "NAME")]
    model: Vec<String>,
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
    /// Requests of one model that run at once; more wait
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    max_concurrent: u16,
    /// Requests of one model that may wait; more are refused
    #[arg(long, value_name = "N", default_value_t = 64)]
    max_queued: u16,
    /// How long running answers may have to wait while a new prompt is read
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = units::milliseconds)]
    max_stall: Duration,
    /// Memory that all models together may take, such as 12GB [default: three quarters of the machine's]
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, help_heading = "Models in memory")]
    memory: Option<u64>,
    /// Unload a model that nobody has used for so long; 0 never does
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = units::duration, help_heading = "Models in memory")]
    idle_unload: Duration,
    /// Unload a speech model that nobody has used for so long; 0 never does
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = units::duration, help_heading = "Models in memory")]
    speech_idle_unload: Duration,
    /// How long running answers may go on when the server is told to end
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = units::duration, help_heading = "Ending")]
    drain: Duration,
    /// How long writing the caches to disk may take at the end
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::duration, help_heading = "Ending")]
    flush_limit: Duration,
    #[command(flatten)]
    prefix_cache: PrefixCacheArguments,
    #[command(flatten)]
    run: RunArguments,
    #[command(flatten)]
    sampling: SamplingArguments,
}

pub(crate) fn run(arguments: &ServeArguments) -> anyhow::Result<Exit> {
    start_log();
    let store = Store::from_environment()?;
    let named =
        arguments.model.iter().map(|name| models::find_any(&store, name)).collect::<anyhow::Result<Vec<_>>>()?;
    let serving = describe(&store, &named)?;
    let runtime = tokio::runtime::Runtime::new().context("cannot start the server's threads")?;
    // The port first: a port that is taken should not cost the loading of a model.
    let address = SocketAddr::new(arguments.host, arguments.port);
    let listener = runtime.block_on(listen(address))?;
    let address = listener.local_addr().context("the listener has no address")?;
    let disk = arguments.prefix_cache.open_disk(&store);
    let turns = Arc::<CoreTurns>::default();
    let source = Arc::new(source(arguments, store, named.clone(), disk, Arc::clone(&turns)));
    let speech = speech_manager(arguments, &source, turns)?;
    let manager = {
        let _inside = runtime.enter();
        Arc::new(manager(arguments, source))
    };
    for entry in &named {
        if models::is_speech(entry) {
            runtime.block_on(speech.pin(&entry.name, true)).map_err(|error| anyhow!("{error}"))?;
            continue;
        }
        eprintln!("loading {} ...", entry.name);
        runtime.block_on(manager.pin(&entry.name, true)).map_err(|error| anyhow!("{error}"))?;
    }
    if !address.ip().is_loopback() && arguments.api_key.is_none() {
        eprintln!("warning: other machines on the network can use this server; give it an --api-key");
    }
    let provider = Arc::clone(&manager) as Arc<dyn ModelProvider>;
    let state = ApiState::with_speech(server_options(arguments), provider, Some(speech));
    output::line(&format!("serving {serving} on http://{address}/v1 (Ctrl-C ends it)"))?;
    runtime.block_on(async {
        linnet_api::serve(listener, state, stop_signal()).await.context("the server failed")?;
        if tokio::time::timeout(arguments.flush_limit, manager.close()).await.is_err() {
            eprintln!("warning: not everything that was cached could be written to disk in time");
        }
        anyhow::Ok(())
    })?;
    // Whatever still runs in the background must not hold the process.
    runtime.shutdown_background();
    Ok(Exit::Done)
}

/// What is served, in words; without any usable model there is nothing to serve.
fn describe(store: &Store, named: &[ModelEntry]) -> anyhow::Result<String> {
    if !named.is_empty() {
        return Ok(named.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>().join(", "));
    }
    let usable: Vec<ModelEntry> = store.list()?.into_iter().filter(|entry| entry.problem.is_none()).collect();
    match usable.as_slice() {
        [] => Err(ChoiceError::None.into()),
        [only] => Ok(only.name.clone()),
        several => Ok(format!("{} models", several.len())),
    }
}

fn source(
    arguments: &ServeArguments,
    store: Store,
    named: Vec<ModelEntry>,
    disk: Option<Arc<SsdTier>>,
    turns: Arc<CoreTurns>,
) -> StoreSource {
    let engine = EngineOptions {
        max_concurrent: usize::from(arguments.max_concurrent),
        queue_limit: usize::from(arguments.max_queued),
        max_stall: arguments.max_stall,
        prefix_cache_bytes: arguments.prefix_cache.memory(),
        ..EngineOptions::default()
    };
    StoreSource::new(store, named, arguments.run.clone(), engine, disk, turns)
}

/// The speech models, which go first on the cores that they share with text models.
fn speech_manager(
    arguments: &ServeArguments,
    source: &Arc<StoreSource>,
    turns: Arc<CoreTurns>,
) -> anyhow::Result<Arc<SpeechManager>> {
    let network = speech::network_options(arguments.run.backend, arguments.run.threads, None);
    let source = Arc::new(SpeechStoreSource::new(Arc::clone(source), network));
    let options = SpeechEngineOptions {
        idle_unload: Some(arguments.speech_idle_unload).filter(|limit| !limit.is_zero()),
        turns,
        ..SpeechEngineOptions::default()
    };
    SpeechManager::new(source, options, SpeechManager::DEFAULT_SESSION_IDLE)
        .context("the detector of speech is broken; please report this")
}

fn manager(arguments: &ServeArguments, source: Arc<StoreSource>) -> ModelManager {
    let memory = SystemMemory::new();
    let budget = arguments.memory.unwrap_or_else(|| {
        let (share, of) = MEMORY_SHARE;
        // A system that does not say what it has sets no limit either.
        memory.total().map_or(u64::MAX, |total| total / of * share)
    });
    let options = ResidencyOptions {
        idle_unload: Some(arguments.idle_unload).filter(|limit| !limit.is_zero()),
        ..ResidencyOptions::with_budget(budget)
    };
    ModelManager::start(source, Arc::new(memory), options)
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
        shutdown_grace: arguments.drain,
        ..ServerOptions::default()
    }
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
