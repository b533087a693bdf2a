use proptest::prelude::*;

use super::*;
use crate::text::tokenizer::tests::{built, byte_level, spaces};

fn tokens(ids: &[u32]) -> Vec<TokenId> {
    ids.iter().map(|it| TokenId(*it)).collect()
}

#[test]
fn half_a_character_waits() {
    let mut it = Detokenizer::new(built(byte_level()), true);
    // The bytes of "é" and of "→", then a byte that begins a character that never ends.
    let pieces = tokens(&[0xC3, 0xA9, 0xE2, 0x86, 0x92, 261, 0xF0]).into_iter();
    let pieces: Vec<_> = pieces.map(|token| it.push(token)).collect();
    assert_eq!(pieces, ["", "é", "", "", "→", "", ""]);
    assert_eq!(it.finish(), "\u{FFFD}");
    assert_eq!(it.finish(), "");
}

#[test]
fn a_continuation_keeps_its_first_space() {
    let ids = tokens(&[263, 261]);
    let mut own = Detokenizer::new(built(spaces()), true);
    let mut continuing = Detokenizer::continuing(built(spaces()), true);
    let own: String = ids.iter().map(|it| own.push(*it)).collect();
    let continuing: String = ids.iter().map(|it| continuing.push(*it)).collect();
    assert_eq!((own.as_str(), continuing.as_str()), ("ab▁a".replace('▁', " ").as_str(), " ab a"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The pieces are the whole, for tokens in any order.
    #[test]
    fn pieces_are_the_whole(
        ids in prop::collection::vec(prop_oneof![0_u32..270, Just(0xC3), Just(0xA9)], 0..24),
        skip_special in any::<bool>(),
    ) {
        let ids = tokens(&ids);
        for json in [byte_level(), spaces()] {
            let tokenizer = built(json);
            let mut it = Detokenizer::new(tokenizer.clone(), skip_special);
            let mut text: String = ids.iter().map(|token| it.push(*token)).collect();
            text.push_str(&it.finish());
            prop_assert_eq!(text, tokenizer.decode(&ids, skip_special));
        }
    }
}
