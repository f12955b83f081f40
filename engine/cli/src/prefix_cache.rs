//! Where what is kept of prompts and answers lies, as the user says it.

use std::path::PathBuf;
use std::sync::Arc;

use linnet_library::Store;
use linnet_runtime::ssd::{SsdOptions, SsdTier};

use crate::units;

/// The folder of the cache in Linnet's own.
const FOLDER: &str = "cache";

/// What may be kept of prompts and answers, so that no later request computes it again.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Cache")]
pub(crate) struct PrefixCacheArguments {
    /// Memory for computed prompts that nobody uses at the moment, for each model; 0 keeps none
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = units::bytes)]
    cache_memory: u64,
    /// Disk space for computed prompts, which a restart finds again; 0 writes none [default: 8GiB or a tenth of what is free]
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    ssd_cache: Option<u64>,
    /// Where they lie on disk [default: the folder `cache` in LINNET_HOME]
    #[arg(long, value_name = "DIR")]
    ssd_cache_dir: Option<PathBuf>,
}

impl PrefixCacheArguments {
    /// Bytes of memory for each model.
    pub(crate) fn memory(&self) -> usize {
        usize::try_from(self.cache_memory).unwrap_or(usize::MAX)
    }

    /// Opens the tier on disk, if there is to be one. A disk that cannot be used costs a warning and nothing else.
    pub(crate) fn open_disk(&self, store: &Store) -> Option<Arc<SsdTier>> {
        if self.ssd_cache == Some(0) || self.cache_memory == 0 {
            return None;
        }
        let directory = self.ssd_cache_dir.clone().unwrap_or_else(|| store.home().join(FOLDER));
        let options = SsdOptions { limit_bytes: self.ssd_cache, ..SsdOptions::new(&directory) };
        match SsdTier::open(options) {
            Ok((tier, report)) => {
                if let Some(remedy) = report.state.remedy() {
                    let detail = report.detail.as_deref().unwrap_or("it cannot be used");
                    eprintln!("warning: the cache on disk, {}: {detail}; {remedy}", directory.display());
                }
                for discarded in &report.discarded {
                    eprintln!("warning: {} is not used: {:?}", discarded.file.display(), discarded.reason);
                }
                Some(Arc::new(tier))
            }
            Err(error) => {
                eprintln!("warning: computed prompts are not written to disk: {error}");
                None
            }
        }
    }
}
