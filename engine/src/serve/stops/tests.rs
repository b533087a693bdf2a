use proptest::prelude::*;

use super::*;

/// Feeds `pieces` and gives what was shown, with a mark where the text was stopped.
fn feed(stops: &[&str], includes: bool, pieces: &[&str]) -> String {
    let mut finder = StopFinder::new(stops.iter().map(|it| (*it).to_owned()).collect(), includes);
    let mut shown = String::new();
    for piece in pieces {
        let found = finder.push(piece);
        shown += &found.text;
        if found.stopped {
            return shown + "|";
        }
    }
    shown + &finder.finish()
}

#[test]
fn stop_strings() {
    let check = |stops: &[&str], pieces: &[&str], shown: &str| {
        assert_eq!(feed(stops, false, pieces), shown, "{stops:?} {pieces:?}");
    };
    check(&[], &["a", "b"], "ab");
    check(&["b"], &["abc"], "a|");
    check(&["end"], &["the e", "n", "d of"], "the |");
    check(&["end"], &["the e", "n", "e"], "the ene");
    check(&["aab"], &["a", "a", "a", "b"], "a|");
    check(&["bc", "abcd"], &["ab", "cd"], "a|");
    check(&["abcd", "bc"], &["abcd"], "a|");
    check(&["abc", "bc"], &["abc"], "|");
    check(&["é!"], &["caf", "é", "!"], "caf|");
    check(&["é!"], &["caf", "é"], "café");
    check(&["ha ha"], &["ha", " h", "a ha"], "|");
    assert_eq!(feed(&["end"], true, &["the e", "nd of"]), "the end|");
}

#[test]
fn a_possible_beginning_is_held_back() {
    let mut finder = StopFinder::new(vec!["<end>".to_owned()], false);
    assert_eq!(finder.push("a<e").text, "a");
    assert_eq!(finder.push("n").text, "");
    assert_eq!(finder.push("x").text, "<enx");
    assert_eq!(finder.push("<").text, "");
    assert_eq!(finder.finish(), "<");
}

proptest! {
    /// However the text is cut, what is shown is the same.
    #[test]
    fn cuts_do_not_show(
        text in "[abé]{0,24}",
        stops in proptest::collection::vec("[abé]{1,4}", 0..4),
        cuts in proptest::collection::vec(any::<bool>(), 24),
        includes in any::<bool>(),
    ) {
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        let mut pieces = vec![String::new()];
        for (at, character) in text.chars().enumerate() {
            if cuts[at] {
                pieces.push(String::new());
            }
            pieces.last_mut().unwrap().push(character);
        }
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let whole: Vec<String> = text.chars().map(String::from).collect();
        let singly: Vec<&str> = whole.iter().map(String::as_str).collect();
        prop_assert_eq!(feed(&stops, includes, &pieces), feed(&stops, includes, &singly));
    }
}
