//! Greedy selection.

use super::{MetalKernels, element_of, planned};
use crate::mlx::graph::{Result, data};
use linnet_kernels::metal::GreedyPlan;
use mlx_rs::Array;

impl MetalKernels {
    /// The token that mlx-lm's greedy sampler takes from each row of `[rows, vocabulary]`, or `GREEDY_NONE`.
    pub(crate) fn greedy(&self, logits: &Array) -> Result<Option<Array>> {
        let Some(element) = element_of(data::dtype_of(logits)).filter(|_| logits.ndim() == 2) else { return Ok(None) };
        let plan = GreedyPlan::new(logits.dim(0) as usize, logits.dim(1) as usize, element);
        Ok(match planned(plan) {
            None => None,
            Some(GreedyPlan::Single(launch)) => Some(self.run_for_one(&launch, &[logits])?),
            Some(GreedyPlan::TwoPass { tiles, finish }) => {
                let partial = self.run(&tiles, &[logits])?;
                let inputs: Vec<&Array> = [logits].into_iter().chain(&partial).collect();
                Some(self.run_for_one(&finish, &inputs)?)
            }
        })
    }
}
