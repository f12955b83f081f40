//! The tree against a list of histories.

use super::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;

const BLOCK: usize = 4;

/// Every kept block by all tokens up to its end, with its handle and how many pin it.
type Naive = BTreeMap<Vec<u32>, (u32, u32)>;

/// How many tokens can be found, by trying them all.
fn longest(naive: &Naive, tokens: &[u32], most: usize) -> usize {
    let mut whole = 0;
    while whole + BLOCK <= most && naive.contains_key(&tokens[..whole + BLOCK]) {
        whole += BLOCK;
    }
    let fitting = |history: &Vec<u32>| {
        let is_next = history.len() > whole && history.len() <= whole + BLOCK && history[..whole] == tokens[..whole];
        let pairs = history.iter().zip(&tokens[..most]).take_while(|(kept, token)| kept == token);
        if is_next { pairs.count() } else { 0 }
    };
    naive.keys().map(fitting).max().unwrap_or(0).max(whole)
}

fn check_found(tree: &PrefixTree<u32>, naive: &Naive, tokens: &[u32], found: &PrefixMatch) {
    let mut start = 0;
    for &node in &found.nodes {
        assert_eq!(tree.payload(node), naive.get(&tokens[..start + BLOCK]).map(|(payload, _)| *payload));
        assert_eq!(tree.span(node), start..start + BLOCK);
        start += BLOCK;
    }
    if let Some((node, fitting)) = found.tail {
        assert!(fitting > 0 && tree.tokens(node).starts_with(&tokens[start..start + fitting]));
        start += fitting;
    }
    assert_eq!(start, found.tokens);
}

#[test]
fn random_histories_are_found_as_a_list_of_them_would() {
    for seed in 0..60 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let eviction = [Eviction::Lru, Eviction::GreedyDual, Eviction::SessionLru][seed as usize % 3];
        let mut tree = PrefixTree::new(BLOCK, eviction);
        let namespaces = ["a", "b"].map(|model| Namespace { model: model.into(), ..Namespace::default() });
        let roots = namespaces.map(|namespace| tree.root(&namespace));
        // The namespace is the first token of what the list holds; the tree does not see it.
        let mut naive: [Naive; 2] = Default::default();
        let mut pinned: Vec<(usize, Vec<Node>, Vec<u32>)> = Vec::new();
        let mut next = 0;
        for _ in 0..300 {
            let space = random.random_range(0..2);
            let tokens: Vec<u32> = (0..random.random_range(1..24))
                .map(|place| if place < 6 { 1 } else { random.random_range(0..3) })
                .collect();
            let most = random.random_range(0..=tokens.len());
            let found = tree.find(roots[space], &tokens, most);
            assert_eq!(found.tokens, longest(&naive[space], &tokens, most), "seed {seed}");
            check_found(&tree, &naive[space], &tokens, &found);
            match random.random_range(0..5) {
                // A request runs: all its blocks are published and pinned.
                0 | 1 => {
                    let mut path: Vec<Node> = Vec::new();
                    for (number, block) in tokens.chunks(BLOCK).enumerate() {
                        let parent = path.last().copied().unwrap_or(roots[space]);
                        let history = tokens[..number * BLOCK + block.len()].to_vec();
                        if block.len() < BLOCK {
                            if tree.covers(parent, block).is_none() {
                                next += 1;
                                // A longer part takes the place of a shorter one.
                                if let Some((_, gone)) = tree.insert(parent, block, next, 1).1 {
                                    naive[space].retain(|_, (payload, _)| *payload != gone);
                                }
                                naive[space].insert(history, (next, 0));
                            }
                            break;
                        }
                        let node = tree.child(parent, block).unwrap_or_else(|| {
                            next += 1;
                            let (node, superfluous) = tree.insert(parent, block, next, 1);
                            if let Some((_, gone)) = superfluous {
                                naive[space].retain(|_, (payload, _)| *payload != gone);
                            }
                            naive[space].insert(history.clone(), (next, 0));
                            node
                        });
                        tree.pin(node);
                        naive[space].get_mut(&history).unwrap().1 += 1;
                        path.push(node);
                    }
                    pinned.push((space, path, tokens.clone()));
                }
                // A request ends.
                2 if !pinned.is_empty() => {
                    let (space, path, tokens) = pinned.swap_remove(random.random_range(0..pinned.len()));
                    for (number, node) in path.into_iter().enumerate().rev() {
                        assert!(tree.unpin(node).is_empty());
                        naive[space].get_mut(&tokens[..(number + 1) * BLOCK]).unwrap().1 -= 1;
                    }
                }
                // Room is needed.
                3 => {
                    let may_go = |naive: &Naive| {
                        let is_end = |history: &Vec<u32>| {
                            !naive.keys().any(|other| other.len() > history.len() && other.starts_with(history))
                        };
                        naive.iter().any(|(history, (_, pins))| *pins == 0 && is_end(history))
                    };
                    match tree.evict() {
                        None => assert!(!naive.iter().any(may_go), "seed {seed}"),
                        Some(evicted) => {
                            let gone = evicted.payloads[0];
                            let space =
                                naive.iter().position(|naive| naive.values().any(|kept| kept.0 == gone)).unwrap();
                            let history = naive[space]
                                .iter()
                                .find(|(_, kept)| kept.0 == gone)
                                .map(|(key, _)| key.clone())
                                .unwrap();
                            assert_eq!(naive[space].remove(&history).unwrap().1, 0, "it was pinned");
                            assert!(!naive[space].keys().any(|other| other.starts_with(&history)), "it had followers");
                        }
                    }
                }
                _ => tree.touch(&found.nodes),
            }
            tree.check();
            let totals = tree.totals();
            assert_eq!(totals.blocks, naive[0].len() + naive[1].len());
            assert_eq!(totals.pinned_bytes, naive.iter().flat_map(BTreeMap::values).filter(|kept| kept.1 > 0).count());
        }
        pinned.into_iter().flat_map(|(_, path, _)| path.into_iter().rev()).for_each(|node| drop(tree.unpin(node)));
        while tree.evict().is_some() {}
        tree.check();
        assert_eq!(tree.totals(), Totals::default());
    }
}

#[test]
fn condemned_blocks_are_not_found_and_go_when_nobody_uses_them() {
    let mut tree = PrefixTree::new(2, Eviction::Lru);
    let root = tree.root(&Namespace::default());
    let first = tree.insert(root, &[1, 2], 'a', 1).0;
    let second = tree.insert(first, &[3, 4], 'b', 1).0;
    let other = tree.insert(first, &[5, 6], 'c', 1).0;
    tree.pin(first);
    tree.pin(second);
    assert_eq!(tree.condemn(first), ['c'], "nobody uses it");
    assert!(!tree.is_block(other));
    assert_eq!(tree.find(root, &[1, 2, 3, 4], 4).tokens, 0);
    let anew = tree.insert(root, &[1, 2], 'd', 1).0;
    assert_eq!(tree.find(root, &[1, 2, 3, 4], 4).nodes, [anew]);
    assert_eq!(tree.unpin(second), ['b']);
    assert_eq!(tree.unpin(first), ['a']);
    tree.check();
    assert_eq!(tree.totals().blocks, 1);
}

#[test]
fn the_ends_of_old_histories_go_first_and_used_beginnings_last() {
    let mut tree = PrefixTree::new(1, Eviction::Lru);
    let root = tree.root(&Namespace::default());
    let history = |tree: &mut PrefixTree<u32>, tokens: &[u32]| {
        let mut at = root;
        for &token in tokens {
            at = tree.child(at, &[token]).unwrap_or_else(|| tree.insert(at, &[token], token, 1).0);
        }
    };
    history(&mut tree, &[1, 2, 3]);
    history(&mut tree, &[1, 4, 5]);
    let used = tree.find(root, &[1, 2, 3], 3);
    tree.touch(&used.nodes);
    let order: Vec<u32> = std::iter::from_fn(|| tree.evict()).map(|evicted| evicted.payloads[0]).collect();
    assert_eq!(order, [5, 4, 3, 2, 1]);
}
