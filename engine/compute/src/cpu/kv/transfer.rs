//! Tokens of a sequence, or of a kept block, to host bytes and back.

use super::{
    CpuKv,
    form::{Form, LayerPlace, quantize_page},
};
use crate::{ComputeError, Dtype, KvBlock, KvData, KvFormat, LayerBlock, Outputs, Result, Row, Slot};
use linnet_kernels::{AffinePages, AffineTokens, Half, PAGE_TOKENS, Page, PageFormat, PageGeometry};
use std::{borrow::Cow, ops::Range};

/// Some tokens within a page, and how many of the whole come before them.
struct Run {
    page: usize,
    tokens: Range<usize>,
    before: usize,
}

/// The pages that tokens lie in.
fn runs(range: Range<usize>) -> impl Iterator<Item = Run> {
    let mut position = range.start;
    std::iter::from_fn(move || {
        let within = position % PAGE_TOKENS;
        let count = (PAGE_TOKENS - within).min(range.end - position);
        let run = Run { page: position / PAGE_TOKENS, tokens: within..within + count, before: position - range.start };
        position += count;
        (count > 0).then_some(run)
    })
}

impl CpuKv {
    /// A layer's part of some tokens, as its pages hold it. Where some of the pages are quantized and others not yet, they
    /// all are in what leaves.
    pub(super) fn export_layer(&self, slot: Slot, layer: usize, range: Range<usize>) -> Result<LayerBlock> {
        let place = self.layer(layer)?;
        let pages = self.pages(place, slot)?;
        let held = &pages[range.start / PAGE_TOKENS..range.end.div_ceil(PAGE_TOKENS).max(range.start / PAGE_TOKENS)];
        let affine = held.iter().find_map(|page| match page.format {
            PageFormat::Affine(affine) => Some(affine),
            PageFormat::F16 => None,
        });
        if let Some(affine) = affine {
            let [keys, values] =
                [Half::Keys, Half::Values].map(|half| affine_data(&place, affine, &pages, range.clone(), half));
            return Ok(LayerBlock { first: range.start, keys, values });
        }
        let PageGeometry { kv_heads, head_dim } = place.geometry;
        let width = kv_heads * head_dim;
        let (mut keys, mut values) = (vec![0.0; range.len() * width], vec![0.0; range.len() * width]);
        for run in runs(range.clone()) {
            let part = run.before * width..(run.before + run.tokens.len()) * width;
            let (keys, values) = (&mut keys[part.clone()], &mut values[part]);
            let (page, first) = (pages[run.page].data, run.tokens.start);
            linnet_kernels::read_page(place.geometry, page, first, keys, values, run.tokens.len());
        }
        // The pages hold f16, so nothing is lost.
        let data = |lines: &[f32]| {
            let mut bytes = Vec::with_capacity(lines.len() * 2);
            for head in 0..kv_heads {
                for line in lines.chunks_exact(width) {
                    for value in &line[head * head_dim..(head + 1) * head_dim] {
                        bytes.extend(half::f16::from_f32(*value).to_le_bytes());
                    }
                }
            }
            let format = KvFormat::Plain(Dtype::F16);
            KvData { format, heads: kv_heads, tokens: range.len(), head_dim, parts: vec![bytes] }
        };
        Ok(LayerBlock { first: range.start, keys: data(&keys), values: data(&values) })
    }

    /// Refuses a block that this store could not hold, and says in which form it would.
    pub(super) fn check_block(&self, block: &KvBlock) -> Result<Form> {
        let refuse = |detail: String| ComputeError::Shape { operation: "import", detail };
        if block.layers.len() != self.layers.len() {
            return Err(refuse(format!("a block of {} layers for {}", block.layers.len(), self.layers.len())));
        }
        block.validate()?;
        let is_affine = |data: &KvData| matches!(data.format, KvFormat::Affine { .. });
        let is_affine = block.layers.iter().any(|layer| is_affine(&layer.keys) || is_affine(&layer.values));
        let form = if is_affine { Form::Affine } else { Form::F16 };
        let check = |number: usize, data: &KvData| {
            let PageGeometry { kv_heads, head_dim } = self.layers[number].geometry;
            let format = self.layers[number].exported(form);
            if (data.format, data.heads, data.tokens, data.head_dim) != (format, kv_heads, block.tokens, head_dim) {
                return Err(refuse(format!(
                    "layer {number} has {} tokens of {} heads of {} as {:?}; {} of {kv_heads} heads of {head_dim} as \
                     {format:?} are needed",
                    data.tokens, data.heads, data.head_dim, data.format, block.tokens
                )));
            }
            Ok(())
        };
        for (number, layer) in block.layers.iter().enumerate() {
            check(number, &layer.keys)?;
            check(number, &layer.values)?;
        }
        Ok(form)
    }

    /// Appends a block to a sequence, which it follows.
    pub(super) fn import_block(&mut self, slot: Slot, block: &KvBlock) -> Result<()> {
        let form = self.check_block(block)?;
        let row = Row { slot, start: block.start, length: block.tokens, outputs: Outputs::None };
        if form == Form::Affine {
            self.begin_quantized(&row)?;
        } else {
            self.extend(&[row])?;
        }
        for (number, layer) in block.layers.iter().enumerate() {
            let place = self.layer(number)?;
            if place.format(form) == PageFormat::F16 {
                let (keys, values) = (plain_lines(&layer.keys), plain_lines(&layer.values));
                self.write(place, &row, &keys, &values)?;
                continue;
            }
            for (half, data) in [(Half::Keys, &layer.keys), (Half::Values, &layer.values)] {
                for run in runs(row.start..row.start + row.length) {
                    let number = self.sequence(slot)?.blocks[run.page];
                    if let Some(block) = self.blocks[number].as_deref_mut() {
                        let page = &mut block[place.range(form)];
                        write_affine_data(&place, form, page, half, (data, run.before), run.tokens);
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes room for tokens that arrive quantized. The block they begin in takes on their form.
    fn begin_quantized(&mut self, row: &Row) -> Result<()> {
        let set = |kv: &mut Self, is_quantized: bool| {
            kv.sequences.get_mut(&row.slot).map(|sequence| std::mem::replace(&mut sequence.is_quantized, is_quantized))
        };
        let before = set(self, true).unwrap_or(false);
        if let Err(error) = self.extend(&[*row]) {
            set(self, before);
            return Err(error);
        }
        // `extend` has made a block that others held too the sequence's own.
        let first = self.sequence(row.slot)?.blocks.get(row.start / PAGE_TOKENS).copied();
        if let Some(first) = first {
            self.quantize_block(first);
        }
        Ok(())
    }
}

/// What a page holds, quantized if it is not yet.
fn quantized_page<'a>(place: &LayerPlace, affine: AffinePages, page: Page<'a>) -> Cow<'a, [u16]> {
    if page.format == PageFormat::Affine(affine) {
        return Cow::Borrowed(page.data);
    }
    let mut quantized = vec![0; place.geometry.elements_as(PageFormat::Affine(affine))];
    quantize_page(place.geometry, affine, page.data, &mut quantized);
    Cow::Owned(quantized)
}

/// Keys or values of tokens `range` of a sequence whose pages these are.
pub(super) fn affine_data(
    place: &LayerPlace,
    affine: AffinePages,
    pages: &[Page<'_>],
    range: Range<usize>,
    half: Half,
) -> KvData {
    let PageGeometry { kv_heads, head_dim } = place.geometry;
    let (mut codes, mut scales, mut biases) = (Vec::new(), Vec::new(), Vec::new());
    let with_page = |run: Run| {
        let page = quantized_page(place, affine, pages[run.page]);
        (run, page)
    };
    let pages: Vec<(Run, Cow<'_, [u16]>)> = runs(range.clone()).map(with_page).collect();
    for head in 0..kv_heads {
        for (run, page) in &pages {
            let tokens = linnet_kernels::read_affine(place.geometry, affine, page, (head, half), run.tokens.clone());
            if affine.bits == 8 {
                codes.extend(&tokens.codes);
            } else {
                codes.extend(tokens.codes.as_chunks::<2>().0.iter().map(|[low, high]| low | high << 4));
            }
            scales.extend(tokens.scales.iter().flat_map(|scale| scale.to_le_bytes()));
            biases.extend(tokens.biases.iter().flat_map(|bias| bias.to_le_bytes()));
        }
    }
    let format = place.exported(Form::Affine);
    KvData { format, heads: kv_heads, tokens: range.len(), head_dim, parts: vec![codes, scales, biases] }
}

/// Writes some tokens of checked data, those after the first `before`, to the places `tokens` of a page.
pub(super) fn write_affine_data(
    place: &LayerPlace,
    form: Form,
    page: &mut [u16],
    half: Half,
    (data, before): (&KvData, usize),
    tokens: Range<usize>,
) {
    let PageFormat::Affine(affine) = place.format(form) else { return };
    let groups = data.head_dim / affine.group;
    let floats = |part: &[u8], head: usize| -> Vec<u16> {
        let first = head * data.tokens + before;
        let floats = &part.as_chunks::<2>().0[first * groups..(first + tokens.len()) * groups];
        floats.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect()
    };
    for head in 0..data.heads {
        let first = (head * data.tokens + before) * data.head_dim * affine.bits / 8;
        let packed = &data.parts[0][first..first + tokens.len() * data.head_dim * affine.bits / 8];
        let codes = if affine.bits == 8 {
            packed.to_vec()
        } else {
            packed.iter().flat_map(|byte| [byte & 0xf, byte >> 4]).collect()
        };
        let data = AffineTokens { codes, scales: floats(&data.parts[1], head), biases: floats(&data.parts[2], head) };
        linnet_kernels::write_affine(place.geometry, affine, page, (head, half), tokens.start, &data);
    }
}

/// Checked data in f16 as lines `[tokens, heads * head_dim]`.
fn plain_lines(data: &KvData) -> Vec<f32> {
    let KvData { heads, tokens, head_dim, .. } = *data;
    let width = heads * head_dim;
    let mut lines = vec![0.0; tokens * width];
    for (index, bytes) in data.parts[0].as_chunks::<2>().0.iter().enumerate() {
        let (head, token, element) = (index / head_dim / tokens, index / head_dim % tokens, index % head_dim);
        lines[token * width + head * head_dim + element] = half::f16::from_le_bytes(*bytes).to_f32();
    }
    lines
}
