//! The open sessions of a server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::live::LiveSession;
use crate::error::ApiError;

/// Sessions that may be open at once.
pub(crate) const MOST_SESSIONS: usize = 64;

/// Sessions by their ids; those that nobody touches for a while are forgotten.
#[derive(Debug)]
pub(crate) struct Sessions {
    idle: Duration,
    open: Mutex<HashMap<String, Entry>>,
}

#[derive(Debug)]
struct Entry {
    session: Arc<LiveSession>,
    touched: Instant,
}

impl Sessions {
    pub(super) fn new(idle: Duration) -> Self {
        Self { idle, open: Mutex::default() }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, entry| entry.touched.elapsed() < self.idle || entry.session.is_watched());
        open
    }

    /// How many are open.
    pub(crate) fn count(&self) -> usize {
        self.open().len()
    }

    /// Whether one more may be opened.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        if self.open().len() < MOST_SESSIONS { Ok(()) } else { Err(ApiError::TooManySessions { limit: MOST_SESSIONS }) }
    }

    /// Keeps a session.
    pub(crate) fn insert(self: &Arc<Self>, session: &Arc<LiveSession>) -> Result<(), ApiError> {
        let mut open = self.open();
        if open.len() >= MOST_SESSIONS {
            return Err(ApiError::TooManySessions { limit: MOST_SESSIONS });
        }
        let is_first = open.is_empty();
        open.insert(session.id().to_owned(), Entry { session: Arc::clone(session), touched: Instant::now() });
        drop(open);
        if is_first {
            tokio::spawn(forget_idle(Arc::downgrade(self), self.idle));
        }
        Ok(())
    }

    /// The session of that id.
    pub(crate) fn get(&self, id: &str) -> Result<Arc<LiveSession>, ApiError> {
        let mut open = self.open();
        let entry = open.get_mut(id).ok_or_else(|| ApiError::session_not_found(id))?;
        entry.touched = Instant::now();
        Ok(Arc::clone(&entry.session))
    }

    /// Forgets a session.
    pub(crate) fn remove(&self, id: &str) -> Result<(), ApiError> {
        self.open().remove(id).map(drop).ok_or_else(|| ApiError::session_not_found(id))
    }
}

/// Forgets sessions whose time is up while there are any: each keeps its model in memory.
async fn forget_idle(sessions: std::sync::Weak<Sessions>, idle: Duration) {
    loop {
        tokio::time::sleep((idle / 4).max(Duration::from_millis(10))).await;
        let Some(sessions) = sessions.upgrade() else { return };
        if sessions.open().is_empty() {
            return;
        }
    }
}
