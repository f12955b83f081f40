//! Activations as the sum of two signed 8-bit terms, one scale per group of consecutive elements.
//!
//! One term is what most engines use. It loses about half a percent per product, which small models do not survive: two
//! bring the loss to a few hundred-thousandths, at no cost where reading the weights is what takes the time
//! (docs/decisions/activation-terms.md).
//!
//! A code is a whole number up to 32,512 in magnitude, written with two digits to the base 255:
//! `code = 255 * first + second`, each digit from -127 to 127. Every code has exactly one such pair, no digit needs the
//! value -128, which some byte products cannot take, and the two products are joined while they are still integers.

/// Terms per activation. The codes of a row are `[TERMS, in_features]`.
pub(crate) const TERMS: usize = 2;
/// What the digits of each term count.
pub(crate) const TERM_WEIGHTS: [i32; TERMS] = [255, 1];
/// The greatest code: both digits 127.
const LARGEST_CODE: f32 = 127.0 * 255.0 + 127.0;
/// The greatest code of one term alone.
const LARGEST_DIGIT: f32 = 127.0;

/// What a product needs to know about one group of quantized activations.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub(crate) struct GroupMeta {
    /// Activation = `scale * code`.
    pub(crate) scale: f32,
    /// `scale * sum`, `sum` being that of the codes, below 2^24 and so exact: what a weight's bias is multiplied with.
    pub(crate) scaled_sum: f32,
    /// The sum of the codes.
    pub(crate) code_sum: i32,
}

/// Quantizes a row into digits: `scale = max |x| * (1/32512)`, `code = round(x / scale)` to nearest, ties to even. The
/// codes' digits go to `codes` (`[TERMS, columns]`). A group with a NaN or an infinity gets a scale that is one, so that
/// the product shows it.
#[inline(always)]
pub(crate) fn quantize_terms(x: &[f32], group: usize, codes: &mut [i8], meta: &mut [GroupMeta]) {
    match group {
        32 => terms_of_groups::<32>(x, codes, meta),
        64 => terms_of_groups::<64>(x, codes, meta),
        _ => terms_of_groups::<128>(x, codes, meta),
    }
}

/// [`quantize_terms`] with one term alone: `scale = max |x| * (1/127)`, the codes `[columns]`.
#[inline(always)]
pub(crate) fn quantize_one_term(x: &[f32], group: usize, codes: &mut [i8], meta: &mut [GroupMeta]) {
    match group {
        32 => one_term_of_groups::<32>(x, codes, meta),
        64 => one_term_of_groups::<64>(x, codes, meta),
        _ => one_term_of_groups::<128>(x, codes, meta),
    }
}

/// [`quantize_terms`] with codes whole, each quad's in the order 0, 2, 1, 3 as [`super::simd::Simd::dot_words`] takes them.
#[inline(always)]
pub(crate) fn quantize_words(x: &[f32], group: usize, words: &mut [i16], meta: &mut [GroupMeta]) {
    match group {
        32 => words_of_groups::<32>(x, words, meta),
        64 => words_of_groups::<64>(x, words, meta),
        _ => words_of_groups::<128>(x, words, meta),
    }
}

// Loops over arrays of fixed size, so that the compiler makes vector code of them where this is inlined. (Not `map`: that
// is not always inlined, and then not compiled for the instruction set of the caller.)

#[inline(always)]
fn terms_of_groups<const GROUP: usize>(x: &[f32], codes: &mut [i8], meta: &mut [GroupMeta]) {
    const BASE: i32 = TERM_WEIGHTS[0];
    let (first, second) = codes.split_at_mut(x.len());
    let digits = first.as_chunks_mut::<GROUP>().0.iter_mut().zip(second.as_chunks_mut::<GROUP>().0);
    for ((x, (first, second)), meta) in x.as_chunks::<GROUP>().0.iter().zip(digits).zip(meta) {
        let mut all = [0i32; GROUP];
        quantize_group(x, &mut all, meta, LARGEST_CODE);
        for (index, &code) in all.iter().enumerate() {
            // 255 is odd, so a code is never half-way between two multiples of it: any rounding finds the same digit.
            let digit = rounded((code as f32) * (1.0 / BASE as f32) + ROUND);
            first[index] = digit as i8;
            second[index] = code.wrapping_sub(digit.wrapping_mul(BASE)) as i8;
        }
    }
}

#[inline(always)]
fn one_term_of_groups<const GROUP: usize>(x: &[f32], codes: &mut [i8], meta: &mut [GroupMeta]) {
    for ((x, codes), meta) in x.as_chunks::<GROUP>().0.iter().zip(codes.as_chunks_mut::<GROUP>().0).zip(meta) {
        let mut all = [0i32; GROUP];
        quantize_group(x, &mut all, meta, LARGEST_DIGIT);
        for (code, &whole) in codes.iter_mut().zip(&all) {
            *code = whole as i8;
        }
    }
}

#[inline(always)]
fn words_of_groups<const GROUP: usize>(x: &[f32], words: &mut [i16], meta: &mut [GroupMeta]) {
    for ((x, words), meta) in x.as_chunks::<GROUP>().0.iter().zip(words.as_chunks_mut::<GROUP>().0).zip(meta) {
        let mut all = [0i32; GROUP];
        quantize_group(x, &mut all, meta, LARGEST_CODE);
        for (words, codes) in words.as_chunks_mut::<4>().0.iter_mut().zip(all.as_chunks::<4>().0) {
            *words = [codes[0] as i16, codes[2] as i16, codes[1] as i16, codes[3] as i16];
        }
    }
}

/// Adding 1.5 * 2^23 rounds to an integer (ties to even) and leaves it in the low bits.
const ROUND: f32 = 12_582_912.0;

#[inline(always)]
fn rounded(shifted: f32) -> i32 {
    (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32)
}

/// Quantizes one group.
#[inline(always)]
fn quantize_group<const GROUP: usize>(
    x: &[f32; GROUP],
    codes: &mut [i32; GROUP],
    meta: &mut GroupMeta,
    largest_code: f32,
) {
    // Magnitudes order like their bit patterns; NaN is above all.
    let mut largest = 0u32;
    for value in x {
        largest = largest.max(value.to_bits() & 0x7fff_ffff);
    }
    let largest = f32::from_bits(largest);
    let inverse = if largest > 0.0 { largest_code / largest } else { 0.0 };
    let scale = largest * (1.0 / largest_code);
    let mut code_sum = 0i32;
    for (x, code) in x.iter().zip(codes) {
        *code = rounded(x * inverse + ROUND);
        code_sum = code_sum.wrapping_add(*code);
    }
    *meta = GroupMeta { scale, scaled_sum: scale * code_sum as f32, code_sum };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_magnitude_becomes_the_largest_code_and_ties_go_to_even() {
        let mut x = [0.0f32; 64];
        (x[0], x[1], x[2], x[3], x[4]) = (-32512.0, 2.5, 3.5, 32511.4, -128.0);
        x[32] = 1e-3;
        let (mut codes, mut meta) = ([0; 128], [GroupMeta::default(); 2]);
        quantize_terms(&x, 32, &mut codes, &mut meta);
        assert_eq!(codes[..5], [-127, 0, 0, 127, -1]);
        assert_eq!(codes[64..69], [-127, 2, 4, 126, 127]);
        let code_sum = -32512 + 2 + 4 + 32511 - 128;
        assert_eq!(meta[0], GroupMeta { scale: 1.0, scaled_sum: code_sum as f32, code_sum });
        assert_eq!((codes[32], codes[96], meta[1].code_sum), (127, 127, 32512));
    }

    #[test]
    fn whole_codes_are_those_of_the_digits_with_the_middle_of_each_quad_swapped() {
        let x: [f32; 128] = std::array::from_fn(|i| (i as f32 * 0.7).sin() * if i % 7 == 0 { 30.0 } else { 1.0 });
        for group in [32, 64, 128] {
            let (mut codes, mut meta) = ([0; 256], [GroupMeta::default(); 4]);
            quantize_terms(&x, group, &mut codes, &mut meta);
            let (mut words, mut word_meta) = ([0; 128], [GroupMeta::default(); 4]);
            quantize_words(&x, group, &mut words, &mut word_meta);
            assert_eq!(meta, word_meta);
            for (place, word) in words.into_iter().enumerate() {
                let column = place / 4 * 4 + [0, 2, 1, 3][place % 4];
                assert_eq!(i32::from(word), i32::from(codes[column]) * 255 + i32::from(codes[128 + column]));
            }
        }
    }

    #[test]
    fn every_code_has_two_digits_that_give_it_back() {
        for start in (-32512i32..=32512).step_by(30) {
            let mut x: [f32; 32] = std::array::from_fn(|i| (start + i as i32).min(32512) as f32);
            x[31] = 32512.0;
            let (mut codes, mut meta) = ([0; 64], [GroupMeta::default(); 1]);
            quantize_terms(&x, 32, &mut codes, &mut meta);
            for (index, x) in x.iter().enumerate() {
                let (first, second) = (i32::from(codes[index]), i32::from(codes[32 + index]));
                assert_eq!((255 * first + second) as f32, *x);
                assert!(first.abs() <= 127 && second.abs() <= 127, "{x}: {first}, {second}");
            }
        }
    }

    #[test]
    fn two_terms_hold_an_activation_to_fifteen_bits() {
        let x: [f32; 64] = std::array::from_fn(|i| ((i * 37 % 64) as f32 - 31.7) * if i == 5 { 900.0 } else { 1.3 });
        let (mut codes, mut meta) = ([0; 128], [GroupMeta::default(); 2]);
        quantize_terms(&x, 32, &mut codes, &mut meta);
        for (i, x) in x.iter().enumerate() {
            let scale = meta[i / 32].scale;
            let held = (f32::from(codes[i]) * 255.0 + f32::from(codes[64 + i])) * scale;
            assert!((held - x).abs() <= scale * 0.501, "{i}: {held} for {x}");
        }
    }

    #[test]
    fn a_group_of_zeros_has_scale_zero_and_a_nan_shows() {
        let mut x = [0.0f32; 64];
        x[40] = f32::NAN;
        let (mut codes, mut meta) = ([1; 128], [GroupMeta::default(); 2]);
        quantize_terms(&x, 32, &mut codes, &mut meta);
        assert_eq!((codes[0], meta[0].scale, meta[0].code_sum), (0, 0.0, 0));
        assert!(meta[1].scale.is_nan());
    }
}
