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

#[test]
fn blocks_of_192_outputs_are_taken_where_they_fill_turns_better() {
    let of = |sizes: (usize, usize), rows: usize| path::tall_parts(sizes, rows, 132);
    // qkv of 8B: a slice a block, or two; whole sums from 257 rows on, where a turn is saved.
    let qkv = [64, 65, 128, 129, 256, 257, 512, 513, 640, 641, 1024].map(|it| of((6144, 4096), it));
    let wanted = [0, 4, 4, 2, 2, 1, 1, 0, 0, 1, 1];
    assert_eq!(qkv.map(|it| it.unwrap_or(0)), wanted);
    // o: its 22 tiles leave a part of the last outputs empty.
    let o = [128, 256, 257, 384, 385, 512, 513, 768, 769].map(|it| of((4096, 4096), it));
    assert_eq!(o.map(|it| it.unwrap_or(0)), [0, 0, 2, 2, 0, 0, 1, 1, 0]);
    // down: two slices of four each.
    let down = [256, 257, 384, 385, 512, 513, 768].map(|it| of((4096, 14_336), it));
    assert_eq!(down.map(|it| it.unwrap_or(0)), [0, 2, 2, 0, 0, 1, 1]);
    // 1B: qkv, a slice of eight each, then whole sums; down.
    assert_eq!([128, 384, 640, 641].map(|it| of((3072, 2048), it)), [Some(8), None, None, Some(1)]);
    assert_eq!([384, 385].map(|it| of((2048, 8192), it)), [Some(4), None]);
    // Gate and up are one slice.
    assert_eq!(of((28_672, 4096), 512), None);
}

#[test]
fn products_begin_early_where_each_job_has_a_place() {
    let of =
        |format, outputs, inputs, rows| path::suits_ahead(format, [outputs, inputs], rows, 132);
    // qkv, o, gate and up, down of 8B: queries, keys and values take a second turn.
    let all = [(6144, 4096), (4096, 4096), (28_672, 4096), (4096, 14_336)];
    let bf16 = |rows| all.map(|(outputs, inputs)| of(Format::Bf16, outputs, inputs, rows));
    assert_eq!([1, 8, 32, 64].map(bf16), [[false, true, true, true]; 4]);
    let fp8 = |rows| all.map(|(outputs, inputs)| of(Format::Fp8, outputs, inputs, rows));
    assert_eq!([16, 17].map(fp8), [[false; 4], [false, true, false, true]]);
    // o of 1B has 128 jobs in eight slices; 135M is too small, its logits too.
    assert!(of(Format::Bf16, 2048, 2048, 1));
    assert!(!of(Format::Bf16, 576, 1536, 64) && !of(Format::Bf16, 49_152, 576, 64));
    // On half of a card there is no place for all.
    assert!(!path::suits_ahead(Format::Bf16, [4096, 4096], 8, 60));
}
