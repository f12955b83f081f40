//! Keys and values to the host and back.

use crate::table_model::TableModel;
use linnet_compute::{Dtype, KvBlock, KvFormat, KvStore, Outputs, mlx::MlxOptions};

const PROMPT: [u32; 40] = {
    let mut ids = [0; 40];
    let mut place = 0;
    while place < 40 {
        ids[place] = (place as u32 * 13 + 5) % 64;
        place += 1;
    }
    ids
};

fn close(found: &[f32], expected: &[f32]) {
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-5, "{found} for {expected}");
    }
}

#[test]
fn a_sequence_made_of_exported_blocks_goes_on_as_the_first_did() {
    for (windows, options) in [
        (vec![None, None], MlxOptions::default()),
        (vec![None, None], TableModel::quantized(4, 0)),
        (vec![None, Some(64)], MlxOptions::default()),
    ] {
        let mut model = TableModel::new(&windows, Dtype::F32, options);
        let (first, neighbour) = (model.kv.open(), model.kv.open());
        model.step(&[(first, &PROMPT[..30], Outputs::None)], None).unwrap();
        model.step(&[(neighbour, &PROMPT[3..8], Outputs::None)], None).unwrap();
        // Blocks come out of a padded batch, too.
        model.logits(&[(first, &[PROMPT[30]]), (neighbour, &[7])]);
        let mut blocks = Vec::new();
        for range in [0..16, 16..30, 30..31] {
            blocks.push(model.kv.export(first, range).unwrap());
        }
        let mut other = TableModel::new(&windows, Dtype::F32, options);
        let second = other.kv.open();
        for block in &blocks {
            other.kv.import(second, block).unwrap();
        }
        assert_eq!(other.kv.length(second).unwrap(), 31);
        assert_eq!(other.kv.export(second, 0..31).unwrap(), model.kv.export(first, 0..31).unwrap());
        let found = other.logits(&[(second, &PROMPT[31..])]);
        let expected = model.logits(&[(first, &PROMPT[31..])]);
        close(&found[0], &expected[0]);
    }
}

#[test]
fn blocks_say_how_they_are_held() {
    let mut plain = TableModel::new(&[None], Dtype::BF16, MlxOptions::default());
    let slot = plain.kv.open();
    plain.logits(&[(slot, &PROMPT[..5])]);
    let block = plain.kv.export(slot, 1..4).unwrap();
    assert_eq!((block.start, block.tokens, block.layers[0].first), (1, 3, 1));
    assert_eq!(block.layers[0].keys.format, KvFormat::Plain(Dtype::BF16));
    assert_eq!(block.bytes(), 2 * 3 * 32 * 2);

    let mut quantized = TableModel::new(&[None], Dtype::BF16, TableModel::quantized(4, 0));
    let slot = quantized.kv.open();
    quantized.logits(&[(slot, &PROMPT[..5])]);
    let block = quantized.kv.export(slot, 0..5).unwrap();
    assert_eq!(block.layers[0].values.format, KvFormat::Affine { bits: 4, group_size: 32, dtype: Dtype::BF16 });
    assert_eq!(block.bytes(), 2 * 5 * (16 + 2 + 2));
    // A store that quantizes otherwise refuses it and stays as it was.
    let refused = plain.kv.open();
    let message = plain.kv.import(refused, &block).unwrap_err().to_string();
    assert!(message.contains("4 bits"), "{message}");
    assert_eq!(plain.kv.length(refused).unwrap(), 0);
}

#[test]
fn a_window_gives_what_it_still_holds_and_goes_on_from_it() {
    let mut model = TableModel::new(&[None, Some(8)], Dtype::F32, MlxOptions::default());
    let first = model.kv.open();
    model.step(&[(first, &PROMPT[..20], Outputs::None)], None).unwrap();
    for &token in &PROMPT[20..25] {
        model.logits(&[(first, &[token])]);
    }
    let block = model.kv.export(first, 0..25).unwrap();
    assert_eq!((block.layers[0].first, block.layers[0].keys.tokens), (0, 25));
    assert_eq!((block.layers[1].first, block.layers[1].keys.tokens), (17, 8));
    let mut other = TableModel::new(&[None, Some(8)], Dtype::F32, MlxOptions::default());
    let second = other.kv.open();
    other.kv.import(second, &block).unwrap();
    for &token in &PROMPT[25..] {
        let found = other.logits(&[(second, &[token])]);
        let expected = model.logits(&[(first, &[token])]);
        close(&found[0], &expected[0]);
    }
}

#[test]
fn a_block_that_does_not_follow_or_is_damaged_changes_nothing() {
    let mut model = TableModel::new(&[None], Dtype::F32, MlxOptions::default());
    let slot = model.kv.open();
    model.logits(&[(slot, &PROMPT[..6])]);
    let block = model.kv.export(slot, 2..6).unwrap();
    assert!(model.kv.import(slot, &block).is_err(), "it begins at 2");
    let fresh = model.kv.open();
    let mut damaged = model.kv.export(slot, 0..6).unwrap();
    damaged.layers[0].values.parts[0].truncate(10);
    let message = model.kv.import(fresh, &damaged).unwrap_err().to_string();
    assert!(message.contains("damaged"), "{message}");
    assert_eq!(model.kv.length(fresh).unwrap(), 0);
    assert!(model.kv.export(slot, 2..7).is_err());
}

#[test]
fn a_block_that_contradicts_itself_or_the_store_is_refused_and_counts_no_token_in() {
    type Change = fn(&mut KvBlock);
    let changes: [(&str, Change); 9] = [
        ("fewer values than keys", |block| {
            let values = &mut block.layers[1].values;
            values.tokens = 7;
            values.parts[0].truncate(7 * 32 * 4);
        }),
        ("more tokens than the block", |block| block.tokens = 5),
        ("an earlier first token", |block| block.layers[1].first = 0),
        ("a later first token", |block| block.layers[1].first = 20),
        ("a first token beyond all", |block| block.layers[0].first = usize::MAX),
        ("another type of float", |block| {
            let layer = &mut block.layers[0];
            for data in [&mut layer.keys, &mut layer.values] {
                data.format = KvFormat::Plain(Dtype::F16);
                data.parts[0].truncate(25 * 32 * 2);
            }
        }),
        ("words", |block| block.layers[0].keys.format = KvFormat::Plain(Dtype::U32)),
        ("sizes beyond memory", |block| block.layers[0].keys.heads = usize::MAX),
        ("groups of nothing", |block| {
            block.layers[0].keys.format = KvFormat::Affine { bits: 4, group_size: 0, dtype: Dtype::F32 };
        }),
    ];
    let mut model = TableModel::new(&[None, Some(8)], Dtype::F32, MlxOptions::default());
    let first = model.kv.open();
    model.logits(&[(first, &PROMPT[..20])]);
    for &token in &PROMPT[20..25] {
        model.logits(&[(first, &[token])]);
    }
    let whole = model.kv.export(first, 0..25).unwrap();
    let target = model.kv.open();
    for (name, change) in changes {
        let mut block = whole.clone();
        change(&mut block);
        assert!(model.kv.import(target, &block).is_err(), "{name} was taken");
        assert_eq!(model.kv.length(target).unwrap(), 0, "{name}");
    }
    model.kv.import(target, &whole).unwrap();
    let (found, expected) = (model.logits(&[(target, &[9])]), model.logits(&[(first, &[9])]));
    close(&found[0], &expected[0]);
}
