//! How wide the blocks of a product are.

use super::{columns_max, narrow_columns};

#[test]
fn blocks_of_small_matrices_are_as_narrow_as_the_card_has_room_for() {
    // o and down of 135M have 36 tiles.
    let o = |rows| narrow_columns(36, rows, 132);
    assert_eq!([8, 32, 56, 64, 100, 128, 200, 256].map(o), [8, 8, 8, 16, 16, 32, 32, 64]);
    assert_eq!([1, 9, 33, 400].map(columns_max), [8, 16, 64, 64]);
}
