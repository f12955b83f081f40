//! What all routes share.

use std::sync::Arc;

use tokio::sync::watch;

use crate::metrics::Metrics;
use crate::options::ServerOptions;
use crate::provider::ModelProvider;

/// A server's options, its models, and the signal that ends running answers.
pub struct ApiState {
    /// How the server behaves.
    pub options: ServerOptions,
    /// Where its models come from.
    pub provider: Arc<dyn ModelProvider>,
    pub(crate) metrics: Metrics,
    cut_off: watch::Sender<bool>,
}

impl ApiState {
    /// The state of a server that has not started yet.
    pub fn new(options: ServerOptions, provider: Arc<dyn ModelProvider>) -> Arc<Self> {
        Arc::new(Self { options, provider, metrics: Metrics::new(), cut_off: watch::Sender::new(false) })
    }

    /// Ends all running answers with an error event, and refuses what comes later likewise.
    pub fn end_answers(&self) {
        self.cut_off.send_replace(true);
    }

    /// Becomes true when answers must end.
    pub(crate) fn cut_off(&self) -> watch::Receiver<bool> {
        self.cut_off.subscribe()
    }
}
