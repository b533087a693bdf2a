use kernels::quant::Dtype;

use super::*;

/// Bytes by chance of 3 rows of 512 values; scales stay finite.
fn tensor(dtype: Dtype) -> Tensor {
    let (rows, cols) = (3, 512);
    let len = dtype.bytes(rows * cols).unwrap();
    let mut rng = fastrand::Rng::with_seed(3);
    let bytes = (0..len).map(|_| rng.u8(..) & 0x3b).collect();
    Tensor { dtype, rows, cols, bytes }
}

/// A part of a row is that part of the row, however it is stored and wherever it is cut.
#[test]
fn parts_of_rows() {
    for dtype in Dtype::ALL {
        let tensor = tensor(dtype);
        let mut all = vec![0.0; 3 * 512];
        dequantize(dtype, &tensor.bytes, &mut all).unwrap();
        for columns in [0..512, 0..64, 64..512, 192..320, 448..512] {
            for row in 0..3 {
                let mut part = vec![f32::NAN; columns.len()];
                read_row(&tensor, row, &columns, &mut part);
                assert_eq!(part, all[row * 512..][columns.clone()], "{dtype:?} {columns:?}");
            }
        }
    }
}
