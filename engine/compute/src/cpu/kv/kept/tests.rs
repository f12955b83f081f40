//! Shared blocks against a model that shares nothing.

use super::*;
use crate::{KvLayout, KvStore, LayerKv, Outputs, Row};
use rand::{Rng, SeedableRng, rngs::StdRng};

const LAYERS: usize = 2;
const WIDTH: usize = 2 * 4;

fn store(blocks: usize) -> CpuKv {
    let layer = LayerKv { kv_heads: 2, head_dim: 4, window: None };
    CpuKv::new(&KvLayout { layers: vec![layer; LAYERS] }, blocks * PAGE_TOKENS)
}

/// Writes tokens whose keys and values are made of a number each.
fn write(kv: &mut CpuKv, slot: Slot, tokens: &[u16]) -> Result<()> {
    let row = Row { slot, start: kv.length(slot)?, length: tokens.len(), outputs: Outputs::Last };
    kv.extend(&[row])?;
    for layer in 0..LAYERS {
        let line = |sign: f32| -> Vec<f32> {
            let element = |token: u16| (0..WIDTH).map(move |place| sign * (f32::from(token) + (place + layer) as f32));
            tokens.iter().flat_map(|&token| element(token)).collect()
        };
        let place = kv.layer(layer)?;
        kv.write(place, &row, &line(1.0), &line(-1.0))?;
    }
    Ok(())
}

/// The numbers that a block's keys and values are made of, all of which must agree.
fn numbers(block: &KvBlock) -> Vec<u16> {
    let number = |token: usize| {
        let mut found = None;
        for (layer, data) in block.layers.iter().enumerate() {
            for (data, sign) in [(&data.keys, 1.0), (&data.values, -1.0)] {
                for head in 0..2 {
                    for element in 0..4 {
                        let index = (head * data.tokens + token) * 4 + element;
                        let bytes = data.parts[0].as_chunks::<2>().0[index];
                        let value = half::f16::from_le_bytes(bytes).to_f32() * sign;
                        let number = value - (head * 4 + element + layer) as f32;
                        assert_eq!(*found.get_or_insert(number), number, "token {token}");
                    }
                }
            }
        }
        found.unwrap() as u16
    };
    (0..block.tokens).map(number).collect()
}

fn held(kv: &mut CpuKv, slot: Slot) -> Vec<u16> {
    let length = kv.length(slot).unwrap();
    numbers(&kv.export(slot, 0..length).unwrap())
}

#[test]
fn an_adopted_beginning_is_shared_until_somebody_writes() {
    let mut kv = store(8);
    let tokens: Vec<u16> = (0..PAGE_TOKENS as u16 + 10).collect();
    let first = kv.open();
    write(&mut kv, first, &tokens).unwrap();
    let kept = [kv.keep(first, 0, PAGE_TOKENS).unwrap(), kv.keep(first, PAGE_TOKENS, 10).unwrap()];
    kv.close(first);
    assert_eq!((kv.usage().used_tokens, kv.usage().kept_tokens), (0, 2 * PAGE_TOKENS));
    let second = kv.open();
    kv.adopt(second, &kept, PAGE_TOKENS + 6).unwrap();
    assert_eq!((kv.usage().used_tokens, kv.usage().kept_tokens), (2 * PAGE_TOKENS, 0), "nothing is copied");
    assert_eq!(held(&mut kv, second), tokens[..PAGE_TOKENS + 6]);
    write(&mut kv, second, &[900, 901, 902]).unwrap();
    assert_eq!((kv.usage().used_tokens, kv.usage().kept_tokens), (2 * PAGE_TOKENS, PAGE_TOKENS));
    assert_eq!(
        held(&mut kv, second)[PAGE_TOKENS + 4..],
        [PAGE_TOKENS as u16 + 4, PAGE_TOKENS as u16 + 5, 900, 901, 902]
    );
    assert_eq!(
        numbers(&kv.read_kept(kept[1], PAGE_TOKENS..PAGE_TOKENS + 10).unwrap()),
        tokens[PAGE_TOKENS..],
        "what is kept was not written to"
    );
    for kept in kept {
        kv.release(kept);
    }
    kv.close(second);
    kv.check();
    assert_eq!((kv.usage().used_tokens, kv.usage().kept_tokens), (0, 0));
}

#[test]
fn a_copy_counts_as_room_that_is_wanted() {
    let mut kv = store(2);
    let first = kv.open();
    write(&mut kv, first, &[1, 2, 3]).unwrap();
    let kept = kv.keep(first, 0, 3).unwrap();
    let second = kv.open();
    write(&mut kv, second, &[4]).unwrap();
    assert_eq!(kv.lacking(&[(first, 1)]), 1, "the kept block must stay as it is");
    assert!(matches!(write(&mut kv, first, &[5]), Err(ComputeError::KvFull { .. })));
    assert_eq!(kv.length(first).unwrap(), 3);
    kv.release(kept);
    assert_eq!(kv.lacking(&[(first, 1), (second, 62)]), 0);
    write(&mut kv, first, &[5]).unwrap();
    assert_eq!(kv.lacking(&[(first, PAGE_TOKENS)]), 1);
    kv.check();
}

#[test]
fn what_is_no_block_is_refused() {
    let mut kv = store(8);
    let slot = kv.open();
    write(&mut kv, slot, &[7; PAGE_TOKENS + 5]).unwrap();
    assert!(kv.keep(slot, 1, 3).is_err());
    assert!(kv.keep(slot, 0, 0).is_err());
    assert!(kv.keep(slot, PAGE_TOKENS, 6).is_err(), "beyond the end");
    let kept = kv.keep(slot, 0, PAGE_TOKENS).unwrap();
    assert!(kv.adopt(slot, &[kept], 4).is_err(), "not an empty sequence");
    let other = kv.open();
    assert!(kv.adopt(other, &[kept], PAGE_TOKENS + 1).is_err());
    let block = kv.read_kept(kept, 0..PAGE_TOKENS).unwrap();
    kv.release(kept);
    assert!(matches!(kv.adopt(other, &[kept], 4), Err(ComputeError::UnknownBlock { .. })));
    assert!(kv.read_kept(kept, 0..4).is_err());
    assert!(kv.write_kept(&KvBlock { start: 3, ..block.clone() }).is_err());
    assert!(kv.write_kept(&KvBlock { tokens: 3, ..block }).is_err());
    kv.release(kept);
    kv.check();
}

#[test]
fn random_sharing_never_shows_one_sequence_what_another_wrote() {
    for seed in 0..30 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut kv = store(random.random_range(4..24));
        let mut sequences: Vec<(Slot, Vec<u16>)> = Vec::new();
        // Chains of kept blocks, each from the beginning of a history on.
        let mut chains: Vec<(Vec<KeptBlock>, Vec<u16>)> = Vec::new();
        for _ in 0..400 {
            match random.random_range(0..9) {
                0 => sequences.push((kv.open(), Vec::new())),
                1..=3 if !sequences.is_empty() => {
                    let chosen = random.random_range(0..sequences.len());
                    let (slot, tokens) = &mut sequences[chosen];
                    let new: Vec<u16> =
                        (0..random.random_range(1..100)).map(|_| random.random_range(0..1000)).collect();
                    let lacking = kv.lacking(&[(*slot, new.len())]);
                    let written = write(&mut kv, *slot, &new);
                    assert_eq!(written.is_ok(), lacking == 0);
                    if written.is_ok() {
                        tokens.extend(new);
                    }
                }
                4 if !sequences.is_empty() => {
                    let (slot, tokens) = &sequences[random.random_range(0..sequences.len())];
                    let length = random.random_range(0..=tokens.len());
                    let blocks = (0..length)
                        .step_by(PAGE_TOKENS)
                        .map(|start| kv.keep(*slot, start, PAGE_TOKENS.min(length - start)).unwrap());
                    chains.push((blocks.collect(), tokens[..length].to_vec()));
                }
                5 if !chains.is_empty() => {
                    let (blocks, tokens) = &chains[random.random_range(0..chains.len())];
                    let length = random.random_range(0..=tokens.len());
                    let slot = kv.open();
                    kv.adopt(slot, &blocks[..length.div_ceil(PAGE_TOKENS)], length).unwrap();
                    sequences.push((slot, tokens[..length].to_vec()));
                }
                6 if !sequences.is_empty() => {
                    let chosen = random.random_range(0..sequences.len());
                    let (slot, tokens) = &mut sequences[chosen];
                    tokens.truncate(random.random_range(0..=tokens.len()));
                    kv.truncate(*slot, tokens.len()).unwrap();
                }
                7 if !sequences.is_empty() => {
                    let (slot, _) = sequences.swap_remove(random.random_range(0..sequences.len()));
                    kv.close(slot);
                }
                8 if !chains.is_empty() => {
                    let (blocks, tokens) = chains.swap_remove(random.random_range(0..chains.len()));
                    for (number, kept) in blocks.into_iter().enumerate() {
                        let own = &tokens[number * PAGE_TOKENS..tokens.len().min((number + 1) * PAGE_TOKENS)];
                        let block = kv.read_kept(kept, 0..own.len()).unwrap();
                        assert_eq!(numbers(&block), own);
                        kv.release(kept);
                        // What was written out and read back is the same.
                        if let Ok(back) = kv.write_kept(&block) {
                            assert_eq!(kv.read_kept(back, 0..own.len()).unwrap(), block);
                            kv.release(back);
                        }
                    }
                }
                _ => {}
            }
            kv.check();
            if let Some((slot, tokens)) = sequences.last() {
                assert_eq!(held(&mut kv, *slot), *tokens, "seed {seed}");
            }
        }
        for (slot, tokens) in sequences {
            assert_eq!(held(&mut kv, slot), tokens);
            kv.close(slot);
        }
        chains.into_iter().flat_map(|(blocks, _)| blocks).for_each(|kept| kv.release(kept));
        kv.check();
        assert_eq!((kv.usage().used_tokens, kv.usage().kept_tokens), (0, 0));
    }
}
