//! Products of every format.

use proptest::prelude::*;

use super::*;
use crate::cpu::inputs::InputBlock;
use crate::quant::dequantize;

const BOTH: [Activations; 2] = [Activations::F32, Activations::Int8];

fn product(team: &Team, weights: &Matrix, x: &[f32]) -> Vec<f32> {
    let mut inputs = Inputs::with_capacity(0, 0, weights.activations());
    inputs.prepare(team, x, weights.cols(), weights.activations());
    let mut out = vec![f32::NAN; inputs.rows() * weights.rows()];
    matmul(team, weights, &inputs, &mut out);
    out
}

/// What the 8-bit form of a row stands for.
fn rounded(team: &Team, x: &[f32]) -> Vec<f32> {
    let mut inputs = Inputs::with_capacity(0, 0, Activations::Int8);
    inputs.prepare(team, x, x.len(), Activations::Int8);
    let number = |it: &InputBlock, i: usize| it.scales[0] * f32::from(it.quants[0][i]);
    let blocks = inputs.blocks(0).iter();
    blocks.flat_map(|it| (0..32).map(|i| number(it, i))).take(x.len()).collect()
}

/// A row of 37 equals the row alone, on every path; and all are near the sums in `f64`.
fn check(dtype: Dtype, activations: Activations, rows: usize, cols: usize, seed: u64) {
    let mut chance = Chance(seed);
    let bytes = chance.tensor(dtype, rows * cols);
    let weights = Matrix::pack(dtype, rows, cols, &bytes, activations).unwrap();
    let mut plain = vec![0.0; rows * cols];
    dequantize(dtype, &bytes, &mut plain).unwrap();
    let largest = plain.iter().fold(0.0_f32, |max, it| max.max(it.abs()));
    let x = chance.numbers(37 * cols);
    let teams = teams();
    let expected = product(&teams[0], &weights, &x);
    for (i, out) in expected.iter().enumerate() {
        let x = &x[i / rows * cols..][..cols];
        let x = match weights.activations() {
            Activations::F32 => x.to_vec(),
            Activations::Int8 => rounded(&teams[0], x),
        };
        let terms = x.iter().zip(&plain[i % rows * cols..]);
        let exact: f64 = terms.map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
        let size: f32 = x.iter().map(|it| it.abs()).sum::<f32>() * largest;
        let error = (f64::from(*out) - exact).abs();
        assert!(error <= 1e-5 * f64::from(size), "{dtype:?} {activations:?}: {out} for {exact}");
    }
    for team in &teams {
        let what = format!("{dtype:?} {activations:?} {rows}x{cols} {team:?}");
        same_bits(&product(team, &weights, &x), &expected, &what);
        for row in [0, 36] {
            let alone = product(team, &weights, &x[row * cols..][..cols]);
            same_bits(&alone, &expected[row * rows..][..rows], &what);
        }
    }
}

#[test]
fn every_format_on_every_path() {
    for dtype in Dtype::ALL {
        for activations in BOTH {
            check(dtype, activations, 43, 2 * dtype.block_len().max(32), 7);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_shape(
        dtype in proptest::sample::select(&Dtype::ALL[..]),
        activations in proptest::sample::select(&BOTH[..]),
        rows in 1_usize..70,
        blocks in 1_usize..7,
        seed in 1_u64..,
    ) {
        let blocks = if dtype.block_len() == 256 { blocks.min(3) } else { blocks * 5 };
        check(dtype, activations, rows, blocks * dtype.block_len(), seed);
    }
}

#[test]
fn rows_of_a_stack_are_those_of_its_parts() {
    let team = Team::new(&[0, 0]).unwrap();
    let mut chance = Chance(11);
    let x = chance.numbers(3 * 256);
    let parts = [(Dtype::Q4_K, 32), (Dtype::Q6_K, 48), (Dtype::Q4_K, 7)].map(|(dtype, rows)| {
        let bytes = chance.tensor(dtype, rows * 256);
        move || Matrix::pack(dtype, rows, 256, &bytes, Activations::Int8).unwrap()
    });
    let stack = Matrix::stack(parts.iter().map(|it| it()).collect()).unwrap();
    let all = product(&team, &stack, &x);
    let mut start = 0;
    for part in parts.iter().map(|it| it()) {
        for (row, alone) in product(&team, &part, &x).chunks_exact(part.rows()).enumerate() {
            same_bits(alone, &all[row * 87 + start..][..part.rows()], "stack");
        }
        start += part.rows();
    }
    assert_eq!(start, stack.rows());
}

#[test]
fn matrices_that_cannot_be() {
    let pack = |rows, cols, len: usize| {
        let bytes = vec![0; len];
        Matrix::pack(Dtype::Q4_1, rows, cols, &bytes, Activations::Int8).map(|_| ())
    };
    assert!(matches!(pack(2, 33, 40), Err(PackError::Ragged { .. })));
    assert!(matches!(pack(2, 32, 41), Err(PackError::Length(_))));
    assert_eq!(pack(2, 32, 40), Ok(()));
    let matrix = |rows, cols| {
        let bytes = vec![0; rows * cols * 4];
        Matrix::pack(Dtype::F32, rows, cols, &bytes, Activations::F32).unwrap()
    };
    for pair in [vec![], vec![matrix(16, 3), matrix(16, 4)], vec![matrix(15, 3), matrix(16, 3)]] {
        assert!(matches!(Matrix::stack(pair), Err(PackError::Stack { .. })));
    }
}

#[test]
fn gathered_rows_are_the_dequantised_ones() {
    for dtype in Dtype::ALL {
        let cols = dtype.block_len().max(24);
        let bytes = Chance(3).tensor(dtype, 40 * cols);
        let matrix = Matrix::pack(dtype, 40, cols, &bytes, Activations::Int8).unwrap();
        let mut expected = vec![0.0; 40 * cols];
        dequantize(dtype, &bytes, &mut expected).unwrap();
        let mut out = vec![0.0; 3 * cols];
        matrix.gather(&[39, 0, 17], &mut out);
        for (out, row) in out.chunks_exact(cols).zip([39, 0, 17]) {
            same_bits(out, &expected[row * cols..][..cols], "gather");
        }
    }
}

#[test]
fn eight_bit_weights_are_near_the_plain_ones() {
    let team = Team::new(&[0]).unwrap();
    let mut chance = Chance(5);
    let bytes = chance.tensor(Dtype::BF16, 33 * 64);
    let x = chance.numbers(64);
    let plain = Matrix::pack(Dtype::BF16, 33, 64, &bytes, Activations::Int8).unwrap();
    let small = Matrix::quantize_8bit(Dtype::BF16, 33, 64, &bytes).unwrap();
    assert_eq!(small.activations(), Activations::Int8);
    for (a, b) in product(&team, &plain, &x).iter().zip(product(&team, &small, &x)) {
        // 64 terms below 1, each off by at most two halves of a step of 1/127.
        assert!((a - b).abs() < 0.2, "{a} and {b}");
    }
    assert!(Matrix::quantize_8bit(Dtype::F32, 1, 24, &[0; 96]).is_err());
}

#[test]
fn what_is_not_finite_stays_visible() {
    let bytes = Chance(9).tensor(Dtype::Q4_1, 64);
    let weights = Matrix::pack(Dtype::Q4_1, 2, 32, &bytes, Activations::Int8).unwrap();
    for team in teams() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = vec![0.5; 32];
            x[9] = bad;
            assert!(product(&team, &weights, &x).iter().all(|it| !it.is_finite()));
        }
    }
}

#[test]
fn added_products() {
    let team = Team::new(&[0]).unwrap();
    let bytes = Chance(13).tensor(Dtype::Q8_0, 20 * 32);
    let weights = Matrix::pack(Dtype::Q8_0, 20, 32, &bytes, Activations::Int8).unwrap();
    let x = Chance(17).numbers(2 * 32);
    let expected = product(&team, &weights, &x);
    let mut inputs = Inputs::with_capacity(2, 32, Activations::Int8);
    inputs.prepare(&team, &x, 32, Activations::Int8);
    let mut out = vec![10.0; 40];
    matmul_add(&team, &weights, &inputs, &mut out);
    assert!(out.iter().zip(expected).all(|(out, it)| *out == 10.0 + it));
}
