//! Serving on a socket, and stopping in good order.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::routes::router;
use crate::state::ApiState;

/// How long connections get to send their last event after the answers were ended.
const FAREWELL: Duration = Duration::from_secs(2);

/// Serves until `shutdown` completes. Then no new connection is taken, running answers may go on for
/// `shutdown_grace`, and what still runs after that ends with an error event.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    state: Arc<ApiState>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let (asked, mut was_asked) = watch::channel(false);
    let stop = async move {
        shutdown.await;
        asked.send_replace(true);
    };
    // Tokens are small packets; waiting to fill one would show as stutter.
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!("TCP_NODELAY is not available: {error}");
        }
    });
    let grace = state.options.shutdown_grace;
    let server = axum::serve(listener, router(Arc::clone(&state))).with_graceful_shutdown(stop);
    let patience = async {
        if was_asked.wait_for(|asked| *asked).await.is_err() {
            // The server ended by itself.
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(grace).await;
        state.end_answers();
        tokio::time::sleep(FAREWELL).await;
    };
    tokio::select! {
        result = server => result,
        () = patience => {
            tracing::warn!("some connections did not end; closing them");
            Ok(())
        }
    }
}
