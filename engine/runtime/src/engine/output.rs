//! From chosen tokens to text events.

use std::collections::VecDeque;

use crate::{Detokenizer, GenerationEvent, StepModelError, TokenLogprob, stop::StopMatcher};

/// One generation's text on its way out. Tokens leave together with their text: as long as a token's text is held back
/// as the possible beginning of a stop text, so is the token, and neither leaves if it becomes one.
pub(super) struct Output {
    detokenizer: Box<dyn Detokenizer>,
    stop: StopMatcher,
    /// Text that may leave but has not been sent.
    text: String,
    /// Tokens that have not been sent.
    tokens: VecDeque<Held>,
    /// Bytes of text decoded so far.
    decoded: usize,
    /// Bytes of text released so far.
    released: usize,
    /// Whether a token without text makes an event.
    report_each_token: bool,
    piece: String,
}

struct Held {
    token: u32,
    logprob: Option<TokenLogprob>,
    /// Where its text begins and ends, in bytes of all text.
    start: usize,
    end: usize,
}

impl Output {
    pub(super) fn new(detokenizer: Box<dyn Detokenizer>, stops: &[String], report_each_token: bool) -> Self {
        Self {
            detokenizer,
            stop: StopMatcher::new(stops),
            text: String::new(),
            tokens: VecDeque::new(),
            decoded: 0,
            released: 0,
            report_each_token,
            piece: String::new(),
        }
    }

    /// Takes the next token. Returns whether a stop text was completed; then nothing may follow.
    pub(super) fn push(&mut self, token: u32, logprob: Option<TokenLogprob>) -> Result<bool, StepModelError> {
        self.piece.clear();
        self.detokenizer.push(token, &mut self.piece)?;
        let start = self.decoded;
        self.decoded += self.piece.len();
        self.tokens.push_back(Held { token, logprob, start, end: self.decoded });
        Ok(self.release())
    }

    /// The generation ended without a stop text so far: lets out all that was held back. Returns whether the last,
    /// incomplete characters completed a stop text after all.
    pub(super) fn finish(&mut self) -> bool {
        self.piece.clear();
        self.detokenizer.finish(&mut self.piece);
        // What is left is the beginning of a character that the end cut off: half a character helps nobody.
        self.piece.truncate(self.piece.trim_end_matches(char::REPLACEMENT_CHARACTER).len());
        self.decoded += self.piece.len();
        if let Some(last) = self.tokens.back_mut() {
            last.end = self.decoded;
        }
        if self.release() {
            return true;
        }
        self.stop.finish(&mut self.text);
        self.released = self.decoded;
        false
    }

    fn release(&mut self) -> bool {
        let before = self.text.len();
        let stopped = self.stop.push(&self.piece, &mut self.text);
        self.released += self.text.len() - before;
        if stopped {
            // A token that only reaches into the stop text stays; those within it go.
            let released = self.released;
            self.tokens.retain(|held| held.start < released || held.end <= released);
            for held in &mut self.tokens {
                held.end = held.end.min(released);
            }
        }
        stopped
    }

    /// What may leave now, if it makes an event.
    pub(super) fn take_event(&mut self) -> Option<GenerationEvent> {
        let ready = self.tokens.iter().take_while(|held| held.end <= self.released).count();
        if self.text.is_empty() && (ready == 0 || !self.report_each_token) {
            return None;
        }
        let (mut tokens, mut logprobs) = (Vec::with_capacity(ready), Vec::new());
        for held in self.tokens.drain(..ready) {
            tokens.push(held.token);
            logprobs.extend(held.logprob);
        }
        Some(GenerationEvent::Text { text: std::mem::take(&mut self.text), tokens, logprobs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{BYTE_EOS, ByteDetokenizer, byte_tokens};

    fn output(stops: &[&str], report_each_token: bool) -> Output {
        let stops: Vec<String> = stops.iter().map(ToString::to_string).collect();
        Output::new(Box::new(ByteDetokenizer::default()), &stops, report_each_token)
    }

    fn text(event: Option<GenerationEvent>) -> Option<(String, Vec<u32>)> {
        event.map(|event| match event {
            GenerationEvent::Text { text, tokens, .. } => (text, tokens),
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn the_bytes_of_a_character_leave_with_it() {
        let mut output = output(&[], false);
        let bytes = byte_tokens("🙂");
        for &byte in &bytes[..3] {
            assert!(!output.push(byte, None).unwrap());
            assert_eq!(text(output.take_event()), None);
        }
        assert!(!output.push(bytes[3], None).unwrap());
        assert_eq!(text(output.take_event()), Some(("🙂".into(), bytes)));
    }

    #[test]
    fn each_token_is_reported_when_its_probability_is_wanted() {
        let mut output = output(&[], true);
        let bytes = byte_tokens("é");
        output.push(bytes[0], None).unwrap();
        assert_eq!(text(output.take_event()), Some((String::new(), vec![bytes[0]])));
        output.push(bytes[1], None).unwrap();
        assert_eq!(text(output.take_event()), Some(("é".into(), vec![bytes[1]])));
    }

    #[test]
    fn tokens_of_a_stop_text_leave_neither_as_text_nor_as_tokens() {
        let mut output = output(&["END"], true);
        let mut seen = (String::new(), Vec::new());
        for token in byte_tokens("an END") {
            let stopped = output.push(token, None).unwrap();
            if let Some((text, tokens)) = text(output.take_event()) {
                seen.0.push_str(&text);
                seen.1.extend(tokens);
            }
            assert_eq!(stopped, token == u32::from(b'D'));
        }
        assert_eq!(seen, ("an ".into(), byte_tokens("an ")));
    }

    #[test]
    fn a_character_cut_by_the_end_is_left_out() {
        let mut output = output(&["\u{fffd}!"], false);
        output.push(byte_tokens("🙂")[0], None).unwrap();
        assert!(!output.finish());
        assert_eq!(text(output.take_event()), None);
    }

    #[test]
    fn a_hidden_token_leaves_with_the_next_text() {
        let mut output = output(&[], false);
        output.push(BYTE_EOS, None).unwrap();
        assert_eq!(text(output.take_event()), None);
        output.push(65, None).unwrap();
        assert_eq!(text(output.take_event()), Some(("A".into(), vec![BYTE_EOS, 65])));
    }
}
