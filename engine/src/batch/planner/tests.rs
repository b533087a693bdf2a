//! How many rows prompts take beside those that decode.

use super::*;

#[test]
fn a_few_rows_too_many_wait_for_the_next_step() {
    assert_eq!(rows_beside(2048, 32), 2016);
    assert_eq!(rows_beside(1024, 256), 1024);
    assert_eq!(rows_beside(256, 64), 192);
    // A quarter of them at most: prompts get on.
    assert_eq!(rows_beside(256, 65), 256);
    assert_eq!(rows_beside(4, 1), 4);
    assert_eq!(rows_beside(1, u32::MAX / 2), 1);
}
