//! The registry of routes: adding one means one file beside this one and one line here.

mod admin_cache;
mod admin_models;
mod audio_sessions;
mod audio_stream;
mod audio_transcriptions;
mod chat_completions;
mod completions;
mod health;
mod models;
mod stats;

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Request};
use axum::routing::{MethodRouter, get, post};
use axum::{Router, middleware};

use crate::error::ApiError;
use crate::quote::shortened;
use crate::state::ApiState;
use crate::{guard, request_id};

type Handlers = MethodRouter<Arc<ApiState>>;

/// Every route: method, path as people write it, path as the router takes it, handler.
fn routes() -> [(&'static str, &'static str, &'static str, Handlers); 21] {
    [
        ("GET", "/health", "/health", get(health::health)),
        ("GET", "/stats", "/stats", get(stats::stats)),
        ("GET", "/metrics", "/metrics", get(stats::metrics)),
        ("GET", "/v1/models", "/v1/models", get(models::list)),
        // Names may hold slashes, as on the Hugging Face hub.
        ("GET", "/v1/models/{id}", "/v1/models/{*id}", get(models::retrieve)),
        ("POST", "/v1/chat/completions", "/v1/chat/completions", post(chat_completions::create)),
        ("POST", "/v1/completions", "/v1/completions", post(completions::create)),
        (
            "POST",
            "/v1/audio/transcriptions",
            "/v1/audio/transcriptions",
            post(audio_transcriptions::transcribe).layer(DefaultBodyLimit::disable()),
        ),
        (
            "POST",
            "/v1/audio/translations",
            "/v1/audio/translations",
            post(audio_transcriptions::translate).layer(DefaultBodyLimit::disable()),
        ),
        ("POST", "/v1/audio/sessions", "/v1/audio/sessions", post(audio_sessions::open)),
        (
            "GET",
            "/v1/audio/sessions/{id}",
            "/v1/audio/sessions/{id}",
            get(audio_sessions::show).delete(audio_sessions::close),
        ),
        ("POST", "/v1/audio/sessions/{id}/audio", "/v1/audio/sessions/{id}/audio", post(audio_sessions::push)),
        ("POST", "/v1/audio/sessions/{id}/finish", "/v1/audio/sessions/{id}/finish", post(audio_sessions::finish)),
        ("GET", "/v1/audio/sessions/{id}/stream", "/v1/audio/sessions/{id}/stream", get(audio_stream::join)),
        ("GET", "/v1/audio/stream", "/v1/audio/stream", get(audio_stream::open)),
        ("POST", "/admin/models/load", "/admin/models/load", post(admin_models::load)),
        ("POST", "/admin/models/unload", "/admin/models/unload", post(admin_models::unload)),
        ("POST", "/admin/models/pin", "/admin/models/pin", post(admin_models::pin)),
        ("POST", "/admin/cache/flush", "/admin/cache/flush", post(admin_cache::flush)),
        ("POST", "/admin/cache/clear", "/admin/cache/clear", post(admin_cache::clear)),
        ("POST", "/admin/cache/session/close", "/admin/cache/session/close", post(admin_cache::close_session)),
    ]
}

/// The whole HTTP surface, guards included.
pub fn router(state: Arc<ApiState>) -> Router {
    let mut router = Router::new();
    for (_, _, path, handlers) in routes() {
        router = router.route(path, handlers);
    }
    router
        .fallback(unknown_route)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(Arc::clone(&state), guard::guard))
        .layer(middleware::from_fn_with_state(Arc::clone(&state), request_id::observe))
        .with_state(state)
}

async fn unknown_route(request: Request) -> ApiError {
    let routes: Vec<String> = routes().iter().map(|(method, path, _, _)| format!("{method} {path}")).collect();
    ApiError::UnknownRoute {
        method: shortened(request.method().as_str()),
        path: shortened(request.uri().path()),
        routes: routes.join(", "),
    }
}

async fn method_not_allowed(request: Request) -> ApiError {
    ApiError::MethodNotAllowed { method: shortened(request.method().as_str()), path: shortened(request.uri().path()) }
}
