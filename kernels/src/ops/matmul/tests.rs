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
fn small_matrices_are_cut_into_more_slices() {
    assert_eq!(slices(49_152, 576), 1);
    assert_eq!(slices(28_672, 4096), 1);
    assert_eq!(slices(4096, 4096), 4);
    assert_eq!(slices(2048, 2048), 8);
    assert_eq!(slices(576, 64), 1);
}
