//! Tokenizers: text to token ids and back, with the `tokenizers` library for the algorithm.
//!
//! Decoding is our own, because it has to work token by token: each token becomes bytes ([`Tokenizer::token_bytes`]),
//! the bytes become text as soon as they are whole characters ([`TextStream`]). Bytes that are no UTF-8 become one
//! U+FFFD for each maximal invalid part, as `String::from_utf8_lossy` has it; a character that is cut off by the end
//! becomes one.

mod load;
mod pieces;
mod stream;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pieces::PieceDecoder;
pub use stream::TextStream;

use crate::special_tokens::{JsonFileError, SpecialTokens};

/// Why a tokenizer could not be loaded or used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The folder holds no tokenizer that can be read.
    #[error(
        "{folder} holds no tokenizer.json{also}; copy tokenizer.json from the model's original repository into it, or \
         import the model again"
    )]
    Missing {
        /// The model folder.
        folder: PathBuf,
        /// What was found instead and why it does not serve; empty where nothing was.
        also: String,
    },
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the file system says.
        source: std::io::Error,
    },
    /// A file is damaged or of a kind that is not known.
    #[error("{path} is not a tokenizer that can be used ({detail}); download or import the model again")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// A JSON file beside the tokenizer cannot be used.
    #[error(transparent)]
    Json(#[from] JsonFileError),
    /// The library could not encode a text.
    #[error("cannot encode text of {bytes} bytes: {detail}")]
    Encode {
        /// Length of the text.
        bytes: usize,
        /// What the library says.
        detail: String,
    },
    /// A token id that the vocabulary does not have.
    #[error("token {id} is not in the vocabulary of {size} tokens; tokenizer and model do not belong together")]
    UnknownToken {
        /// The id.
        id: u32,
        /// The size of the vocabulary.
        size: usize,
    },
}

/// A model's tokenizer. Cheap to clone and safe to share between threads.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    library: tokenizers::Tokenizer,
    decoder: PieceDecoder,
    special: HashSet<u32>,
    size: usize,
    bos: Option<u32>,
    eos: Option<u32>,
    special_tokens: SpecialTokens,
}

impl Tokenizer {
    /// Loads the tokenizer of a model folder: `tokenizer.json`, with the special and added tokens that
    /// `tokenizer_config.json` and `special_tokens_map.json` name. A folder with `vocab.json` and `merges.txt` alone
    /// serves where it is a GPT-2 tokenizer.
    ///
    /// # Errors
    /// [`TokenizerError`] naming the file and what to do.
    pub fn load(folder: &Path) -> Result<Self, TokenizerError> {
        load::from_folder(folder)
    }

    /// Reads a tokenizer from the text of a `tokenizer.json`.
    ///
    /// # Errors
    /// [`TokenizerError::Invalid`] when it is not one.
    pub fn from_json(json: &[u8], special_tokens: SpecialTokens) -> Result<Self, TokenizerError> {
        let library = load::parse(Path::new("tokenizer.json"), json)?;
        Ok(load::assemble(library, special_tokens, HashSet::new()))
    }

    /// The token ids of `text`. `add_special_tokens` adds what the tokenizer puts around a text, such as a token for
    /// its beginning; leave it off for the output of a chat template, which holds them already.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`] when the library fails, for instance on a character outside a vocabulary without
    /// an unknown token.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.inner.library.encode_fast(text, add_special_tokens);
        encoding
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|error| TokenizerError::Encode { bytes: text.len(), detail: error.to_string() })
    }

    /// The text of `ids`, without special tokens: what a [`TextStream`] makes of them. Unknown ids count as nothing.
    pub fn decode(&self, ids: &[u32]) -> String {
        decode_with(ids, self.stream())
    }

    /// As [`Self::decode`], special tokens included.
    pub fn decode_with_special_tokens(&self, ids: &[u32]) -> String {
        decode_with(ids, self.stream_with_special_tokens())
    }

    /// The token as the vocabulary writes it, for instance `Ġhello`, `▁hello` or `<0xE2>`.
    pub fn token_text(&self, id: u32) -> Option<String> {
        self.inner.library.id_to_token(id)
    }

    /// The bytes a token stands for in the middle of a text, with byte-level characters and byte tokens resolved.
    /// They need not be UTF-8: a character can spread over tokens.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.token_text(id).map(|piece| {
            if self.is_special(id) { piece.into_bytes() } else { self.inner.decoder.bytes(&piece, false).into_owned() }
        })
    }

    /// The id of the token that the vocabulary writes as `text`.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.inner.library.token_to_id(text)
    }

    /// Whether `id` is a special token, which belongs to the format of the prompt and not to the text.
    pub fn is_special(&self, id: u32) -> bool {
        self.inner.special.contains(&id)
    }

    /// One more than the highest token id. The model's output can be wider, padded to a round size.
    pub fn vocabulary_size(&self) -> usize {
        self.inner.size
    }

    /// The token for the beginning of a text (`bos_token`), where the model folder names one.
    pub fn bos(&self) -> Option<u32> {
        self.inner.bos
    }

    /// The token for the end of a text (`eos_token`), where the model folder names one. What ends generation is in
    /// [`crate::GenerationDefaults`], which can name more.
    pub fn eos(&self) -> Option<u32> {
        self.inner.eos
    }

    /// The special tokens by name, as the model folder lists them.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.inner.special_tokens
    }

    /// A stream that turns token ids into text one by one and leaves special tokens out.
    pub fn stream(&self) -> TextStream {
        TextStream::new(self.clone(), false)
    }

    /// As [`Self::stream`], with special tokens shown.
    pub fn stream_with_special_tokens(&self) -> TextStream {
        TextStream::new(self.clone(), true)
    }
}

fn decode_with(ids: &[u32], mut stream: TextStream) -> String {
    let mut text = String::new();
    for &id in ids {
        if let Ok(part) = stream.push(id) {
            text.push_str(&part);
        }
    }
    text.push_str(&stream.finish());
    text
}
