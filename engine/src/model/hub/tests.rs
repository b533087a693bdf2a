use tempfile::tempdir;

use super::*;

#[test]
fn ids_have_an_owner_and_a_name() {
    for text in ["Qwen/Qwen3-0.6B", "a/b", "meta-llama/Llama-3.1-8B_x"] {
        assert_eq!(id(Path::new(text)), Some(text));
    }
    for text in ["a", "/a/b", "./a", "../a", "a/b/c", "a/", "~/a", "a/b.gguf", "a b/c", "a/.."] {
        assert_eq!(id(Path::new(text)), None, "{text}");
    }
}

#[test]
fn a_fetched_repository_is_found_and_another_is_not() {
    let cache = tempdir().unwrap();
    let repository = cache.path().join("models--org--tiny");
    let snapshot = repository.join("snapshots/0123abc");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(repository.join("refs")).unwrap();
    let find = |text: &str| resolve(Path::new(text), cache.path());
    let error = find("org/tiny").unwrap_err();
    assert!(error.starts_with("org/tiny: ") && error.contains("hf download org/tiny"), "{error}");
    fs::write(repository.join("refs/main"), "0123abc\n").unwrap();
    assert_eq!(find("org/tiny"), Ok(snapshot));
    assert!(find("org/other").is_err());
    // Whatever is no id, or is there, means itself.
    assert_eq!(find("/no/such/model.gguf"), Ok("/no/such/model.gguf".into()));
    let there = cache.path().to_str().unwrap();
    assert_eq!(find(there), Ok(there.into()));
}
