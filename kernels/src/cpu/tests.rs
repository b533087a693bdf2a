//! The contract, held against plain sums in `f64` and bit for bit across paths.

mod attention;
mod matmul;
mod rows;
mod timing;

use super::*;
use crate::quant::Dtype;

/// A xorshift generator: the same numbers on every machine.
struct Chance(u64);

impl Chance {
    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// From -1 to 1.
    fn number(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.bits() % end as u64).unwrap()
    }

    fn numbers(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.number()).collect()
    }

    /// A tensor of any format, with scales of a usual size.
    fn tensor(&mut self, dtype: Dtype, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; dtype.bytes(len).unwrap()];
        for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
            block.iter_mut().for_each(|it| *it = self.bits().to_le_bytes()[3]);
            let number = self.number();
            let half = half::f16::from_f32(0.01 * number).to_le_bytes();
            match dtype {
                Dtype::F32 => block.copy_from_slice(&number.to_le_bytes()),
                Dtype::F16 => block.copy_from_slice(&half),
                Dtype::BF16 => block.copy_from_slice(&half::bf16::from_f32(number).to_le_bytes()),
                Dtype::Q6_K => block[208..].copy_from_slice(&half),
                _ => block[..2].copy_from_slice(&half),
            }
            if dtype.has_minimum() {
                block[2..4]
                    .copy_from_slice(&half::f16::from_f32(0.1 * self.number()).to_le_bytes());
            }
        }
        bytes
    }
}

/// Teams of one and two threads on the first core, for everything that the machine can run; the
/// portable one with one thread comes first.
fn teams() -> Vec<Team> {
    let mut teams = Vec::new();
    for instructions in Instructions::available() {
        for cores in [&[0][..], &[0, 0]] {
            teams.push(Team::with_instructions(cores, instructions).unwrap());
        }
    }
    teams
}

fn same_bits(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert_eq!(a.to_bits(), b.to_bits(), "{what}: number {i} is {a} and {b}");
    }
}
