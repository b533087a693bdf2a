use super::*;

#[test]
fn every_element_has_its_own_place() {
    let (outputs, inputs) = (40_usize, 64);
    let mut seen = vec![false; 2 * Format::Bf16.words(outputs, inputs)];
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
    let words = Format::Bf16.pack(17, 64, |output, row| {
        row.iter_mut().enumerate().for_each(|(input, it)| *it = value(output, input));
    });
    let words = words.unwrap();
    let read = |output, input| {
        let (word, half) = place(64, output, input);
        bf16::from_bits((words[word] >> (16 * half) & 0xffff) as u16).to_f32()
    };
    assert_eq!(read(16, 31), bf16::from_f32(value(16, 31)).to_f32());
    assert_eq!(read(3, 9), value(3, 9));
    assert_eq!(read(17, 0), 0.0);
}

/// Codes that stand for numbers.
fn codes() -> impl Iterator<Item = u8> {
    (0..=255).filter(|it| it & 0x7f != 0x7f)
}

/// The two words of bf16 that the kernels make of a word, as `Fp8` in `cu/matmul.cuh`.
fn unpacked(word: u32) -> [u32; 2] {
    let second = word.rotate_right(4) & 0x8780_8780 | word << 4 & 0x0070_0070;
    [word & 0x87f0_87f0, second]
}

fn half(word: u32, at: usize) -> f32 {
    bf16::from_bits((word >> (16 * at) & 0xffff) as u16).to_f32()
}

#[test]
fn a_code_is_moved_into_its_value_wherever_it_stands() {
    for code in codes() {
        for (part, at) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let words = unpacked(spread(code, part)[at]);
            assert_eq!(half(words[part], at) * SHORT, from_fp8(code), "{code:#x}");
            // Nothing of it is taken for its neighbours.
            let rest = [words[part] & !(0xffff << (16 * at)), words[1 - part]];
            assert_eq!(rest, [0, 0], "{code:#x}");
        }
    }
}

/// Even in [-0.5, 0.5), the same in every run.
fn chance(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed;
    move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    }
}

#[test]
fn a_value_becomes_the_nearest_code() {
    let mut chance = chance(4);
    for code in codes() {
        let value = from_fp8(code);
        assert_eq!(fp8(value), code);
        assert_eq!(fp8(value * 1.0001), code);
    }
    for at in 0..20_000 {
        let value = chance() * 2.0_f32.powi(at % 23 - 12);
        let off = |code: u8| (from_fp8(code) - value).abs();
        let nearest = codes().map(off).fold(f32::MAX, f32::min);
        assert_eq!(off(fp8(value)), nearest, "{value}");
    }
    // Of two as near the even one; beyond the largest the largest.
    assert_eq!([fp8(17.0), fp8(19.0), fp8(-17.0)].map(from_fp8), [16.0, 20.0, -16.0]);
    assert_eq!([fp8(1.0 / 1024.0), fp8(3.0 / 1024.0)].map(from_fp8), [0.0, 1.0 / 256.0]);
    assert_eq!([fp8(1e9), fp8(f32::NEG_INFINITY)].map(from_fp8), [448.0, -448.0]);
}

#[test]
fn packing_in_8_bits_keeps_every_weight_as_near_as_codes_are() {
    let (outputs, inputs) = (130, 192);
    let mut chance = chance(5);
    let weights: Vec<f32> = (0..outputs * inputs).map(|_| chance()).collect();
    let words = Format::Fp8.pack(outputs, inputs, |output, row| {
        row.copy_from_slice(&weights[output * inputs..][..inputs]);
    });
    let words = words.unwrap();
    assert_eq!(words.len(), 256 * 192 / 4 + 256);
    let mut seen = vec![0; words.len()];
    for output in 0..outputs {
        let mut wanted = weights[output * inputs..][..inputs].to_vec();
        round_fp8(&mut wanted).unwrap();
        let channel = f32::from_bits(words[Format::Fp8.tile_words(outputs, inputs) + output]);
        for (input, want) in wanted.iter().enumerate() {
            let (word, part, at) = place_fp8(inputs, output, input);
            seen[word] += 1;
            let got = half(unpacked(words[word])[part], at) * channel;
            assert!((got - want).abs() <= want.abs() * 1e-6, "{output} {input}: {got} {want}");
            assert!((got - weights[output * inputs + input]).abs() <= 0.5 / 16.0);
        }
    }
    assert!(seen.iter().all(|it| *it <= 4));
}

#[test]
fn what_has_no_code_is_refused() {
    let pack = |weight: f32| {
        Format::Fp8.pack(2, 64, |output, row| {
            row.fill(0.0);
            row[63] = if output == 1 { weight } else { 0.0 };
        })
    };
    for weight in [f32::NAN, f32::INFINITY, -1e5] {
        assert_eq!(pack(weight), Err(PackError { output: 1 }));
    }
    assert!(pack(5e4).is_ok());
}
