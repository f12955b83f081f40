//! Kept blocks: what is taken over goes on with the same bits as where it came from.

use crate::{fixture::assert_same_bits, table_model::TableModel};
use linnet_compute::{Dtype, KeptBlock, KvStore, Outputs, Slot, mlx::MlxOptions};

/// Tokens of a block.
const BLOCK: usize = 256;

fn ids(count: usize, seed: usize) -> Vec<u32> {
    (0..count).map(|place| ((place * 13 + seed * 7 + place * place / 5) % 64) as u32).collect()
}

fn keep(model: &mut TableModel, slot: Slot, tokens: usize) -> Vec<KeptBlock> {
    let block = |start| model.kv.keep(slot, start, BLOCK.min(tokens - start)).unwrap();
    (0..tokens).step_by(BLOCK).map(block).collect()
}

/// Windows of layers, options, and whether a beginning that is shorter than what was kept can be taken over.
fn forms() -> Vec<(Vec<Option<usize>>, MlxOptions, bool)> {
    vec![
        (vec![None, None], MlxOptions::default(), true),
        (vec![None, None], TableModel::quantized(4, 0), true),
        (vec![None, Some(24)], MlxOptions::default(), false),
        (vec![Some(300), None], MlxOptions { always_padded: true, ..MlxOptions::default() }, false),
    ]
}

#[test]
fn a_sequence_that_takes_blocks_over_has_the_bits_of_the_one_that_computed_them() {
    for (number, (windows, options, cuts)) in forms().into_iter().enumerate() {
        for length in [5, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 70] {
            let mut model = TableModel::new(&windows, Dtype::BF16, options);
            let prompt = ids(length, 1);
            let first = model.kv.open();
            model.step(&[(first, &prompt, Outputs::None)], None).unwrap();
            let kept = keep(&mut model, first, length);
            let [second, third] = [model.kv.open(), model.kv.open()];
            assert_eq!(model.kv.adoptable(&kept, length), length, "form {number}");
            model.kv.adopt(second, &kept, length).unwrap();
            let rest = ids(9, 2);
            let expected = model.logits(&[(first, &rest)]);
            let found = model.logits(&[(second, &rest)]);
            assert_same_bits(&format!("form {number}, {length} tokens"), &found[0], &expected[0]);
            // The first one is gone, and what it computed is still there.
            model.kv.close(first);
            model.kv.close(second);
            model.kv.adopt(third, &kept, length).unwrap();
            let found = model.logits(&[(third, &rest)]);
            assert_same_bits(&format!("form {number}, {length} tokens, after it ended"), &found[0], &expected[0]);
            if cuts {
                // An edit: only a part of the last block is taken over.
                let part = length / 2 + 1;
                let [cut, anew] = [model.kv.open(), model.kv.open()];
                model.kv.adopt(cut, &kept[..part.div_ceil(BLOCK)], part).unwrap();
                model.step(&[(anew, &prompt, Outputs::None)], None).unwrap();
                model.kv.truncate(anew, part).unwrap();
                let (found, expected) = (model.logits(&[(cut, &rest)]), model.logits(&[(anew, &rest)]));
                assert_same_bits(&format!("form {number}, {part} of {length} tokens"), &found[0], &expected[0]);
            }
            kept.into_iter().for_each(|kept| model.kv.release(kept));
            assert_eq!(model.kv.usage().kept_tokens, 0);
        }
    }
}

#[test]
fn blocks_that_were_on_a_disk_have_the_same_bits() {
    for (number, (windows, options, _)) in forms().into_iter().enumerate() {
        let mut model = TableModel::new(&windows, Dtype::F16, options);
        let length = 2 * BLOCK + 17;
        let slot = model.kv.open();
        model.step(&[(slot, &ids(length, 3), Outputs::None)], None).unwrap();
        let kept = keep(&mut model, slot, length);
        let mut other = TableModel::new(&windows, Dtype::F16, options);
        assert_eq!(other.kv.kept_format(), model.kv.kept_format());
        let restored: Vec<KeptBlock> = kept
            .iter()
            .zip((0..length).step_by(BLOCK))
            .map(|(&kept, start)| {
                let block = model.kv.read_kept(kept, start..length.min(start + BLOCK)).unwrap();
                other.kv.write_kept(&block).unwrap()
            })
            .collect();
        let adopted = other.kv.open();
        other.kv.adopt(adopted, &restored, length).unwrap();
        let rest = ids(3, 4);
        let (found, expected) = (other.logits(&[(adopted, &rest)]), model.logits(&[(slot, &rest)]));
        assert_same_bits(&format!("form {number}"), &found[0], &expected[0]);
    }
}

#[test]
fn a_window_is_taken_over_only_where_it_is_whole() {
    let mut model = TableModel::new(&[None, Some(24)], Dtype::F32, MlxOptions::default());
    let slot = model.kv.open();
    let prompt = ids(2 * BLOCK, 5);
    // The first block is kept when the window has passed it by.
    model.step(&[(slot, &prompt[..BLOCK], Outputs::None)], None).unwrap();
    model.step(&[(slot, &prompt[BLOCK..], Outputs::None)], None).unwrap();
    for token in ids(30, 6) {
        model.logits(&[(slot, &[token])]);
    }
    let late = model.kv.keep(slot, 0, BLOCK).unwrap();
    assert_eq!(model.kv.adoptable(&[late], BLOCK), 0);
    let fresh = model.kv.open();
    assert!(model.kv.adopt(fresh, &[late], BLOCK).is_err());
    assert_eq!(model.kv.length(fresh).unwrap(), 0);
}

#[test]
fn blocks_of_a_row_in_a_padded_batch_are_its_own_tokens() {
    let mut model = TableModel::new(&[None, None], Dtype::F32, MlxOptions::default());
    let [long, short] = [model.kv.open(), model.kv.open()];
    let (long_ids, short_ids) = (ids(90, 7), ids(30, 8));
    model.step(&[(long, &long_ids, Outputs::None), (short, &short_ids, Outputs::None)], None).unwrap();
    model.logits(&[(long, &[1]), (short, &[2])]);
    let kept = keep(&mut model, short, 30);
    let block = model.kv.read_kept(kept[0], 0..30).unwrap();
    let exported = model.kv.export(short, 0..30).unwrap();
    assert_eq!(block, exported);
    // The row leaves the batch and the block stays.
    model.kv.close(short);
    model.logits(&[(long, &[3])]);
    assert_eq!(model.kv.read_kept(kept[0], 0..30).unwrap(), exported);
    assert_eq!(model.kv.usage().kept_tokens, 30);
}

#[test]
fn what_runs_is_not_changed_by_what_takes_its_tokens_over() {
    let mut model = TableModel::new(&[None, None], Dtype::F32, MlxOptions::default());
    let mut undisturbed = TableModel::new(&[None, None], Dtype::F32, MlxOptions::default());
    let (first, alone) = (model.kv.open(), undisturbed.kv.open());
    let prompt = ids(40, 9);
    model.step(&[(first, &prompt, Outputs::None)], None).unwrap();
    undisturbed.step(&[(alone, &prompt, Outputs::None)], None).unwrap();
    let kept = keep(&mut model, first, 33);
    for turn in 0..4 {
        let adopted = model.kv.open();
        model.kv.adopt(adopted, &kept, 33).unwrap();
        model.logits(&[(adopted, &ids(5, turn))]);
        model.kv.close(adopted);
        let token = [turn as u32 + 10];
        let (found, expected) = (model.logits(&[(first, &token)]), undisturbed.logits(&[(alone, &token)]));
        assert_same_bits("beside sequences that took its tokens over", &found[0], &expected[0]);
    }
}
