use super::*;

#[test]
fn every_element_has_its_own_place() {
    let (outputs, inputs) = (40_usize, 64);
    let mut seen = vec![false; 2 * tile_words(outputs, inputs)];
    for output in 0..outputs {
        for input in 0..inputs {
            let (word, half) = place(inputs, output, input);
            assert!(!std::mem::replace(&mut seen[2 * word + half], true));
        }
    }
}

/// The layout the PTX manual draws for the A operand: lane 0 of the first tile holds rows 0 and 8,
/// columns 0, 1 and 8, 9.
#[test]
fn a_lane_holds_what_the_instruction_wants() {
    assert_eq!(place(128, 0, 0), (0, 0));
    assert_eq!(place(128, 0, 1), (0, 1));
    assert_eq!(place(128, 8, 0), (1, 0));
    assert_eq!(place(128, 0, 8), (2, 0));
    assert_eq!(place(128, 8, 9), (3, 1));
    assert_eq!(place(128, 0, 2), (4, 0));
    assert_eq!(place(128, 1, 0), (16, 0));
}

/// Four tiles along the inputs, eight along the outputs, then on along the inputs.
#[test]
fn tiles_of_a_unit_are_one_run() {
    assert_eq!(place(128, 0, 16), (128, 0));
    assert_eq!(place(128, 16, 0), (512, 0));
    assert_eq!(place(128, 0, 64), (4096, 0));
    assert_eq!(place(128, 128, 0), (8192, 0));
}

#[test]
fn packing_keeps_values_and_fills_with_zeros() {
    let value = |output: usize, input: usize| (output * 64 + input) as f32 / 64.0;
    let words = pack(17, 64, |output, row| {
        row.iter_mut().enumerate().for_each(|(input, it)| *it = value(output, input));
    });
    let read = |output, input| {
        let (word, half) = place(64, output, input);
        bf16::from_bits((words[word] >> (16 * half) & 0xffff) as u16).to_f32()
    };
    assert_eq!(read(16, 31), bf16::from_f32(value(16, 31)).to_f32());
    assert_eq!(read(3, 9), value(3, 9));
    assert_eq!(read(17, 0), 0.0);
}

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
