//! `POST /admin/cache/flush`, `/clear` and `/session/close`: what is kept of prompts and answers.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use linnet_runtime::CacheFlush;
use serde_json::{Value, json};

use crate::body::read_optional_json;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::prompt::off_the_executor;
use crate::provider::ServedModel;
use crate::state::ApiState;

/// Writes everything that is kept to the disk: 200 when all of it would survive a restart, else 503 with the same fields.
pub(super) async fn flush(
    State(state): State<Arc<ApiState>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let started = Instant::now();
    let models = named_models(&state, &headers, body).await?.0;
    let flushes = off_the_executor(move || {
        Ok(models.iter().map(|model| (model.id.clone(), model.engine.flush_cache())).collect::<Vec<_>>())
    })
    .await?;
    let total = CacheFlush { elapsed: started.elapsed(), ..sum(flushes.iter().map(|(_, flush)| flush)) };
    let mut answer = flush_json(&total);
    answer["models"] = flushes.iter().map(|(id, flush)| (id.clone(), flush_json(flush))).collect();
    let status = if total.durable { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Ok((status, Json(answer)).into_response())
}

/// Gives up everything that is kept in memory. What is on the disk stays there.
pub(super) async fn clear(
    State(state): State<Arc<ApiState>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let models = named_models(&state, &headers, body).await?.0;
    let cleared = off_the_executor(move || {
        models.iter().for_each(|model| model.engine.clear_cache());
        Ok(models.iter().map(|model| model.id.clone()).collect::<Vec<_>>())
    })
    .await?;
    Ok(Json(json!({ "cleared": cleared })))
}

/// Forgets a session's name. What was kept of it stays until something else needs the room.
pub(super) async fn close_session(
    State(state): State<Arc<ApiState>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let (models, body) = named_models(&state, &headers, body).await?;
    let session = Fields::root(&body)?.optional_text("session_id")?.map(str::to_owned);
    let closed = off_the_executor(move || {
        let Some(session) = session else { return Ok(false) };
        // All of them: a session may have talked to several models.
        Ok(models.iter().fold(false, |closed, model| model.engine.close_session(&session) | closed))
    })
    .await?;
    Ok(Json(json!({ "closed": closed })))
}

/// The models in memory, or the one that the body names if it is there; and the body. Nothing is loaded for this.
async fn named_models(
    state: &ApiState,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Vec<Arc<ServedModel>>, Value), ApiError> {
    let body = read_optional_json(headers, body, state.options.body_limit).await?;
    let name = Fields::root(&body)?.optional_text("model")?;
    let id = match name {
        Some(name) => Some(state.provider.card(name).await?.facts.id),
        None => None,
    };
    let loaded = state.provider.loaded().into_iter().map(|card| card.model);
    let models = loaded.filter(|model| id.as_ref().is_none_or(|id| model.id == *id)).collect();
    Ok((models, body))
}

/// Several engines' flushes as one. They share the disk, so each counts all of what is there and of what the writer has.
fn sum<'a>(flushes: impl Iterator<Item = &'a CacheFlush>) -> CacheFlush {
    let nothing = CacheFlush { durable: true, ..CacheFlush::default() };
    flushes.fold(nothing, |sum, flush| CacheFlush {
        durable: sum.durable && flush.durable,
        flushed_snapshots: sum.flushed_snapshots + flush.flushed_snapshots,
        missing_snapshots: sum.missing_snapshots + flush.missing_snapshots,
        pending_snapshots: sum.pending_snapshots + flush.pending_snapshots,
        pending_spills: sum.pending_spills.max(flush.pending_spills),
        pending_spill_bytes: sum.pending_spill_bytes.max(flush.pending_spill_bytes),
        dropped_spills: sum.dropped_spills.max(flush.dropped_spills),
        failed_spills: sum.failed_spills.max(flush.failed_spills),
        elapsed: sum.elapsed.max(flush.elapsed),
        entries: sum.entries.max(flush.entries),
        longest_durable_prefix_tokens: sum.longest_durable_prefix_tokens.max(flush.longest_durable_prefix_tokens),
    })
}

fn flush_json(flush: &CacheFlush) -> Value {
    json!({
        "durable": flush.durable,
        "flushedSnapshots": flush.flushed_snapshots,
        "missingSnapshots": flush.missing_snapshots,
        "pendingSnapshots": flush.pending_snapshots,
        "pendingSpills": flush.pending_spills,
        "pendingSpillBytes": flush.pending_spill_bytes,
        "droppedSpills": flush.dropped_spills,
        "failedSpills": flush.failed_spills,
        "elapsedMs": flush.elapsed.as_secs_f64() * 1000.0,
        "entries": flush.entries,
        "longest_durable_prefix_tokens": flush.longest_durable_prefix_tokens,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_engine_that_is_not_durable_makes_all_of_them_so() {
        assert!(sum([].into_iter()).durable);
        let good = CacheFlush { durable: true, entries: 3, longest_durable_prefix_tokens: 7, ..CacheFlush::default() };
        let bad = CacheFlush { missing_snapshots: 2, entries: 1, ..CacheFlush::default() };
        let all = sum([&good, &bad, &good].into_iter());
        assert_eq!((all.durable, all.entries, all.missing_snapshots), (false, 3, 2));
        assert_eq!(all.longest_durable_prefix_tokens, 7);
    }
}
