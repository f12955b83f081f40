//! Several models that share a memory too small for all of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::StatusCode;
use linnet_api::{
    ApiError, MemoryMeter, ModelFacts, ModelManager, ModelSource, ResidencyOptions, ServedModel, ServerOptions,
};
use linnet_runtime::MemoryEstimate;
use linnet_runtime::testing::ScriptedModel;
use serde_json::{Value, json};

use super::harness::{Harness, says, served, user};

const MB: u64 = 1_000_000;

/// A store of scripted models; a model's answer is its own name.
#[derive(Default)]
struct Shelf {
    /// Sizes in megabytes.
    models: BTreeMap<&'static str, u64>,
    loads: Mutex<Vec<String>>,
    load_delay: Duration,
    fails: AtomicBool,
    panics: AtomicBool,
    found: AtomicUsize,
    /// What the process seems to take beside its models.
    process: AtomicU64,
}

impl Shelf {
    fn of(models: &[(&'static str, u64)]) -> Self {
        Self { models: models.iter().copied().collect(), ..Self::default() }
    }

    fn loads(&self) -> Vec<String> {
        self.loads.lock().unwrap().clone()
    }
}

impl ModelSource for Shelf {
    fn list(&self) -> Result<Vec<ModelFacts>, ApiError> {
        let facts = |name: &&str| ModelFacts { id: (*name).to_owned(), ..ModelFacts::default() };
        Ok(self.models.keys().map(facts).collect())
    }

    fn find(&self, name: Option<&str>) -> Result<ModelFacts, ApiError> {
        self.found.fetch_add(1, Ordering::SeqCst);
        let all = self.list()?;
        let name = name.unwrap_or("a").to_lowercase();
        let names = all.iter().map(|facts| facts.id.clone()).collect();
        all.into_iter().find(|facts| facts.id == name).ok_or_else(|| ApiError::model_not_found(&name, names))
    }

    fn estimate(&self, id: &str) -> Result<MemoryEstimate, ApiError> {
        Ok(MemoryEstimate { weights: self.models[id] * MB, kv: 0 })
    }

    fn load(&self, id: &str) -> Result<ServedModel, ApiError> {
        std::thread::sleep(self.load_delay);
        self.loads.lock().unwrap().push(id.to_owned());
        assert!(!self.panics.load(Ordering::SeqCst), "scripted panic");
        if self.fails.load(Ordering::SeqCst) {
            return Err(ApiError::ModelLoadFailed { model: id.to_owned(), reason: "scripted failure".to_owned() });
        }
        let model = match id {
            // It never ends by itself.
            "endless" => ScriptedModel::noise().delay(Duration::from_millis(2)),
            "a" => says("a"),
            _ => says("other"),
        };
        Ok(served(id, model).0)
    }
}

struct Memory(Arc<Shelf>);

impl MemoryMeter for Memory {
    fn process(&self) -> Option<u64> {
        Some(self.0.process.load(Ordering::SeqCst))
    }
    fn available(&self) -> Option<u64> {
        None
    }
    fn total(&self) -> Option<u64> {
        None
    }
}

fn options(megabytes: u64) -> ResidencyOptions {
    ResidencyOptions {
        idle_unload: None,
        wait_limit: Duration::from_millis(300),
        ..ResidencyOptions::with_budget(megabytes * MB)
    }
}

/// A server of the shelf's models.
fn serve(shelf: Shelf, options: ResidencyOptions) -> (Harness, Arc<Shelf>, Arc<ModelManager>) {
    let shelf = Arc::new(shelf);
    let memory = Arc::new(Memory(Arc::clone(&shelf)));
    let manager = Arc::new(ModelManager::start(Arc::clone(&shelf) as Arc<dyn ModelSource>, memory, options));
    let harness = Harness::with_provider(Arc::clone(&manager) as _, ServerOptions::default());
    (harness, shelf, manager)
}

async fn ask(harness: &Harness, model: &str) -> StatusCode {
    harness.chat(json!({"model": model, "messages": user("hi"), "max_tokens": 5})).await.status
}

/// The state of each model on the list.
async fn states(harness: &Harness) -> BTreeMap<String, String> {
    let list = harness.get("/v1/models").await.json();
    let pair = |card: &Value| {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (text(&card["id"]), text(&card["linnet"]["state"]))
    };
    list["data"].as_array().unwrap().iter().map(pair).collect()
}

async fn resident(harness: &Harness) -> Vec<String> {
    states(harness).await.into_iter().filter(|(_, state)| state == "ready").map(|(id, _)| id).collect()
}

#[tokio::test]
async fn the_model_that_was_not_used_for_longest_makes_room() {
    let (harness, shelf, _manager) = serve(Shelf::of(&[("a", 40), ("b", 40), ("c", 40)]), options(100));
    for model in ["a", "b", "a", "c"] {
        assert_eq!(ask(&harness, model).await, StatusCode::OK, "{model}");
    }
    assert_eq!(resident(&harness).await, ["a", "c"]);
    assert_eq!(shelf.loads(), ["a", "b", "c"]);
    let stats = harness.get("/stats").await.json();
    assert_eq!((&stats["residency"]["evictions"], &stats["residency"]["loads"]), (&json!(1), &json!(3)));
    assert_eq!(stats["residency"]["used_bytes"], 80 * MB);
}

#[tokio::test]
async fn a_name_in_other_case_is_the_same_model_and_the_disk_is_asked_once() {
    let (harness, shelf, _manager) = serve(Shelf::of(&[("a", 40)]), options(100));
    for model in ["A", "A", "a", "a"] {
        assert_eq!(ask(&harness, model).await, StatusCode::OK);
    }
    assert_eq!(harness.chat(json!({"messages": user("hi")})).await.json()["model"], "a");
    assert_eq!(shelf.loads(), ["a"]);
    // "A" and the missing name; "a" is the name of a model in memory.
    assert_eq!(shelf.found.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_for_a_model_that_is_loading_wait_for_the_one_load() {
    let shelf = Shelf { load_delay: Duration::from_millis(100), ..Shelf::of(&[("a", 40)]) };
    let (harness, shelf, _manager) = serve(shelf, options(100));
    let answers = futures::future::join_all((0..10).map(|_| ask(&harness, "a"))).await;
    assert!(answers.iter().all(|status| *status == StatusCode::OK), "{answers:?}");
    assert_eq!(shelf.loads(), ["a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_that_fails_is_told_to_all_who_wait_and_the_next_request_tries_again() {
    let shelf = Shelf { load_delay: Duration::from_millis(100), ..Shelf::of(&[("a", 40)]) };
    shelf.fails.store(true, Ordering::SeqCst);
    let (harness, shelf, _manager) = serve(shelf, options(100));
    let body = json!({"model": "a", "messages": user("hi")});
    let answers = futures::future::join_all((0..5).map(|_| harness.chat(body.clone()))).await;
    for answer in answers {
        assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(answer.message(), "`a` cannot be loaded: scripted failure");
    }
    assert_eq!(shelf.loads(), ["a"]);
    shelf.fails.store(false, Ordering::SeqCst);
    assert_eq!(ask(&harness, "a").await, StatusCode::OK);
    // A panic of a loader ends nothing else.
    shelf.panics.store(true, Ordering::SeqCst);
    assert_eq!(harness.post("/admin/models/unload", r#"{"model": "a"}"#).await.status, StatusCode::OK);
    assert_eq!(harness.chat(body.clone()).await.json()["error"]["code"], "model_load_failed");
    shelf.panics.store(false, Ordering::SeqCst);
    assert_eq!(ask(&harness, "a").await, StatusCode::OK);
}

#[tokio::test]
async fn a_model_that_never_fits_is_refused_with_the_figures_before_anything_is_loaded_or_unloaded() {
    let (harness, shelf, _manager) = serve(Shelf::of(&[("a", 40), ("big", 120)]), options(100));
    assert_eq!(ask(&harness, "a").await, StatusCode::OK);
    let answer = harness.chat(json!({"model": "big", "messages": user("hi")})).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(answer.json()["error"]["code"], "insufficient_memory");
    assert_eq!(
        answer.message(),
        "`big` cannot be loaded: it needs 120.0 MB, and 60.0 MB of the 100.0 MB for models are free; in memory: a \
         (40.0 MB, idle); start the server with a larger --memory, or choose a smaller model or fewer --kv-tokens"
    );
    assert_eq!(shelf.loads(), ["a"]);
    assert_eq!(resident(&harness).await, ["a"]);
}

#[tokio::test]
async fn what_the_process_takes_counts_even_if_no_model_was_promised_it() {
    let (harness, shelf, _manager) = serve(Shelf::of(&[("a", 40), ("b", 40)]), options(100));
    assert_eq!(ask(&harness, "a").await, StatusCode::OK);
    // 70 of 100 MB are taken, and stay so although the one model is unloaded.
    shelf.process.store(70 * MB, Ordering::SeqCst);
    let refused = harness.chat(json!({"model": "b", "messages": user("hi")})).await;
    assert!(refused.message().contains("needs 40.0 MB, and 30.0 MB of the 100.0 MB"), "{}", refused.text);
    shelf.process.store(60 * MB, Ordering::SeqCst);
    assert_eq!(ask(&harness, "b").await, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_in_use_is_not_taken_away_and_its_room_is_waited_for() {
    let (harness, shelf, _manager) = serve(Shelf::of(&[("endless", 80), ("a", 80)]), options(100));
    let address = harness.listen().await;
    let stream =
        super::sockets::open_and_read(address, &json!({"model": "endless", "messages": user("hi"), "stream": true}), 3)
            .await;
    // Too long to wait for: the request is refused with the figures, and the stream goes on.
    let answer = harness.chat(json!({"model": "a", "messages": user("hi")})).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{}", answer.text);
    assert_eq!(answer.json()["error"]["code"], "memory_in_use");
    assert!(answer.message().contains("endless (80.0 MB, in use)"), "{}", answer.message());
    assert!(answer.headers.contains_key("retry-after"));
    let refused = harness.post("/admin/models/unload", r#"{"model": "endless"}"#).await;
    assert_eq!((refused.status, refused.message().contains("in use by 1 requests")), (StatusCode::CONFLICT, true));
    // When the client leaves, whoever waits gets the room.
    let (status, ()) = tokio::join!(ask(&harness, "a"), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(stream);
    });
    assert_eq!(status, StatusCode::OK);
    assert_eq!(shelf.loads(), ["endless", "a"]);
}

#[tokio::test]
async fn a_pinned_model_stays_until_it_is_unpinned() {
    let (harness, _shelf, _manager) = serve(Shelf::of(&[("a", 80), ("b", 80)]), options(100));
    let pinned = harness.post("/admin/models/pin", r#"{"model": "a"}"#).await.json();
    assert_eq!((&pinned["linnet"]["pinned"], &pinned["loaded"]), (&json!(true), &json!(true)));
    let refused = harness.chat(json!({"model": "b", "messages": user("hi")})).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.message().contains("a (80.0 MB, pinned); unpin a model"), "{}", refused.message());
    let unpinned = harness.post("/admin/models/pin", r#"{"model": "a", "pinned": false}"#).await.json();
    assert_eq!(unpinned["linnet"]["pinned"], false);
    assert_eq!(ask(&harness, "b").await, StatusCode::OK);
    assert_eq!(resident(&harness).await, ["b"]);
}

#[tokio::test]
async fn models_are_loaded_and_unloaded_by_hand() {
    let (harness, _shelf, _manager) = serve(Shelf::of(&[("a", 40), ("b", 40)]), options(100));
    let loaded = harness.post("/admin/models/load", r#"{"model": "b"}"#).await.json();
    assert_eq!((&loaded["id"], &loaded["linnet"]["memory_bytes"]), (&json!("b"), &json!(40 * MB)));
    assert_eq!(harness.get("/health").await.json()["model"], "b");
    let unloaded = harness.post("/admin/models/unload", r#"{"model": "b"}"#).await.json();
    assert_eq!(unloaded["linnet"]["state"], "on_disk");
    // Twice is no error: it is out of memory, as was asked for.
    assert_eq!(harness.post("/admin/models/unload", r#"{"model": "b"}"#).await.status, StatusCode::OK);
    for (path, body, status) in [
        ("/admin/models/load", r#"{"model": "zzz"}"#, StatusCode::NOT_FOUND),
        ("/admin/models/load", "{}", StatusCode::BAD_REQUEST),
        ("/admin/models/pin", r#"{"model": "a", "pinned": "yes"}"#, StatusCode::BAD_REQUEST),
        ("/admin/models/unload", r#"{"model": 5}"#, StatusCode::BAD_REQUEST),
    ] {
        assert_eq!(harness.post(path, body).await.status, status, "{path} {body}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_model_that_nobody_uses_is_unloaded_after_its_time_and_a_pinned_one_is_not() {
    let minute = Duration::from_secs(60);
    let options = ResidencyOptions { idle_unload: Some(minute), ..options(200) };
    let (harness, shelf, _manager) = serve(Shelf::of(&[("a", 40), ("b", 40), ("c", 40)]), options);
    assert_eq!(ask(&harness, "a").await, StatusCode::OK);
    assert_eq!(harness.post("/admin/models/pin", r#"{"model": "c"}"#).await.status, StatusCode::OK);
    tokio::time::sleep(minute / 2).await;
    assert_eq!(ask(&harness, "b").await, StatusCode::OK);
    tokio::time::sleep(minute / 2 + Duration::from_secs(1)).await;
    let until = async |expected: &[&str]| {
        for _ in 0..1000 {
            if resident(&harness).await == expected {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("{:?} instead of {expected:?}", resident(&harness).await);
    };
    until(&["b", "c"]).await;
    tokio::time::sleep(minute).await;
    until(&["c"]).await;
    tokio::time::sleep(10 * minute).await;
    until(&["c"]).await;
    // It comes back when it is asked for.
    assert_eq!(ask(&harness, "a").await, StatusCode::OK);
    assert_eq!(shelf.loads(), ["a", "c", "b", "a"]);
}

#[tokio::test]
async fn an_engine_that_died_is_replaced_at_the_next_request() {
    let (harness, shelf, _manager) = serve(Shelf::of(&[("a", 40)]), options(100));
    assert_eq!(ask(&harness, "a").await, StatusCode::OK);
    harness.state.provider.loaded()[0].model.engine.stop();
    assert_eq!(ask(&harness, "a").await, StatusCode::OK);
    assert_eq!(shelf.loads(), ["a", "a"]);
}

#[tokio::test]
async fn a_closed_manager_frees_its_models_and_refuses_more() {
    let (harness, _shelf, manager) = serve(Shelf::of(&[("a", 40), ("b", 40)]), options(100));
    assert_eq!(ask(&harness, "a").await, StatusCode::OK);
    manager.close().await;
    assert!(harness.state.provider.loaded().is_empty());
    let answer = harness.chat(json!({"model": "b", "messages": user("hi")})).await;
    assert_eq!(answer.json()["error"]["code"], "shutting_down");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_of_more_models_than_fit_are_all_answered() {
    let shelf =
        Shelf { load_delay: Duration::from_millis(1), ..Shelf::of(&[("a", 40), ("b", 40), ("c", 40), ("d", 40)]) };
    let options = ResidencyOptions { wait_limit: Duration::from_secs(30), ..options(100) };
    let (harness, shelf, _manager) = serve(shelf, options);
    let clients = (0..16).map(|client: usize| {
        let harness = &harness;
        async move {
            for turn in 0..10 {
                let model = ["a", "b", "c", "d"][(client + turn * (client % 3)) % 4];
                assert_eq!(ask(harness, model).await, StatusCode::OK, "client {client}, turn {turn}, {model}");
            }
        }
    });
    futures::future::join_all(clients).await;
    assert!(resident(&harness).await.len() <= 2);
    assert!(shelf.loads().len() >= 4);
}
