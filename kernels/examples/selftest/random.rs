//! Random inputs, the same in every run.

use kernels::ops::{bf16, block_place, block_values};

#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let v = (self.0 ^ self.0 >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        v ^ v >> 33
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.draw() % bound as u64).expect("below a usize")
    }

    /// About normal, of deviation 1.
    pub(crate) fn float(&mut self) -> f32 {
        let bits = self.draw();
        let part = |shift: u32| (bits >> shift & 0xffff) as f32 / 65_536.0;
        (part(0) + part(16) + part(32) + part(48) - 2.0) * 3.0_f32.sqrt()
    }

    /// Values that bf16 has.
    pub(crate) fn floats(&mut self, len: usize, scale: f32) -> Vec<f32> {
        (0..len).map(|_| bf16::from_f32(self.float() * scale).to_f32()).collect()
    }
}

pub(crate) fn rounded(values: &[f32]) -> Vec<bf16> {
    values.iter().map(|&it| bf16::from_f32(it)).collect()
}

pub(crate) fn floats(values: &[bf16]) -> Vec<f32> {
    values.iter().map(|it| it.to_f32()).collect()
}

/// Not a number, to find what was not written.
pub(crate) fn poison(len: usize) -> Vec<bf16> {
    vec![bf16::NAN; len]
}

/// Rows, rounded and in blocks; what fills the last block is not a number.
pub(crate) fn blocked(values: &[f32], columns: usize) -> Vec<bf16> {
    let rows = values.len() / columns;
    let mut out = poison(block_values(rows, columns));
    for (i, &value) in values.iter().enumerate() {
        out[block_place(i / columns, i % columns, rows)] = bf16::from_f32(value);
    }
    out
}

/// Back to rows.
pub(crate) fn unblocked(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..rows * columns).map(|i| values[block_place(i / columns, i % columns, rows)]).collect()
}
