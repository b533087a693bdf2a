use super::*;

#[test]
fn gates_and_ups_alternate_by_eight() {
    assert_eq!(gated_row(0), (false, 0));
    assert_eq!(gated_row(7), (false, 7));
    assert_eq!(gated_row(8), (true, 0));
    assert_eq!(gated_row(16), (false, 8));
    assert_eq!(gated_row(31), (true, 15));
}

#[test]
fn broad_blocks_leave_few_rows_empty() {
    let of = |rows| path::broad_width(rows);
    assert_eq!([65, 128].map(of), [128; 2]);
    assert_eq!([129, 192, 257, 384].map(of), [192; 4]);
    assert_eq!([193, 256, 385, 513, 4096].map(of), [256; 5]);
}

#[test]
fn small_matrices_are_cut_into_more_slices() {
    assert_eq!(slices(49_152, 576), 1);
    assert_eq!(slices(28_672, 4096), 1);
    assert_eq!(slices(4096, 4096), 4);
    assert_eq!(slices(2048, 2048), 8);
    assert_eq!(slices(576, 64), 1);
}

#[test]
fn a_block_takes_all_slices_of_256_rows_where_turns_are_saved() {
    // Of so many tiles of 128 outputs, on an H200.
    let of = |outputs: usize, rows: usize| {
        let tiles = [256, 128].map(|width| rows.div_ceil(width) * outputs);
        path::pays_all(tiles, 132)
    };
    // qkv of 8B; a last turn that is shared counts as half.
    assert_eq!([257, 384, 512, 1024, 2048].map(|rows| of(48, rows)), [true; 5]);
    assert!(!of(48, 1400));
    // o and down.
    assert_eq!([512, 513, 768, 1024].map(|rows| of(32, rows)), [false, true, true, true]);
    // Half of gate and up, as on two cards: two whole turns for three.
    assert!(!of(112, 384));
}
