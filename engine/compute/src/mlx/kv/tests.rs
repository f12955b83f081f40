//! What a failed operation leaves of the store.

use super::*;
use crate::{LayerKv, Outputs};

fn store() -> MlxKv {
    let graph = Rc::new(Graph::new().unwrap());
    let memory = Rc::new(Memory::new(&graph).unwrap());
    let layout = KvLayout { layers: vec![LayerKv { kv_heads: 1, head_dim: 32, window: None }] };
    MlxKv::new(graph, memory, &layout, &MlxOptions::default(), 4096).unwrap()
}

fn row(kv: &MlxKv, slot: Slot, length: usize) -> Row {
    Row { slot, start: kv.length(slot).unwrap(), length, outputs: Outputs::Last }
}

/// Keys or values of a number of tokens of one sequence.
fn lines(heads: usize, tokens: usize) -> Array {
    let values: Vec<f32> = (0..heads * tokens * 32).map(|index| index as f32).collect();
    data::from_f32(&values, &[1, heads as i32, tokens as i32, 32]).unwrap()
}

/// A sequence with tokens, in a batch of its own.
fn sequence(kv: &mut MlxKv, tokens: usize) -> Slot {
    let slot = kv.open();
    let rows = [row(kv, slot, tokens)];
    let (plans, _) = kv.begin(&rows).unwrap();
    kv.write(&plans[0], 0, &lines(1, tokens), &lines(1, tokens)).unwrap();
    slot
}

#[test]
fn sequences_that_cannot_be_joined_are_all_still_there() {
    let mut kv = store();
    let slots = [sequence(&mut kv, 3), sequence(&mut kv, 5), sequence(&mut kv, 2)];
    let fresh = kv.open();
    // Arrays of another shape, which nothing can put below the others.
    let (index, _) = kv.place(slots[1]).unwrap();
    let odd = || Stored::plain(lines(3, 5));
    kv.batches[index].batch.layers[0].held = Some((odd(), odd()));
    let rows: Vec<Row> = slots.iter().chain([&fresh]).map(|&slot| row(&kv, slot, 1)).collect();
    assert!(kv.begin(&rows).is_err());
    let lengths: Vec<usize> = slots.iter().chain([&fresh]).map(|&slot| kv.length(slot).unwrap()).collect();
    assert_eq!(lengths, [3, 5, 2, 0]);
    // The sound ones go on.
    let rows = [row(&kv, slots[0], 1), row(&kv, slots[2], 1)];
    kv.begin(&rows).unwrap();
    assert_eq!((kv.length(slots[0]).unwrap(), kv.length(slots[2]).unwrap()), (4, 3));
}

#[test]
fn a_step_that_comes_to_nothing_counts_no_token_in() {
    let mut kv = store();
    let slots = [sequence(&mut kv, 3), sequence(&mut kv, 5)];
    let rows = slots.map(|slot| row(&kv, slot, 1));
    for _ in 0..2 {
        let (_, begun) = kv.begin(&rows).unwrap();
        assert_eq!(slots.map(|slot| kv.length(slot).unwrap()), [4, 6]);
        kv.undo(begun);
        assert_eq!(slots.map(|slot| kv.length(slot).unwrap()), [3, 5]);
    }
    // A prompt that leaves padding on its right takes that back, too.
    let rows = [row(&kv, slots[0], 4), row(&kv, slots[1], 2)].map(|row| Row { outputs: Outputs::None, ..row });
    let (_, begun) = kv.begin(&rows).unwrap();
    kv.undo(begun);
    assert_eq!(slots.map(|slot| kv.length(slot).unwrap()), [3, 5]);
    assert!(kv.batches.iter().all(|numbered| numbered.batch.right_padding.is_none()));
}
