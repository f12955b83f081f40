//! When a client that finds the queue full should come back.

use std::time::Duration;

/// What is said before anything is known.
const SHORTEST: Duration = Duration::from_secs(1);
/// Longer than this nobody waits; the figures are too old by then.
const LONGEST: Duration = Duration::from_secs(60);

/// When a place in a full queue is likely to be free for a client, from what runs.
///
/// Each request that ends frees one place. A request of the age `a` is expected to end when it has run as long as others
/// usually do (`usual`), and one that has run longer to take half of its age again. The first client that is turned away is
/// told when the first of those that run should end, the next one when the second should, and so on (`turned_away` were
/// told before), so that they do not all come back for the same place.
pub(super) fn retry_after(usual: Option<Duration>, ages: &[Duration], turned_away: usize) -> Duration {
    let mut ends: Vec<Duration> =
        ages.iter().map(|&age| usual.and_then(|usual| usual.checked_sub(age)).unwrap_or(age / 2)).collect();
    ends.sort_unstable();
    let Some(place) = turned_away.checked_rem(ends.len()) else { return SHORTEST };
    // When all of those that run have ended, as many others follow them.
    let rounds = u32::try_from(turned_away / ends.len()).unwrap_or(u32::MAX);
    let round = usual.or_else(|| ages.iter().max().copied()).unwrap_or_default();
    ends[place].saturating_add(round.saturating_mul(rounds)).clamp(SHORTEST, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_comes_back_when_its_place_should_be_free() {
        /// What, the usual time, ages, refusals before, and the time told.
        type Case = (&'static str, Option<u64>, &'static [u64], usize, u64);
        let cases: [Case; 10] = [
            ("the next to end", Some(10), &[2, 7, 4], 0, 3),
            ("the second client waits for the second", Some(10), &[2, 7, 4], 1, 6),
            ("and the third for the third", Some(10), &[2, 7, 4], 2, 8),
            ("then for the next round", Some(10), &[2, 7, 4], 3, 13),
            ("an overdue one takes half of its age again", Some(10), &[20, 1], 0, 9),
            ("only overdue ones", Some(10), &[20, 30], 0, 10),
            ("nothing ended yet", None, &[8, 30], 0, 4),
            ("never below a second", Some(10), &[10], 0, 1),
            ("never above a minute", Some(600), &[1], 0, 60),
            ("nothing runs", Some(10), &[], 5, 1),
        ];
        for (name, usual, ages, turned_away, expected) in cases {
            let ages: Vec<Duration> = ages.iter().copied().map(Duration::from_secs).collect();
            let told = retry_after(usual.map(Duration::from_secs), &ages, turned_away);
            assert_eq!(told, Duration::from_secs(expected), "{name}");
        }
        assert_eq!(retry_after(Some(Duration::MAX), &[Duration::MAX], usize::MAX), LONGEST);
    }
}
