use std::collections::BTreeSet;

use super::{Prompts, Set, prompt};

#[test]
fn built_in_prompts_differ_and_repeat_exactly() {
    for set in [Set::Chat, Set::Code, Set::Summary, Set::Long, Set::Shared] {
        let texts: BTreeSet<String> = (0..600).map(|index| prompt(set, index)).collect();
        assert_eq!(texts.len(), 600, "{set:?}");
        assert_eq!(prompt(set, 7), prompt(set, 7));
    }
    let shared = |index| prompt(Set::Shared, index).chars().take(2000).collect::<String>();
    assert_eq!(shared(1), shared(500));
}

#[test]
fn a_file_holds_a_prompt_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompts");
    std::fs::write(&path, "plain words\n\n\"two\\nlines\"\n").unwrap();
    let prompts = Prompts::new(Set::Chat, Some(&path)).unwrap();
    assert_eq!(prompts.text(0), "plain words");
    assert_eq!(prompts.text(3), "two\nlines");
    std::fs::write(&path, "\n").unwrap();
    assert!(Prompts::new(Set::Chat, Some(&path)).unwrap_err().ends_with("holds no prompt"));
    assert!(Prompts::new(Set::Chat, Some(folder.path())).is_err());
}
