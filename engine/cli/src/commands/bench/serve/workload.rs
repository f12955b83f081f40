//! What is asked: the same of every arm, and never twice in a run unless a cache is to be met.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::record::Workload;

/// Characters of a token of English prose, about. How many tokens there really were, the server says.
const CHARACTERS_PER_TOKEN: f64 = 4.4;

/// Prose without end.
const FILLER: &str = "The river had carried the boats past the mill before the rain began, and the men on the bank counted \
    the barrels while the harbour master wrote each number into a book. Grain from the northern farms was weighed twice, \
    wool only once, and whatever was left in the evening went to the market behind the chapel. ";

/// Answers at once, and tokens of each.
pub(crate) const AGGREGATES: [usize; 2] = [4, 8];
/// Tokens of each answer of an aggregate.
pub(crate) const AGGREGATE_TOKENS: usize = 128;
/// Requests of each wave.
pub(crate) const WAVES: [usize; 3] = [2, 4, 8];
/// Tokens of each answer of a wave.
pub(crate) const WAVE_TOKENS: usize = 64;
/// Milliseconds between two arrivals of a wave.
pub(crate) const WAVE_SPACING_MS: u64 = 250;
/// Long answers that run when the long prompt of the stall phase arrives.
pub(crate) const STALL_STREAMS: usize = 3;
/// Tokens of each of them.
pub(crate) const STALL_STREAM_TOKENS: usize = 400;
/// Tokens of the prompt that arrives.
pub(crate) const STALL_PROMPT: usize = 4000;
/// Tokens of prompts whose first token is timed.
pub(crate) const FIRST_TOKEN_PROMPT: usize = 1000;
/// New prompts of that kind.
pub(crate) const FIRST_TOKEN_RUNS: usize = 3;
/// Tokens of the prefix that several questions share.
pub(crate) const PREFIX_PROMPT: usize = 2000;
/// Questions after the prefix that the cache should know.
pub(crate) const PREFIX_RUNS: usize = 3;
/// Tokens of answers of which only the first counts.
pub(crate) const SHORT_ANSWER: usize = 8;
/// Tokens of the answers to a long context.
pub(crate) const CONTEXT_ANSWER: usize = 64;
/// Decode runs of a visit.
pub(crate) const DECODE_RUNS: usize = 5;

/// Makes the requests of one round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Questions<'a> {
    workload: &'a Workload,
    round: usize,
}

impl<'a> Questions<'a> {
    /// The requests of this round.
    pub(crate) fn new(workload: &'a Workload, round: usize) -> Self {
        Self { workload, round }
    }

    /// A word that only this request of this run has.
    fn nonce(&self, group: &str, index: usize) -> String {
        let digest = Sha256::digest(format!("{}|{}|{group}|{index}", self.workload.seed, self.round));
        hex(&digest)[..12].to_owned()
    }

    /// A question before anything counts.
    pub(crate) fn warm_up(&self) -> Value {
        body(&format!("Warm-up {}: say hello.", self.nonce("warm-up", 0)), 32)
    }

    /// A short question with a long answer.
    pub(crate) fn decode(&self, index: usize) -> Value {
        let nonce = self.nonce("decode", index);
        body(
            &format!("Note {nonce}: write a detailed essay about the history of sailing."),
            self.workload.decode_tokens,
        )
    }

    /// One of several answers at once.
    pub(crate) fn stream(&self, group: &str, index: usize, tokens: usize) -> Value {
        let nonce = self.nonce(group, index);
        body(
            &format!("Writer {index} of {nonce}: write a detailed essay about bridges and how they are built."),
            tokens,
        )
    }

    /// A prompt of about `length` tokens that nobody has seen.
    pub(crate) fn long(&self, group: &str, index: usize, length: usize, tokens: usize) -> Value {
        let question = "What was weighed twice? Answer and explain at length.";
        body(&document(&self.nonce(group, index), length, question), tokens)
    }

    /// A question after a document that all questions of the group share.
    pub(crate) fn shared(&self, group: &str, index: usize, length: usize, tokens: usize) -> Value {
        let questions =
            ["What was weighed twice?", "Who wrote the numbers down?", "Where did the rest go?", "What began?"];
        let question = format!("{} Answer and explain at length.", questions[index % questions.len()]);
        body(&document(&self.nonce(group, 0), length, &question), tokens)
    }
}

/// Prose of about `length` tokens that begins with its own word and ends with a question.
fn document(nonce: &str, length: usize, question: &str) -> String {
    let characters = (length as f64 * CHARACTERS_PER_TOKEN) as usize;
    let mut text = format!("Document {nonce}. ");
    while text.len() + FILLER.len() + question.len() <= characters {
        text.push_str(FILLER);
    }
    text.push_str(question);
    text
}

/// A greedy, streamed chat request. `ignore_eos` is understood by llama.cpp's server, vLLM and Linnet; where it is not, an
/// answer may end early, and the counts show that.
fn body(question: &str, tokens: usize) -> Value {
    json!({
        "messages": [{"role": "user", "content": question}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": true,
        "stream_options": {"include_usage": true},
        "ignore_eos": true,
    })
}

/// Bytes as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(seed: &str) -> Workload {
        Workload { seed: seed.into(), decode_tokens: 192, context_tokens: 4000, rounds: 1, phases: Vec::new() }
    }

    fn content(body: &Value) -> &str {
        body["messages"][0]["content"].as_str().unwrap()
    }

    #[test]
    fn every_arm_is_asked_the_same_and_no_run_or_round_the_same_again() {
        let (one, other) = (workload("a"), workload("b"));
        let ask = |workload, round| Questions::new(workload, round).decode(1);
        assert_eq!(ask(&one, 0), ask(&one, 0));
        assert_ne!(ask(&one, 0), ask(&one, 1));
        assert_ne!(ask(&one, 0), ask(&other, 0));
        assert_ne!(ask(&one, 0), Questions::new(&one, 0).decode(2));
    }

    #[test]
    fn questions_after_a_shared_document_differ_only_at_its_end() {
        let workload = workload("a");
        let questions = Questions::new(&workload, 0);
        let [first, second] = [0, 1].map(|index| questions.shared("prefix", index, 2000, 8));
        let common = content(&first).bytes().zip(content(&second).bytes()).take_while(|(a, b)| a == b).count();
        assert!(common > 7000 && content(&first).len() < 8900, "{common}");
        assert_ne!(first, second);
    }

    #[test]
    fn long_prompts_differ_from_their_first_words_on() {
        let workload = workload("a");
        let questions = Questions::new(&workload, 0);
        let [first, second] = [0, 1].map(|index| questions.long("first-token", index, 1000, 8));
        assert_ne!(content(&first)[..22], content(&second)[..22]);
        assert!((3800..=4400).contains(&content(&first).len()), "{}", content(&first).len());
    }
}
