use super::*;

fn check(text: &str, context: usize, expected: &str) {
    let tokens: Vec<TokenId> = text.bytes().map(|it| TokenId(it.into())).collect();
    let mut proposals = [Proposal::default()];
    let ask = Ask { seq: SeqId(1), tokens: &tokens, wanted: 4 };
    Ngram { context }.propose(&[ask], &mut proposals);
    let found: Vec<u32> = proposals[0].given.iter().map(|it| it.0).collect();
    assert_eq!(found, expected.bytes().map(u32::from).collect::<Vec<_>>(), "{text}");
    assert_eq!(proposals[0].held, 0);
}

#[test]
fn copies_what_followed() {
    check("", 3, "");
    check("a", 3, "");
    check("abcdab", 3, "cdab");
    check("abcdb", 3, "");
    // The longer match wins over the later one.
    check("xabcd yabef xab", 3, "cd y");
    check("xabcd yabef zab", 3, "ef z");
    // A loop goes on.
    check("haha", 2, "ha");
    check("aaaaa", 4, "a");
    check("aXbXcX", 1, "cX");
}
