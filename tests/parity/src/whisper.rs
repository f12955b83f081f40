//! Whisper's fixtures, and what a backend computes for one. What a fixture holds stands in `whisper/make.py`.

use crate::{SeededError, SeededModel};
use linnet_compute::{Backend, KvStore, Outputs, Row, Slot};
use linnet_models::{ModelError, WeightPrecision, Whisper, WhisperWindow};
use safetensors::{SafeTensorError, SafeTensors};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// How many tokens of a sequence go in together at its beginning.
const PROMPT: usize = 4;

/// A tiny seeded Whisper model and what mlx-whisper computed with it.
#[derive(Debug)]
pub struct WhisperFixture {
    /// Its name.
    pub name: String,
    /// The model.
    pub model: SeededModel,
    tensors: BTreeMap<String, Vec<u8>>,
}

/// What one run of a model gives: name of a result to its numbers, as `whisper/make.py` names and lays them out.
pub type WhisperResults = BTreeMap<String, Vec<f32>>;

/// A fixture that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum WhisperFixtureError {
    /// A file could not be read.
    #[error("{path}: {source}")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Its recipe.
    #[error(transparent)]
    Recipe(#[from] SeededError),
    /// Its reference is no file of tensors.
    #[error("reference.safetensors of {name}: {source}")]
    Tensors {
        /// The fixture.
        name: String,
        /// Why.
        source: SafeTensorError,
    },
}

impl WhisperFixture {
    /// All of them.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn all() -> Result<Vec<Self>, WhisperFixtureError> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures-whisper");
        let failed = |source| WhisperFixtureError::File { path: folder.clone(), source };
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            paths.push(entry.map_err(failed)?.path());
        }
        paths.sort();
        paths.iter().map(|path| Self::open(path)).collect()
    }

    fn open(folder: &Path) -> Result<Self, WhisperFixtureError> {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let model = SeededModel::open(&folder.join("recipe.json"))?;
        let path = folder.join("reference.safetensors");
        let file = std::fs::read(&path).map_err(|source| WhisperFixtureError::File { path, source })?;
        let tensors = SafeTensors::deserialize(&file)
            .map_err(|source| WhisperFixtureError::Tensors { name: name.clone(), source })?;
        let tensors = tensors.iter().map(|(name, tensor)| (name.to_owned(), tensor.data().to_vec())).collect();
        Ok(Self { name, model, tensors })
    }

    /// What the reference computed: in the weights' own type (`native`) or in `f32`.
    #[must_use]
    pub fn results(&self, precision: &str) -> WhisperResults {
        let prefix = format!("{precision}.");
        let ours = |name: &&String| name.starts_with(&prefix);
        self.tensors.keys().filter(ours).map(|name| (name[prefix.len()..].to_owned(), self.floats(name))).collect()
    }

    fn words(&self, name: &str) -> impl Iterator<Item = [u8; 4]> {
        self.tensors.get(name).map_or(&[][..], |bytes| bytes.as_chunks::<4>().0).iter().copied()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        self.words(name).map(f32::from_le_bytes).collect()
    }

    fn ids(&self, name: &str) -> Vec<u32> {
        self.words(name).map(u32::from_le_bytes).collect()
    }

    /// Runs all that the reference ran on a backend, with the model that lies in `folder`.
    ///
    /// # Errors
    /// When an operation fails.
    pub fn run<B: Backend>(
        &self,
        backend: &B,
        folder: &Path,
        precision: WeightPrecision,
    ) -> Result<WhisperResults, ModelError> {
        let model = Whisper::load(backend, folder, precision)?;
        let kv = backend.kv(&model.config().kv_layout(), 4096)?;
        let mut run = Run { backend, model: &model, kv };
        let mut results = WhisperResults::new();
        let mut keep = |name: &str, numbers: Vec<f32>| results.insert(name.to_owned(), numbers);
        let encoded = model.encode(backend, &self.floats("mel"))?;
        let mut numbers = Vec::new();
        backend.read(&encoded, &mut numbers)?;
        keep("encoded", numbers);

        let window = model.listen(backend, &encoded)?;
        let tokens = self.ids("tokens");
        let slot = run.kv.open();
        let mut logits = run.step(&[(slot, &tokens[..PROMPT])], &window)?;
        for token in &tokens[PROMPT..] {
            logits.extend(run.step(&[(slot, &[*token])], &window)?);
        }
        run.kv.close(slot);
        keep("logits", logits);

        let (scores, logits) = run.align(&tokens, &window)?;
        keep("scores", scores);
        keep("whole.logits", logits);

        keep("branch.logits", self.branches(&mut run, &tokens[..PROMPT], &window)?);
        Ok(results)
    }

    /// Steps of a beam, whose rows go on from others' before each of them.
    fn branches<B: Backend>(
        &self,
        run: &mut Run<'_, B>,
        prompt: &[u32],
        window: &WhisperWindow<B>,
    ) -> Result<Vec<f32>, ModelError> {
        let (tokens, sources) = (self.ids("branch.tokens"), self.ids("branch.sources"));
        let branches = 5;
        let mut slots: Vec<Slot> = (0..branches).map(|_| run.kv.open()).collect();
        run.step(&slots.iter().map(|&slot| (slot, prompt)).collect::<Vec<_>>(), window)?;
        let mut logits = Vec::new();
        for (tokens, sources) in tokens.chunks_exact(branches).zip(sources.chunks_exact(branches)) {
            let forked: Vec<Slot> =
                sources.iter().map(|&source| run.kv.fork(slots[source as usize])).collect::<Result<_, _>>()?;
            for slot in std::mem::replace(&mut slots, forked) {
                run.kv.close(slot);
            }
            let rows: Vec<(Slot, &[u32])> =
                slots.iter().zip(tokens).map(|(&slot, token)| (slot, std::slice::from_ref(token))).collect();
            logits.extend(run.step(&rows, window)?);
        }
        for slot in slots {
            run.kv.close(slot);
        }
        Ok(logits)
    }
}

struct Run<'a, B: Backend> {
    backend: &'a B,
    model: &'a Whisper<B>,
    kv: B::Kv,
}

impl<B: Backend> Run<'_, B> {
    /// Prepares a step of whole rows.
    fn prepare(&mut self, rows: &[(Slot, &[u32])]) -> Result<B::Step, ModelError> {
        let tokens: Vec<u32> = rows.iter().flat_map(|(_, tokens)| *tokens).copied().collect();
        let mut step_rows = Vec::with_capacity(rows.len());
        for &(slot, tokens) in rows {
            let start = self.kv.length(slot)?;
            step_rows.push(Row { slot, start, length: tokens.len(), outputs: Outputs::All });
        }
        Ok(self.backend.step(&mut self.kv, &step_rows, &self.backend.tokens(&tokens)?)?)
    }

    /// Logits of all tokens.
    fn step(&mut self, rows: &[(Slot, &[u32])], window: &WhisperWindow<B>) -> Result<Vec<f32>, ModelError> {
        let step = self.prepare(rows)?;
        let logits = self.model.decode(self.backend, &step, &vec![window; rows.len()], &mut self.kv)?;
        self.read(&step, &logits)
    }

    fn read(&mut self, step: &B::Step, logits: &B::Tensor) -> Result<Vec<f32>, ModelError> {
        self.backend.submit(step, &mut self.kv, None, Some(logits))?;
        let mut numbers = Vec::new();
        self.backend.read(logits, &mut numbers)?;
        Ok(numbers)
    }

    /// Scores of the alignment heads in the configuration's order, and logits.
    fn align(&mut self, tokens: &[u32], window: &WhisperWindow<B>) -> Result<(Vec<f32>, Vec<f32>), ModelError> {
        let slot = self.kv.open();
        let step = self.prepare(&[(slot, tokens)])?;
        let alignment = self.model.align(self.backend, &step, window, &mut self.kv)?;
        let logits = self.read(&step, &alignment.logits)?;
        let config = self.model.config();
        let size = tokens.len() * config.n_audio_ctx;
        let (mut scores, mut taken) = (Vec::new(), vec![0; config.n_text_layer]);
        let mut lines = Vec::new();
        for &(layer, _) in &config.alignment_heads {
            if let Some(of_layer) = &alignment.scores[layer] {
                self.backend.read(of_layer, &mut lines)?;
                scores.extend_from_slice(&lines[taken[layer] * size..][..size]);
                taken[layer] += 1;
            }
        }
        self.kv.close(slot);
        Ok((scores, logits))
    }
}
