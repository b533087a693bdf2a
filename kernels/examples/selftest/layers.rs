//! Several layers in one kernel against the kernels that it stands for: the same bits.

use std::ops::RangeInclusive;

use kernels::cuda::{Device, DeviceError};
use kernels::ops::matmul::Format;

use crate::Report;
use crate::random::poison;
use crate::timing::lay::lay_within;
use crate::timing::model::{CAPTURED, Model, build};
use crate::timing::shapes::{SHAPES, Shape};

/// Layers of each model.
const LAYERS: usize = 3;
/// Sequences and places for rows of each, and how many of these are rows of those that exist.
const STEPS: &[((usize, usize), &[usize])] = &[
    ((1, 1), &[1]),
    ((2, 1), &[1; 2]),
    ((3, 1), &[1; 3]),
    ((8, 1), &[1; 8]),
    ((8, 1), &[1; 5]),
    ((4, 1), &[1; 3]),
    ((1, 4), &[4]),
    ((2, 4), &[4; 2]),
    ((2, 4), &[4]),
    ((2, 4), &[1, 4]),
    ((2, 4), &[3, 2]),
    ((4, 2), &[2; 4]),
    ((4, 2), &[1, 2, 2, 2]),
    ((4, 2), &[1, 1, 1, 2]),
    ((1, 7), &[7]),
    ((1, 8), &[8]),
    ((9, 1), &[1; 9]),
    ((16, 1), &[1; 16]),
    ((16, 1), &[1; 11]),
    ((12, 1), &[1; 5]),
    ((2, 5), &[5; 2]),
    ((5, 3), &[3; 5]),
    ((5, 3), &[1, 3, 2, 1, 3]),
    ((4, 4), &[4; 4]),
    ((6, 5), &[5; 6]),
    ((6, 5), &[4, 1, 5, 2, 5, 3]),
    // A block's text of more than one row stands on both sides, too.
    ((10, 3), &[3; 10]),
    ((10, 3), &[3, 2, 1, 3, 2, 3, 1, 1, 2, 3]),
    ((8, 4), &[4; 8]),
    ((8, 4), &[4; 3]),
    ((8, 4), &[1, 1, 1, 4, 2, 1, 1, 4]),
    ((16, 2), &[1, 2, 1, 1, 1, 1, 1, 2, 2, 1, 1, 2, 1]),
];
/// Sequences, and how many rows of two each has, so that each number of rows is there.
const MANY: usize = 16;
const ALL_ROWS: RangeInclusive<usize> = 9..=2 * MANY;
const ALL_ROWS_AT: usize = 256;

/// A small model with everything that a layer may have.
const EXTRAS: Shape = Shape {
    name: "with bias and head norms",
    hidden: 1024,
    intermediate: 3072,
    heads: 16,
    kv_heads: 8,
    dim: 128,
    extras: true,
    ..SHAPES[0]
};

/// For the shape that is named, or for all.
pub(crate) fn compare(
    device: &Device,
    report: &mut Report,
    named: Option<&str>,
) -> Result<(), DeviceError> {
    let cases = [
        (SHAPES[0], 40),
        (SHAPES[0], 256),
        // Four rows stand on both sides of a chunk's end.
        (SHAPES[0], 259),
        (SHAPES[0], 500),
        (SHAPES[0], 1500),
        (EXTRAS, 300),
        (SHAPES[1], 600),
        (SHAPES[2], 270),
        (SHAPES[2], 1500),
    ];
    let mut wanted = cases.iter().filter(|it| named.is_none_or(|name| it.0.name == name));
    wanted.try_for_each(|it| steps(device, report, *it))
}

/// Small cases of each kernel.
pub(crate) fn quick(device: &Device, report: &mut Report) -> Result<(), DeviceError> {
    [(SHAPES[0], 259), (EXTRAS, 40)].into_iter().try_for_each(|it| steps(device, report, it))
}

/// All steps of a model, each where `context` tokens end.
fn steps(
    device: &Device,
    report: &mut Report,
    (shape, context): (Shape, usize),
) -> Result<(), DeviceError> {
    let shape = Shape { layers: LAYERS, vocab: 512, ..shape };
    // Only small layers are taken with more than 8 rows.
    let lanes = if shape.hidden < 1024 { MANY } else { 8 };
    let mut model = build(device, &shape, Format::Bf16, (lanes * 8, lanes), context)?;
    // Keys and values of what comes before.
    for end in (8..context).step_by(8) {
        let mut step = lay_within(device, (lanes, 8), &vec![8; lanes], (end, context))?;
        model.begin(device, &mut step, lanes, 8)?;
        model.apart(device, &step, lanes, 8, |_| true)?;
    }
    let there = |rows: usize| -> Vec<usize> {
        let all = (0..MANY).map(|it| usize::from(it < rows) + usize::from(it + MANY < rows));
        all.filter(|it| 0 < *it).collect()
    };
    let each: Vec<_> = ALL_ROWS.map(|rows| ((MANY, 2), there(rows))).collect();
    let each = each.iter().map(|(of, there)| (*of, there.as_slice()));
    let each = each.filter(|_| context == ALL_ROWS_AT);
    for of @ ((batch, q), _) in STEPS.iter().copied().chain(each) {
        if model.takes(batch, q) {
            case(device, report, &mut model, (shape.name, context), of)?;
        }
    }
    if model.in_one_team() {
        let name = format!("{} in one team", shape.name);
        for &of @ ((batch, q), _) in STEPS {
            if 1 < batch && model.takes(batch, q) {
                case(device, report, &mut model, (&name, context), of)?;
            }
        }
    }
    Ok(())
}

fn case(
    device: &Device,
    report: &mut Report,
    model: &mut Model,
    (name, context): (&str, usize),
    ((batch, q), there): ((usize, usize), &[usize]),
) -> Result<(), DeviceError> {
    let mut step = lay_within(device, (batch, q), there, (context - 1, context))?;
    let name = format!("at once, {name}, context {context}, {there:?} of {batch} x {q}");
    let hidden = model.hidden();
    let is_row = |at: usize| there.get(at / q).is_some_and(|rows| at % q < *rows);
    let poisoned = poison(model.captured.len());
    let mut run = |at_once: &[usize]| -> Result<_, DeviceError> {
        device.write(&mut model.captured, 0, &poisoned)?;
        model.begin(device, &mut step, batch, q)?;
        for layers in at_once.windows(2) {
            model.at_once(device, &step, layers[0]..layers[1], batch, q)?;
        }
        if at_once.is_empty() {
            model.apart(device, &step, batch, q, |_| true)?;
        }
        let stream = device.read(&model.stream, 0..batch * q * hidden)?;
        let blocks = (batch * q).div_ceil(8);
        let rounded = device.read(&model.x, 0..blocks * 8 * hidden)?;
        let columns = CAPTURED.len() * hidden;
        let captured = device.read(&model.captured, 0..blocks * 8 * columns)?;
        // The rows that exist; of the others nobody needs anything.
        let rows = stream.chunks_exact(hidden).enumerate().filter(|(at, _)| is_row(*at));
        let stream: Vec<f32> = rows.flat_map(|it| it.1.to_vec()).collect();
        let there = |it: Vec<_>| -> Vec<u16> {
            let row = |at: usize| at / 64 % blocks * 8 + at % 8;
            let rows = it.chunks_exact(8).enumerate().filter(|(at, _)| is_row(row(*at)));
            rows.flat_map(|(_, row)| row.iter().map(|it: &kernels::ops::bf16| it.to_bits()))
                .collect()
        };
        let pages = device.read(model.pages.memory(), 0..model.pages.memory().len())?;
        let bits: Vec<u32> = stream.into_iter().map(f32::to_bits).collect();
        let pages: Vec<u16> = pages.into_iter().map(kernels::ops::bf16::to_bits).collect();
        Ok((bits, there(rounded), there(captured), pages))
    };
    let want = run(&[])?;
    for at_once in [&[0, LAYERS][..], &[0, 1, LAYERS]] {
        let got = run(at_once)?;
        let name = format!("{name}, {} launches", at_once.len() - 1);
        report.same(&format!("{name}: stream"), &got.0, &want.0);
        report.same(&format!("{name}: rounded"), &got.1, &want.1);
        report.same(&format!("{name}: captured"), &got.2, &want.2);
        report.same(&format!("{name}: pages"), &got.3, &want.3);
    }
    let finite = want.0.iter().all(|it| f32::from_bits(*it).is_finite());
    report.check(&format!("{name}: finite"), finite);
    Ok(())
}
