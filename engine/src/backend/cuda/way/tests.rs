//! How texts are cut.

use std::collections::BTreeSet;

use super::{CHUNK, Way, chunks, cut, lengths};

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

/// Way of a step of so many blocks that one kernel takes while texts have up to `limit` chunks.
fn way(blocks: usize, limit: usize, keys: usize, keys_max: usize) -> Way {
    let at_once = keys.div_ceil(CHUNK) <= limit;
    Way { at_once, chunks: chunks(blocks, keys, keys_max.div_ceil(CHUNK)) }
}

#[test]
fn no_step_is_taken_in_a_way_that_is_not_recorded() {
    for keys_max in [16, 400, 512, 528, 1024, 2048, 2064, 3856, 8208] {
        for (blocks, limit) in
            [8, 132, 133].into_iter().flat_map(|it| (0..20).map(move |l| (it, l)))
        {
            let of = |keys| way(blocks, limit, keys, keys_max);
            let recorded: BTreeSet<Way> = lengths(keys_max).map(of).collect();
            let taken: BTreeSet<Way> = (1..=keys_max).map(of).collect();
            assert_eq!(taken, recorded, "{blocks} blocks, {limit} chunks, {keys_max} keys");
        }
    }
}

#[test]
fn without_drafts_what_one_kernel_takes_is_cut_in_one_way() {
    let short = Way { at_once: true, chunks: 2 };
    let long = Way { chunks: 8, ..short };
    assert_eq!(short.with_drafts(0), long.with_drafts(0));
    assert_ne!(short.with_drafts(3), long.with_drafts(3));
    let apart = Way { at_once: false, ..short };
    assert_eq!(apart.with_drafts(0), apart);
}
