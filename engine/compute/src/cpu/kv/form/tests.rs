use super::*;
use crate::{KvStore, Outputs, Row};
use linnet_kernels::Page;

const WIDTH: usize = 2 * 64;

fn store(bits: u32, start: usize) -> CpuKv {
    let full = LayerKv { kv_heads: 2, head_dim: 64, window: None };
    let layout = KvLayout { layers: vec![full, LayerKv { window: Some(100), ..full }, full] };
    let quantization = KvQuantization { bits, group_size: 64, start };
    CpuKv::new(&layout, 4096).quantized(&layout, quantization).unwrap()
}

/// Takes in tokens as a step does, up to what it attends to.
fn write(kv: &mut CpuKv, slot: Slot, length: usize) {
    let start = kv.length(slot).unwrap();
    let row = Row { slot, start, length, outputs: Outputs::Last };
    kv.extend(&[row]).unwrap();
    for layer in 0..3 {
        let line =
            |position: usize| (0..WIDTH).map(move |i| ((position * 37 + i * 11 + layer) % 97) as f32 / 13.0 - 3.0);
        let keys: Vec<f32> = (start..start + length).flat_map(line).collect();
        let values: Vec<f32> = keys.iter().map(|key| 1.0 - key).collect();
        let place = kv.layer(layer).unwrap();
        kv.write(place, &row, &keys, &values).unwrap();
    }
}

fn step(kv: &mut CpuKv, slot: Slot, length: usize) {
    write(kv, slot, length);
    kv.settle([slot].into_iter());
}

fn formats(kv: &CpuKv, slot: Slot, layer: usize) -> Vec<bool> {
    let pages = kv.pages(kv.layer(layer).unwrap(), slot).unwrap();
    pages.iter().map(|page: &Page<'_>| page.format != PageFormat::F16).collect()
}

#[test]
fn a_step_is_quantized_after_it_and_what_follows_as_it_comes() {
    for bits in [4, 8] {
        let mut kv = store(bits, 0);
        let slot = kv.open();
        write(&mut kv, slot, 70);
        assert_eq!(formats(&kv, slot, 0), [false, false], "attention of the first step sees what came");
        let before = kv.usage().bytes;
        kv.settle([slot].into_iter());
        assert_eq!(formats(&kv, slot, 0), [true, true]);
        assert_eq!(formats(&kv, slot, 1), [false, false], "windows are not quantized");
        assert!(kv.usage().bytes < before * 8 / 10);
        step(&mut kv, slot, 60);
        assert_eq!(formats(&kv, slot, 2), [true, true, true]);
        kv.truncate(slot, 0).unwrap();
        write(&mut kv, slot, 3);
        assert_eq!(formats(&kv, slot, 0), [false], "it begins as any other");
    }
}

#[test]
fn a_sequence_below_the_start_stays_as_it_came() {
    let mut kv = store(8, 100);
    let slot = kv.open();
    step(&mut kv, slot, 99);
    assert_eq!(formats(&kv, slot, 0), [false, false]);
    step(&mut kv, slot, 1);
    assert_eq!(formats(&kv, slot, 0), [true, true]);
}

#[test]
fn quantized_tokens_leave_and_enter_unchanged() {
    for bits in [4, 8] {
        let mut kv = store(bits, 0);
        let (from, to) = (kv.open(), kv.open());
        step(&mut kv, from, 150);
        for range in [0..5, 5..66, 66..150] {
            let block = kv.export(from, range).unwrap();
            let format = KvFormat::Affine { bits, group_size: 64, dtype: Dtype::F16 };
            assert_eq!(
                (block.layers[0].keys.format, block.layers[1].keys.format),
                (format, KvFormat::Plain(Dtype::F16))
            );
            kv.import(to, &block).unwrap();
        }
        assert_eq!(kv.export(to, 0..150).unwrap(), kv.export(from, 0..150).unwrap());
        // Both go on alike.
        step(&mut kv, from, 7);
        step(&mut kv, to, 7);
        assert_eq!(kv.export(to, 0..157).unwrap(), kv.export(from, 0..157).unwrap());
        // Kept blocks, over the host, into a sequence.
        let kept = kv.keep(from, 64, 64).unwrap();
        let block = kv.read_kept(kept, 64..128).unwrap();
        assert_eq!(block, kv.export(from, 64..128).unwrap());
        let written = kv.write_kept(&block).unwrap();
        assert_eq!(kv.read_kept(written, 64..128).unwrap(), block);
        let first = kv.keep(from, 0, 64).unwrap();
        let adopted = kv.open();
        kv.adopt(adopted, &[first, written], 100).unwrap();
        assert_eq!(kv.export(adopted, 0..100).unwrap(), kv.export(from, 0..100).unwrap());
    }
}

#[test]
fn a_quantized_block_of_another_kind_is_refused() {
    let (mut four, mut eight) = (store(4, 0), store(8, 0));
    let slot = four.open();
    step(&mut four, slot, 10);
    let block = four.export(slot, 0..10).unwrap();
    let slot = eight.open();
    let message = eight.import(slot, &block).unwrap_err().to_string();
    assert!(message.contains("layer 0") && message.contains("Affine"), "{message}");
    assert_eq!(eight.length(slot).unwrap(), 0);
}

#[test]
fn a_block_that_others_hold_is_not_touched_when_its_sequence_is_quantized() {
    let mut kv = store(8, 100);
    let (first, second) = (kv.open(), kv.open());
    step(&mut kv, first, 70);
    let kept = [kv.keep(first, 0, 64).unwrap(), kv.keep(first, 64, 6).unwrap()];
    let before = kv.read_kept(kept[0], 0..64).unwrap();
    kv.adopt(second, &kept, 70).unwrap();
    step(&mut kv, second, 60);
    assert_eq!(formats(&kv, second, 0), [false, true, true], "the first is shared, the second its own copy");
    assert_eq!(formats(&kv, first, 0), [false, false]);
    assert_eq!(kv.read_kept(kept[0], 0..64).unwrap(), before);
    // What leaves is of one form.
    let block = kv.export(second, 0..130).unwrap();
    assert!(matches!(block.layers[0].keys.format, KvFormat::Affine { bits: 8, .. }));
}

#[test]
fn heads_that_do_not_divide_are_refused() {
    let layout = KvLayout { layers: vec![LayerKv { kv_heads: 1, head_dim: 48, window: None }] };
    let quantization = KvQuantization { bits: 4, group_size: 64, start: 0 };
    let message = CpuKv::new(&layout, 64).quantized(&layout, quantization).unwrap_err().to_string();
    assert!(message.contains("48"), "{message}");
}
