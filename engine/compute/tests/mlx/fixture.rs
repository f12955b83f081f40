//! Reads `mlx.safetensors`, and makes tensors of its arrays.

use linnet_compute::{
    Backend, Dtype, KvLayout, KvStore, MatrixSource, Outputs, Row, TensorView, Weight,
    mlx::{MlxBackend, MlxKv, MlxMatrix, MlxStep},
};
use safetensors::SafeTensors;

const BYTES: &[u8] = include_bytes!("../fixtures/mlx.safetensors");

/// An array of the fixture.
pub(crate) struct Stored {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

/// The arrays whose names begin with `prefix`, by the rest of their names.
pub(crate) fn names(prefix: &str) -> Vec<String> {
    let tensors = SafeTensors::deserialize(BYTES).unwrap();
    let mut names: Vec<String> =
        tensors.names().iter().filter_map(|name| name.strip_prefix(prefix)).map(str::to_owned).collect();
    names.sort();
    names
}

pub(crate) fn array(name: &str) -> Stored {
    let tensors = SafeTensors::deserialize(BYTES).unwrap();
    let tensor = tensors.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    let dtype = match tensor.dtype() {
        safetensors::Dtype::F32 => Dtype::F32,
        safetensors::Dtype::F16 => Dtype::F16,
        safetensors::Dtype::BF16 => Dtype::BF16,
        // Bytes of text stand where a float cannot.
        safetensors::Dtype::U32 | safetensors::Dtype::U8 => Dtype::U32,
        other => panic!("{name} is {other:?}"),
    };
    Stored { dtype, shape: tensor.shape().to_vec(), bytes: tensor.data().to_vec() }
}

impl Stored {
    pub(crate) fn floats(&self) -> Vec<f32> {
        let pairs = || self.bytes.as_chunks::<2>().0.iter();
        match self.dtype {
            Dtype::F32 => self.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
            Dtype::F16 => pairs().map(|bytes| half::f16::from_le_bytes(*bytes).to_f32()).collect(),
            Dtype::BF16 => pairs().map(|bytes| half::bf16::from_le_bytes(*bytes).to_f32()).collect(),
            Dtype::U32 => panic!("these are words"),
        }
    }

    pub(crate) fn words(&self) -> Vec<u32> {
        self.bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
    }

    /// The same values in another type, which must hold them exactly.
    pub(crate) fn to_type(&self, dtype: Dtype) -> Self {
        let floats = self.floats();
        let bytes = floats.iter().flat_map(|&value| match dtype {
            Dtype::F32 => value.to_le_bytes().to_vec(),
            Dtype::F16 => half::f16::from_f32(value).to_le_bytes().to_vec(),
            Dtype::BF16 => half::bf16::from_f32(value).to_le_bytes().to_vec(),
            Dtype::U32 => panic!("no float type"),
        });
        let stored = Self { dtype, shape: self.shape.clone(), bytes: bytes.collect() };
        assert_eq!(stored.floats(), floats);
        stored
    }

    /// Takes lines of `columns` over as a matrix.
    pub(crate) fn matrix(&self, backend: &MlxBackend, columns: usize) -> MlxMatrix {
        let rows = self.shape.iter().product::<usize>() / columns;
        let view = TensorView { name: "table", dtype: self.dtype, shape: &[rows, columns], bytes: &self.bytes };
        let source = MatrixSource { out_features: rows, in_features: columns, weight: Weight::Dense(view), bias: None };
        backend.matrix(&source).unwrap()
    }
}

/// A store without layers, for operations that need none.
pub(crate) fn bare_store(backend: &MlxBackend) -> MlxKv {
    backend.kv(&KvLayout { layers: Vec::new() }, 4096).unwrap()
}

/// A step of one new sequence with tokens 0, 1, 2, ...
pub(crate) fn step_of(backend: &MlxBackend, kv: &mut MlxKv, tokens: u32) -> MlxStep {
    let slot = kv.open();
    let ids: Vec<u32> = (0..tokens).collect();
    let row = Row { slot, start: 0, length: ids.len(), outputs: Outputs::All };
    backend.step(kv, &[row], &backend.tokens(&ids).unwrap()).unwrap()
}

/// Fails with the first places whose bits differ.
#[track_caller]
pub(crate) fn assert_same_bits(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}: how many");
    let differing: Vec<_> = found
        .iter()
        .zip(expected)
        .enumerate()
        .filter(|(_, (found, expected))| found.to_bits() != expected.to_bits())
        .take(5)
        .collect();
    assert!(differing.is_empty(), "{what}: {differing:?} ...");
}
