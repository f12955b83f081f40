//! What is refused, and that nothing changes then.

use crate::table_model::{HEAD_DIM, TableModel};
use linnet_compute::{
    Backend, ComputeError, Dtype, KvLayout, KvStore, LayerKv, Outputs,
    mlx::{MlxBackend, MlxOptions},
};

fn layout(window: Option<usize>, head_dim: usize) -> KvLayout {
    KvLayout { layers: vec![LayerKv { kv_heads: 1, head_dim, window }] }
}

#[test]
fn weights_that_cannot_fit_are_refused_with_the_figures() {
    let backend = MlxBackend::new(MlxOptions::default()).unwrap();
    backend.admit_weights(1 << 20).unwrap();
    let message = backend.admit_weights(1 << 50).unwrap_err().to_string();
    assert!(message.contains("1048576.0 GiB") && message.contains("in use"), "{message}");
}

#[test]
fn a_store_that_cannot_fit_is_refused_with_the_figures() {
    let backend = MlxBackend::new(MlxOptions::default()).unwrap();
    let refused = backend.kv(&layout(None, 64), 1 << 45).unwrap_err();
    assert!(matches!(refused, ComputeError::OutOfMemory { .. }), "{refused}");
    // A token of a gigabyte: not even a short conversation fits.
    let giant = KvLayout { layers: vec![LayerKv { kv_heads: 1 << 14, head_dim: 1 << 14, window: None }] };
    let refused = backend.kv_room(&giant).unwrap_err();
    assert!(refused.to_string().contains("one short conversation"), "{refused}");
    assert!(backend.kv_room(&layout(None, 64)).unwrap().unwrap() > 1 << 16);
}

// Rows of a batch all take as much as the longest, which only the step itself knows.
#[test]
fn a_step_that_cannot_fit_is_refused_before_it_is_tried() {
    let backend = MlxBackend::new(MlxOptions::default()).unwrap();
    let bytes = |head_dim: usize| 2 * head_dim * size_of::<u16>();
    let free = backend.kv_room(&layout(None, 64)).unwrap().unwrap() * bytes(64) * 2;
    let head_dim = free / bytes(1) / 10_000;
    let mut kv = backend.kv(&layout(None, head_dim), 6400).unwrap();
    let (long, short) = (kv.open(), kv.open());
    let row = |slot, start, length, outputs| linnet_compute::Row { slot, start, length, outputs };
    let prompt = backend.tokens(&[0; 6000]).unwrap();
    backend.step(&mut kv, &[row(long, 0, 6000, Outputs::None)], &prompt).unwrap();
    let rows = [row(long, 6000, 1, Outputs::Last), row(short, 0, 1, Outputs::Last)];
    let refused = backend.step(&mut kv, &rows, &backend.tokens(&[1, 2]).unwrap()).unwrap_err();
    assert!(matches!(refused, ComputeError::OutOfMemory { what: "the KV cache", .. }), "{refused}");
    assert_eq!((kv.length(long).unwrap(), kv.length(short).unwrap()), (6000, 0));
    backend.step(&mut kv, &rows[..1], &backend.tokens(&[1]).unwrap()).unwrap();
}

#[test]
fn a_full_store_refuses_and_stays_as_it_was() {
    let backend = MlxBackend::new(MlxOptions::default()).unwrap();
    let mut kv = backend.kv(&layout(None, 32), 512).unwrap();
    let (a, b) = (kv.open(), kv.open());
    let row = |slot, start, length| linnet_compute::Row { slot, start, length, outputs: Outputs::None };
    let step = |kv: &mut _, rows: &[linnet_compute::Row]| {
        let tokens = vec![0; rows.iter().map(|row| row.length).sum()];
        backend.step(kv, rows, &backend.tokens(&tokens).unwrap()).map(drop)
    };
    step(&mut kv, &[row(a, 0, 300)]).unwrap();
    let before = kv.usage();
    assert_eq!((before.used_tokens, before.capacity_tokens), (512, 512));
    let refused = step(&mut kv, &[row(a, 300, 1), row(b, 0, 1)]).unwrap_err();
    assert!(matches!(refused, ComputeError::KvFull { used: 512, capacity: 512, wanted: 2 }), "{refused}");
    assert_eq!((kv.usage(), kv.length(a).unwrap(), kv.length(b).unwrap()), (before, 300, 0));
    kv.close(a);
    step(&mut kv, &[row(b, 0, 1)]).unwrap();
}

#[test]
fn rows_that_do_not_continue_their_sequences_are_refused() {
    let backend = MlxBackend::new(MlxOptions::default()).unwrap();
    let mut kv = backend.kv(&layout(None, 32), 512).unwrap();
    let slot = kv.open();
    let row = |start, length| linnet_compute::Row { slot, start, length, outputs: Outputs::None };
    let tokens = backend.tokens(&[1, 2]).unwrap();
    assert!(matches!(backend.step(&mut kv, &[row(1, 2)], &tokens), Err(ComputeError::WrongStart { held: 0, .. })));
    assert!(backend.step(&mut kv, &[row(0, 1), row(0, 1)], &tokens).is_err(), "a slot twice");
    assert!(backend.step(&mut kv, &[row(0, 3)], &tokens).is_err(), "three tokens of two");
    kv.close(slot);
    assert!(matches!(backend.step(&mut kv, &[row(0, 2)], &tokens), Err(ComputeError::UnknownSlot { .. })));
}

#[test]
fn heads_that_cannot_be_quantized_are_refused_with_what_can() {
    for (bits, head_dim) in [(5, 32), (4, 40)] {
        let backend = MlxBackend::new(TableModel::quantized(bits, 0)).unwrap();
        let message = backend.kv(&layout(None, head_dim), 512).unwrap_err().to_string();
        assert!(message.contains(&format!("{head_dim} elements")) && message.contains("bits 4 and 8"), "{message}");
        // Layers with a window stay as they are.
        backend.kv(&layout(Some(8), head_dim), 512).unwrap();
    }
}

#[test]
fn an_unknown_token_is_named() {
    let mut model = TableModel::new(&[None], Dtype::F32, MlxOptions::default());
    let slot = model.kv.open();
    let refused = model.step(&[(slot, &[3, 64], Outputs::Last)], None).unwrap_err();
    assert!(matches!(refused, ComputeError::TokenOutOfRange { token: 64, vocabulary: 64 }), "{refused}");
}

#[test]
fn cutting_a_sequence_back_is_as_if_the_rest_had_never_been() {
    for options in [MlxOptions::default(), TableModel::quantized(8, 0)] {
        let mut model = TableModel::new(&[None, Some(24)], Dtype::F32, options);
        let (cut, clean, other) = (model.kv.open(), model.kv.open(), model.kv.open());
        model.logits(&[(cut, &[1, 2, 3, 4, 5, 6, 7, 8])]);
        model.logits(&[(other, &[9, 9])]);
        model.logits(&[(cut, &[50]), (other, &[51])]);
        model.logits(&[(cut, &[52]), (other, &[53])]);
        model.kv.truncate(cut, 8).unwrap();
        assert_eq!((model.kv.length(cut).unwrap(), model.kv.length(other).unwrap()), (8, 4));
        model.logits(&[(clean, &[1, 2, 3, 4, 5, 6, 7, 8])]);
        let found = model.logits(&[(cut, &[11, 12])]);
        let expected = model.logits(&[(clean, &[11, 12])]);
        for (found, expected) in found[0].iter().zip(&expected[0]) {
            assert!((found - expected).abs() < 1e-4, "{found} for {expected}");
        }
        model.kv.truncate(cut, 0).unwrap();
        assert_eq!(model.kv.length(cut).unwrap(), 0);
    }
    let mut model = TableModel::new(&[Some(4)], Dtype::F32, MlxOptions::default());
    let slot = model.kv.open();
    model.logits(&[(slot, &[1, 2, 3, 4, 5, 6])]);
    let refused = model.kv.truncate(slot, 5).unwrap_err();
    assert!(matches!(refused, ComputeError::WindowPassed { window: 4, held: 6, wanted: 5, .. }), "{refused}");
}

#[test]
fn a_row_that_was_padded_beside_a_longer_one_forgets_what_it_is_cut_back_to() {
    const LONG: [u32; 30] = [7; 30];
    let continuation = [21, 22, 23, 24, 25, 26, 27, 28];
    for (windows, together) in
        [(vec![Some(20)], 0), (vec![Some(20)], 3), (vec![None, Some(20)], 0), (vec![Some(20), Some(12)], 2)]
    {
        let mut model = TableModel::new(&windows, Dtype::F32, MlxOptions::default());
        let (long, cut, clean) = (model.kv.open(), model.kv.open(), model.kv.open());
        // Both prompts in one step: the short row is padded to the long one's length, beyond the window.
        model.logits(&[(long, &LONG), (cut, &[1, 2, 3, 4, 5, 6])]);
        for token in 0..together {
            // The window turns.
            model.logits(&[(long, &[40 + token]), (cut, &[50 + token])]);
        }
        model.kv.truncate(cut, 4).unwrap();
        model.logits(&[(clean, &[1, 2, 3, 4])]);
        for (place, token) in continuation.into_iter().enumerate() {
            let found = model.logits(&[(cut, &[token])]);
            let expected = model.logits(&[(clean, &[token])]);
            for (found, expected) in found[0].iter().zip(&expected[0]) {
                let apart = (found - expected).abs();
                assert!(apart < 1e-4, "{windows:?}, {together} together, token {place}: {found} for {expected}");
            }
        }
        assert_eq!(model.kv.length(long).unwrap(), 30 + together as usize);
    }
}

#[test]
fn closing_all_sequences_frees_their_arrays() {
    let mut model = TableModel::new(&[None; 2], Dtype::F32, MlxOptions::default());
    let slots = [model.kv.open(), model.kv.open()];
    for slot in slots {
        model.logits(&[(slot, &[1; 40])]);
    }
    model.logits(&[(slots[0], &[1]), (slots[1], &[2])]);
    assert!(model.kv.usage().bytes >= 2 * 2 * 2 * 40 * HEAD_DIM * 4);
    for slot in slots {
        model.kv.close(slot);
    }
    assert_eq!((model.kv.usage().bytes, model.kv.usage().used_tokens), (0, 0));
}
