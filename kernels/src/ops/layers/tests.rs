//! Who gets how much of a layer.

use super::sizes::{are_small_wide, clusters};
use super::way::{is_few, is_for_wide};
use super::{Heads, Sized, are_small, has_room, less};

fn matrices(sizes: [(u32, u32, u32); 4]) -> [Sized; 4] {
    sizes.map(|(units, tiles, slices)| Sized { units, tiles, slices })
}

#[test]
fn blocks_that_attend_have_less_if_no_other_has_more() {
    // 8B, 1B and 135M on an H200.
    assert_eq!(less(132, 1792, 8), 2);
    assert_eq!(less(132, 1024, 16), 2);
    assert_eq!(less(132, 1024, 32), 1);
    assert_eq!(less(132, 1024, 64), 0);
    assert_eq!(less(132, 192, 3), 1, "not more than there are");
}

#[test]
fn a_block_has_room_for_its_parts_of_sums() {
    let large = matrices([(64, 384, 4), (64, 256, 4), (64, 1792, 1), (224, 256, 4)]);
    assert!(has_room(&large, 132));
    assert!(!has_room(&large, 100), "18 tiles of gate and up");
    let small = matrices([(9, 60, 8), (9, 36, 8), (9, 192, 8), (24, 36, 8)]);
    assert!(has_room(&small, 132));
    assert!(!has_room(&small, 66), "three tiles of eight slices");
}

#[test]
fn clusters_take_what_fits_their_shared_memory() {
    let heads = Heads { dim: 64, kv_heads: 3, group: 3 };
    let small = matrices([(9, 60, 8), (9, 36, 8), (9, 192, 8), (24, 36, 8)]);
    assert!(are_small(&small, heads), "135M");
    assert_eq!(clusters(&small, heads, 1), 11);
    assert_eq!(clusters(&small, heads, 2), 14);
    assert!(are_small_wide(&small, heads), "135M with more rows");
    let wide = Heads { kv_heads: 1, group: 9, ..heads };
    assert!(!are_small(&small, wide), "44 tiles of one kv head");
    let two = Heads { kv_heads: 2, group: 4, ..heads };
    let apart = matrices([(9, 48, 8), (8, 36, 8), (9, 192, 8), (24, 36, 8)]);
    assert!(are_small(&apart, two), "each unit is a slice");
    let wide = matrices([(10, 48, 8), (8, 40, 8), (10, 192, 8), (24, 40, 8)]);
    assert!(are_small(&wide, two) && !are_small_wide(&wide, two), "more rows of a longer stream");
    let across = matrices([(9, 52, 8), (9, 36, 8), (9, 192, 8), (24, 36, 8)]);
    assert!(!are_small(&across, two), "the last slice is that of two heads");
    let large = matrices([(15, 100, 8), (15, 60, 8), (15, 320, 8), (40, 60, 8)]);
    assert!(!are_small(&large, Heads { kv_heads: 5, ..heads }), "360M");
}

#[test]
fn two_teams_share_sequences_of_more_rows() {
    assert!(is_few(8, 1) && is_few(2, 4) && !is_few(3, 3));
    assert!(is_for_wide(16, 1) && is_for_wide(16, 2) && is_for_wide(8, 4) && is_for_wide(6, 5));
    assert!(!is_for_wide(17, 1), "a block for each sequence");
    assert!(!is_for_wide(9, 4), "20 rows of one team");
    assert!(!is_for_wide(2, 9), "more rows of a sequence than attention takes");
}
