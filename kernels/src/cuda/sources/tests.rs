use super::*;

#[test]
fn includes_stand_once_and_in_place() {
    for source in SOURCES {
        let text = whole(source.text, &mut Vec::new());
        assert!(!text.contains("#include"), "{} needs a header that is not embedded", source.name);
        assert_eq!(text.matches("typedef unsigned int u32;").count(), 1, "{}", source.name);
    }
}

#[test]
fn every_source_is_listed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("cu");
    let mut files: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    let mut listed: Vec<String> = SOURCES.iter().map(|it| format!("{}.cu", it.name)).collect();
    listed.extend(HEADERS.iter().map(|(name, _)| (*name).to_owned()));
    listed.sort();
    assert_eq!(files, listed);
}

#[test]
fn hopper_is_asked_for_by_its_full_name() {
    assert_eq!(target((9, 0)), "compute_90a");
    assert_eq!(target((8, 6)), "compute_86");
    assert_eq!(target((12, 0)), "compute_120");
}

#[test]
fn an_image_made_ahead_runs_on_its_generation_only() {
    assert_eq!(fits("80", (8, 9)), Some(0));
    assert_eq!(fits("86", (8, 0)), None);
    assert_eq!(fits("90a", (9, 0)), Some(0));
    assert_eq!(fits("90a", (9, 1)), None);
    assert_eq!(fits("100", (12, 0)), None);
    assert!(image("embed", (7, 5)).is_none());
}

#[test]
fn a_changed_source_has_another_file() {
    let name = |text, target| file_name("embed", text, target);
    assert_ne!(name("a", "compute_80"), name("b", "compute_80"));
    assert_ne!(name("a", "compute_80"), name("a", "compute_90a"));
}
