//! The engine thread's dealings with the prefix cache: what is looked up, waited for, taken over and published.

use super::{
    super::{
        cache::{Cache, Restored},
        plan::{Limits, PlannedRow, StepPlan, View, plan_step},
        sequence::{Found, Restoring, Sequence},
    },
    DISK_WAIT, FLUSH_LIMIT, Worker, guarded,
};
use crate::{CacheStatus, Slot, StepModel, StepModelError};
use std::time::{Duration, Instant};

impl<M: StepModel> Worker<M> {
    pub(super) fn has_disk_work(&self) -> bool {
        self.cache.has_spills() || !self.flushes.is_empty()
    }

    /// Gives the disk some of what it is to keep: little beside a step, more when there is nothing else to do or somebody
    /// waits for it.
    pub(super) fn tend_disk(&mut self) {
        let (is_idle, is_flush) = (self.is_idle(), !self.flushes.is_empty());
        let most = if is_idle || is_flush { 16 } else { 1 };
        self.cache.spill(&mut self.model, most, is_flush);
        let is_through = !self.cache.has_spills();
        self.flushes.retain(|(answer, begun)| {
            let is_over = is_through || begun.elapsed() > FLUSH_LIMIT;
            if is_over {
                self.cache.begin_flush(answer.clone(), *begun, FLUSH_LIMIT);
            }
            !is_over
        });
        if is_idle && self.cache.has_spills() {
            self.cache.wait_for_writer(&self.model, DISK_WAIT);
        }
    }

    /// Takes over what has come from the disk for requests that wait for it. Waits for it a little if `wait` is set.
    pub(super) fn restore(&mut self, wait: bool) {
        let Self { model, cache, sequences, .. } = self;
        let mut wait = if wait { DISK_WAIT } else { Duration::ZERO };
        for sequence in sequences.iter_mut() {
            sequence.restore = match sequence.restore.take() {
                Some(Restoring::Pending(mut restore)) => {
                    let restored = cache.take_restored(model, &mut restore, sequence.tokens(), wait);
                    wait = Duration::ZERO;
                    Some(match restored {
                        Restored::Done => Restoring::Ready(restore),
                        Restored::Pending => Restoring::Pending(restore),
                    })
                }
                other => other,
            };
        }
    }

    pub(super) fn publish_cache_status(&self) {
        if self.cache.is_on() {
            let (ram, sessions) = (self.cache.ram_status(), self.cache.sessions());
            self.inbox.set_cache_status(CacheStatus { ram, sessions, disk: self.cache.disk_status() });
        }
    }

    /// Decides on the next step and sets back who must be. Views and rows are by request.
    pub(super) fn plan(&mut self, now: Instant, limits: &Limits) -> Vec<PlannedRow> {
        self.look_up();
        self.views.clear();
        self.views.extend(self.sequences.iter().map(|sequence| sequence.view(now)));
        if !limits.budget.is_padded {
            for index in 0..self.sequences.len() {
                self.views[index].shared = self.shared_blocks(index) * self.cache.block();
            }
        }
        let takes_part: Vec<usize> =
            (0..self.sequences.len()).filter(|&index| !self.waits_for_another(index)).collect();
        let views: Vec<View> = takes_part.iter().map(|&index| self.views[index]).collect();
        let StepPlan { set_back, rows } = plan_step(&views, limits, &self.costs);
        for index in set_back {
            self.set_back(takes_part[index]);
        }
        rows.into_iter().map(|row| PlannedRow { sequence: takes_part[row.sequence], ..row }).collect()
    }

    /// Looks up what is kept of the requests that have not started.
    pub(super) fn look_up(&mut self) {
        let (cache, model) = (&mut self.cache, &self.model);
        let version = Some(cache.version());
        let stale = |sequence: &&mut Sequence| sequence.slot.is_none() && sequence.found().version != version;
        for sequence in self.sequences.iter_mut().filter(stale) {
            let (prefix, is_session) = cache.look_up(model, sequence.tokens(), sequence.session.as_deref());
            if sequence.restore.is_none() {
                // Asked once: what comes from the disk is found in memory from then on.
                let restore = cache.restore(sequence.tokens(), &prefix);
                sequence.restore = Some(restore.map_or(Restoring::Over, Restoring::Pending));
            }
            sequence.set_found(Found { prefix, is_session, version });
        }
    }

    /// How many of a request's blocks are counted with an older one.
    pub(super) fn shared_blocks(&self, index: usize) -> usize {
        let sequence = &self.sequences[index];
        let older = self.sequences[..index].iter();
        let shared = older.map(|older| match sequence.slot {
            Some(_) => sequence.path.blocks_shared_with(&older.path),
            None => older.path.blocks_of(&sequence.found().prefix.nodes),
        });
        shared.max().unwrap_or(0)
    }

    /// Whether a request does well to wait: for the disk, or because another one is about to compute more of its prompt than
    /// is kept now.
    pub(super) fn waits_for_another(&self, index: usize) -> bool {
        let sequence = &self.sequences[index];
        if matches!(sequence.restore, Some(Restoring::Pending(_))) {
            return true;
        }
        if sequence.slot.is_some() || !self.cache.is_on() {
            return false;
        }
        let (tokens, found) = (sequence.tokens(), sequence.found().prefix.tokens);
        let block = self.cache.block();
        let others = self.sequences.iter().enumerate().filter(|&(other, candidate)| {
            let goes_first = candidate.is_reading() || (other < index && candidate.slot.is_none());
            other != index && goes_first && (self.views[index].yields || !self.views[other].yields)
        });
        others.into_iter().any(|(_, other)| {
            let pairs = tokens[..tokens.len().saturating_sub(1)].iter().zip(other.tokens());
            let common = pairs.take_while(|(own, others)| own == others).count() / block * block;
            common > found && other.tokens_through().len() < common
        })
    }

    /// A request gives its place in the KV store back; what it computed is kept as long as there is room for it.
    pub(super) fn set_back(&mut self, index: usize) {
        let Self { model, cache, sequences, .. } = self;
        leave(cache, model, &mut sequences[index], false);
        if let Some(slot) = self.sequences[index].set_back() {
            self.close(slot);
        }
    }

    /// Publishes what a request has computed.
    pub(super) fn publish(&mut self, index: usize) {
        let Self { model, cache, sequences, .. } = self;
        let sequence = &mut sequences[index];
        if let Some(slot) = sequence.slot {
            let mut path = std::mem::take(&mut sequence.path);
            cache.publish(model, slot, sequence.tokens_through(), &mut path);
            sequence.path = path;
        }
    }

    /// Gives a request a slot that begins with what is kept of its tokens.
    pub(super) fn open(&mut self, index: usize) -> Result<(), StepModelError> {
        // Something may have been given up since it was looked up.
        self.look_up();
        let slot = self.open_slot()?;
        let Self { model, cache, sequences, .. } = self;
        let sequence = &mut sequences[index];
        sequence.slot = Some(slot);
        let mut path = std::mem::take(&mut sequence.path);
        let Found { prefix, is_session, .. } = sequence.found();
        let is_session = sequence.session.as_ref().map(|_| *is_session);
        let adopted = cache.adopt(model, slot, prefix, &mut path).map(|()| prefix.tokens);
        sequence.path = path;
        let tokens = match adopted {
            Ok(tokens) => tokens,
            Err(error) => {
                tracing::warn!(%error, "kept tokens could not be taken over; they are computed again");
                self.sequences[index].slot = None;
                self.close(slot);
                self.sequences[index].slot = Some(self.open_slot()?);
                0
            }
        };
        let Self { model, cache, sequences, .. } = self;
        end_restore(cache, model, &mut sequences[index]);
        if self.sequences[index].adopted(tokens) {
            self.cache.note_start(tokens, is_session);
        }
        Ok(())
    }

    pub(super) fn open_slot(&mut self) -> Result<Slot, StepModelError> {
        let model = &mut self.model;
        guarded(|| model.open())
    }
}

/// Publishes all that a request has computed and lets its blocks go. `is_end`: its session stands there now.
pub(super) fn leave<M: StepModel>(cache: &mut Cache, model: &mut M, sequence: &mut Sequence, is_end: bool) {
    let mut path = std::mem::take(&mut sequence.path);
    if let Some(slot) = sequence.slot {
        let session = sequence.session.as_deref().filter(|_| is_end);
        cache.publish_end(model, slot, sequence.tokens_through(), &mut path, session);
    }
    cache.let_go(model, &mut path);
    end_restore(cache, model, sequence);
}

/// A request has what it needs of the disk, or needs nothing any more.
pub(super) fn end_restore<M: StepModel>(cache: &mut Cache, model: &mut M, sequence: &mut Sequence) {
    if let Some(Restoring::Pending(restore) | Restoring::Ready(restore)) = sequence.restore.replace(Restoring::Over) {
        cache.end_restore(model, restore);
    }
}
