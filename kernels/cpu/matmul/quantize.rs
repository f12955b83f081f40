//! Activations as the sum of two signed 8-bit terms, one scale per term and group of consecutive elements.
//!
//! One term is what most engines use. It loses about half a percent per product, which small models do not survive: the
//! second term quantizes what the first left over and brings the loss to a few hundred-thousandths, at no cost where
//! reading the weights is what takes the time (docs/decisions/activation-terms.md).

/// Terms per activation. The codes of a row are `[TERMS, in_features]`, its facts `[TERMS, groups]`.
pub(crate) const TERMS: usize = 2;

/// What a product needs to know about one group of quantized activations.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub(crate) struct GroupMeta {
    /// Activation = `scale * code`.
    pub(crate) scale: f32,
    /// Sum of the codes: an integer below 2^24, so exact.
    pub(crate) sum: f32,
    /// `scale * sum`: what a weight's bias is multiplied with.
    pub(crate) scaled_sum: f32,
}

/// Quantizes a row: `scale = max |x| * (1/127)`, `code = round(x / scale)` to nearest, ties to even; then, likewise, what
/// that leaves over. A group with a NaN or an infinity gets a scale that is one, so that the product shows it.
#[inline(always)]
pub(crate) fn quantize_row(x: &[f32], group: usize, codes: &mut [i8], meta: &mut [GroupMeta]) {
    match group {
        32 => quantize_groups::<32>(x, codes, meta),
        64 => quantize_groups::<64>(x, codes, meta),
        _ => quantize_groups::<128>(x, codes, meta),
    }
}

#[inline(always)]
fn quantize_groups<const GROUP: usize>(x: &[f32], codes: &mut [i8], meta: &mut [GroupMeta]) {
    let (codes, rest_codes) = codes.split_at_mut(x.len());
    let (meta, rest_meta) = meta.split_at_mut(x.len() / GROUP);
    let first = codes.as_chunks_mut::<GROUP>().0.iter_mut().zip(meta);
    let second = rest_codes.as_chunks_mut::<GROUP>().0.iter_mut().zip(rest_meta);
    for ((x, first), second) in x.as_chunks::<GROUP>().0.iter().zip(first).zip(second) {
        let mut rest = *x;
        quantize_group(&mut rest, first.0, first.1);
        quantize_group(&mut rest, second.0, second.1);
    }
}

/// Quantizes one group and leaves in `x` what its codes do not hold.
///
/// Loops over arrays of fixed size, so that the compiler makes vector code of them where this is inlined. (Not `map`:
/// that is not always inlined, and then not compiled for the instruction set of the caller.)
#[inline(always)]
fn quantize_group<const GROUP: usize>(x: &mut [f32; GROUP], codes: &mut [i8; GROUP], meta: &mut GroupMeta) {
    // Adding 1.5 * 2^23 rounds to an integer (ties to even) and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // Magnitudes order like their bit patterns; NaN is above all.
    let mut largest = 0u32;
    for value in x.iter() {
        largest = largest.max(value.to_bits() & 0x7fff_ffff);
    }
    let largest = f32::from_bits(largest);
    let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
    let scale = largest * (1.0 / 127.0);
    let mut sum = 0i32;
    for (code, value) in codes.iter_mut().zip(x) {
        let shifted = *value * inverse + ROUND;
        let rounded = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
        *code = rounded as i8;
        sum = sum.wrapping_add(rounded);
        *value -= (shifted - ROUND) * scale;
    }
    *meta = GroupMeta { scale, sum: sum as f32, scaled_sum: scale * sum as f32 };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_magnitude_becomes_127_and_ties_go_to_even() {
        let mut x = [0.0f32; 64];
        (x[0], x[1], x[2], x[3]) = (-127.0, 2.5, 3.5, 126.4);
        x[32] = 1e-3;
        let (mut codes, mut meta) = ([0; 128], [GroupMeta::default(); 4]);
        quantize_row(&x, 32, &mut codes, &mut meta);
        assert_eq!(codes[..4], [-127, 2, 4, 126]);
        assert_eq!(meta[0], GroupMeta { scale: 1.0, sum: 5.0, scaled_sum: 5.0 });
        assert_eq!((codes[32], meta[1].sum), (127, 127.0));
        // What is left over: 0.5, -0.5 and 0.4, of which 0.5 becomes 127.
        assert_eq!(codes[64..68], [0, 127, -127, 102]);
        assert!((meta[2].scale - 0.5 / 127.0).abs() < 1e-7);
    }

    #[test]
    fn two_terms_hold_an_activation_to_fifteen_bits() {
        let x: [f32; 64] = std::array::from_fn(|i| ((i * 37 % 64) as f32 - 31.7) * if i == 5 { 900.0 } else { 1.3 });
        let (mut codes, mut meta) = ([0; 128], [GroupMeta::default(); 4]);
        quantize_row(&x, 32, &mut codes, &mut meta);
        for (i, x) in x.iter().enumerate() {
            let group = i / 32;
            let held = f32::from(codes[i]) * meta[group].scale + f32::from(codes[64 + i]) * meta[2 + group].scale;
            let largest = meta[group].scale * 127.0;
            assert!((held - x).abs() <= largest / 32_000.0, "{i}: {held} for {x}");
        }
    }

    #[test]
    fn a_group_of_zeros_has_scale_zero_and_a_nan_shows() {
        let mut x = [0.0f32; 64];
        x[40] = f32::NAN;
        let (mut codes, mut meta) = ([1; 128], [GroupMeta::default(); 4]);
        quantize_row(&x, 32, &mut codes, &mut meta);
        assert_eq!((codes[0], meta[0].scale, meta[0].sum), (0, 0.0, 0.0));
        assert!(meta[1].scale.is_nan());
    }
}
