//! The bookkeeping of beam search: which texts go on and which are finished.
//!
//! After `BeamSearchDecoder` of openai/whisper's decoding.py.

use super::{
    decode::{Finished, Hypothesis},
    network::Sequence,
};

/// A text one token longer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Choice {
    parent: usize,
    token: u32,
    sum_logprob: f32,
}

/// The texts of one window.
#[derive(Debug)]
pub(crate) struct Beams {
    size: usize,
    /// How many finished texts are enough.
    enough: usize,
    eot: u32,
    running: Vec<Hypothesis>,
    finished: Vec<Finished>,
}

impl Beams {
    pub(crate) fn new(begun: Hypothesis, size: usize, patience: f32, eot: u32) -> Self {
        let enough = ((size as f32 * patience).round() as usize).max(1);
        Self { size, enough, eot, running: vec![begun], finished: Vec::new() }
    }

    /// The texts that go on, likeliest first.
    pub(crate) fn running(&self) -> &[Hypothesis] {
        &self.running
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.finished.len() >= self.enough
    }

    /// Looks at the next token of every running text: `lines` are their logits, `sums` the logarithms of what the
    /// probabilities are divided by. Notes the texts that end here and gives those that may go on, likeliest first.
    pub(crate) fn choose(&mut self, lines: &[f32], sums: &[f32], n_vocab: usize) -> Vec<Choice> {
        let mut choices = Vec::with_capacity(self.running.len() * (self.size + 1));
        for (parent, ((line, sum), text)) in lines.chunks_exact(n_vocab).zip(sums).zip(&self.running).enumerate() {
            choices.extend(largest(line, self.size + 1).into_iter().map(|(token, logit)| Choice {
                parent,
                token,
                sum_logprob: text.sum_logprob + (logit - sum),
            }));
        }
        choices.sort_by(|a, b| b.sum_logprob.total_cmp(&a.sum_logprob));
        let mut plan = Vec::with_capacity(self.size);
        for choice in choices {
            if choice.token != self.eot {
                plan.push(choice);
                if plan.len() == self.size {
                    break;
                }
            } else if !self.is_complete() {
                let tokens = self.running[choice.parent].tokens.clone();
                self.finished.push(Finished { tokens, sum_logprob: choice.sum_logprob });
            }
        }
        plan
    }

    /// Goes on with the texts chosen. The first child of a text takes its sequence over, each further one a new one that
    /// `fork` makes; where it makes none, the text goes on without one. Gives the sequences in use.
    pub(crate) fn take(
        &mut self,
        plan: Vec<Choice>,
        mut fork: impl FnMut(Sequence) -> Option<Sequence>,
    ) -> Vec<Sequence> {
        let mut is_taken = vec![false; self.running.len()];
        let mut children = Vec::with_capacity(plan.len());
        for Choice { parent, token, sum_logprob } in plan {
            let of = &self.running[parent];
            let sequence = if std::mem::replace(&mut is_taken[parent], true) {
                fork(of.sequence).unwrap_or(of.sequence)
            } else {
                of.sequence
            };
            let tokens = of.tokens.iter().copied().chain([token]).collect();
            children.push(Hypothesis { sequence, tokens, sum_logprob });
        }
        self.running = children;
        self.running.iter().map(|text| text.sequence).collect()
    }

    /// The finished texts; where they are too few, the likeliest running ones count as finished.
    pub(crate) fn finish(mut self) -> Vec<Finished> {
        for text in self.running {
            if self.finished.len() >= self.size {
                break;
            }
            self.finished.push(Finished { tokens: text.tokens, sum_logprob: text.sum_logprob });
        }
        self.finished
    }
}

/// The `count` largest of a line that are possible at all, the largest first; of equal ones the lower ids.
fn largest(line: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
    let mut least = f32::NEG_INFINITY;
    // Whole chunks that have nothing larger are passed over, which vector registers do.
    for (chunk, values) in line.chunks(CHUNK).enumerate() {
        if !values.iter().fold(false, |found, &value| found | (value > least)) {
            continue;
        }
        for (index, &value) in values.iter().enumerate() {
            if value > least {
                let place = best.partition_point(|&(_, other)| other >= value);
                best.insert(place, ((chunk * CHUNK + index) as u32, value));
                if best.len() > count {
                    best.pop();
                }
                if best.len() == count {
                    least = best[count - 1].1;
                }
            }
        }
    }
    best
}

/// Elements looked at together.
const CHUNK: usize = 64;

#[cfg(test)]
mod tests {
    use super::{Beams, largest};
    use crate::whisper::{decode::Hypothesis, network::Sequence};

    const EOT: u32 = 4;

    fn beams(size: usize) -> Beams {
        Beams::new(Hypothesis { sequence: Sequence(0), tokens: Vec::new(), sum_logprob: 0.0 }, size, 1.0, EOT)
    }

    #[test]
    fn the_largest_are_found_in_order_and_the_impossible_never() {
        let mut line = vec![f32::NEG_INFINITY; 200];
        assert!(largest(&line, 3).is_empty());
        for (token, value) in [(3, 1.0), (64, 5.0), (150, 5.0), (199, 2.0), (70, 0.5)] {
            line[token] = value;
        }
        assert_eq!(largest(&line, 4), [(64, 5.0), (150, 5.0), (199, 2.0), (3, 1.0)]);
    }

    #[test]
    fn the_likeliest_texts_go_on_and_first_children_keep_their_sequence() {
        let mut beams = beams(2);
        let plan = beams.choose(&[-1.0, -0.5, -9.0, -9.0, -8.0], &[0.0], 5);
        let mut next = 0;
        let kept = beams.take(plan, |_| {
            next += 1;
            Some(Sequence(next))
        });
        assert_eq!(kept, [Sequence(0), Sequence(1)]);
        let texts: Vec<&[u32]> = beams.running().iter().map(|text| text.tokens.as_slice()).collect();
        assert_eq!(texts, [&[1][..], &[0]]);

        // Both best continuations come from the second text; the first one's sequence is free.
        let plan = beams.choose(&[-9.0, -9.0, -9.0, -9.0, -9.0, -0.1, -0.2, -9.0, -9.0, -9.0], &[0.0, 0.0], 5);
        let kept = beams.take(plan, |parent| {
            assert_eq!(parent, Sequence(1));
            Some(Sequence(7))
        });
        assert_eq!(kept, [Sequence(1), Sequence(7)]);
        assert_eq!(beams.running()[1].tokens, [0, 1]);
    }

    #[test]
    fn finished_texts_end_the_search_when_they_are_enough() {
        let mut beams = beams(2);
        let plan = beams.choose(&[-2.0, -3.0, -9.0, -9.0, -0.5], &[0.0], 5);
        assert!(!beams.is_complete());
        beams.take(plan, |_| Some(Sequence(1)));
        let plan = beams.choose(&[-9.0, -9.0, -9.0, -9.0, -0.5, -9.0, -9.0, -9.0, -9.0, -9.0], &[0.0, 0.0], 5);
        assert!(beams.is_complete());
        beams.take(plan, |_| Some(Sequence(2)));
        let finished = beams.finish();
        let found: Vec<(&[u32], f32)> =
            finished.iter().map(|text| (text.tokens.as_slice(), text.sum_logprob)).collect();
        assert_eq!(found, [(&[][..], -0.5), (&[0], -2.5)]);
    }

    #[test]
    fn running_texts_fill_up_what_is_missing_at_the_end() {
        let mut beams = beams(2);
        let plan = beams.choose(&[-2.0, -3.0, -9.0, -9.0, -0.5], &[0.0], 5);
        beams.take(plan, |_| None);
        let finished = beams.finish();
        assert_eq!(finished.iter().map(|text| text.tokens.len()).collect::<Vec<_>>(), [0, 1]);
    }
}
