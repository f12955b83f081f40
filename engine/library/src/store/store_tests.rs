use super::*;
use std::os::unix::fs::symlink;

fn store() -> (tempfile::TempDir, Store) {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).unwrap();
    (home, store)
}

fn place(store: &Store, name: &str) {
    let staging = store.stage().unwrap();
    fs::write(staging.path().join(CONFIG_NAME), format!(r#"{{"model_type":"llama","name":"{name}"}}"#)).unwrap();
    staging.commit(name, false).unwrap();
}

#[test]
fn the_home_folder_follows_the_environment() {
    let find = |variables: &[(&str, &str)]| {
        home_folder(|name| variables.iter().find(|entry| entry.0 == name).map(|entry| PathBuf::from(entry.1)))
    };
    assert_eq!(find(&[("LINNET_HOME", "/x"), ("HOME", "/h")]).unwrap(), Path::new("/x"));
    if cfg!(target_os = "macos") {
        let place = Path::new("/h/Library/Application Support/Linnet");
        assert_eq!(find(&[("XDG_DATA_HOME", "/d"), ("HOME", "/h")]).unwrap(), place);
    } else {
        assert_eq!(find(&[("XDG_DATA_HOME", "/d"), ("HOME", "/h")]).unwrap(), Path::new("/d/linnet"));
        assert_eq!(find(&[("XDG_DATA_HOME", "rel"), ("HOME", "/h")]).unwrap(), Path::new("/h/.local/share/linnet"));
    }
    assert!(matches!(find(&[]), Err(LibraryError::NoHome)));
}

#[test]
fn a_model_is_invisible_until_it_is_complete() {
    let (_home, store) = store();
    let staging = store.stage().unwrap();
    fs::write(staging.path().join(CONFIG_NAME), "{}").unwrap();
    assert!(store.list().unwrap().is_empty());
    staging.commit("org/model", false).unwrap();
    let names: Vec<String> = store.list().unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["org/model"]);
    let left: Vec<_> = fs::read_dir(store.models_folder()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.iter().filter(|name| name.to_string_lossy().starts_with(".staging")).count(), 0, "{left:?}");
}

#[test]
fn a_dropped_import_leaves_nothing() {
    let (_home, store) = store();
    let staging = store.stage().unwrap();
    let path = staging.path().to_owned();
    fs::write(path.join("model.safetensors"), "half").unwrap();
    drop(staging);
    assert!(!path.exists());
    assert!(store.list().unwrap().is_empty());
}

#[test]
fn what_a_dead_process_left_is_swept_and_what_a_living_one_makes_is_not() {
    let (home, store) = store();
    let dead = store.models_folder().join(".staging-4294967295-0");
    fs::create_dir(&dead).unwrap();
    fs::write(dead.join("model.safetensors"), "half").unwrap();
    let alive = store.stage().unwrap();
    Store::open(home.path()).unwrap();
    assert!(!dead.exists());
    assert!(alive.path().exists());
}

#[test]
fn a_taken_name_is_refused_unless_it_shall_be_replaced() {
    let (_home, store) = store();
    place(&store, "a");
    let again = store.stage().unwrap();
    fs::write(again.path().join(CONFIG_NAME), r#"{"model_type":"llama","new":true}"#).unwrap();
    let staged = again.path().to_owned();
    assert!(matches!(again.commit("a", false), Err(LibraryError::NameTaken { .. })));
    assert!(!staged.exists());

    let again = store.stage().unwrap();
    fs::write(again.path().join(CONFIG_NAME), r#"{"model_type":"llama","new":true}"#).unwrap();
    let staged = again.path().to_owned();
    let target = again.commit("a", true).unwrap();
    assert!(fs::read_to_string(target.join(CONFIG_NAME)).unwrap().contains("new"));
    assert!(!staged.exists(), "the old model must be gone");
}

#[test]
fn a_replacement_never_takes_an_organisation_or_a_strangers_files_along() {
    let (home, store) = store();
    place(&store, "org/one");
    place(&store, "org/two");
    fs::create_dir(store.models_folder().join("notes")).unwrap();
    fs::write(store.models_folder().join("notes/diary.txt"), "mine").unwrap();
    fs::write(store.models_folder().join("stray.txt"), "mine").unwrap();
    let elsewhere = home.path().join("elsewhere");
    fs::create_dir_all(elsewhere.join("model")).unwrap();
    symlink(&elsewhere, store.models_folder().join("linked")).unwrap();
    for name in ["org", "notes", "stray.txt", "linked"] {
        for replace in [true, false] {
            let staging = store.stage().unwrap();
            fs::write(staging.path().join(CONFIG_NAME), "{}").unwrap();
            let error = staging.commit(name, replace).unwrap_err();
            assert!(matches!(error, LibraryError::NotAModel { .. }), "{name}: {error}");
            assert!(error.to_string().contains(name), "{error}");
        }
    }
    let names: Vec<String> = store.list().unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["linked/model", "notes", "org/one", "org/two"]);
    assert_eq!(fs::read_to_string(store.models_folder().join("notes/diary.txt")).unwrap(), "mine");
    assert_eq!(fs::read_to_string(store.models_folder().join("stray.txt")).unwrap(), "mine");

    // What is a model, though a broken one, can be replaced; so can a folder with nothing in it.
    fs::create_dir(store.models_folder().join("empty")).unwrap();
    symlink(home.path().join("gone"), store.models_folder().join("ejected")).unwrap();
    for name in ["org/one", "empty", "ejected"] {
        let staging = store.stage().unwrap();
        fs::write(staging.path().join(CONFIG_NAME), r#"{"new":true}"#).unwrap();
        let target = staging.commit(name, true).unwrap();
        assert!(fs::read_to_string(target.join(CONFIG_NAME)).unwrap().contains("new"));
    }
}

#[test]
fn a_model_cannot_be_put_inside_another() {
    let (_home, store) = store();
    place(&store, "a");
    assert!(matches!(store.check_free("a/b", false), Err(LibraryError::NameTaken { name, .. }) if name == "a"));
}

#[test]
fn models_are_found_by_short_names_and_refused_with_near_ones() {
    let (_home, store) = store();
    for name in ["mlx-community/SmolLM2-135M-4bit", "other/Qwen3-4B", "third/qwen3-4b", "Öl"] {
        place(&store, name);
    }
    assert_eq!(store.find("smollm2-135m-4BIT").unwrap().name, "mlx-community/SmolLM2-135M-4bit");
    assert_eq!(store.find("third/qwen3-4b").unwrap().name, "third/qwen3-4b");
    assert_eq!(store.find("öl").unwrap().name, "Öl");
    assert!(matches!(store.find("qwen3-4b"), Err(LibraryError::Ambiguous { candidates, .. }) if candidates.len() == 2));
    let text = store.find("smollm2-135m-8bit").unwrap_err().to_string();
    assert!(text.contains("did you mean mlx-community/SmolLM2-135M-4bit"), "{text}");
    let text = store.find("something-else-entirely").unwrap_err().to_string();
    assert!(!text.contains("did you mean"), "{text}");
}

#[test]
fn starter_means_the_starter_and_never_removes_another_model_of_that_name() {
    let (_home, store) = store();
    assert!(matches!(store.find("starter"), Err(LibraryError::NotFound { .. })));
    place(&store, STARTER_NAME);
    assert_eq!(store.find("starter").unwrap().name, STARTER_NAME);
    // A folder that somebody copied in.
    fs::create_dir(store.models_folder().join("starter")).unwrap();
    fs::write(store.models_folder().join("starter/config.json"), "{}").unwrap();
    assert_eq!(store.find("starter").unwrap().name, "starter");
    assert_eq!(store.remove("starter").unwrap().name, "starter");
    assert_eq!(store.remove("starter").unwrap().name, STARTER_NAME);
    assert!(store.list().unwrap().is_empty());
}

#[test]
fn a_folder_outside_of_the_store_is_found_by_its_path() {
    let (home, store) = store();
    let folder = home.path().join("elsewhere für mich");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join(CONFIG_NAME), r#"{"model_type":"llama"}"#).unwrap();
    let entry = store.find(folder.to_str().unwrap()).unwrap();
    assert_eq!(entry.architecture.as_deref(), Some("llama"));
    assert!(matches!(store.remove(folder.to_str().unwrap()), Err(LibraryError::NotFound { .. })));
    assert!(folder.exists());
}

#[test]
fn broken_folders_are_listed_with_their_problem() {
    let (home, store) = store();
    place(&store, "no-weights");
    fs::create_dir(store.models_folder().join("empty")).unwrap();
    fs::create_dir_all(store.models_folder().join("org/odd")).unwrap();
    fs::write(store.models_folder().join("org/odd").join(CONFIG_NAME), "not json").unwrap();
    fs::write(store.models_folder().join("stray.txt"), "x").unwrap();
    symlink(home.path().join("gone"), store.models_folder().join("ejected")).unwrap();
    let entries = store.list().unwrap();
    let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["ejected", "empty", "no-weights", "org/odd"]);
    assert!(entries.iter().all(|entry| entry.problem.is_some()), "{entries:#?}");
    assert!(entries[3].problem.as_ref().unwrap().contains("not JSON"));
}

#[test]
fn removing_frees_what_is_ours_and_follows_no_link() {
    let (home, store) = store();
    place(&store, "org/model");
    let blob = home.path().join("blob");
    fs::write(&blob, vec![0; 100]).unwrap();
    let folder = store.models_folder().join("org/model");
    fs::write(folder.join("own.bin"), vec![0; 50]).unwrap();
    symlink(&blob, folder.join("linked.bin")).unwrap();
    let config = fs::metadata(folder.join(CONFIG_NAME)).unwrap().len();
    let removed = store.remove("model").unwrap();
    assert_eq!(removed.bytes_freed, 50 + config);
    assert!(blob.exists());
    assert!(!store.models_folder().join("org").exists(), "the last model takes its organisation along");

    let outside = home.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join(CONFIG_NAME), "{}").unwrap();
    symlink(&outside, store.models_folder().join("linked")).unwrap();
    assert_eq!(store.remove("linked").unwrap().bytes_freed, 0);
    assert!(outside.join(CONFIG_NAME).exists());

    fs::create_dir(home.path().join("org")).unwrap();
    fs::rename(&outside, home.path().join("org/model")).unwrap();
    symlink(home.path().join("org"), store.models_folder().join("org")).unwrap();
    assert!(matches!(store.remove("org/model"), Err(LibraryError::OutsideStore { .. })));
    assert!(home.path().join("org/model").join(CONFIG_NAME).exists());
}
