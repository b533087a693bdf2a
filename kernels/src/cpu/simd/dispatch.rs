//! One body, compiled for each instruction set and chosen at run time.
//!
//! The bodies are plain safe code over arrays of 16 lanes. The compiler neither fuses nor reorders
//! floating-point operations, so every copy gives the same bits; only the width of the registers
//! differs.

use super::avx512;
use super::instructions::{Instructions, Level};
use crate::cpu::{attention, inputs, matmul, rows};

macro_rules! for_each_level {
    ($($name:ident($($arg:ident: $type:ty),*) = $body:path;)*) => {$(
        pub(crate) fn $name(instructions: Instructions, $($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            fn avx512($($arg: $type),*) {
                $body($($arg),*);
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($arg: $type),*) {
                $body($($arg),*);
            }
            match instructions.level() {
                // SAFETY: a value of `Instructions` proves that the machine has the features.
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => unsafe { avx2($($arg),*) },
                Level::Portable => $body($($arg),*),
            }
        }
    )*};
}

for_each_level! {
    add(x: &[f32], out: &mut [f32]) = rows::add_body;
    attend(rows: &attention::Heads<'_>, out: &mut [f32]) = attention::attend_body;
    multiply_any(product: &matmul::Product<'_>, out: &mut matmul::Tile) = matmul::multiply_body;
    quantize(x: &[f32], columns: usize, out: &mut [inputs::InputBlock]) = inputs::quantize_body;
    rmsnorm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) = rows::rmsnorm_body;
    softmax(x: &mut [f32]) = rows::softmax_body;
    swiglu(gate: &[f32], up: &[f32], out: &mut [f32]) = rows::swiglu_body;
}

/// One tile of a product; see [`matmul::multiply_body`], whose bits every path gives.
pub(crate) fn multiply(
    instructions: Instructions,
    product: &matmul::Product<'_>,
    out: &mut matmul::Tile,
) {
    if let (Level::Avx512, Some((groups, operands))) = (instructions.level(), product.operands()) {
        // SAFETY: a value of `Instructions` proves that the machine has the features.
        unsafe { avx512::multiply_groups(groups, &operands, out) };
    } else {
        multiply_any(instructions, product, out);
    }
}
