//! whisper.cpp's files: sizes, mel filters, vocabulary and tensors in one, as `models/convert-pt-to-ggml.py` of
//! whisper.cpp writes them and its quantizer copies them.

use std::fs::File;
use std::path::Path;

use super::dimensions::Dimensions;
use super::tokenizer::Tokenizer;
use super::{Element, Part, Place, WhisperModel, names};
use crate::bytes::Reader;
use crate::disk;
use crate::error::{IoContext as _, LibraryError};
use crate::gguf::tensor_type::TensorType;
use crate::weights::Dtype;

/// The file's first four bytes: 0x67676d6c, little end first.
pub(crate) const MAGIC: &[u8] = b"lmgg";
/// Fields of the head, each of 32 bits.
const SIZE_LIMIT: u32 = 1 << 28;
/// Rows and columns of the mel filters.
const FILTER_LIMIT: u32 = 1 << 16;
/// Real vocabularies have some 51,000 tokens of at most some hundred bytes.
const VOCABULARY_LIMIT: u32 = 1 << 20;
const TOKEN_LIMIT: u32 = 1 << 12;
const NAME_LIMIT: u32 = 1 << 10;
/// ggml's own limit.
const DIMENSION_LIMIT: u32 = 4;

/// Opens a file and checks its table of tensors.
pub(super) fn open(path: &Path) -> Result<WhisperModel, LibraryError> {
    let file = File::open(path).map_err(|source| disk::explain_link(path, source)).at("open", path)?;
    let mut reader = Reader::new(path, &file)?;
    if reader.take(4, "the magic number")? != MAGIC {
        return Err(reader.malformed("it does not begin with whisper.cpp's magic number"));
    }
    let mut sizes = [0u64; 10];
    for (slot, name) in sizes.iter_mut().zip([
        "n_vocab",
        "n_audio_ctx",
        "n_audio_state",
        "n_audio_head",
        "n_audio_layer",
        "n_text_ctx",
        "n_text_state",
        "n_text_head",
        "n_text_layer",
        "n_mels",
    ]) {
        *slot = reader.count(name, SIZE_LIMIT)?.into();
    }
    let [
        n_vocab,
        n_audio_ctx,
        n_audio_state,
        n_audio_head,
        n_audio_layer,
        n_text_ctx,
        n_text_state,
        n_text_head,
        n_text_layer,
        n_mels,
    ] = sizes;
    let dimensions = Dimensions {
        n_mels,
        n_audio_ctx,
        n_audio_state,
        n_audio_head,
        n_audio_layer,
        n_vocab,
        n_text_ctx,
        n_text_state,
        n_text_head,
        n_text_layer,
    };
    dimensions.check(path)?;
    // The type of most tensors; each tensor says its own.
    reader.u32("the element type")?;
    let filters = u64::from(reader.count("mel filter rows", FILTER_LIMIT)?)
        * u64::from(reader.count("mel filter columns", FILTER_LIMIT)?);
    reader.skip(4 * filters, "the mel filters")?;
    let count = reader.count("the number of tokens", VOCABULARY_LIMIT)?;
    let mut tokens = Vec::new();
    for id in 0..count {
        let length = reader.count(&format!("the length of token {id}"), TOKEN_LIMIT)?;
        tokens.push(reader.take(length.into(), &format!("token {id}"))?);
    }
    let mut parts = Vec::new();
    while !reader.is_at_end() {
        parts.extend(tensor(&mut reader)?);
    }
    let stem = disk::file_name_text(path);
    Ok(WhisperModel {
        path: path.to_owned(),
        format: "ggml",
        alignment_heads: dimensions.known_alignment_heads(&stem),
        dimensions,
        tokenizer: Tokenizer::Tokens(tokens),
        files: vec![(path.to_owned(), file)],
        parts,
        notes: Vec::new(),
    })
}

/// Reads one tensor's head and goes past its data; `None` for a tensor that our folders do not hold.
fn tensor(reader: &mut Reader<'_>) -> Result<Option<Part>, LibraryError> {
    let dimensions = reader.count("a tensor's number of dimensions", DIMENSION_LIMIT)?;
    let length = reader.count("the length of a tensor's name", NAME_LIMIT)?;
    let number = reader.u32("a tensor's element type")?;
    let mut shape = Vec::new();
    for _ in 0..dimensions {
        shape.push(u64::from(reader.count("a tensor's size", SIZE_LIMIT)?));
    }
    // The file has the innermost dimension first.
    shape.reverse();
    let name = String::from_utf8(reader.take(length.into(), "a tensor's name")?)
        .map_err(|_| reader.malformed("the name of a tensor is not UTF-8 text"))?;
    let kind = TensorType::from_number(number);
    let Some(layout) = kind.layout() else {
        return Err(reader.malformed(format!(
            "tensor \"{name}\" has the element type {}, which Linnet does not read in Whisper's files; use the model \
             in f16, q8_0, q5_1, q5_0, q4_1 or q4_0",
            kind.name()
        )));
    };
    let elements = shape
        .iter()
        .try_fold(1u64, |product, &size| product.checked_mul(size))
        .filter(|&elements| elements > 0 && elements.checked_mul(layout.bytes as u64).is_some())
        .ok_or_else(|| reader.malformed(format!("tensor \"{name}\" has the impossible shape {shape:?}")))?;
    if !shape.last().is_some_and(|columns| columns.is_multiple_of(layout.elements as u64)) {
        let blocks = format!("tensor \"{name}\" of shape {shape:?} is not made of whole blocks of {}", kind.name());
        return Err(reader.malformed(blocks));
    }
    let place = Place { file: 0, offset: reader.position() };
    reader.skip(elements / layout.elements as u64 * layout.bytes as u64, &format!("tensor \"{name}\""))?;
    let Some(ours) = names::from_openai(&name) else { return Ok(None) };
    let element = match kind {
        TensorType::F32 => Element::Dense(Dtype::F32),
        TensorType::F16 => Element::Dense(Dtype::F16),
        TensorType::Bf16 => Element::Dense(Dtype::Bf16),
        other => Element::Blocks(other),
    };
    let (shape, kernels_last) = match shape.as_slice() {
        // Of a convolution, the bias is stored as a column.
        [out, 1] if ours.ends_with(".bias") => (vec![*out], false),
        [out, inputs, kernel] => (vec![*out, *kernel, *inputs], true),
        _ => (shape, false),
    };
    Ok(Some(Part { name: ours, from: name, place, shape, element, kernels_last }))
}
