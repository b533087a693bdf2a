//! How texts are cut.

use super::{chunks, cut, lengths};

#[test]
fn a_text_is_cut_for_its_own_length_and_not_for_the_longest_that_there_may_be() {
    // 8 kv heads, texts of up to 8,192 tokens.
    let of = |sequences: usize, keys| {
        let blocks = 8 * sequences;
        (chunks(blocks, keys, 32), cut(blocks, chunks(blocks, keys, 32)))
    };
    assert_eq!(
        [1, 512, 513, 2048, 2049].map(|it| of(1, it)),
        [(2, 2), (2, 2), (8, 8), (8, 8), (32, 32)]
    );
    assert_eq!([1, 513, 2049].map(|it| of(4, it)), [(2, 2), (8, 8), (32, 8)]);
    assert_eq!([1, 513, 2049].map(|it| of(16, it)), [(2, 2), (8, 2), (32, 2)]);
    // Where sequences fill the card nothing depends on their length.
    assert_eq!([1, 513, 8192].map(|it| of(17, it)), [(32, 1); 3]);
}

#[test]
fn a_text_has_no_more_blocks_than_there_may_be_chunks() {
    assert_eq!((chunks(8, 100, 1), cut(8, 1)), (1, 1));
}

#[test]
fn steps_are_recorded_for_each_way() {
    assert_eq!(lengths(8192).collect::<Vec<_>>(), [1, 512, 513, 2048, 2049, 8192]);
    assert_eq!(lengths(400).collect::<Vec<_>>(), [1, 400]);
    assert_eq!(lengths(512).collect::<Vec<_>>(), [1, 512]);
}
