//! Each checkpoint as a file of its own: written beside its place, made durable, and moved there.

use std::fs::File;
use std::io::{IoSlice, Read as _, Write as _};
use std::path::Path;
use std::time::Instant;

use anyhow::ensure;

use super::state::State;
use super::{CHECKPOINTS, Sample, milliseconds};

/// `IOV_MAX` of Linux and macOS.
const MOST_SLICES: usize = 1024;

/// One run. As much in favour of this arm as can be: nothing is packed or copied, nothing is hashed, nothing is verified.
pub(super) fn sample(state: &State, folder: &Path) -> anyhow::Result<Sample> {
    let mut checkpoints_ms = [0.0; CHECKPOINTS];
    for (at, tokens) in state.checkpoints().into_iter().enumerate() {
        let begun = Instant::now();
        let (temporary, path) = (folder.join("temporary"), folder.join(at.to_string()));
        let mut file = File::create(&temporary)?;
        let mut slices: Vec<IoSlice<'_>> = state.spans(tokens).map(IoSlice::new).collect();
        let mut rest = slices.as_mut_slice();
        while !rest.is_empty() {
            let written = file.write_vectored(&rest[..rest.len().min(MOST_SLICES)])?;
            ensure!(written > 0, "the disk is full");
            IoSlice::advance_slices(&mut rest, written);
        }
        file.sync_data()?;
        std::fs::rename(&temporary, &path)?;
        File::open(folder)?.sync_all()?;
        checkpoints_ms[at] = milliseconds(begun.elapsed());
    }
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        bytes += entry?.metadata()?.len();
    }
    let begun = Instant::now();
    let mut file = File::open(folder.join((CHECKPOINTS - 1).to_string()))?;
    let open_ms = milliseconds(begun.elapsed());
    let begun = Instant::now();
    let mut content = Vec::with_capacity(usize::try_from(file.metadata()?.len())?);
    file.read_to_end(&mut content)?;
    let read_ms = milliseconds(begun.elapsed());
    let mut rest = content.as_slice();
    for span in state.spans(state.tokens.len()) {
        ensure!(rest.get(..span.len()) == Some(span), "what was read is not what was written");
        rest = &rest[span.len()..];
    }
    Ok(Sample { write_ms: checkpoints_ms.iter().sum(), checkpoints_ms, read_ms, open_ms, bytes })
}
