use proptest::prelude::*;

use super::*;

/// The text that leaves, and which stop ended it, when it comes as `pieces`.
fn streamed(stops: &[&str], include: bool, pieces: &[&str]) -> (String, Option<usize>) {
    let stops: Vec<_> = stops.iter().map(|it| (*it).to_owned()).collect();
    let mut matcher = StopStrings::new(&stops, include);
    let mut text = String::new();
    for piece in pieces {
        let released = matcher.push(piece);
        text.push_str(&released.text);
        if released.stopped.is_some() {
            return (text, released.stopped);
        }
    }
    text.push_str(&matcher.finish());
    (text, None)
}

/// The same by looking at every end of the whole text.
fn whole(stops: &[&str], include: bool, text: &str) -> (String, Option<usize>) {
    for end in (0..=text.len()).filter(|it| text.is_char_boundary(*it)) {
        let found = stops.iter().enumerate().filter(|(_, it)| !it.is_empty());
        let found = found.filter(|(_, it)| text[..end].ends_with(**it));
        // The first of the longest.
        let longest = found.max_by_key(|(at, it)| (it.len(), std::cmp::Reverse(*at)));
        if let Some((at, stop)) = longest {
            let end = if include { end } else { end - stop.len() };
            return (text[..end].to_owned(), Some(at));
        }
    }
    (text.to_owned(), None)
}

#[test]
fn a_stop_over_several_pieces_is_cut() {
    let pieces = ["say ha", " h", "a ha ", "ha and more"];
    assert_eq!(streamed(&["ha ha ha"], false, &pieces), ("say ".to_owned(), Some(0)));
    assert_eq!(streamed(&["ha ha ha"], true, &pieces), ("say ha ha ha".to_owned(), Some(0)));
    assert_eq!(streamed(&["never", "ha h"], false, &pieces), ("say ".to_owned(), Some(1)));
    assert_eq!(streamed(&["", "never"], false, &["text"]), ("text".to_owned(), None));
    assert_eq!(streamed(&["aab"], false, &["aa", "aa", "b"]), ("aa".to_owned(), Some(0)));
}

#[test]
fn only_what_may_be_a_start_is_held() {
    let mut matcher = StopStrings::new(&["\n\n".to_owned(), "END".to_owned()], false);
    let mut text = |piece: &str| matcher.push(piece).text;
    assert_eq!(text("one\n"), "one");
    assert_eq!(text("two E"), "\ntwo ");
    assert_eq!(text("x"), "Ex");
    assert_eq!(text("EN"), "");
    assert_eq!(matcher.finish(), "EN");
}

#[test]
fn nothing_leaves_after_the_end() {
    let mut matcher = StopStrings::new(&["é".to_owned()], false);
    let end = Released { text: "a".to_owned(), stopped: Some(0) };
    assert_eq!(matcher.push("aéb"), end);
    assert_eq!(matcher.push("c"), Released { text: String::new(), stopped: Some(0) });
    assert_eq!(matcher.finish(), "");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// However a text is cut, what leaves is what leaves of the whole.
    #[test]
    fn cuts_do_not_matter(
        text in "[abé→]{0,24}",
        stops in prop::collection::vec("[abé→]{0,4}", 0..4),
        cuts in prop::collection::vec(0_usize..30, 0..12),
        include in any::<bool>(),
    ) {
        let stops: Vec<_> = stops.iter().map(String::as_str).collect();
        let ends = text.char_indices().map(|it| it.0).chain([text.len()]);
        let mut cuts: Vec<_> = ends.filter(|it| cuts.contains(it)).collect();
        cuts.push(text.len());
        let mut start = 0;
        let mut pieces = Vec::new();
        for cut in cuts {
            pieces.push(&text[start..cut]);
            start = cut;
        }
        prop_assert_eq!(streamed(&stops, include, &pieces), whole(&stops, include, &text));
    }
}
