use std::fs;
use std::path::Path;

use super::{NAME, places, shipped};

#[test]
fn the_source_tree_has_the_head() {
    let head = shipped().unwrap();
    assert!(head.join("model.safetensors").is_file());
}

#[test]
fn an_installed_program_finds_its_share_directory_before_the_source() {
    let prefix = tempfile::tempdir().unwrap();
    let head = prefix.path().join("share/crossover/models").join(NAME);
    fs::create_dir_all(&head).unwrap();
    fs::create_dir_all(prefix.path().join("bin")).unwrap();
    fs::write(head.join("config.json"), "{}").unwrap();
    let found = places(Some(&prefix.path().join("bin")))
        .into_iter()
        .find(|it| it.join("config.json").is_file())
        .unwrap();
    assert_eq!(found.canonicalize().unwrap(), head.canonicalize().unwrap());
}

#[test]
fn places_do_not_depend_on_knowing_the_program() {
    assert!(places(None).iter().all(|it| it.ends_with(Path::new(NAME))));
}
