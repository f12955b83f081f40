//! The two forms in which a block holds its layers: all in f16, or those without a window affine-quantized.
//!
//! A sequence begins in f16. Once it holds as many tokens as [`KvQuantization::start`] says, the blocks it alone holds are
//! quantized after the step, as mlx-lm does it, and later tokens are quantized as they come. A block that others hold too
//! stays as it is: attention reads both forms side by side.

use super::CpuKv;
use crate::{Dtype, KvFormat, KvLayout, KvQuantization, LayerKv, Result, Slot};
use linnet_kernels::{AffinePages, PAGE_TOKENS, PageFormat, PageGeometry};
use std::ops::Range;

/// How a block is held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Form {
    #[default]
    F16,
    Affine,
}

/// Where a layer's page lies within a block of each form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerPlace {
    pub(crate) geometry: PageGeometry,
    pages: [(PageFormat, usize); 2],
}

impl LayerPlace {
    /// How the page is held in a block of this form.
    pub(super) fn format(&self, form: Form) -> PageFormat {
        self.pages[form as usize].0
    }

    /// Where the page lies in a block of this form.
    pub(super) fn range(&self, form: Form) -> Range<usize> {
        let (format, offset) = self.pages[form as usize];
        offset..offset + self.geometry.elements_as(format)
    }

    /// How the page leaves a block of this form.
    pub(super) fn exported(&self, form: Form) -> KvFormat {
        match self.format(form) {
            PageFormat::F16 => KvFormat::Plain(Dtype::F16),
            PageFormat::Affine(AffinePages { bits, group }) => {
                KvFormat::Affine { bits: bits as u32, group_size: group, dtype: Dtype::F16 }
            }
        }
    }
}

/// Places the layers of a block of each form, and says how many 16-bit elements such a block has.
pub(super) fn place_layers(layout: &KvLayout, affine: Option<AffinePages>) -> (Vec<LayerPlace>, [usize; 2]) {
    let mut elements = [0; 2];
    let place = |layer: &LayerKv| {
        let geometry = PageGeometry { kv_heads: layer.kv_heads, head_dim: layer.head_dim };
        // What a window holds is little, and soon gone.
        let quantized = affine.filter(|_| layer.window.is_none()).map_or(PageFormat::F16, PageFormat::Affine);
        let pages = [PageFormat::F16, quantized].map(|format| (format, geometry.elements_as(format)));
        let mut place = LayerPlace { geometry, pages };
        for ((_, size), offset) in place.pages.iter_mut().zip(&mut elements) {
            *offset += std::mem::replace(size, *offset);
        }
        place
    };
    (layout.layers.iter().map(place).collect(), elements)
}

impl CpuKv {
    /// This empty store, with quantized keys and values.
    ///
    /// # Errors
    /// When heads of a layer without a window cannot be quantized so.
    pub(crate) fn quantized(mut self, layout: &KvLayout, quantization: KvQuantization) -> Result<Self> {
        for layer in layout.layers.iter().filter(|layer| layer.window.is_none()) {
            quantization.check(layer.head_dim)?;
        }
        let affine = AffinePages { bits: quantization.bits as usize, group: quantization.group_size };
        (self.layers, self.elements) = place_layers(layout, Some(affine));
        self.quantization = Some(quantization);
        Ok(self)
    }

    /// Quantizes what sequences hold, once they are long enough: after each step, with its slots.
    pub(crate) fn settle(&mut self, slots: impl Iterator<Item = Slot>) {
        let Some(quantization) = self.quantization else { return };
        for slot in slots {
            let Some(sequence) = self.sequences.get_mut(&slot) else { continue };
            if sequence.length < quantization.start {
                continue;
            }
            sequence.is_quantized = true;
            let first = sequence.settled.min(sequence.blocks.len());
            let blocks = sequence.blocks[first..].to_vec();
            sequence.settled = sequence.blocks.len();
            for number in blocks {
                if !self.holders[number].are_several() {
                    self.quantize_block(number);
                }
            }
        }
    }

    /// Turns a block in f16 into a quantized one.
    pub(super) fn quantize_block(&mut self, number: usize) {
        if self.forms[number] == Form::Affine {
            return;
        }
        let Some(held) = self.blocks[number].take() else { return };
        let mut block = vec![0; self.elements[Form::Affine as usize]].into_boxed_slice();
        for place in &self.layers {
            let (from, to) = (&held[place.range(Form::F16)], &mut block[place.range(Form::Affine)]);
            match place.format(Form::Affine) {
                PageFormat::F16 => to.copy_from_slice(from),
                PageFormat::Affine(affine) => quantize_page(place.geometry, affine, from, to),
            }
        }
        self.blocks[number] = Some(block);
        self.forms[number] = Form::Affine;
    }
}

/// Quantizes all tokens of a page in f16.
pub(super) fn quantize_page(geometry: PageGeometry, affine: AffinePages, from: &[u16], to: &mut [u16]) {
    let elements = PAGE_TOKENS * geometry.kv_heads * geometry.head_dim;
    let (mut keys, mut values) = (vec![0.0; elements], vec![0.0; elements]);
    linnet_kernels::read_page(geometry, from, 0, &mut keys, &mut values, PAGE_TOKENS);
    linnet_kernels::append_affine(geometry, affine, to, 0, (&keys, &values), PAGE_TOKENS);
}

#[cfg(test)]
mod tests;
