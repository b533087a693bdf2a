//! Operations on single rows, against plain formulas in `f64`.

use super::*;

/// Each path gives the bits of the first, which are within `error` of the formula.
fn check(
    operation: impl Fn(&Team) -> Vec<f32>,
    formula: impl Fn(usize) -> f64,
    error: f64,
    what: &str,
) {
    let teams = teams();
    let expected = operation(&teams[0]);
    for (i, out) in expected.iter().enumerate() {
        let exact = formula(i);
        let off = (f64::from(*out) - exact).abs();
        assert!(off <= error * exact.abs().max(1e-3), "{what} {i}: {out} for {exact}");
    }
    for team in &teams {
        same_bits(&operation(team), &expected, what);
    }
}

#[test]
fn norms() {
    for (rows, dim) in [(1, 5), (3, 576), (40, 577)] {
        let x = Chance(1).numbers(rows * dim);
        let weight = Chance(2).numbers(dim);
        let operation = |team: &Team| {
            let mut out = vec![0.0; rows * dim];
            rmsnorm(team, &x, &weight, 1e-5, &mut out);
            out
        };
        let formula = |i: usize| {
            let row = &x[i / dim * dim..][..dim];
            let mean = row.iter().map(|it| f64::from(*it).powi(2)).sum::<f64>() / dim as f64;
            f64::from(x[i]) / (mean + 1e-5).sqrt() * f64::from(weight[i % dim])
        };
        check(operation, formula, 1e-6, "rmsnorm");
    }
}

#[test]
fn gates() {
    let dim = 37;
    let gate_up: Vec<f32> = Chance(3).numbers(2 * 2 * dim).iter().map(|it| it * 30.0).collect();
    let operation = |team: &Team| {
        let mut out = vec![0.0; 2 * dim];
        swiglu(team, &gate_up, dim, &mut out);
        out
    };
    let formula = |i: usize| {
        let at = i / dim * 2 * dim + i % dim;
        let (gate, up) = (f64::from(gate_up[at]), f64::from(gate_up[at + dim]));
        gate / (1.0 + (-gate).exp()) * up
    };
    check(operation, formula, 1e-6, "swiglu");
}

#[test]
fn softmax_of_wide_and_narrow_rows() {
    for len in [1, 16, 333] {
        let x: Vec<f32> = Chance(4).numbers(len).iter().map(|it| it * 20.0).collect();
        let operation = |team: &Team| {
            let mut out = x.clone();
            softmax(team, &mut out);
            out
        };
        let sum: f64 = x.iter().map(|it| f64::from(*it).exp()).sum();
        check(operation, |i| f64::from(x[i]).exp() / sum, 1e-6, "softmax");
    }
}

#[test]
fn exponentials() {
    for i in -900..900 {
        let x = i as f32 * 0.1;
        let exact = f64::from(x.min(88.0)).exp();
        let off = (f64::from(super::super::rows::exp(x)) - exact).abs();
        assert!(off <= if x < -87.0 { 2e-38 } else { 2e-7 * exact }, "exp({x})");
    }
    assert!(super::super::rows::exp(f32::NAN).is_nan());
}

#[test]
fn rotations() {
    let (head_dim, heads, columns) = (6, 2, 15);
    let factors = [1.0, 2.0, 8.0];
    let rope = Rope::new(head_dim, 100, 1000.0, &factors);
    let positions = [0, 99, 7];
    let x = Chance(5).numbers(3 * columns);
    let operation = |team: &Team| {
        let mut out = x.clone();
        rope.rotate(team, &mut out, columns, heads, &positions);
        out
    };
    let formula = |i: usize| {
        let (row, column) = (i / columns, i % columns);
        if heads * head_dim <= column {
            return f64::from(x[i]);
        }
        let pair = column % head_dim % 3;
        let start = i - column % head_dim;
        let turn = 1000_f64.powf(-(2.0 * pair as f64) / 6.0) / f64::from(factors[pair]);
        let (sin, cos) = (f64::from(positions[row]) * turn).sin_cos();
        let (a, b) = (f64::from(x[start + pair]), f64::from(x[start + pair + 3]));
        if column % head_dim < 3 { a * cos - b * sin } else { b * cos + a * sin }
    };
    check(operation, formula, 1e-4, "rope");
}

#[test]
fn sums() {
    let (x, y) = (Chance(6).numbers(50), Chance(7).numbers(50));
    let operation = |team: &Team| {
        let mut out = y.clone();
        add(team, &x, &mut out);
        out
    };
    check(operation, |i| f64::from(x[i]) + f64::from(y[i]), 1e-6, "add");
}

#[test]
fn the_largest() {
    let inf = f32::INFINITY;
    for (x, expected) in [
        (&[1.0, 3.0, 2.0, 3.0][..], 1),
        (&[f32::NAN, -inf, -5.0], 2),
        (&[f32::NAN, -inf, -inf], 1),
        (&[f32::NAN, f32::NAN], 0),
        (&[-inf, inf, inf], 1),
        (&[-0.0, 0.0], 0),
    ] {
        assert_eq!(argmax(x), expected, "{x:?}");
    }
    let mut long = Chance(8).numbers(1000);
    long[777] = 2.0;
    long[778] = 2.0;
    assert_eq!(argmax(&long), 777);
}
