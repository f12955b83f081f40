//! Where tokens lie in the audio: dynamic time warping over the decoder's cross attention.
//!
//! After `find_alignment` of openai/whisper's timing.py.

use linnet_kernels::{Context, softmax_in_place};

use super::network::Alignment;

/// Encoder positions that the median filter looks at (timing.py: `medfilt_width`).
const MEDIAN_WIDTH: usize = 7;

/// What was aligned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AlignmentShape {
    /// Tokens, from the start of transcript to the end of the text.
    pub(crate) tokens: usize,
    /// Encoder positions of a whole window.
    pub(crate) positions: usize,
    /// Encoder positions that hold audio.
    pub(crate) spoken: usize,
    /// Tokens before the one that says that no times are wanted.
    pub(crate) prompt: usize,
}

/// The encoder position at which each token of text begins, and, last, where the text ends.
pub(crate) fn token_starts(ctx: &Context, alignment: &Alignment, shape: AlignmentShape) -> Vec<usize> {
    let AlignmentShape { tokens, positions, spoken, prompt } = shape;
    let spoken = spoken.clamp(1, positions);
    let heads = alignment.scores.len() / (tokens * positions).max(1);
    let mut mean = vec![0.0f32; tokens * spoken];
    let mut weights = vec![0.0f32; tokens * spoken];
    let mut filtered = vec![0.0f32; spoken];
    let mut padded = Vec::with_capacity(spoken + MEDIAN_WIDTH);
    for head in alignment.scores.chunks_exact(tokens * positions) {
        for (line, scores) in weights.chunks_exact_mut(spoken).zip(head.chunks_exact(positions)) {
            line.copy_from_slice(&scores[..spoken]);
        }
        softmax_in_place(ctx, &mut weights, spoken);
        standardize(&mut weights, spoken);
        for (line, sum) in weights.chunks_exact(spoken).zip(mean.chunks_exact_mut(spoken)) {
            median_filter(line, &mut padded, &mut filtered);
            sum.iter_mut().zip(&filtered).for_each(|(sum, weight)| *sum += weight / heads as f32);
        }
    }
    // The token before a piece of text looks at where that piece is spoken.
    warp(&mean[prompt * spoken..(tokens - 1) * spoken], spoken)
}

/// Brings each position's weights over all tokens to mean 0 and variance 1.
fn standardize(weights: &mut [f32], positions: usize) {
    let tokens = (weights.len() / positions) as f32;
    let mut mean = vec![0.0f32; positions];
    let mut variance = vec![0.0f32; positions];
    for line in weights.chunks_exact(positions) {
        mean.iter_mut().zip(line).for_each(|(mean, weight)| *mean += weight / tokens);
    }
    for line in weights.chunks_exact(positions) {
        let of = variance.iter_mut().zip(&mean).zip(line);
        of.for_each(|((variance, mean), weight)| *variance += (weight - mean) * (weight - mean) / tokens);
    }
    for line in weights.chunks_exact_mut(positions) {
        for ((weight, mean), variance) in line.iter_mut().zip(&mean).zip(&variance) {
            // A position that all tokens look at alike says nothing.
            *weight = (*weight - mean) / variance.sqrt().max(f32::MIN_POSITIVE);
        }
    }
}

/// The median of each element and its neighbours, the line reflected at its ends.
fn median_filter(line: &[f32], padded: &mut Vec<f32>, out: &mut [f32]) {
    let half = MEDIAN_WIDTH / 2;
    if line.len() <= half {
        out.copy_from_slice(line);
        return;
    }
    padded.clear();
    padded.extend(line[1..=half].iter().rev());
    padded.extend(line);
    padded.extend(line[line.len() - 1 - half..line.len() - 1].iter().rev());
    let (around, _) = padded.as_slice().split_at(line.len() + 2 * half);
    for (index, out) in out.iter_mut().enumerate() {
        if let Some(around) = around.get(index..).and_then(|around| around.first_chunk()) {
            *out = median(*around);
        }
    }
}

/// By comparisons that do not depend on each other's results, so that many medians are found at once (N. Devillard, "Fast
/// median search", 1998).
#[inline(always)]
fn median(mut values: [f32; MEDIAN_WIDTH]) -> f32 {
    const EXCHANGES: [(usize, usize); 13] =
        [(0, 5), (0, 3), (1, 6), (2, 4), (0, 1), (3, 5), (2, 6), (2, 3), (3, 6), (4, 5), (1, 4), (1, 3), (3, 4)];
    for (low, high) in EXCHANGES {
        let (a, b) = (values[low], values[high]);
        (values[low], values[high]) = if a < b { (a, b) } else { (b, a) };
    }
    values[MEDIAN_WIDTH / 2]
}

/// The way through `weights`, `[tokens, positions]`, along which they are largest together, going forwards in both: for each
/// token the position at which it is entered.
fn warp(weights: &[f32], positions: usize) -> Vec<usize> {
    /// Where the way to a cell comes from.
    #[derive(Clone, Copy)]
    enum From {
        Both,
        Token,
        Position,
    }
    let tokens = weights.len() / positions;
    let mut from = vec![From::Position; tokens * positions];
    // Costs of the line above and of this one, with a cell before the first.
    let mut above = vec![f32::INFINITY; positions + 1];
    above[0] = 0.0;
    for (token, line) in weights.chunks_exact(positions).enumerate() {
        let mut costs = vec![f32::INFINITY; positions + 1];
        for (position, weight) in line.iter().enumerate() {
            let (both, by_token, by_position) = (above[position], above[position + 1], costs[position]);
            let (cost, way) = if both < by_token && both < by_position {
                (both, From::Both)
            } else if by_token < both && by_token < by_position {
                (by_token, From::Token)
            } else {
                (by_position, From::Position)
            };
            costs[position + 1] = cost - weight;
            from[token * positions + position] = way;
        }
        above = costs;
    }
    let mut starts = vec![0; tokens];
    let (mut token, mut position) = (tokens, positions);
    while token > 0 && position > 0 {
        starts[token - 1] = position - 1;
        let way = from[(token - 1) * positions + position - 1];
        if matches!(way, From::Both | From::Token) {
            token -= 1;
        }
        if matches!(way, From::Both | From::Position) {
            position -= 1;
        }
    }
    starts
}

#[cfg(test)]
mod tests {
    use linnet_kernels::Context;

    use super::{AlignmentShape, MEDIAN_WIDTH, median, median_filter, token_starts, warp};
    use crate::whisper::network::Alignment;

    #[test]
    fn the_way_follows_the_largest_weights() {
        #[rustfmt::skip]
        let weights = [
            3.0, 3.0, -1.0, -1.0, -1.0, -1.0,
           -1.0, -1.0, 3.0, -1.0, -1.0, -1.0,
           -1.0, -1.0, -1.0, 3.0, 3.0, 3.0,
        ];
        assert_eq!(warp(&weights, 6), [0, 2, 3]);
    }

    #[test]
    fn more_tokens_than_positions_share_them() {
        assert_eq!(warp(&[1.0, -1.0, 1.0, -1.0, -1.0, 1.0], 2), [0, 0, 1]);
    }

    #[test]
    fn medians_reflect_at_the_ends() {
        let (mut padded, mut out) = (Vec::new(), [0.0; 8]);
        median_filter(&[9.0, 1.0, 2.0, 3.0, 0.0, 5.0, 6.0, 7.0], &mut padded, &mut out);
        // Around the first: 3 2 1 9 1 2 3. Around the last: 0 5 6 7 6 5 0.
        assert_eq!((out[0], out[7], out[3]), (2.0, 5.0, 3.0));
        let short = [4.0, 1.0, 3.0];
        let mut out = [0.0; 3];
        assert!(short.len() <= MEDIAN_WIDTH / 2);
        median_filter(&short, &mut padded, &mut out);
        assert_eq!(out, short);
    }

    #[test]
    fn medians_are_in_the_middle_of_every_order() {
        // Heap's algorithm.
        let mut values: [f32; MEDIAN_WIDTH] = std::array::from_fn(|index| index as f32);
        let mut counts = [0; MEDIAN_WIDTH];
        let mut place = 0;
        while place < MEDIAN_WIDTH {
            assert_eq!(median(values), 3.0, "{values:?}");
            while place < MEDIAN_WIDTH && counts[place] >= place {
                counts[place] = 0;
                place += 1;
            }
            if place < MEDIAN_WIDTH {
                values.swap(if place % 2 == 0 { 0 } else { counts[place] }, place);
                counts[place] += 1;
                place = 1;
            }
        }
    }

    #[test]
    fn words_begin_where_their_heads_look() {
        // A prompt of one token, no times, three of text, the end: each looks at four positions, from its own place on.
        let (tokens, positions): (usize, usize) = (6, 24);
        let mut scores = Vec::new();
        for _head in 0..2 {
            for token in 0..tokens {
                let begin = token.saturating_sub(1) * 5;
                scores.extend((0..positions).map(|at| if (begin..begin + 5).contains(&at) { 8.0 } else { 0.0 }));
            }
        }
        let shape = AlignmentShape { tokens, positions, spoken: 20, prompt: 1 };
        let starts = token_starts(&Context::new(1), &Alignment { scores, logits: Vec::new() }, shape);
        assert_eq!(starts.len(), 4);
        for (found, expected) in starts.iter().zip([0, 5, 10, 15]) {
            assert!(found.abs_diff(expected) <= 1, "{starts:?}");
        }
    }
}
