use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use linnet_kernels::CoreTurns;

use super::{SpeechEngine, SpeechEngineOptions, SpeechError, SpeechPriority};
use crate::{Recognizer, TranscribeError, TranscribeOptions, Transcript};

/// Notes the lengths of what it hears, in order. A length of 1 fails, 2 panics; 3 waits to be cancelled.
struct Script(Arc<Mutex<Vec<usize>>>, Arc<CoreTurns>);

impl Recognizer for Script {
    fn recognize(
        &mut self,
        samples: &[f32],
        _: &TranscribeOptions,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Transcript, TranscribeError> {
        self.0.lock().unwrap().push(samples.len());
        match samples.len() {
            1 => return Err(TranscribeError::NotFinite),
            2 => panic!("torn"),
            3 => {
                while !is_cancelled() {
                    thread::sleep(Duration::from_millis(1));
                }
                return Err(TranscribeError::Cancelled);
            }
            4 => thread::sleep(Duration::from_millis(60)),
            _ => {}
        }
        let language = if self.1.is_urgent() { "live" } else { "file" };
        Ok(Transcript { language: language.into(), ..Transcript::default() })
    }
}

struct Bench {
    engine: SpeechEngine,
    heard: Arc<Mutex<Vec<usize>>>,
    loads: Arc<AtomicUsize>,
}

fn bench(idle: Option<Duration>) -> Bench {
    let (heard, loads) = (Arc::new(Mutex::default()), Arc::new(AtomicUsize::new(0)));
    let options = SpeechEngineOptions { idle_unload: idle, queue_limit: 8, ..SpeechEngineOptions::default() };
    let (noted, counted, turns) = (Arc::clone(&heard), Arc::clone(&loads), Arc::clone(&options.turns));
    let engine = SpeechEngine::start("test", options, move || {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(Script(Arc::clone(&noted), Arc::clone(&turns))) as Box<dyn Recognizer>)
    });
    Bench { engine: engine.unwrap(), heard, loads }
}

impl Bench {
    fn ask(&self, samples: usize, priority: SpeechPriority) -> super::Recognition {
        self.engine.recognize(Arc::new(vec![0.0; samples]), TranscribeOptions::default(), priority)
    }
}

fn soon(what: impl Fn() -> bool) -> bool {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(20) {
        if what() {
            return true;
        }
        thread::sleep(Duration::from_millis(2));
    }
    false
}

#[test]
fn live_speech_goes_before_files_and_each_in_turn() {
    let bench = bench(None);
    let mut asked = vec![bench.ask(4, SpeechPriority::File)];
    assert!(soon(|| bench.engine.status().busy));
    for (samples, priority) in
        [(10, SpeechPriority::File), (20, SpeechPriority::Live), (11, SpeechPriority::File), (21, SpeechPriority::Live)]
    {
        asked.push(bench.ask(samples, priority));
    }
    let languages: Vec<String> = asked.into_iter().map(|asked| asked.wait().unwrap().language).collect();
    assert_eq!(*bench.heard.lock().unwrap(), [4, 20, 21, 10, 11]);
    assert_eq!(languages, ["file", "file", "live", "file", "live"]);
}

#[test]
fn a_requester_that_leaves_ends_its_work_running_or_waiting() {
    let bench = bench(None);
    let (running, waiting) = (bench.ask(3, SpeechPriority::Live), bench.ask(50, SpeechPriority::Live));
    assert!(soon(|| bench.engine.status().busy));
    drop(waiting);
    drop(running);
    assert!(bench.ask(60, SpeechPriority::Live).wait().is_ok());
    assert_eq!(*bench.heard.lock().unwrap(), [3, 60]);
    assert_eq!((bench.engine.status().cancelled, bench.engine.status().finished), (2, 1));
}

#[test]
fn a_failure_or_a_panic_is_told_and_the_next_one_gets_a_sound_model() {
    let bench = bench(None);
    for samples in [1, 2] {
        let error = bench.ask(samples, SpeechPriority::Live).wait().unwrap_err();
        assert!(matches!(&error, SpeechError::Failed(_)), "{error}");
        assert!(bench.engine.status().problem.is_some());
        assert!(bench.ask(9, SpeechPriority::Live).wait().is_ok());
        assert_eq!(bench.engine.status().problem, None);
    }
    assert_eq!(bench.loads.load(Ordering::SeqCst), 3);
}

#[test]
fn an_idle_model_is_let_go_unless_it_is_held_or_pinned() {
    let bench = bench(Some(Duration::from_millis(10)));
    assert!(bench.ask(9, SpeechPriority::File).wait().is_ok());
    assert!(soon(|| !bench.engine.status().loaded));
    let hold = bench.engine.hold();
    assert!(soon(|| bench.engine.status().loaded), "a hold loads");
    thread::sleep(Duration::from_millis(40));
    assert!(bench.engine.status().loaded && !bench.engine.unload());
    bench.engine.pin(true);
    drop(hold);
    thread::sleep(Duration::from_millis(40));
    assert!(bench.engine.status().loaded);
    bench.engine.pin(false);
    assert!(soon(|| !bench.engine.status().loaded));
    assert_eq!((bench.engine.status().loads, bench.engine.status().unloads), (2, 2));
}

#[test]
fn a_model_is_unloaded_when_asked_and_comes_back_when_needed() {
    let bench = bench(None);
    assert!(bench.ask(9, SpeechPriority::File).wait().is_ok());
    assert!(soon(|| !bench.engine.status().busy && bench.engine.unload()));
    assert!(soon(|| !bench.engine.status().loaded));
    assert!(bench.ask(9, SpeechPriority::File).wait().is_ok());
    assert_eq!(bench.engine.status().loads, 2);
}

#[test]
fn a_model_that_cannot_be_loaded_is_an_error_of_the_request() {
    let engine = SpeechEngine::start("none", SpeechEngineOptions::default(), || {
        Err(SpeechError::Load("its weights are gone; pull it again".into()))
    })
    .unwrap();
    let asked = engine.recognize(Arc::new(vec![0.0; 10]), TranscribeOptions::default(), SpeechPriority::Live);
    assert!(asked.wait().unwrap_err().to_string().contains("pull it again"));
    assert!(engine.status().problem.is_some() && !engine.status().loaded);
}

#[test]
fn more_than_may_wait_is_refused() {
    let bench = bench(None);
    let first = bench.ask(3, SpeechPriority::Live);
    assert!(soon(|| bench.engine.status().busy));
    let waiting: Vec<_> = (0..8).map(|_| bench.ask(9, SpeechPriority::File)).collect();
    assert_eq!(bench.ask(9, SpeechPriority::File).wait(), Err(SpeechError::QueueFull { waiting: 8 }));
    first.cancel();
    assert!(waiting.into_iter().all(|asked| asked.wait().is_ok()));
}
