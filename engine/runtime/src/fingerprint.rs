//! A digest that tells models apart.

use linnet_models::ModelError;
use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

/// Pieces of each weight file that are read. All of a large file would take as long as loading it.
const SAMPLES: u64 = 64;
/// Bytes of one piece.
const SAMPLE_BYTES: u64 = 4096;

/// Digests a model folder's configuration and weights: of each file of weights its name, its length and pieces of it, evenly
/// spread, the header first. Files that differ anywhere in a tensor of some size differ there almost surely, because
/// training changes all of it.
pub(crate) fn fingerprint(folder: &Path) -> Result<String, ModelError> {
    let mut names = Vec::new();
    let read = |path: &Path, error: io::Error| ModelError::Io { path: path.to_path_buf(), source: error };
    for entry in std::fs::read_dir(folder).map_err(|error| read(folder, error))? {
        let path = entry.map_err(|error| read(folder, error))?.path();
        let is_weights = path.extension().is_some_and(|extension| extension == "safetensors");
        if is_weights || path.file_name().is_some_and(|name| name == "config.json") {
            names.push(path);
        }
    }
    names.sort();
    let mut hasher = blake3::Hasher::new();
    for path in names {
        sample(&path, &mut hasher).map_err(|error| read(&path, error))?;
    }
    Ok(hasher.finalize().to_hex().to_string())
}

fn sample(path: &Path, hasher: &mut blake3::Hasher) -> io::Result<()> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    hasher.update(path.file_name().map_or(&[], |name| name.as_encoded_bytes()));
    hasher.update(&[0]);
    hasher.update(&length.to_le_bytes());
    let mut bytes = Vec::with_capacity(SAMPLE_BYTES as usize);
    let last = length.saturating_sub(SAMPLE_BYTES);
    for number in 0..SAMPLES {
        file.seek(SeekFrom::Start(last / (SAMPLES - 1) * number))?;
        bytes.clear();
        file.by_ref().take(SAMPLE_BYTES).read_to_end(&mut bytes)?;
        hasher.update(&bytes);
        if length <= SAMPLE_BYTES {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(weights: &[u8], config: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        std::fs::write(folder.path().join("model.safetensors"), weights).unwrap();
        folder
    }

    #[test]
    fn configuration_length_and_contents_matter_and_the_place_does_not() {
        let weights = vec![1; 1 << 20];
        let digest = |weights: &[u8], config: &str| fingerprint(model(weights, config).path()).unwrap();
        let plain = digest(&weights, "{}");
        assert_eq!(plain, digest(&weights, "{}"));
        assert_ne!(plain, digest(&weights, "{ }"));
        assert_ne!(plain, digest(&weights[1..], "{}"));
        let mut changed = weights;
        for byte in &mut changed[500_000..540_000] {
            *byte = 2;
        }
        assert_ne!(plain, digest(&changed, "{}"));
        assert_ne!(digest(&[1], "{}"), digest(&[2], "{}"));
        assert!(fingerprint(Path::new("/nowhere/at/all")).is_err());
    }
}
