//! How the prompts of a step share its tokens.

/// A prompt, or the rest of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Prompt {
    /// Index of the request.
    pub(super) sequence: usize,
    /// Its tokens that can be processed now.
    pub(super) rest: usize,
    /// Whether others go first.
    pub(super) yields: bool,
}

/// The part of the budget that the oldest prompt gets whatever comes after it.
const OLDEST: usize = 4;
/// The part that prompts which yield get together beside those that do not.
const YIELDING: usize = 8;

/// Gives each of the prompts, oldest first, a part of `budget` tokens; the result has their order.
///
/// The shortest rest goes first, because the mean time to a first token is least then, and a short question is not kept
/// waiting by a long document. The oldest keeps a quarter, so that a stream of short ones cannot hold it up for ever.
/// Prompts that yield get what the others leave, but an eighth at least.
pub(super) fn share(prompts: &[Prompt], budget: usize) -> Vec<usize> {
    let mut parts = vec![0; prompts.len()];
    let mut left = budget;
    let of_kind = |yields: bool| (0..prompts.len()).filter(move |&index| prompts[index].yields == yields);
    let (urgent, yielding): (Vec<usize>, Vec<usize>) = (of_kind(false).collect(), of_kind(true).collect());
    let set_aside = if urgent.is_empty() || yielding.is_empty() {
        0
    } else {
        let rest = yielding.iter().fold(0usize, |sum, &index| sum.saturating_add(prompts[index].rest));
        (budget / YIELDING).max(1).min(rest).min(budget.saturating_sub(1))
    };
    for (members, budget) in [(urgent, budget - set_aside), (yielding, budget)] {
        let mut mine = left.min(budget);
        let Some(&oldest) = members.first() else { continue };
        let mut give = |index: usize, most: usize| {
            let part = (prompts[index].rest - parts[index]).min(most).min(mine);
            parts[index] += part;
            mine -= part;
            left -= part;
        };
        if members.len() > 1 {
            give(oldest, (budget / OLDEST).max(1));
        }
        let mut shortest = members;
        shortest.sort_by_key(|&index| prompts[index].rest);
        for index in shortest {
            give(index, usize::MAX);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(rests: &[(usize, bool)], budget: usize) -> Vec<usize> {
        let prompts: Vec<Prompt> =
            rests.iter().enumerate().map(|(sequence, &(rest, yields))| Prompt { sequence, rest, yields }).collect();
        share(&prompts, budget)
    }

    #[test]
    fn a_prompt_alone_gets_all() {
        assert_eq!(parts(&[(1000, false)], 128), [128]);
        assert_eq!(parts(&[(1000, true)], 128), [128]);
        assert_eq!(parts(&[(10, false)], 128), [10]);
        assert!(parts(&[], 128).is_empty());
    }

    #[test]
    fn a_short_prompt_behind_a_long_one_is_done_at_once() {
        assert_eq!(parts(&[(4000, false), (60, false)], 128), [68, 60]);
        assert_eq!(parts(&[(4000, false), (200, false), (30, false)], 128), [32, 66, 30]);
    }

    #[test]
    fn equal_prompts_go_one_after_the_other() {
        assert_eq!(parts(&[(500, false), (500, false), (500, false)], 128), [128, 0, 0]);
    }

    #[test]
    fn the_oldest_keeps_its_part_of_a_flood() {
        let flood: Vec<(usize, bool)> = std::iter::once((4000, false)).chain((0..20).map(|_| (50, false))).collect();
        assert_eq!(parts(&flood, 128)[0], 32);
    }

    #[test]
    fn what_yields_gets_the_rest_but_never_nothing() {
        assert_eq!(parts(&[(4000, true), (4000, false)], 128), [16, 112]);
        assert_eq!(parts(&[(4000, true), (40, false)], 128), [88, 40]);
        assert_eq!(parts(&[(5, true), (4000, false)], 128), [5, 123]);
        assert_eq!(parts(&[(4000, true), (4000, false)], 2), [1, 1]);
        assert_eq!(parts(&[(4000, true), (4000, false)], 1), [0, 1]);
    }

    #[test]
    fn nothing_is_given_twice_and_nothing_is_wasted() {
        use rand::{Rng, SeedableRng};
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(11);
        for _ in 0..2000 {
            let rests: Vec<(usize, bool)> =
                (0..random.random_range(1..9)).map(|_| (random.random_range(1..300), random.random())).collect();
            let budget = random.random_range(1..200);
            let parts = parts(&rests, budget);
            let all: usize = rests.iter().map(|rest| rest.0).sum();
            assert_eq!(parts.iter().sum::<usize>(), budget.min(all), "{rests:?} {budget} {parts:?}");
            assert!(parts.iter().zip(&rests).all(|(part, rest)| *part <= rest.0));
        }
    }
}
