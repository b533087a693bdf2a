use super::*;

#[test]
fn blocks_cover_the_rows_once() {
    let blocks: Vec<[u32; 2]> = blocks_of_rows(5, 100, 3).collect();
    assert_eq!(blocks, [[5, 42], [47, 42], [89, 16]]);
    assert_eq!(blocks_of_rows(0, 0, 4).count(), 0);
}

#[test]
fn tiles_are_powers_of_two() {
    assert_eq!([1, 16, 17, 32, 33, 64].map(tiles), [1, 1, 2, 2, 4, 4]);
    assert!(is_few(8, 8, 64) && !is_few(9, 1, 64));
    assert!(is_few(8, 4, 128) && !is_few(8, 5, 128));
}

/// Two keys, one of which has all the weight; then equal weights.
#[test]
fn the_reference_weighs_values_by_score() {
    let keys = [100.0, 0.0, -100.0, 0.0];
    let values = [1.0, 2.0, 3.0, 4.0];
    assert_eq!(cpu(&[10.0, 0.0], &keys, &values), [1.0, 2.0]);
    assert_eq!(cpu(&[0.0, 1.0], &keys, &values), [2.0, 3.0]);
}

/// On an H200 a block has four warps, or eight, whatever the rows.
#[test]
fn rings_fill_shared_memory() {
    let warps = |dim, rows| 232_448 / ring_bytes(dim, rows);
    assert_eq!([1, 4].map(|it| (warps(128, it), warps(64, it))), [(4, 8), (4, 8)]);
    assert!(is_for_ring(4, 4) && is_for_ring(5, 3) && is_for_ring(1, 16));
    assert!(!is_for_ring(1, 17) && !is_for_ring(8, 2));
}
