//! A network that says what a test tells it to, and a tokenizer to go with it.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    rc::Rc,
};

use linnet_models::{SpecialTokens, Tokenizer};

use super::{
    Alignment, NetworkError, Sequence, StepRow, WhisperDimensions, WhisperNetwork, Window,
    tokenizer::{SpecialIds, WhisperTokenizer},
};

/// Entries of a multilingual vocabulary.
pub(super) const N_VOCAB: usize = 51_865;

/// What a network hears at the beginning of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Heard {
    /// Windows before this one.
    pub(super) window: usize,
    /// All tokens given.
    pub(super) prompt: Vec<u32>,
}

/// What it answers.
#[derive(Debug, Clone, Default)]
pub(super) struct Answer {
    /// Tokens of the text, the end not among them.
    pub(super) tokens: Vec<u32>,
    /// How likely it finds silence.
    pub(super) no_speech: f32,
    /// How far the logit of each token stands out. 20: it is certain.
    pub(super) certainty: f32,
}

impl Answer {
    pub(super) fn text(tokens: Vec<u32>) -> Self {
        Self { tokens, no_speech: 0.01, certainty: 20.0 }
    }
}

/// What happened.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) heard: Vec<Heard>,
    pub(super) windows: usize,
    pub(super) open_windows: Vec<Window>,
    /// Sequences with their tokens so far and what is to come.
    sequences: BTreeMap<u64, State>,
    next: u64,
}

impl Log {
    pub(super) fn open_sequences(&self) -> usize {
        self.sequences.len()
    }
}

#[derive(Debug, Clone, Default)]
struct State {
    window: usize,
    prompt: Vec<u32>,
    said: usize,
    answer: Answer,
}

type Script = Box<dyn FnMut(&Heard) -> Answer>;

pub(super) struct ScriptedNetwork {
    dimensions: WhisperDimensions,
    script: Script,
    log: Rc<RefCell<Log>>,
    language: u32,
    windows: HashMap<Window, usize>,
}

impl ScriptedNetwork {
    /// A network with `n_vocab` entries that hears `language` (its token) and answers as `script` says.
    pub(super) fn new(
        n_vocab: usize,
        language: u32,
        script: impl FnMut(&Heard) -> Answer + 'static,
    ) -> (Box<Self>, Rc<RefCell<Log>>) {
        let log = Rc::new(RefCell::new(Log::default()));
        let dimensions = WhisperDimensions {
            n_mels: 80,
            n_audio_ctx: 1500,
            n_text_ctx: 448,
            n_vocab,
            n_text_layer: 1,
            n_text_head: 1,
            alignment_heads: vec![(0, 0)],
        };
        let network =
            Self { dimensions, script: Box::new(script), log: Rc::clone(&log), language, windows: HashMap::new() };
        (Box::new(network), log)
    }
}

impl WhisperNetwork for ScriptedNetwork {
    fn dimensions(&self) -> &WhisperDimensions {
        &self.dimensions
    }

    fn encode(&mut self, mel: &[f32]) -> Result<Window, NetworkError> {
        assert_eq!(mel.len(), 3000 * 80);
        let mut log = self.log.borrow_mut();
        let window = Window(log.windows as u64);
        self.windows.insert(window, log.windows);
        log.windows += 1;
        log.open_windows.push(window);
        Ok(window)
    }

    fn release(&mut self, window: Window) {
        self.log.borrow_mut().open_windows.retain(|open| *open != window);
    }

    fn open(&mut self, window: Window) -> Result<Sequence, NetworkError> {
        let mut log = self.log.borrow_mut();
        log.next += 1;
        let number = log.next;
        log.sequences.insert(number, State { window: self.windows[&window], ..State::default() });
        Ok(Sequence(number))
    }

    fn fork(&mut self, sequence: Sequence) -> Result<Sequence, NetworkError> {
        let mut log = self.log.borrow_mut();
        log.next += 1;
        let number = log.next;
        let state = log.sequences[&sequence.0].clone();
        log.sequences.insert(number, state);
        Ok(Sequence(number))
    }

    fn close(&mut self, sequence: Sequence) {
        assert!(self.log.borrow_mut().sequences.remove(&sequence.0).is_some(), "closed twice");
    }

    fn step(&mut self, rows: &[StepRow<'_>], logits: &mut Vec<f32>) -> Result<(), NetworkError> {
        logits.clear();
        let special = SpecialIds::new(self.dimensions.n_vocab).unwrap();
        for row in rows {
            let number = row.sequence.0;
            let mut state = self.log.borrow().sequences[&number].clone();
            if state.prompt.is_empty() {
                state.prompt = row.tokens.to_vec();
                if !(special.is_multilingual() && row.tokens == [special.sot]) {
                    let heard = Heard { window: state.window, prompt: state.prompt.clone() };
                    state.answer = (self.script)(&heard);
                    self.log.borrow_mut().heard.push(heard);
                }
            } else {
                state.said += row.tokens.len();
            }
            let only_asks_language = special.is_multilingual() && state.prompt == [special.sot];
            for place in row.outputs.clone() {
                let mut line = vec![0.0f32; self.dimensions.n_vocab];
                if place + 1 == row.tokens.len() && !only_asks_language {
                    let next = state.answer.tokens.get(state.said).copied().unwrap_or(special.eot);
                    line[next as usize] = state.answer.certainty;
                } else {
                    line[self.language as usize] = 12.0;
                }
                if row.tokens[place] == special.sot {
                    let rest = line.iter().map(|logit| logit.exp()).sum::<f32>();
                    let share = state.answer.no_speech.clamp(1e-6, 1.0 - 1e-6);
                    line[special.no_speech as usize] = (rest * share / (1.0 - share)).ln();
                }
                logits.extend(line);
            }
            self.log.borrow_mut().sequences.insert(number, state);
        }
        Ok(())
    }

    fn align(&mut self, _window: Window, tokens: &[u32]) -> Result<Alignment, NetworkError> {
        // As `looks` and `Network` of tests/speech/make_decoding.py: each token looks at a part of its own, with some noise,
        // and small letters are probable.
        let special = SpecialIds::new(self.dimensions.n_vocab).unwrap();
        let mut alignment = Alignment { scores: Vec::new(), logits: vec![0.0; tokens.len() * self.dimensions.n_vocab] };
        let mut begin = 0;
        for (row, &token) in tokens.iter().enumerate() {
            let width = if token >= special.sot && row < 3 { 0 } else { 2 + token as usize * 7 % 9 };
            for at in 0..self.dimensions.n_audio_ctx {
                let noise = (row as u64 * 2_654_435_761 + at as u64 * 40_503) as u32 >> 28;
                let attention = if (begin..begin + width).contains(&at) { 7.0 } else { 0.0 };
                alignment.scores.push(noise as f32 / 16.0 + attention);
            }
            begin += width;
            if let Some(&following) = tokens.get(row + 1).filter(|token| (97..=122).contains(*token)) {
                alignment.logits[row * self.dimensions.n_vocab + following as usize] = 14.0;
            }
        }
        Ok(alignment)
    }
}

/// Tokens of several bytes, as in tests/speech/make_decoding.py.
const SEVERAL: [&[u8]; 5] = [b".\"", b"...", b" --", b"\xe6\x97", b"\xe2\x82 b"];

/// A tokenizer with a vocabulary of [`N_VOCAB`] entries whose text tokens are single bytes, with few exceptions.
pub(super) fn tokenizer(n_vocab: usize) -> WhisperTokenizer {
    let special = SpecialIds::new(n_vocab).unwrap();
    let mut vocabulary = String::new();
    let printable: Vec<u8> = (b'!'..=b'~').chain(0xa1..=0xac).chain(0xae..=0xff).collect();
    let mut others = 0;
    // GPT-2's letters for bytes.
    let letters: Vec<char> = (0..=255u8)
        .map(|byte| {
            if printable.contains(&byte) {
                char::from(byte)
            } else {
                others += 1;
                char::from_u32(255 + others).unwrap()
            }
        })
        .collect();
    let single = (0..=255u8).map(|byte| vec![byte]);
    let pieces = single.chain(SEVERAL.iter().map(|several| several.to_vec()));
    let mut next = 0;
    for (id, piece) in pieces.enumerate() {
        let text: String = piece.iter().map(|&byte| letters[usize::from(byte)]).collect();
        let _ = write!(vocabulary, "{}:{id},", serde_json::to_string(&text).unwrap());
        next = id as u32 + 1;
    }
    for id in next..special.eot {
        let _ = write!(vocabulary, "\"filler {id}\":{id},");
    }
    let json = format!(
        r#"{{"version":"1.0","added_tokens":[{{"id":{eot},"content":"<|endoftext|>","single_word":false,"lstrip":false,
        "rstrip":false,"normalized":false,"special":true}}],"normalizer":null,
        "pre_tokenizer":{{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}},
        "post_processor":null,"decoder":{{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}},
        "model":{{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":"","end_of_word_suffix":"",
        "fuse_unk":false,"byte_fallback":false,"vocab":{{{}}},"merges":[]}}}}"#,
        vocabulary.trim_end_matches(','),
        eot = special.eot,
    );
    let tokenizer = Tokenizer::from_json(json.as_bytes(), SpecialTokens::default()).unwrap();
    WhisperTokenizer::new(tokenizer, n_vocab).unwrap()
}
