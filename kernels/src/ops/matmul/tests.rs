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
