//! May a model be loaded now, and which others must go first: functions of sizes and times.

use std::fmt;
use std::time::Duration;

use crate::quote::bytes_text;

/// What keeps a model in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Nothing; it may go.
    Idle,
    /// Requests that run or wait, or it is on its way in or out. It may go later.
    Busy,
    /// The user. It stays.
    Pinned,
}

/// A model in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resident {
    /// Its name.
    pub id: String,
    /// Bytes that it takes and has been promised.
    pub bytes: u64,
    /// What keeps it.
    pub usage: Use,
    /// How long nobody has used it.
    pub idle_for: Duration,
}

/// The memory that models share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryState {
    /// Bytes that models may take in all.
    pub budget: u64,
    /// Bytes that this process takes, as measured; `None` where that cannot be.
    pub process: Option<u64>,
    /// Bytes that the machine could still give; `None` where it does not say.
    pub available: Option<u64>,
}

impl MemoryState {
    /// Bytes that a further model may take beside `residents`.
    ///
    /// What models were promised counts even while they have not taken it, and what the process really took counts even
    /// where nobody promised it.
    #[must_use]
    pub fn free(&self, residents: &[Resident]) -> u64 {
        let promised = residents.iter().fold(0u64, |sum, resident| sum.saturating_add(resident.bytes));
        let used = promised.max(self.process.unwrap_or(0));
        self.budget.saturating_sub(used).min(self.available.unwrap_or(u64::MAX))
    }
}

/// What to do about a model that is to be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoadDecision {
    /// Load it: there is room.
    Load,
    /// Unload these first, then ask again.
    Unload(Vec<String>),
    /// Requests that run hold the room; ask again when one has ended.
    Wait(Shortage),
    /// It cannot be loaded beside what must stay.
    Refuse(Shortage),
}

/// Why there is no room, in figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    /// Bytes that the model needs.
    pub needed: u64,
    /// Bytes that are free.
    pub free: u64,
    /// Bytes that models may take in all.
    pub budget: u64,
    /// What is in memory.
    pub residents: Vec<Resident>,
}

/// Whether a model of `needed` bytes may be loaded beside `residents`.
///
/// Models that nobody uses go first, the longest unused before the others, and no more of them than make room.
#[must_use]
pub fn decide_load(needed: u64, memory: MemoryState, residents: &[Resident]) -> LoadDecision {
    let free = memory.free(residents);
    if needed <= free {
        return LoadDecision::Load;
    }
    let missing = needed - free;
    let of = |usage: Use| residents.iter().filter(move |resident| resident.usage == usage);
    let mut idle: Vec<&Resident> = of(Use::Idle).collect();
    idle.sort_by_key(|resident| std::cmp::Reverse(resident.idle_for));
    if let Some(chosen) = fewest(&idle, missing) {
        return LoadDecision::Unload(chosen);
    }
    let later = of(Use::Idle).chain(of(Use::Busy)).fold(0u64, |sum, resident| sum.saturating_add(resident.bytes));
    let shortage = Shortage { needed, free, budget: memory.budget, residents: residents.to_vec() };
    // The budget bounds what can ever be free, whatever the figures of single models add up to.
    if later >= missing && needed <= memory.budget && of(Use::Busy).next().is_some() {
        LoadDecision::Wait(shortage)
    } else {
        LoadDecision::Refuse(shortage)
    }
}

/// The longest unused models that together free `missing` bytes, without those that are not needed for it; `None` if all
/// of them are not enough.
fn fewest(idle: &[&Resident], missing: u64) -> Option<Vec<String>> {
    let mut freed = 0u64;
    let mut chosen = Vec::new();
    for resident in idle {
        if freed >= missing {
            break;
        }
        freed = freed.saturating_add(resident.bytes);
        chosen.push(*resident);
    }
    if freed < missing {
        return None;
    }
    // A small model that was taken before a large one may stay after all; the most recently used first.
    for index in (0..chosen.len()).rev() {
        let without = freed - chosen[index].bytes;
        if without >= missing {
            freed = without;
            chosen.remove(index);
        }
    }
    Some(chosen.into_iter().map(|resident| resident.id.clone()).collect())
}

/// The models that nobody has used for `limit`, and when to look again; `None`: when something changes.
#[must_use]
pub fn next_idle_unload(residents: &[Resident], limit: Duration) -> (Vec<String>, Option<Duration>) {
    let idle = || residents.iter().filter(|resident| resident.usage == Use::Idle);
    let due = idle().filter(|resident| resident.idle_for >= limit).map(|resident| resident.id.clone()).collect();
    let waiting = idle().filter(|resident| resident.idle_for < limit).map(|resident| limit - resident.idle_for);
    (due, waiting.min())
}

impl fmt::Display for Shortage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { needed, free, budget, residents } = self;
        write!(
            formatter,
            "it needs {}, and {} of the {} for models are free",
            bytes_text(*needed),
            bytes_text(*free),
            bytes_text(*budget)
        )?;
        for (index, resident) in residents.iter().enumerate() {
            let lead = if index == 0 { "; in memory: " } else { ", " };
            let usage = match resident.usage {
                Use::Idle => "idle",
                Use::Busy => "in use",
                Use::Pinned => "pinned",
            };
            write!(formatter, "{lead}{} ({}, {usage})", resident.id, bytes_text(resident.bytes))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    fn resident(id: &str, gigabytes: u64, usage: Use, idle_seconds: u64) -> Resident {
        Resident { id: id.into(), bytes: gigabytes * GB, usage, idle_for: Duration::from_secs(idle_seconds) }
    }

    fn memory(budget: u64) -> MemoryState {
        MemoryState { budget: budget * GB, process: None, available: None }
    }

    /// The decision in a word, with the models to unload.
    fn decided(needed: u64, memory: MemoryState, residents: &[Resident]) -> String {
        match decide_load(needed * GB, memory, residents) {
            LoadDecision::Load => "load".into(),
            LoadDecision::Unload(ids) => format!("unload {}", ids.join(" ")),
            LoadDecision::Wait(_) => "wait".into(),
            LoadDecision::Refuse(_) => "refuse".into(),
        }
    }

    #[test]
    fn a_model_is_loaded_waits_or_is_refused_by_what_could_be_free() {
        use Use::{Busy, Idle, Pinned};
        type Shelf = &'static [(&'static str, u64, Use, u64)];
        let cases: [(&str, u64, u64, Shelf, &str); 13] = [
            ("room beside others", 4, 16, &[("a", 8, Busy, 0)], "load"),
            ("exactly full", 8, 16, &[("a", 8, Busy, 0)], "load"),
            ("an idle one makes room", 9, 16, &[("a", 8, Idle, 5)], "unload a"),
            ("the longest unused goes", 9, 16, &[("a", 4, Idle, 5), ("b", 4, Idle, 50)], "unload b"),
            ("both have to go", 16, 16, &[("a", 4, Idle, 5), ("b", 4, Idle, 50)], "unload b a"),
            ("the small one would not have helped", 9, 16, &[("a", 8, Idle, 5), ("b", 1, Idle, 50)], "unload a"),
            ("a busy one will be free", 9, 16, &[("a", 8, Busy, 0)], "wait"),
            ("idle ones stay while they do not suffice", 12, 16, &[("a", 8, Busy, 0), ("b", 4, Idle, 9)], "wait"),
            ("a pinned one stays", 9, 16, &[("a", 8, Pinned, 500)], "refuse"),
            ("pinned beside idle", 9, 16, &[("a", 4, Pinned, 500), ("b", 4, Idle, 1)], "unload b"),
            ("too large for the machine", 17, 16, &[], "refuse"),
            ("too large even if all went", 17, 16, &[("a", 8, Busy, 0), ("b", 8, Idle, 0)], "refuse"),
            ("nothing there", 16, 16, &[], "load"),
        ];
        for (name, needed, budget, residents, expected) in cases {
            let residents: Vec<Resident> =
                residents.iter().map(|&(id, size, usage, idle)| resident(id, size, usage, idle)).collect();
            assert_eq!(decided(needed, memory(budget), &residents), expected, "{name}");
        }
    }

    #[test]
    fn what_was_measured_counts_where_it_is_more_than_what_was_promised() {
        let residents = [resident("a", 4, Use::Idle, 9)];
        let state = |process: Option<u64>, available: Option<u64>| MemoryState {
            budget: 16 * GB,
            process: process.map(|bytes| bytes * GB),
            available: available.map(|bytes| bytes * GB),
        };
        for (process, available, free) in [
            (None, None, 12),
            // Promised conversations that were not had yet still count.
            (Some(2), None, 12),
            (Some(10), None, 6),
            (Some(20), None, 0),
            // Other programs have the rest.
            (None, Some(5), 5),
            (Some(10), Some(5), 5),
        ] {
            assert_eq!(state(process, available).free(&residents), free * GB, "{process:?} {available:?}");
        }
        assert_eq!(decided(8, state(Some(10), None), &residents), "unload a");
        assert_eq!(decided(8, state(None, Some(5)), &residents), "unload a");
        // Unloading would not give as much as is missing.
        assert_eq!(decided(12, state(Some(14), None), &residents), "refuse");
    }

    #[test]
    fn waiting_needs_somebody_to_wait_for() {
        // More idle memory than the figures of the process explain must not end in a wait that nothing ends.
        let state = MemoryState { budget: 8 * GB, process: Some(8 * GB), available: None };
        assert_eq!(decided(4, state, &[]), "refuse");
        assert_eq!(decided(4, state, &[resident("a", 2, Use::Idle, 1)]), "refuse");
        assert_eq!(decided(9, state, &[resident("a", 9, Use::Busy, 1)]), "refuse");
    }

    #[test]
    fn idle_models_go_after_their_time_and_others_never() {
        let minute = Duration::from_secs(60);
        let residents = [
            resident("young", 1, Use::Idle, 10),
            resident("due", 1, Use::Idle, 60),
            resident("overdue", 1, Use::Idle, 600),
            resident("busy", 1, Use::Busy, 600),
            resident("pinned", 1, Use::Pinned, 600),
        ];
        let (due, next) = next_idle_unload(&residents, minute);
        assert_eq!(due, ["due", "overdue"]);
        assert_eq!(next, Some(Duration::from_secs(50)));
        assert_eq!(next_idle_unload(&residents[3..], minute), (vec![], None));
        assert_eq!(next_idle_unload(&[], minute), (vec![], None));
    }

    #[test]
    fn a_refusal_gives_every_figure() {
        let residents = [resident("a", 8, Use::Pinned, 0), resident("b", 2, Use::Idle, 3)];
        let LoadDecision::Refuse(shortage) = decide_load(30 * GB, memory(16), &residents) else {
            panic!("not refused")
        };
        assert_eq!(
            shortage.to_string(),
            "it needs 30.0 GB, and 6.0 GB of the 16.0 GB for models are free; in memory: a (8.0 GB, pinned), b (2.0 GB, \
             idle)"
        );
    }
}
