//! Decode attention over quantized keys and values.

use super::{MetalKernels, element_of, planned};
use crate::mlx::{
    graph::{Packing, Result, data},
    kv::GroupPlan,
};
use linnet_kernels::metal::DecodeAttention;
use mlx_rs::Array;

impl MetalKernels {
    /// Attention of one query per row, `[rows, heads, 1, head_dim]`, over all that a plan's rows hold: codes, scales and
    /// biases of keys and values, `[rows, kv_heads, tokens, ...]`.
    pub(crate) fn decode_attention(
        &self,
        queries: &Array,
        [keys, values]: [&[Array; 3]; 2],
        scale: f32,
        packing: Packing,
        plan: &GroupPlan,
    ) -> Result<Option<Array>> {
        let kind = data::dtype_of(queries);
        let is_alike = keys[1..].iter().chain(&values[1..]).all(|array| data::dtype_of(array) == kind);
        let Some(element) = element_of(kind).filter(|_| is_alike && queries.ndim() == 4 && queries.dim(2) == 1) else {
            return Ok(None);
        };
        let figures = DecodeAttention {
            rows: queries.dim(0) as usize,
            heads: queries.dim(1) as usize,
            kv_heads: keys[0].dim(1) as usize,
            head_dim: queries.dim(3) as usize,
            bits: packing.bits as usize,
            group: packing.group_size as usize,
            element,
        };
        // A head that is no multiple of the group is not quantized at all.
        let words = figures.columns() * figures.bits / 32;
        if figures.columns() != figures.head_dim || keys[0].dim(3) as usize != words {
            return Ok(None);
        }
        let spans = plan.spans()?;
        let (window, scale) = (data::integer(0)?, data::from_f32(&[scale], &[])?);
        let mut inputs: Vec<&Array> = vec![queries];
        inputs.extend(keys.iter().chain(values));
        inputs.extend([spans, &window, &scale]);
        let parts = figures.parts(plan.longest_span());
        if parts == 1 {
            let Some(launch) = planned(figures.launch()) else { return Ok(None) };
            return Ok(Some(self.run_for_one(&launch, &inputs)?));
        }
        let Some((first, second)) = planned(figures.launch_parts(parts)) else { return Ok(None) };
        let partial = self.run(&first, &inputs)?;
        Ok(Some(self.run_for_one(&second, &partial.iter().collect::<Vec<_>>())?))
    }
}
