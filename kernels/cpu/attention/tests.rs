//! The plain path against double precision, and every level of this machine against the plain path.

use half::f16;
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{AttentionError, AttentionOptions, AttentionRow, attention};
use crate::{AffinePages, Context, Half, Isa, PAGE_TOKENS, Page, PageFormat, PageGeometry, append, append_affine};

/// One sequence with its keys and values in pages and, rounded as the pages round, in plain arrays.
#[derive(Clone)]
struct Sequence {
    start: usize,
    length: usize,
    first_position: usize,
    query: Vec<f32>,
    /// `[position, kv_heads, head_dim]` from `first_position` on.
    keys: Vec<f32>,
    values: Vec<f32>,
    pages: Vec<(PageFormat, Vec<u16>)>,
}

impl Sequence {
    fn pages(&self) -> Vec<Page<'_>> {
        self.pages.iter().map(|(format, data)| Page { format: *format, data }).collect()
    }
}

/// A call's options that own their sinks.
#[derive(Clone)]
struct Case {
    heads: usize,
    geometry: PageGeometry,
    window: Option<usize>,
    softcap: Option<f32>,
    sinks: Option<Vec<f32>>,
    /// How two of three pages are quantized.
    affine: Option<AffinePages>,
}

impl Case {
    fn new(heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        Self {
            heads,
            geometry: PageGeometry { kv_heads, head_dim },
            window: None,
            softcap: None,
            sinks: None,
            affine: None,
        }
    }

    fn options(&self) -> AttentionOptions<'_> {
        AttentionOptions {
            heads: self.heads,
            geometry: self.geometry,
            scale: 1.0 / (self.geometry.head_dim as f32).sqrt(),
            window: self.window,
            softcap: self.softcap,
            sinks: self.sinks.as_deref(),
        }
    }

    /// A sequence at `start` whose pages begin at `first_position`.
    fn sequence(&self, rng: &mut StdRng, start: usize, length: usize, first_position: usize) -> Sequence {
        let PageGeometry { kv_heads, head_dim } = self.geometry;
        let mut random = |count: usize, scale: f32| -> Vec<f32> {
            (0..count).map(|_| rng.random_range(-1.0..1.0) * scale).collect()
        };
        let tokens = start + length - first_position;
        let query = random(length * self.heads * head_dim, 4.0);
        let mut keys = random(tokens * kv_heads * head_dim, 3.0);
        let mut values = random(tokens * kv_heads * head_dim, 2.0);
        let width = kv_heads * head_dim;
        let mut pages = Vec::new();
        for (number, first) in (0..tokens).step_by(PAGE_TOKENS).enumerate() {
            let count = PAGE_TOKENS.min(tokens - first);
            let range = first * width..(first + count) * width;
            let (keys, values) = (&mut keys[range.clone()], &mut values[range]);
            // What a page does not hold yet is NaN, so that any use of it shows.
            let nan = f16::NAN.to_bits();
            let Some(affine) = self.affine.filter(|_| number % 3 != 1) else {
                let mut page = vec![nan; self.geometry.elements()];
                append(self.geometry, &mut page, 0, keys, values, count);
                keys.iter_mut().chain(values).for_each(|value| *value = f16::from_f32(*value).to_f32());
                pages.push((PageFormat::F16, page));
                continue;
            };
            let format = PageFormat::Affine(affine);
            let mut page = vec![nan; self.geometry.elements_as(format)];
            append_affine(self.geometry, affine, &mut page, 0, (keys, values), count);
            for (kv_head, head) in page.chunks_exact(self.geometry.head_elements(format)).enumerate() {
                for token in 0..count {
                    for dim in 0..head_dim {
                        let at = (token * kv_heads + kv_head) * head_dim + dim;
                        keys[at] = affine.element(self.geometry, head, Half::Keys, (token, dim));
                        values[at] = affine.element(self.geometry, head, Half::Values, (token, dim));
                    }
                }
            }
            pages.push((format, page));
        }
        Sequence { start, length, first_position, query, keys, values, pages }
    }

    /// Attention in f64, written from the definition.
    fn expected(&self, sequence: &Sequence) -> Vec<f64> {
        let PageGeometry { kv_heads, head_dim } = self.geometry;
        let scale = f64::from(self.options().scale);
        let mut output = Vec::new();
        for token in 0..sequence.length {
            let position = sequence.start + token;
            let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
            for head in 0..self.heads {
                let kv_head = head / (self.heads / kv_heads);
                let query = &sequence.query[(token * self.heads + head) * head_dim..][..head_dim];
                let at = |position: usize| ((position - sequence.first_position) * kv_heads + kv_head) * head_dim;
                let logits: Vec<f64> = (first..=position)
                    .map(|key| {
                        let key = &sequence.keys[at(key)..][..head_dim];
                        let dot: f64 = query.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
                        self.softcap.map_or(dot * scale, |cap| (dot * scale / f64::from(cap)).tanh() * f64::from(cap))
                    })
                    .collect();
                let sink = self.sinks.as_ref().map(|sinks| f64::from(sinks[head]));
                let maximum = logits.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = logits.iter().copied().chain(sink).map(|logit| (logit - maximum).exp()).sum();
                for dim in 0..head_dim {
                    let weighted = (first..=position).zip(&logits);
                    output.push(
                        weighted
                            .map(|(key, logit)| (logit - maximum).exp() * f64::from(sequence.values[at(key) + dim]))
                            .sum::<f64>()
                            / sum,
                    );
                }
            }
        }
        output
    }

    /// Runs all sequences in one call.
    fn run(&self, ctx: &Context, sequences: &[Sequence]) -> Vec<Vec<f32>> {
        let mut outputs: Vec<Vec<f32>> = sequences.iter().map(|s| vec![f32::NAN; s.query.len()]).collect();
        let pages: Vec<Vec<Page<'_>>> = sequences.iter().map(Sequence::pages).collect();
        let mut rows: Vec<AttentionRow<'_>> = sequences
            .iter()
            .zip(&mut outputs)
            .zip(&pages)
            .map(|((sequence, output), pages)| AttentionRow {
                query: &sequence.query,
                output,
                start: sequence.start,
                length: sequence.length,
                pages,
                first_position: sequence.first_position,
            })
            .collect();
        attention(ctx, &self.options(), &mut rows).unwrap();
        outputs
    }

    /// Compares every level, on one and on several threads, with double precision.
    fn check(&self, sequences: &[Sequence]) {
        let expected: Vec<Vec<f64>> = sequences.iter().map(|sequence| self.expected(sequence)).collect();
        for isa in Isa::available() {
            for threads in [1, 3] {
                let outputs = self.run(&Context::with_isa(isa, threads), sequences);
                for (row, (output, expected)) in outputs.iter().zip(&expected).enumerate() {
                    for (index, (&got, &expected)) in output.iter().zip(expected).enumerate() {
                        let error = (f64::from(got) - expected).abs();
                        assert!(
                            error < 1e-5,
                            "{isa:?}, {threads} threads, row {row}, element {index}: {got} for {expected}, heads {} {:?} \
                             window {:?} softcap {:?} start {} length {}",
                            self.heads,
                            self.geometry,
                            self.window,
                            self.softcap,
                            sequences[row].start,
                            sequences[row].length
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn decode_at_many_lengths() {
    let mut rng = StdRng::seed_from_u64(1);
    let case = Case::new(9, 3, 64);
    for start in [0, 1, 14, 15, 16, 17, 31, 32, 62, 63, 64, 65, 127, 128, 200, 255, 256, 257, 700] {
        case.check(&[case.sequence(&mut rng, start, 1, 0)]);
    }
}

#[test]
fn prefill_at_many_lengths_and_starts() {
    let mut rng = StdRng::seed_from_u64(2);
    let case = Case::new(6, 2, 32);
    for (start, length) in [(0, 2), (0, 5), (0, 21), (0, 22), (0, 64), (0, 65), (0, 150), (3, 70), (60, 8), (300, 45)] {
        case.check(&[case.sequence(&mut rng, start, length, 0)]);
    }
}

#[test]
fn quantized_pages_beside_others_are_read_as_their_plain_version_reads_them() {
    let mut rng = StdRng::seed_from_u64(13);
    for (head_dim, group) in [(32, 32), (64, 64), (64, 32), (128, 64), (96, 32), (256, 128)] {
        for bits in [4, 8] {
            for (heads, kv_heads, window) in [(9, 3, None), (4, 1, Some(100))] {
                let mut case = Case::new(heads, kv_heads, head_dim);
                case.affine = Some(AffinePages { bits, group });
                case.window = window;
                case.check(&[
                    case.sequence(&mut rng, 200, 1, 0),
                    case.sequence(&mut rng, 20, 70, 0),
                    case.sequence(&mut rng, 300, 3, 0),
                ]);
            }
        }
    }
}

#[test]
fn head_dimensions_and_groups() {
    let mut rng = StdRng::seed_from_u64(3);
    for head_dim in [8, 16, 24, 32, 40, 48, 64, 72, 80, 96, 112, 120, 128, 160, 192, 256] {
        for (heads, kv_heads) in [(2, 2), (4, 1)] {
            let case = Case::new(heads, kv_heads, head_dim);
            case.check(&[case.sequence(&mut rng, 90, 1, 0), case.sequence(&mut rng, 40, 30, 0)]);
        }
    }
    for group in 1..=16 {
        let case = Case::new(2 * group, 2, 16);
        case.check(&[case.sequence(&mut rng, 130, 1, 0), case.sequence(&mut rng, 10, 7, 0)]);
    }
}

#[test]
fn head_dimensions_that_are_no_multiple_of_eight() {
    let mut rng = StdRng::seed_from_u64(4);
    for head_dim in [1, 3, 12, 20, 100] {
        let case = Case::new(4, 2, head_dim);
        case.check(&[case.sequence(&mut rng, 70, 1, 0), case.sequence(&mut rng, 5, 70, 0)]);
    }
}

#[test]
fn sliding_windows() {
    let mut rng = StdRng::seed_from_u64(5);
    for window in [1, 2, 15, 16, 17, 63, 64, 65, 100, 300, 100_000] {
        let mut case = Case::new(6, 2, 32);
        case.window = Some(window);
        case.check(&[
            case.sequence(&mut rng, 0, 150, 0),
            case.sequence(&mut rng, 333, 1, 0),
            case.sequence(&mut rng, 250, 40, 0),
        ]);
    }
}

#[test]
fn windows_over_dropped_pages() {
    let mut rng = StdRng::seed_from_u64(6);
    for window in [1, 20, 64, 100] {
        let mut case = Case::new(3, 1, 64);
        case.window = Some(window);
        for start in [200, 255, 256, 300] {
            let first_position = (start + 1 - window) / PAGE_TOKENS * PAGE_TOKENS;
            case.check(&[case.sequence(&mut rng, start, 1, first_position)]);
            case.check(&[case.sequence(&mut rng, start, 33, first_position)]);
            // Pages need not begin at a multiple of their size.
            case.check(&[case.sequence(&mut rng, start, 33, start + 1 - window)]);
        }
    }
}

#[test]
fn softcap_and_sinks() {
    let mut rng = StdRng::seed_from_u64(7);
    let mut case = Case::new(6, 2, 64);
    let lengths = [(500, 1), (0, 80), (77, 3)];
    case.softcap = Some(2.5);
    let sequences: Vec<Sequence> =
        lengths.iter().map(|&(start, length)| case.sequence(&mut rng, start, length, 0)).collect();
    case.check(&sequences);
    case.sinks = Some(vec![-3.0, 0.0, 2.0, 8.0, 60.0, -200.0]);
    case.check(&sequences);
    case.softcap = None;
    case.check(&sequences);
    case.window = Some(4);
    case.check(&sequences);
}

#[test]
fn ragged_rows_of_one_step() {
    let mut rng = StdRng::seed_from_u64(8);
    let case = Case::new(9, 3, 64);
    let shapes = [(0, 1), (1000, 1), (64, 64), (5, 0), (63, 2), (0, 33), (400, 8), (129, 1)];
    let sequences: Vec<Sequence> =
        shapes.iter().map(|&(start, length)| case.sequence(&mut rng, start, length, 0)).collect();
    case.check(&sequences);
}

#[test]
fn a_query_gives_the_same_bits_in_any_company_and_in_any_chunk() {
    let mut rng = StdRng::seed_from_u64(12);
    for (window, affine) in [(None, None), (Some(300), None), (None, Some(AffinePages { bits: 8, group: 64 }))] {
        let mut case = Case::new(9, 3, 64);
        (case.window, case.affine) = (window, affine);
        let shapes = [(0, 1), (1000, 1), (64, 64), (5, 0), (63, 2), (0, 33), (400, 8), (129, 1), (2000, 1), (257, 300)];
        let sequences: Vec<Sequence> =
            shapes.iter().map(|&(start, length)| case.sequence(&mut rng, start, length, 0)).collect();
        // The plain version goes through queries one by one, whatever is beside them.
        for isa in Isa::available().into_iter().filter(|isa| *isa != Isa::Scalar) {
            let contexts = [1, 2, 3].map(|threads| Context::with_isa(isa, threads));
            let together = contexts.each_ref().map(|ctx| case.run(ctx, &sequences));
            assert!(together.iter().all(|other| *other == together[0]), "{isa:?}: threads");
            for (sequence, together) in sequences.iter().zip(&together[0]) {
                for ctx in &contexts {
                    let alone = case.run(ctx, std::slice::from_ref(sequence)).remove(0);
                    assert!(alone == *together, "{isa:?}: a row at {} of {}", sequence.start, sequence.length);
                }
                // The last query as a step of its own.
                if let Some(last) = sequence.length.checked_sub(1) {
                    let width = case.heads * case.geometry.head_dim;
                    let step = Sequence {
                        start: sequence.start + last,
                        length: 1,
                        query: sequence.query[last * width..].to_vec(),
                        ..sequence.clone()
                    };
                    let step = case.run(&contexts[1], &[step]).remove(0);
                    assert!(step == together[last * width..], "{isa:?}: a step at {}", sequence.start + last);
                }
            }
        }
    }
}

#[test]
fn long_context_over_many_pages() {
    let mut rng = StdRng::seed_from_u64(9);
    let case = Case::new(4, 2, 64);
    case.check(&[case.sequence(&mut rng, 5000, 1, 0), case.sequence(&mut rng, 3000, 3, 0)]);
}

#[test]
fn very_large_and_equal_scores() {
    let mut rng = StdRng::seed_from_u64(10);
    let case = Case::new(3, 1, 64);
    let mut sequence = case.sequence(&mut rng, 300, 2, 0);
    sequence.query.iter_mut().for_each(|value| *value *= 50.0);
    let expected = case.expected(&sequence);
    for isa in Isa::available() {
        let output = case.run(&Context::with_isa(isa, 2), std::slice::from_ref(&sequence)).remove(0);
        // Scores of hundreds lose absolute precision before the exponential: the bound follows them.
        output.iter().zip(&expected).for_each(|(&got, &expected)| assert!((f64::from(got) - expected).abs() < 1e-3));
    }
    sequence.query.fill(0.0);
    case.check(&[sequence]);
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let ctx = Context::new(1);
    let mut rng = StdRng::seed_from_u64(11);
    let case = Case::new(4, 2, 16);
    let sequence = case.sequence(&mut rng, 100, 2, 0);
    let pages = sequence.pages();
    let call = |change: &dyn Fn(&mut AttentionOptions<'_>, &mut AttentionRow<'_>)| {
        let mut output = vec![0.0; sequence.query.len()];
        let mut options = case.options();
        let mut row = AttentionRow {
            query: &sequence.query,
            output: &mut output,
            start: 100,
            length: 2,
            pages: &pages,
            first_position: 0,
        };
        change(&mut options, &mut row);
        attention(&ctx, &options, &mut [row])
    };
    assert_eq!(call(&|_, _| {}), Ok(()));
    assert_eq!(call(&|options, _| options.heads = 3), Err(AttentionError::Heads { heads: 3, kv_heads: 2 }));
    assert_eq!(call(&|options, _| options.heads = 0), Err(AttentionError::Heads { heads: 0, kv_heads: 2 }));
    assert_eq!(call(&|options, _| options.window = Some(0)), Err(AttentionError::Window));
    assert_eq!(call(&|options, _| options.softcap = Some(0.0)), Err(AttentionError::Softcap { softcap: 0.0 }));
    assert_eq!(call(&|options, _| options.sinks = Some(&[0.0])), Err(AttentionError::Sinks { sinks: 1, heads: 4 }));
    assert_eq!(
        call(&|_, row| row.length = 3),
        Err(AttentionError::RowLength { row: 0, what: "query", length: 3, expected: 192, got: 128 })
    );
    assert_eq!(
        call(&|_, row| row.start = 127),
        Err(AttentionError::PagesMissing { row: 0, first_position: 0, end: 129, needed: 3, got: 2 })
    );
    assert_eq!(
        call(&|_, row| row.first_position = 64),
        Err(AttentionError::KeysDropped { row: 0, needed: 0, first_position: 64 })
    );
    assert_eq!(
        call(&|options, _| options.geometry.head_dim = 8),
        Err(AttentionError::RowLength { row: 0, what: "query", length: 2, expected: 64, got: 128 })
    );
    let short = vec![pages[0], Page::from(&pages[1].data[1..])];
    let mut output = vec![0.0; sequence.query.len()];
    let row = AttentionRow {
        query: &sequence.query,
        output: &mut output,
        start: 100,
        length: 2,
        pages: &short,
        first_position: 0,
    };
    assert_eq!(
        attention(&ctx, &case.options(), &mut [row]),
        Err(AttentionError::PageSize { row: 0, page: 1, expected: 4096, got: 4095 })
    );
    let affine = AffinePages { bits: 4, group: 64 };
    let quantized = vec![pages[0], Page { format: PageFormat::Affine(affine), data: pages[1].data }];
    let row = AttentionRow {
        query: &sequence.query,
        output: &mut output,
        start: 100,
        length: 2,
        pages: &quantized,
        first_position: 0,
    };
    assert_eq!(
        attention(&ctx, &case.options(), &mut [row]),
        Err(AttentionError::PageFormat { row: 0, page: 1, bits: 4, group: 64 })
    );
}
