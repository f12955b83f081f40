use super::*;
use crate::test_support::{Meta, Random, small_gguf};

fn open_bytes(bytes: &[u8]) -> Result<GgufFile, LibraryError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.gguf");
    std::fs::write(&path, bytes).unwrap();
    open(&path)
}

fn refusal(bytes: &[u8]) -> String {
    open_bytes(bytes).unwrap_err().to_string()
}

#[test]
fn metadata_and_tensors_are_read() {
    let mut builder = small_gguf(0);
    builder.set("x.truth", Meta::Bool(true));
    builder.set("x.numbers", Meta::F32s(vec![0.5, -1.0]));
    let file = open_bytes(&builder.bytes()).unwrap();
    assert_eq!(file.architecture().unwrap(), "llama");
    assert_eq!(file.integer("llama.block_count"), Some(2));
    assert_eq!(file.boolean("x.truth"), Some(true));
    assert_eq!(file.array("x.numbers").unwrap(), [Value::Float32(0.5), Value::Float32(-1.0)]);
    let tensor = &file.tensors["blk.1.attn_k.weight"];
    assert_eq!(tensor.shape, [128, 256]);
    assert_eq!(tensor.bytes, 128 * 256 * 4);
    builder.version = 2;
    assert!(open_bytes(&builder.bytes()).is_ok());
}

#[test]
fn a_truncated_file_says_what_is_missing() {
    let bytes = small_gguf(2).bytes();
    let text = refusal(&bytes[..bytes.len() - 7]);
    assert!(text.contains("tensor \"") && text.contains("(7 missing)"), "{text}");
    let text = refusal(&bytes[..100]);
    assert!(text.contains("truncated"), "{text}");
    assert!(refusal(b"GGU").contains("the magic number"));
}

/// Every way to end or to damage the header must be an error or a sound file, never a panic or a huge allocation.
#[test]
fn no_damaged_header_brings_the_parser_down() {
    let mut builder = small_gguf(2);
    builder.set("tokenizer.ggml.tokens", Meta::Texts(vec!["a".into()]));
    let bytes = builder.bytes();
    let header = bytes.len() - builder.tensors.iter().map(|tensor| tensor.3.len()).sum::<usize>();
    for end in (0..header.min(bytes.len())).step_by(7) {
        assert!(open_bytes(&bytes[..end]).is_err(), "cut at {end}");
    }
    let mut random = Random::new(99);
    for _ in 0..400 {
        let mut damaged = bytes[..header + 64].to_vec();
        for _ in 0..=random.next() % 4 {
            let at = random.next() as usize % header;
            damaged[at] = match random.next() % 3 {
                0 => 0xff,
                1 => 0,
                _ => random.next() as u8,
            };
        }
        let _ = open_bytes(&damaged);
    }
}

#[test]
fn other_versions_and_byte_orders_are_named() {
    let mut builder = small_gguf(0);
    builder.version = 1;
    assert!(refusal(&builder.bytes()).contains("GGUF version 1"));
    builder.version = 3u32.swap_bytes();
    assert!(refusal(&builder.bytes()).contains("big-endian"));
    assert!(refusal(b"PK\x03\x04 not a model").contains("does not begin with"));
}

#[test]
fn claims_beyond_the_limits_are_refused() {
    let mut builder = small_gguf(0);
    // An array of 2^62 texts.
    builder.set("x.huge", Meta::Raw(9, [&8u32.to_le_bytes()[..], &(1u64 << 62).to_le_bytes()].concat()));
    assert!(refusal(&builder.bytes()).contains("x.huge"));
    // A text longer than the file.
    builder.set("x.huge", Meta::Raw(8, (1u64 << 20).to_le_bytes().to_vec()));
    assert!(refusal(&builder.bytes()).contains("truncated") || refusal(&builder.bytes()).contains("x.huge"));
    // Arrays in arrays, ten deep.
    let mut nested = Vec::new();
    for _ in 0..10 {
        nested.extend(9u32.to_le_bytes());
        nested.extend(1u64.to_le_bytes());
    }
    nested.extend(4u32.to_le_bytes());
    nested.extend([1u64.to_le_bytes().to_vec(), vec![0; 4]].concat());
    builder.set("x.huge", Meta::Raw(9, nested));
    assert!(refusal(&builder.bytes()).contains("deeper than"));
    builder.set("x.huge", Meta::Raw(77, vec![]));
    assert!(refusal(&builder.bytes()).contains("unknown value type 77"));
    builder.set("x.huge", Meta::Raw(7, vec![9]));
    assert!(refusal(&builder.bytes()).contains("truth value of 9"));
}

#[test]
fn doubled_keys_and_tensors_and_overlaps_are_refused() {
    let mut builder = small_gguf(0);
    builder.metadata.push(("llama.block_count".into(), Meta::U32(3)));
    assert!(refusal(&builder.bytes()).contains("llama.block_count twice"));

    let mut builder = small_gguf(0);
    let copy = builder.tensors[0].clone();
    builder.tensors.push(copy);
    assert!(refusal(&builder.bytes()).contains("twice"));

    let mut builder = small_gguf(0);
    // The table claims more rows than the data has room for before the next tensor.
    builder.tensor("blk.0.attn_k.weight").1 = vec![129, 256];
    assert!(refusal(&builder.bytes()).contains("overlaps tensor \"blk.0.attn_k.weight\""));
}

#[test]
fn impossible_shapes_and_alignments_are_refused() {
    let mut builder = small_gguf(2);
    builder.tensor("blk.0.attn_k.weight").1 = vec![128, 250];
    assert!(refusal(&builder.bytes()).contains("not a multiple of Q4_0's blocks of 32"));
    builder.tensor("blk.0.attn_k.weight").1 = vec![1 << 40, 1 << 40];
    assert!(refusal(&builder.bytes()).contains("impossible shape"));
    builder.tensor("blk.0.attn_k.weight").1 = vec![0, 32];
    assert!(refusal(&builder.bytes()).contains("impossible shape"));
    builder.tensor("blk.0.attn_k.weight").1 = vec![1, 1, 1, 1, 32];
    assert!(refusal(&builder.bytes()).contains("5 dimensions"));
    let mut builder = small_gguf(2);
    builder.set("general.alignment", Meta::U32(48));
    assert!(refusal(&builder.bytes()).contains("general.alignment"));
}
