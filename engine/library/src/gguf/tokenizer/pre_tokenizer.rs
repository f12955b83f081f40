//! How byte-level vocabularies cut text into words: one row per family, keyed by `tokenizer.ggml.pre`.
//!
//! The patterns are those of the families' own `tokenizer.json` files; which name belongs to which pattern is
//! llama.cpp's `llama-vocab.cpp`.

use serde_json::{Value, json};

/// A step of cutting.
#[derive(Clone, Copy)]
enum Step {
    /// Every digit for itself.
    Digits,
    /// Pieces that match the pattern stand for themselves.
    Split(&'static str),
    /// GPT-2's own pattern, which is built into the byte-level step.
    Gpt2,
}

/// The rules of a family.
#[derive(Clone, Copy)]
pub(super) struct PreTokenizer {
    steps: &'static [Step],
    /// A word that is a token as a whole is taken without merging.
    pub(super) ignore_merges: bool,
    /// Texts begin with the beginning token unless the file says otherwise.
    pub(super) add_beginning: bool,
    /// Text is brought into composed form (NFC) first.
    pub(super) composes: bool,
}

const PLAIN: PreTokenizer =
    PreTokenizer { steps: &[Step::Gpt2], ignore_merges: false, add_beginning: false, composes: false };

const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_3_5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const MINICPM_5: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SEED_CODER: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
/// Han, Hiragana and Katakana.
const DEEPSEEK_EAST_ASIAN: &str = "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+";
/// Han and Hangul, as DeepSeek Coder's tokenizer has them.
const DEEPSEEK_CODER_EAST_ASIAN: &str = "[\u{4e00}-\u{9fa5}\u{0800}-\u{4e00}\u{ac00}-\u{d7ff}]+";
const UP_TO_THREE_DIGITS: &str = r"\p{N}{1,3}";

/// Names with the same rules, and the rules.
type Family = (&'static [&'static str], PreTokenizer);

const FAMILIES: &[Family] = &[
    (
        &[
            "default",
            "gpt-2",
            "phi-2",
            "olmo",
            "mpt",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "gigachat",
            "mellum",
        ],
        PLAIN,
    ),
    (
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        PreTokenizer { steps: &[Step::Digits, Step::Gpt2], ..PLAIN },
    ),
    (
        &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        PreTokenizer { steps: &[Step::Split(LLAMA_3)], ignore_merges: true, add_beginning: true, ..PLAIN },
    ),
    (&["dbrx", "smaug-bpe", "chatglm-bpe"], PreTokenizer { steps: &[Step::Split(LLAMA_3)], ..PLAIN }),
    (&["glm4"], PreTokenizer { steps: &[Step::Split(LLAMA_3)], ignore_merges: true, ..PLAIN }),
    (&["qwen2"], PreTokenizer { steps: &[Step::Split(QWEN_2)], composes: true, ..PLAIN }),
    (
        &["deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"],
        PreTokenizer { steps: &[Step::Split(QWEN_2)], ..PLAIN },
    ),
    (&["qwen35"], PreTokenizer { steps: &[Step::Split(QWEN_3_5)], composes: true, ..PLAIN }),
    (&["tekken"], PreTokenizer { steps: &[Step::Split(TEKKEN)], ignore_merges: true, add_beginning: true, ..PLAIN }),
    (&["gpt-4o", "llama4", "kanana2"], PreTokenizer { steps: &[Step::Split(GPT_4O)], ..PLAIN }),
    (
        &["minicpm5"],
        PreTokenizer {
            steps: &[Step::Split(UP_TO_THREE_DIGITS), Step::Split(MINICPM_5)],
            ignore_merges: true,
            ..PLAIN
        },
    ),
    (&["seed-coder"], PreTokenizer { steps: &[Step::Split(SEED_CODER)], ..PLAIN }),
    (
        &["deepseek-coder"],
        PreTokenizer {
            steps: &[
                Step::Split(r"[\r\n]"),
                Step::Split(r"\s?\p{L}+"),
                Step::Split(r"\s?\p{P}+"),
                Step::Split(DEEPSEEK_CODER_EAST_ASIAN),
                Step::Digits,
            ],
            ..PLAIN
        },
    ),
    (
        &["deepseek-v3", "hunyuan-dense"],
        PreTokenizer {
            steps: &[Step::Split(UP_TO_THREE_DIGITS), Step::Split(DEEPSEEK_EAST_ASIAN), Step::Split(DEEPSEEK_V3)],
            ..PLAIN
        },
    ),
];

/// The rules of that name.
pub(super) fn find(name: &str) -> Option<PreTokenizer> {
    FAMILIES.iter().find(|family| family.0.contains(&name)).map(|family| family.1)
}

/// All known names.
pub(super) fn names() -> Vec<&'static str> {
    FAMILIES.iter().flat_map(|family| family.0.iter().copied()).collect()
}

impl PreTokenizer {
    /// The rules as tokenizer.json has them; the last step always spells the words in bytes.
    pub(super) fn to_json(self) -> Value {
        let has_pattern = self.steps.iter().any(|step| matches!(step, Step::Gpt2));
        let byte_level = json!({
            "type": "ByteLevel",
            "add_prefix_space": false,
            "trim_offsets": true,
            "use_regex": has_pattern,
        });
        let mut steps: Vec<Value> = self
            .steps
            .iter()
            .filter_map(|step| match step {
                Step::Digits => Some(json!({ "type": "Digits", "individual_digits": true })),
                Step::Split(pattern) => Some(json!({
                    "type": "Split",
                    "pattern": { "Regex": pattern },
                    "behavior": "Isolated",
                    "invert": false,
                })),
                Step::Gpt2 => None,
            })
            .collect();
        if steps.is_empty() {
            return byte_level;
        }
        steps.push(byte_level);
        json!({ "type": "Sequence", "pretokenizers": steps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_has_two_rules() {
        let mut names = names();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn every_row_is_a_pre_tokenizer_that_the_tokenizers_library_accepts() {
        for name in names() {
            let json = find(name).unwrap().to_json().to_string();
            let parsed: Result<tokenizers::PreTokenizerWrapper, _> = serde_json::from_str(&json);
            assert!(parsed.is_ok(), "{name}: {:?}", parsed.err());
        }
    }
}
