//! From logits to the next token.
//!
//! One file per rule; [`Sampler`] applies them in mlx-lm 0.32.2's order (`sample_utils.py`): [`bias`] and [`penalties`]
//! change the logits; what they leave, normalised, is the distribution that is reported ([`logprobs`]). At temperature 0
//! the [`greedy`] choice follows. Otherwise [`top_p`], [`min_p`], [`xtc`] and [`top_k`] narrow the distribution, each
//! on what the one before left, and [`temperature`] sharpens or flattens what is left when the token is drawn.
//!
//! The vocabulary has up to 262,144 tokens and a token may take 3 ms in all, so nothing sorts it: top-p and min-p are
//! turned into a least logit, and top-k selects in one pass. The scratch memory lives on, so choosing a token allocates nothing once it is warm, unless probabilities are asked for.

mod bias;
mod candidate;
mod exponential;
mod greedy;
mod logprobs;
mod maximum;
mod min_p;
mod penalties;
mod temperature;
mod top_k;
mod top_p;
mod xtc;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use self::{candidate::Candidate, penalties::Penalties};
use crate::{Draw, SamplingParameters, StepModelError, TokenLogprob};

/// One request's way of choosing tokens, with its own stream of random numbers.
pub(crate) struct Sampler {
    parameters: SamplingParameters,
    penalties: Penalties,
    xtc_exempt: Vec<u32>,
    random: ChaCha8Rng,
}

/// Memory that choosing needs, shared by the requests of an engine.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    weights: Vec<f32>,
    candidates: Vec<Candidate>,
}

/// A chosen token.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Chosen {
    pub(crate) token: u32,
    pub(crate) logprob: Option<TokenLogprob>,
}

impl Sampler {
    /// A sampler for a request with this prompt. XTC never drops the tokens in `xtc_exempt`.
    pub(crate) fn new(parameters: SamplingParameters, prompt: &[u32], xtc_exempt: Vec<u32>) -> Self {
        Self {
            penalties: Penalties::new(&parameters, prompt),
            random: ChaCha8Rng::seed_from_u64(parameters.seed.unwrap_or_else(rand::random)),
            parameters,
            xtc_exempt,
        }
    }

    /// Notes the token that was appended to `history`.
    pub(crate) fn accept(&mut self, history: &[u32]) {
        self.penalties.accept(history);
    }

    /// How the model itself can choose the next token as this sampler would, if it can: nothing that looks at earlier
    /// tokens, at single tokens or at a second random number. Takes the random number of the draw.
    pub(crate) fn draw(&mut self) -> Option<Draw> {
        if !self.can_leave_choice() {
            return None;
        }
        let SamplingParameters { temperature, top_p, top_k, min_p, .. } = self.parameters;
        if temperature == 0.0 {
            return Some(Draw::Greedy);
        }
        Some(Draw::Random { temperature, top_p, top_k, min_p, uniform: self.random.random() })
    }

    /// Whether [`Sampler::draw`] gives anything.
    pub(crate) fn can_leave_choice(&self) -> bool {
        let SamplingParameters { xtc_probability, logit_bias, .. } = &self.parameters;
        *xtc_probability == 0.0 && logit_bias.is_empty() && self.penalties.are_off()
    }

    /// The probability of a token that the model chose from these logits, and of the `count` most probable ones.
    pub(crate) fn report(
        logits: &[f32],
        token: u32,
        count: usize,
        scratch: &mut Scratch,
    ) -> Result<TokenLogprob, StepModelError> {
        let maximum = maximum::of(logits)?;
        Ok(logprobs::report(logits, maximum, token, count, &mut scratch.candidates))
    }

    /// Chooses the token that follows, and reports its probability and those of the `top_logprobs` most probable tokens
    /// if asked to.
    pub(crate) fn choose(
        &mut self,
        logits: &mut [f32],
        top_logprobs: Option<usize>,
        scratch: &mut Scratch,
    ) -> Result<Chosen, StepModelError> {
        bias::apply(&self.parameters.logit_bias, logits);
        self.penalties.apply(logits);
        if self.parameters.temperature == 0.0 {
            let token = greedy::choose(logits)?;
            let logprob = match top_logprobs {
                Some(count) => {
                    let maximum = logits[token as usize];
                    Some(logprobs::report(logits, maximum, token, count, &mut scratch.candidates))
                }
                None => None,
            };
            return Ok(Chosen { token, logprob });
        }
        let maximum = maximum::of(logits)?;
        let token = match self.narrow(logits, maximum, scratch) {
            Narrowed::Least(least) => {
                let draw = self.random.random();
                let temperature = self.parameters.temperature;
                temperature::draw_from_all(logits, maximum, least, temperature, draw, &mut scratch.weights)
            }
            Narrowed::Candidates => {
                let draw = self.random.random();
                temperature::draw(&mut scratch.candidates, self.parameters.temperature, draw)
            }
        };
        let logprob =
            top_logprobs.map(|count| logprobs::report(logits, maximum, token, count, &mut scratch.candidates));
        Ok(Chosen { token, logprob })
    }

    /// Finds the tokens that may be drawn; never none.
    fn narrow(&mut self, logits: &[f32], maximum: f32, scratch: &mut Scratch) -> Narrowed {
        let SamplingParameters { top_p, top_k, min_p, xtc_probability, xtc_threshold, .. } = self.parameters;
        let xtc_applies = xtc_probability > 0.0 && self.random.random::<f32>() <= xtc_probability;
        let mut least = min_p::least_logit(maximum, min_p);
        // Top-p, min-p and top-k each keep a beginning of the tokens in the order of their probability, so the order of
        // these three does not matter, and the one that is cheapest to find goes first. Only XTC, which drops from the
        // front, must have its place.
        if top_k > 0 && !xtc_applies {
            top_k::collect(logits, maximum, top_k, least, &mut scratch.candidates);
            if top_p::narrows(top_p) {
                top_p::apply(&mut scratch.candidates, exponential::sum(logits, maximum), top_p);
            }
            return Narrowed::Candidates;
        }
        if top_p::narrows(top_p) {
            least = least.max(top_p::nucleus_least_logit(logits, maximum, top_p, scratch));
        }
        if !xtc_applies {
            return Narrowed::Least(least);
        }
        candidate::collect(logits, maximum, least, &mut scratch.candidates);
        xtc::apply(&mut scratch.candidates, xtc_threshold, &self.xtc_exempt);
        if top_k > 0 {
            top_k::apply(&mut scratch.candidates, top_k);
        }
        Narrowed::Candidates
    }
}

/// Which tokens may be drawn.
#[derive(Debug)]
enum Narrowed {
    /// Those with at least this logit.
    Least(f32),
    /// The candidates in the scratch memory.
    Candidates,
}

#[cfg(test)]
mod tests;
