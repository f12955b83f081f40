//! The exact fixtures on disk: what mlx-lm computed on one MLX build, to the last bit.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde::Deserialize;

use crate::{FixtureError, SeededModel};

/// Keys and values quantized once they are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct QuantizedKv {
    /// Bits of a code.
    pub bits: u32,
    /// Elements that share a scale and a bias.
    pub group_size: usize,
    /// From how many tokens of a sequence on. A call's own keys and values are quantized after it.
    pub start: usize,
}

/// One call that the reference made of its model.
#[derive(Debug, Clone, Deserialize)]
pub struct Call {
    /// For each row of the batch the sequence and how many of its tokens were fed.
    pub rows: Vec<(usize, usize)>,
    /// The token chosen after each row, where one was.
    #[serde(default)]
    pub tokens: Vec<u32>,
    /// The digest of each row's logits, where a token was chosen.
    #[serde(default)]
    pub logits: Vec<String>,
}

/// What was run on a model.
#[derive(Debug, Clone, Deserialize)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// How keys and values were kept; `None`: as they are.
    pub kv: Option<QuantizedKv>,
    /// The prompts, one per sequence.
    pub prompts: Vec<Vec<u32>>,
    /// What each sequence begins with, if anything: of which sequence, and how many of its first tokens, whose keys and
    /// values are taken over.
    #[serde(default)]
    pub reuse: Vec<Option<(usize, usize)>>,
    /// The calls, in order. A sequence that no later call names has ended.
    pub calls: Vec<Call>,
}

/// A seeded model with the scenarios recorded on it.
#[derive(Debug, Clone)]
pub struct ExactFixture {
    /// Its folder.
    pub folder: PathBuf,
    /// The model.
    pub model: SeededModel,
    /// What was run.
    pub scenarios: Vec<Scenario>,
    kept: HashMap<String, Vec<f32>>,
}

impl ExactFixture {
    /// The committed fixtures of all architecture families, or those below the folder that the environment variable
    /// `LINNET_EXACT_FIXTURES` names: the same suite against a reference that ran on another MLX build.
    ///
    /// # Errors
    /// When a fixture cannot be read, or there is none.
    pub fn all() -> Result<Vec<Self>, FixtureError> {
        let root = std::env::var_os("LINNET_EXACT_FIXTURES")
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures-exact"), PathBuf::from);
        let mut fixtures = Vec::new();
        for family in crate::fixture::folders(&root)? {
            for folder in crate::fixture::folders(&family)? {
                fixtures.push(Self::open(&folder)?);
            }
        }
        Ok(fixtures)
    }

    /// Reads the fixture in `folder`.
    ///
    /// # Errors
    /// When a file is missing or damaged.
    pub fn open(folder: &Path) -> Result<Self, FixtureError> {
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read(&path).map_err(|source| FixtureError::Read { path, source })
        };
        let content = |problem: String| FixtureError::Content { path: folder.to_owned(), problem };
        let model = SeededModel::open(&folder.join("recipe.json")).map_err(|error| content(error.to_string()))?;
        let scenarios: Vec<Scenario> =
            serde_json::from_slice(&read("calls.json")?).map_err(|error| content(format!("calls.json: {error}")))?;
        for scenario in &scenarios {
            scenario.check().map_err(&content)?;
        }
        let bytes = read("rows.safetensors")?;
        let tensors = SafeTensors::deserialize(&bytes)
            .map_err(|source| FixtureError::Reference { path: folder.join("rows.safetensors"), source })?;
        let kept = tensors
            .iter()
            .map(|(name, tensor)| {
                let values = tensor.data().as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
                (name.to_owned(), values)
            })
            .collect();
        Ok(Self { folder: folder.to_owned(), model, scenarios, kept })
    }

    /// The fixture's name: FAMILY/NAME.
    #[must_use]
    pub fn name(&self) -> String {
        let parts: Vec<_> = self.folder.iter().map(|part| part.to_string_lossy()).collect();
        parts[parts.len().saturating_sub(2)..].join("/")
    }

    /// All rows of logits of a call, where they are kept whole.
    #[must_use]
    pub fn whole_rows(&self, scenario: &Scenario, call: usize) -> Option<&[f32]> {
        self.kept.get(&format!("{}.{call}", scenario.name)).map(Vec::as_slice)
    }
}

impl Scenario {
    fn check(&self) -> Result<(), String> {
        for (index, call) in self.calls.iter().enumerate() {
            let known = call.rows.iter().all(|&(sequence, length)| sequence < self.prompts.len() && length > 0);
            let whole = [call.tokens.len(), call.logits.len()].iter().all(|&length| length == call.rows.len())
                || (call.tokens.is_empty() && call.logits.is_empty());
            if !known || !whole || call.rows.is_empty() {
                return Err(format!("call {index} of {} does not fit together", self.name));
            }
        }
        if self.calls.iter().any(|call| !call.logits.is_empty()) {
            Ok(())
        } else {
            Err(format!("{} has no logits to compare with", self.name))
        }
    }

    /// Whether the reference's batch generator ran it, which keeps a single sequence as a batch of one.
    #[must_use]
    pub fn is_batch(&self) -> bool {
        self.calls.iter().any(|call| call.rows.len() > 1)
    }

    /// What a sequence begins with.
    #[must_use]
    pub fn reuse_of(&self, sequence: usize) -> Option<(usize, usize)> {
        self.reuse.get(sequence).copied().flatten()
    }

    /// Whether a sequence's first call comes at `call` or later.
    #[must_use]
    pub fn begins_from(&self, sequence: usize, call: usize) -> bool {
        let names = |call: &Call| call.rows.iter().any(|row| row.0 == sequence);
        self.calls.iter().position(names).is_some_and(|first| first >= call)
    }

    /// Which sequences no call from `call` on names.
    #[must_use]
    pub fn ended_before(&self, call: usize) -> Vec<usize> {
        let lives =
            |sequence: usize| self.calls[call..].iter().any(|call| call.rows.iter().any(|row| row.0 == sequence));
        (0..self.prompts.len()).filter(|&sequence| !lives(sequence)).collect()
    }
}
