//! Matrix products: against the reference, and one path against the other.

use kernels::cuda::{Device, DeviceError};
use kernels::ops::block_values;
use kernels::ops::matmul::{
    self, Captured, Format, Matrix, Out, Path, Rows, Scratch, cpu, cpu_gated, cpu_norm_scales,
    round_fp8,
};

use crate::Report;
use crate::random::{Random, blocked, floats, poison, unblocked};

const EPS: f32 = 1e-5;

/// A matrix, its rows, and what their product must be.
struct Case {
    name: String,
    matrix: Matrix,
    weights: Vec<f32>,
    x: Vec<f32>,
    rows: usize,
}

impl Case {
    fn new(
        device: &Device,
        random: &mut Random,
        format: Format,
        (outputs, inputs, rows): (usize, usize, usize),
    ) -> Result<Self, DeviceError> {
        let mut weights = random.floats(outputs * inputs, (inputs as f32).sqrt().recip());
        let words = format.pack(outputs, inputs, |row, to| {
            to.copy_from_slice(&weights[row * inputs..][..inputs]);
        });
        let words = device.upload(&words.expect("they are small"))?;
        if format == Format::Fp8 {
            // The reference multiplies what the codes are worth.
            let rows = weights.chunks_exact_mut(inputs);
            rows.for_each(|it| round_fp8(it).expect("they were packed"));
        }
        let matrix = Matrix::new(words, format, outputs, inputs);
        let x = random.floats(rows * inputs, 1.0);
        let name = format!("{format:?} {outputs} x {inputs}, {rows} rows");
        Ok(Self { name, matrix, weights, x, rows })
    }

    fn plain(
        &self,
        device: &Device,
        scratch: &mut Scratch,
        path: Path,
        rows: std::ops::Range<usize>,
        norm: Option<f32>,
    ) -> Result<Vec<f32>, DeviceError> {
        let (outputs, inputs) = (self.matrix.outputs(), self.matrix.inputs());
        let x = &self.x[rows.start * inputs..rows.end * inputs];
        let x = device.upload(&blocked(x, inputs))?;
        let mut sums = device.upload(&vec![f32::NAN; rows.len() * outputs])?;
        let out = Out::Plain(&mut sums);
        let rows = Rows { x: &x, rows: rows.len(), norm };
        self.matrix.multiply_on(path, device, scratch, rows, out)?;
        device.read(&sums, 0..sums.len())
    }

    /// The first `rows` rows, normed and gated.
    fn gated(
        &self,
        device: &Device,
        scratch: &mut Scratch,
        path: Path,
        rows: usize,
    ) -> Result<Vec<f32>, DeviceError> {
        let (outputs, inputs) = (self.matrix.outputs() / 2, self.matrix.inputs());
        let x = device.upload(&blocked(&self.x[..rows * inputs], inputs))?;
        let mut gated = device.upload(&poison(block_values(rows, outputs)))?;
        let of = Rows { x: &x, rows, norm: Some(EPS) };
        self.matrix.multiply_on(path, device, scratch, of, Out::Gated(&mut gated))?;
        let got = floats(&device.read(&gated, 0..gated.len())?);
        Ok(unblocked(&got, rows, outputs))
    }

    fn wanted(&self, norm: bool) -> Vec<f32> {
        let (outputs, inputs) = (self.matrix.outputs(), self.matrix.inputs());
        let mut sums = cpu(&self.weights, &self.x, inputs);
        if norm {
            let scales = cpu_norm_scales(&self.x, inputs, EPS);
            for (row, scale) in sums.chunks_exact_mut(outputs).zip(scales) {
                row.iter_mut().for_each(|it| *it *= scale);
            }
        }
        sums
    }
}

pub(crate) fn compare(
    device: &Device,
    report: &mut Report,
    quick: bool,
) -> Result<(), DeviceError> {
    let mut random = Random::new(1);
    let mut scratch = Scratch::alone(device, 4096)?;
    let small = [(96, 64, 3), (104, 192, 9), (48, 576, 16), (200, 320, 140)];
    let more = [
        (960, 576, 5),
        (576, 1536, 8),
        (3072, 576, 130),
        (2048, 2048, 64),
        (16_384, 2048, 9),
        (520, 4096, 33),
        // Four slices of 192 jobs; 140 jobs; all of which stay in the stream.
        (6144, 512, 40),
        (17_920, 256, 12),
        (3584, 128, 1030),
        // Of 132 blocks two get a last job in halves, one of them without rows.
        (16_912, 192, 300),
        // Four slices, for a pair of blocks each.
        (1000, 320, 300),
        // The same where stages come round.
        (4096, 768, 260),
        // Eight slices in as many blocks, of rows that fill the last blocks in part.
        (1024, 1024, 200),
    ];
    let shapes = if quick { &small[..] } else { &[small.as_slice(), &more].concat()[..] };
    for format in [Format::Bf16, Format::Fp8] {
        for &sizes in shapes {
            let case = Case::new(device, &mut random, format, sizes)?;
            paths_agree(device, report, &mut scratch, &case)?;
            ends(device, report, &mut scratch, &case)?;
        }
    }
    Ok(())
}

/// The paths that this card has for a product.
fn paths(scratch: &Scratch, case: &Case) -> Vec<Path> {
    let mut paths = vec![Path::Whole(32), Path::Whole(64)];
    // What is cut into slices has few blocks.
    if case.rows.div_ceil(32) * case.matrix.outputs().div_ceil(128) <= 128 {
        paths.extend([Path::Cut(32), Path::Cut(64)]);
    }
    paths.extend(case.matrix.on_hopper(scratch, case.rows).into_iter().map(|it| it.1));
    paths
}

/// Those for few rows whose blocks wait for each other.
fn aheads(scratch: &Scratch, case: &Case, rows: usize) -> Vec<Path> {
    let all = case.matrix.on_hopper(scratch, rows).into_iter().map(|it| it.1);
    all.filter(|it| matches!(it, Path::Ahead(_))).collect()
}

/// Every path gives the reference's sums, and all give the same bits for a row, however many
/// others there are.
fn paths_agree(
    device: &Device,
    report: &mut Report,
    scratch: &mut Scratch,
    case: &Case,
) -> Result<(), DeviceError> {
    for norm in [None, Some(EPS)] {
        let first = Path::Whole(64);
        let many = case.plain(device, scratch, first, 0..case.rows, norm)?;
        report.compare(&format!("many {}", case.name), &many, &case.wanted(norm.is_some()), 3e-6);
        for path in paths(scratch, case) {
            let other = case.plain(device, scratch, path, 0..case.rows, norm)?;
            report.same(&format!("{path:?} = many {}", case.name), &other, &many);
        }
        let outputs = case.matrix.outputs();
        for rows in [1, 2, 8, 9, 16, 17, 33, 64, 70, 130] {
            if rows <= case.rows {
                let few = case.plain(device, scratch, Path::Few, 0..rows, norm)?;
                let name = format!("few({rows}) = many {}", case.name);
                report.same(&name, &few, &many[..rows * outputs]);
                for path in aheads(scratch, case, rows) {
                    let ahead = case.plain(device, scratch, path, 0..rows, norm)?;
                    let name = format!("{path:?}({rows}) = many {}", case.name);
                    report.same(&name, &ahead, &many[..rows * outputs]);
                }
            }
        }
        let last = case.rows - 1;
        let alone = case.plain(device, scratch, Path::Few, last..case.rows, norm)?;
        report.same(&format!("last row alone {}", case.name), &alone, &many[last * outputs..]);
    }
    Ok(())
}

/// What comes after the sums: the gate, and the residual stream with its capture.
fn ends(
    device: &Device,
    report: &mut Report,
    scratch: &mut Scratch,
    case: &Case,
) -> Result<(), DeviceError> {
    let (outputs, inputs) = (case.matrix.outputs(), case.matrix.inputs());
    let sums = case.wanted(false);
    let normed = case.wanted(true);
    let x = device.upload(&blocked(&case.x, inputs))?;
    let before: Vec<f32> = Random::new(7).floats(sums.len(), 1.0);
    let (mut first_stream, mut first_gated) = (None::<Vec<f32>>, None::<Vec<f32>>);
    let mut paths = paths(scratch, case);
    paths.push(Path::Few);
    for path in paths {
        let name = format!("{path:?} {}", case.name);
        let rows = Rows { x: &x, rows: case.rows, norm: None };
        let mut stream = device.upload(&before)?;
        let mut out = device.upload(&poison(block_values(case.rows, outputs)))?;
        let columns = 2 * outputs.next_multiple_of(8);
        let mut kept = device.upload(&poison(block_values(case.rows, columns)))?;
        let captured = Some(Captured { to: &mut kept, at: columns / 2, columns });
        let residual = Out::Residual { stream: &mut stream, rounded: &mut out, captured };
        case.matrix.multiply_on(path, device, scratch, rows, residual)?;
        let want: Vec<f32> = before.iter().zip(&sums).map(|(a, b)| a + b).collect();
        let stream = device.read(&stream, 0..want.len())?;
        report.compare(&format!("residual {name}"), &stream, &want, 2e-6);
        let first = first_stream.get_or_insert_with(|| stream.clone());
        report.same(&format!("residual {name} = first"), &stream, first);
        let out = floats(&device.read(&out, 0..out.len())?);
        let out = unblocked(&out, case.rows, outputs);
        report.compare(&format!("residual rounded {name}"), &out, &want, 4e-3);
        let kept = floats(&device.read(&kept, 0..kept.len())?);
        let kept = unblocked(&kept, case.rows, columns);
        let kept: Vec<f32> =
            kept.chunks(columns).flat_map(|it| it[columns / 2..][..outputs].to_vec()).collect();
        report.same(&format!("captured {name}"), &kept, &out);
        if outputs.is_multiple_of(16) {
            let want: Vec<f32> = normed.chunks(outputs).flat_map(gate).collect();
            let got = case.gated(device, scratch, path, case.rows)?;
            report.compare(&format!("gated {name}"), &got, &want, 5e-3);
            let first = first_gated.get_or_insert_with(|| got.clone());
            report.same(&format!("gated {name} = first"), &got, first);
        }
    }
    if let Some(first) = first_gated {
        for rows in [1, 9, 17, 33, 64].into_iter().filter(|it| *it < case.rows) {
            let few = case.gated(device, scratch, Path::Few, rows)?;
            let name = format!("gated few({rows}) = first {}", case.name);
            report.same(&name, &few, &first[..few.len()]);
            for path in aheads(scratch, case, rows) {
                let ahead = case.gated(device, scratch, path, rows)?;
                let name = format!("gated {path:?}({rows}) = first {}", case.name);
                report.same(&name, &ahead, &first[..ahead.len()]);
            }
        }
    }
    Ok(())
}

fn gate(row: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; row.len() / 2];
    let ups = (0..row.len()).filter(|&it| matmul::gated_row(it).0);
    for up in ups {
        out[matmul::gated_row(up).1] = cpu_gated(row[up - 8], row[up]);
    }
    out
}
