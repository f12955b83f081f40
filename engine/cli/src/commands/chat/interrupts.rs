//! Ctrl-C, from the moment a conversation begins.
//!
//! One watch for the whole conversation: between two answers there are moments in which nobody waits for a signal, and
//! one that comes then must not be lost.

use std::io;
use std::time::Duration;

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};
#[cfg(windows)]
use tokio::signal::windows::{CtrlC, ctrl_c};

/// How long to look for a signal that should be there already.
const GLANCE: Duration = Duration::from_millis(2);

/// Remembers that Ctrl-C was pressed until it is asked for.
pub(crate) struct Interrupts {
    #[cfg(unix)]
    signals: Signal,
    #[cfg(windows)]
    signals: CtrlC,
}

impl Interrupts {
    /// Begins to watch. Must be called within a runtime; from here on Ctrl-C does not end the process any more.
    ///
    /// # Errors
    /// When the system refuses to hand over the signal.
    pub(crate) fn watch() -> io::Result<Self> {
        #[cfg(unix)]
        let signals = signal(SignalKind::interrupt())?;
        #[cfg(windows)]
        let signals = ctrl_c()?;
        Ok(Self { signals })
    }

    /// Completes when Ctrl-C is pressed, at once if it was pressed since the last time.
    pub(crate) async fn next(&mut self) {
        if self.signals.recv().await.is_none() {
            // No more signals can come.
            std::future::pending::<()>().await;
        }
    }

    /// Whether Ctrl-C was pressed since the last time.
    pub(crate) async fn came(&mut self) -> bool {
        tokio::time::timeout(GLANCE, self.next()).await.is_ok()
    }
}
