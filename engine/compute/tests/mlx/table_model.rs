//! A model of attention layers only, whose queries, keys and values are rows of tables: `TableModel` of `make_mlx.py`.

use crate::fixture::array;
use linnet_compute::{
    AttentionSpec, Backend, Draw, Dtype, KvLayout, KvQuantization, KvStore, LayerKv, Outputs, Result, Row, Slot,
    mlx::{MlxBackend, MlxKv, MlxMatrix, MlxOptions, MlxTokens},
};

pub(crate) const HEADS: usize = 2;
pub(crate) const HEAD_DIM: usize = 32;
/// As many as the output is wide.
pub(crate) const VOCABULARY: usize = HEADS * HEAD_DIM;

pub(crate) struct TableModel {
    pub(crate) backend: MlxBackend,
    pub(crate) kv: MlxKv,
    windows: Vec<Option<usize>>,
    /// Queries, keys and values of each layer.
    tables: Vec<[MlxMatrix; 3]>,
}

/// One sequence's part of a step.
pub(crate) type Part<'a> = (Slot, &'a [u32], Outputs);

impl TableModel {
    pub(crate) fn new(windows: &[Option<usize>], dtype: Dtype, options: MlxOptions) -> Self {
        let backend = MlxBackend::new(options).unwrap();
        let table = |layer: usize, name: &str, columns: usize| {
            array(&format!("table.{layer}.{name}")).to_type(dtype).matrix(&backend, columns)
        };
        let layer = |layer| [table(layer, "q", VOCABULARY), table(layer, "k", HEAD_DIM), table(layer, "v", HEAD_DIM)];
        let tables = (0..windows.len()).map(layer).collect();
        let layer = |&window: &Option<usize>| LayerKv { kv_heads: 1, head_dim: HEAD_DIM, window };
        let layout = KvLayout { layers: windows.iter().map(layer).collect() };
        let kv = backend.kv(&layout, 1 << 16).unwrap();
        Self { backend, kv, windows: windows.to_vec(), tables }
    }

    pub(crate) fn quantized(bits: u32, start: usize) -> MlxOptions {
        let kv_quantization = Some(KvQuantization { bits, group_size: 32, start });
        MlxOptions { kv_quantization, ..MlxOptions::default() }
    }

    /// One step; `tokens` take the place of the parts' own ids where they are still being computed. Returns the logits
    /// and the greedy choice of each line.
    pub(crate) fn step(
        &mut self,
        parts: &[Part<'_>],
        tokens: Option<&MlxTokens>,
    ) -> Result<(linnet_compute::mlx::MlxTensor, MlxTokens)> {
        let Self { backend, kv, windows, tables } = self;
        let ids: Vec<u32> = parts.iter().flat_map(|(_, ids, _)| ids.iter().copied()).collect();
        let rows: Vec<Row> = parts
            .iter()
            .map(|&(slot, ids, outputs)| Row { slot, start: kv.length(slot).unwrap(), length: ids.len(), outputs })
            .collect();
        let tokens = match tokens {
            Some(tokens) => tokens.clone(),
            None => backend.tokens(&ids)?,
        };
        let step = backend.step(kv, &rows, &tokens)?;
        let mut total = None;
        for (layer, (tables, &window)) in tables.iter().zip(windows.iter()).enumerate() {
            let [q, k, v] = [&tables[0], &tables[1], &tables[2]].map(|table| backend.embed(table, &step));
            let scale = (HEAD_DIM as f64).powf(-0.5) as f32;
            let spec = AttentionSpec { layer, heads: HEADS, scale, window, softcap: None, split_scale: false };
            let out = backend.attention(&q?, &k?, &v?, &spec, &step, kv)?;
            total = Some(match total {
                None => out,
                Some(total) => backend.add(total, &out)?,
            });
        }
        let logits = backend.outputs(&total.unwrap(), &step)?;
        let lines: usize = rows.iter().map(|row| row.outputs.places(row.length).len()).sum();
        let chosen = backend.choose(&logits, &vec![Draw::Greedy; lines])?;
        let (results, values) = if lines > 0 { (Some(&chosen), Some(&logits)) } else { (None, None) };
        backend.submit(&step, kv, results, values)?;
        Ok((logits, chosen))
    }

    /// One step; the logits after each part's last token.
    pub(crate) fn logits(&mut self, parts: &[(Slot, &[u32])]) -> Vec<Vec<f32>> {
        let parts: Vec<Part<'_>> = parts.iter().map(|&(slot, ids)| (slot, ids, Outputs::Last)).collect();
        let (logits, _) = self.step(&parts, None).unwrap();
        let mut values = Vec::new();
        self.backend.read(&logits, &mut values).unwrap();
        values.chunks_exact(VOCABULARY).map(<[f32]>::to_vec).collect()
    }
}
