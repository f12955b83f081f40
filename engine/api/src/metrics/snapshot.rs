//! What the models say of themselves at this moment, as metrics.

use std::fmt;
use std::time::Duration;

use linnet_runtime::{CacheStatus, DiskCacheStatus, EngineStatus};
use linnet_speech::SpeechStatus;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::{ModelLabels, labels};
use crate::provider::{LoadedCard, ResidencyStatus};

/// What one model says of itself.
struct Model<'a> {
    card: &'a LoadedCard,
    engine: EngineStatus,
    cache: CacheStatus,
}

impl Model<'_> {
    fn disk(&self, figure: impl FnOnce(&DiskCacheStatus) -> u64) -> Option<u64> {
        self.cache.disk.as_ref().map(figure)
    }
}

/// Name, help, kind and value of a figure of each model; a model that has no such figure is left out.
type Row = (&'static str, &'static str, MetricType, fn(&Model<'_>) -> Option<u64>);

const ROWS: &[Row] = {
    use MetricType::{Counter, Gauge};
    &[
        ("requests_running", "Requests that run", Gauge, |model| Some(model.engine.active as u64)),
        ("requests_waiting", "Requests that wait", Gauge, |model| Some(model.engine.queued as u64)),
        ("model_memory_bytes", "What the model takes and was promised", Gauge, |model| {
            Some(model.card.residency.memory_bytes)
        }),
        ("kv_used_tokens", "Tokens held in the KV store", Gauge, |model| Some(model.engine.kv.used_tokens as u64)),
        ("kv_capacity_tokens", "Tokens that fit in the KV store", Gauge, |model| {
            Some(model.engine.kv.capacity_tokens as u64)
        }),
        ("kv_bytes", "What the KV store takes", Gauge, |model| Some(model.engine.kv.bytes as u64)),
        ("prefix_cache_bytes", "Kept prompts and answers in memory", Gauge, |model| Some(model.cache.ram.bytes as u64)),
        ("prefix_cache_hits", "Requests that found a prefix", Counter, |model| Some(model.cache.ram.hits)),
        ("prefix_cache_misses", "Requests that found no prefix", Counter, |model| Some(model.cache.ram.misses)),
        ("prefix_cache_evictions", "Blocks given up for room", Counter, |model| Some(model.cache.ram.evictions)),
        ("ssd_cache_bytes", "Kept prompts and answers on disk", Gauge, |model| model.disk(|disk| disk.bytes)),
        ("ssd_cache_restores", "Blocks read back from disk", Counter, |model| model.disk(|disk| disk.restores)),
        ("ssd_cache_unwritten_blocks", "Blocks that could not be written", Counter, |model| {
            model.disk(|disk| disk.dropped_spills + disk.failed_spills)
        }),
        ("ssd_cache_degraded", "1 while nothing can be written to disk", Gauge, |model| {
            model.disk(|disk| u64::from(disk.degraded.is_some()))
        }),
    ]
};

/// A registry of this moment.
pub(super) fn snapshot(prefix: &str, models: &[LoadedCard], residency: &ResidencyStatus, uptime: Duration) -> Registry {
    let mut registry = Registry::with_prefix(prefix);
    let mut whole = |name: &str, help: &str, kind: MetricType, value: Option<u64>| {
        if let Some(value) = value {
            registry.register(name, help, Listed { kind, figures: vec![(None, value)] });
        }
    };
    let ResidencyStatus { used_bytes, budget_bytes, process_bytes, .. } = *residency;
    use MetricType::{Counter, Gauge};
    whole("uptime_seconds", "Since the server was started", Gauge, Some(uptime.as_secs()));
    whole("models_memory_bytes", "What models take and were promised", Gauge, Some(used_bytes));
    whole("models_memory_budget_bytes", "What models may take", Gauge, budget_bytes);
    whole("process_memory_bytes", "What the process takes", Gauge, process_bytes);
    whole("model_loads", "Models loaded", Counter, Some(residency.loads));
    whole("model_load_failures", "Loads that failed or were refused", Counter, Some(residency.failed_loads));
    whole("model_evictions", "Models unloaded because others needed the room", Counter, Some(residency.evictions));
    whole("model_idle_unloads", "Models unloaded because nobody used them", Counter, Some(residency.idle_unloads));

    let models: Vec<Model<'_>> = models
        .iter()
        .map(|card| {
            let engine = &card.model.engine;
            Model { card, engine: engine.status(), cache: engine.cache_status() }
        })
        .collect();
    for &(name, help, kind, figure) in ROWS {
        let figures: Vec<_> =
            models.iter().filter_map(|model| Some((Some(labels(&model.card.model.id)), figure(model)?))).collect();
        if !figures.is_empty() {
            registry.register(name, help, Listed { kind, figures });
        }
    }
    registry
}

/// Name, help, kind and value of a figure of each speech model.
type SpeechRow = (&'static str, &'static str, MetricType, fn(&SpeechStatus) -> u64);

const SPEECH_ROWS: &[SpeechRow] = {
    use MetricType::{Counter, Gauge};
    &[
        ("speech_loaded", "1 while the speech model is in memory", Gauge, |status| u64::from(status.loaded)),
        ("speech_loads", "Times the speech model was loaded", Counter, |status| status.loads),
        ("speech_windows_waiting", "Pieces of audio that wait", Gauge, |status| status.queued as u64),
        ("speech_windows_finished", "Pieces of audio that got their text", Counter, |status| status.finished),
        ("speech_windows_cancelled", "Pieces of audio that were called off", Counter, |status| status.cancelled),
        ("speech_windows_failed", "Pieces of audio whose recognition failed", Counter, |status| status.failed),
        ("speech_audio_milliseconds", "Audio that got its text", Counter, |status| {
            (status.audio_seconds * 1000.0) as u64
        }),
        ("speech_busy_milliseconds", "Time that it took", Counter, |status| (status.busy_seconds * 1000.0) as u64),
    ]
};

/// Adds what the speech models say of themselves.
pub(super) fn add_speech(registry: &mut Registry, models: &[(String, SpeechStatus)], sessions: usize) {
    let open = Listed { kind: MetricType::Gauge, figures: vec![(None, sessions as u64)] };
    registry.register("speech_sessions", "Sessions that are open", open);
    for &(name, help, kind, figure) in SPEECH_ROWS {
        let figures: Vec<_> = models.iter().map(|(id, status)| (Some(labels(id)), figure(status))).collect();
        if !figures.is_empty() {
            registry.register(name, help, Listed { kind, figures });
        }
    }
}

/// Figures of one name, of the whole server or of several models.
#[derive(Debug)]
struct Listed {
    kind: MetricType,
    figures: Vec<(Option<ModelLabels>, u64)>,
}

impl EncodeMetric for Listed {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        for (labels, value) in &self.figures {
            match labels {
                Some(labels) => encode_one(self.kind, *value, encoder.encode_family(labels)?)?,
                // The only figure of its name.
                None => return encode_one(self.kind, *value, encoder),
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        self.kind
    }
}

fn encode_one(kind: MetricType, value: u64, encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
    match kind {
        MetricType::Counter => ConstCounter::new(value).encode(encoder),
        _ => ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(encoder),
    }
}
