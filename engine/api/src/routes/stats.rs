//! `GET /stats`: what the server does, for people and programs; `GET /metrics`: the same for Prometheus.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use linnet_runtime::{CacheStatus, DiskCacheStatus, EngineHealth, EngineStatus};
use linnet_speech::SpeechStatus;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::metrics::{CONTENT_TYPE, Rates};
use crate::prompt::off_the_executor;
use crate::provider::LoadedCard;
use crate::speech::SpeechManager;
use crate::speech::sessions::MOST_SESSIONS;
use crate::state::ApiState;

/// Everything as JSON.
pub(super) async fn stats(State(state): State<Arc<ApiState>>) -> Result<Json<Value>, ApiError> {
    // The system is asked for memory, which reads files.
    off_the_executor(move || {
        let residency = state.provider.residency();
        let models: Vec<Value> = state.provider.loaded().iter().map(|card| model_json(&state, card)).collect();
        Ok(Json(json!({
            "version": env!("CARGO_PKG_VERSION"),
            "uptime_seconds": state.metrics.uptime().as_secs(),
            "process": { "memory_bytes": residency.process_bytes, "available_bytes": residency.available_bytes },
            "residency": {
                "budget_bytes": residency.budget_bytes,
                "used_bytes": residency.used_bytes,
                "loads": residency.loads,
                "failed_loads": residency.failed_loads,
                "evictions": residency.evictions,
                "idle_unloads": residency.idle_unloads,
            },
            "models": models,
            "speech": state.speech.as_ref().map(|speech| speech_json(speech)),
        })))
    })
    .await
}

/// Everything in Prometheus' text format.
pub(super) async fn metrics(State(state): State<Arc<ApiState>>) -> Result<Response, ApiError> {
    let text = off_the_executor(move || {
        let (models, residency) = (state.provider.loaded(), state.provider.residency());
        let speech = state.speech.as_ref().map(|speech| (speech.statuses(), speech.sessions.count()));
        let (speech, sessions) = speech.unwrap_or_default();
        state.metrics.text(&models, &residency, &speech, sessions).map_err(|_| ApiError::Metrics)
    })
    .await?;
    let kind = HeaderValue::from_static(CONTENT_TYPE);
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

fn model_json(state: &ApiState, card: &LoadedCard) -> Value {
    let engine = &card.model.engine;
    let status = engine.status();
    let cache = engine.cache_status();
    let Rates { prefill, decode } = state.metrics.rates(&card.model.id);
    json!({
        "id": card.model.id,
        "state": card.residency.state.name(),
        "health": health_json(&status.health),
        "pinned": card.residency.pinned,
        "memory_bytes": card.residency.memory_bytes,
        "idle_seconds": card.residency.idle_for.as_secs(),
        "batch": {
            "active": status.active,
            "max_active": engine.options().max_concurrent,
            "queued": status.queued,
            "max_queued": engine.options().queue_limit,
        },
        "requests": requests_json(&status),
        "tokens": { "prompt": status.prompt_tokens, "generated": status.generated_tokens },
        "tokens_per_second": { "prefill": tenths(prefill), "decode": tenths(decode), "window_seconds": 10 },
        "context_length": engine.context_length(),
        "kv": {
            "used_tokens": status.kv.used_tokens,
            "capacity_tokens": status.kv.capacity_tokens,
            "bytes": status.kv.bytes,
        },
        "prompt_cache": cache_json(&cache),
        "ssd_cache": cache.disk.as_ref().map(disk_json),
    })
}

fn speech_json(speech: &SpeechManager) -> Value {
    let model = |(id, status): &(String, SpeechStatus)| {
        json!({
            "id": id,
            "loaded": status.loaded,
            "pinned": status.pinned,
            "queued": status.queued,
            "busy": status.busy,
            "loads": status.loads,
            "unloads": status.unloads,
            "last_load_ms": tenths(status.last_load.as_secs_f64() * 1000.0),
            "windows": {
                "taken": status.requests,
                "finished": status.finished,
                "cancelled": status.cancelled,
                "failed": status.failed,
            },
            "audio_seconds": tenths(status.audio_seconds),
            "busy_seconds": tenths(status.busy_seconds),
            "problem": status.problem,
        })
    };
    json!({
        "sessions": speech.sessions.count(),
        "max_sessions": MOST_SESSIONS,
        "models": speech.statuses().iter().map(model).collect::<Vec<_>>(),
    })
}

fn requests_json(status: &EngineStatus) -> Value {
    json!({
        "taken": status.requests,
        "finished": status.finished,
        "cancelled": status.cancelled,
        "failed": status.failed,
    })
}

fn health_json(health: &EngineHealth) -> Value {
    match health {
        EngineHealth::Serving => json!({ "status": "ok" }),
        EngineHealth::Failing { consecutive, last } => {
            json!({ "status": "failing", "failed_steps": consecutive, "problem": last })
        }
        EngineHealth::Gone(reason) => json!({ "status": "down", "problem": reason }),
    }
}

fn cache_json(cache: &CacheStatus) -> Value {
    let ram = &cache.ram;
    json!({
        "entries": ram.entries,
        "tokens": ram.tokens,
        "bytes": ram.bytes,
        "max_bytes": ram.max_bytes,
        "hits": ram.hits,
        "misses": ram.misses,
        "hit_tokens": ram.hit_tokens,
        "evictions": ram.evictions,
        "sessions": cache.sessions,
        "session_hits": ram.session_hits,
        "session_misses": ram.session_misses,
        "prefix_scans": ram.prefix_scans,
    })
}

/// `state` is `ready`, or `degraded` with the problem and what to do: answers go on from memory alone then.
fn disk_json(disk: &DiskCacheStatus) -> Value {
    json!({
        "state": if disk.degraded.is_some() { "degraded" } else { "ready" },
        "problem": disk.degraded,
        "dir": disk.folder,
        "entries": disk.entries,
        "bytes": disk.bytes,
        "max_bytes": disk.max_bytes,
        "restores": disk.restores,
        "restore_ms_last": tenths(disk.last_restore.as_secs_f64() * 1000.0),
        "spills": disk.spills,
        "discarded": disk.discarded,
        "pending_snapshots": disk.pending_snapshots,
        "pending_spills": disk.pending_spills,
        "pending_spill_bytes": disk.pending_spill_bytes,
        "dropped_spills": disk.dropped_spills,
        "failed_spills": disk.failed_spills,
        "longest_durable_prefix_tokens": disk.longest_durable_prefix_tokens,
    })
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
