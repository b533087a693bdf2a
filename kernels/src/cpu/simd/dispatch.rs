//! One body, compiled for each instruction set and chosen at run time.
//!
//! The bodies are plain safe code over arrays of 16 lanes. The compiler neither fuses nor reorders
//! floating-point operations, so every copy gives the same bits; only the width of the registers
//! differs.

use super::instructions::{Instructions, Level};
use super::vector::Portable;
#[cfg(target_arch = "x86_64")]
use super::vector::{Avx2, Avx512};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::cpu::attend::{self, Run};
use crate::cpu::matmul::{self, Slab};
use crate::cpu::matrix::{Activations, Form};
use crate::cpu::{floats, inputs, rows};

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
    quantize_any(x: &[f32], columns: usize, out: &mut [inputs::InputBlock]) = inputs::quantize_body;
    rmsnorm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) = rows::rmsnorm_body;
    softmax(x: &mut [f32]) = rows::softmax_body;
    swiglu(gate: &[f32], up: &[f32], out: &mut [f32]) = rows::swiglu_body;
}

macro_rules! with_vectors {
    ($($name:ident($($arg:ident: $type:ty),*) = $body:path;)*) => {$(
        pub(crate) fn $name(instructions: Instructions, $($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            fn avx512($($arg: $type),*) {
                // SAFETY: the function is compiled for them.
                $body(unsafe { Avx512::new() }, $($arg),*);
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($arg: $type),*) {
                // SAFETY: the function is compiled for them.
                $body(unsafe { Avx2::new() }, $($arg),*);
            }
            match instructions.level() {
                // SAFETY: a value of `Instructions` proves that the machine has the features.
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => unsafe { avx2($($arg),*) },
                Level::Portable => $body(Portable, $($arg),*),
            }
        }
    )*};
}

with_vectors! {
    attend(run: &mut Run<'_, '_>) = attend::attend_body;
    multiply_floats(slab: &mut Slab<'_, '_>) = floats::multiply_body;
}

/// Rows to 8 bits; see [`inputs::quantize_body`], whose bits every path gives.
pub(crate) fn quantize(
    instructions: Instructions,
    x: &[f32],
    columns: usize,
    out: &mut [inputs::InputBlock],
) {
    match instructions.level() {
        // SAFETY: a value of `Instructions` proves that the machine has the features.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { avx512::quantize(x, columns, out) },
        _ => quantize_any(instructions, x, columns, out),
    }
}

/// A window of a product; see [`matmul::multiply_body`], whose bits every path gives.
pub(crate) fn multiply(instructions: Instructions, slab: &mut Slab<'_, '_>) {
    let (Form::Groups(groups), Activations::Int8) = (slab.part.form, slab.inputs.activations())
    else {
        return multiply_floats(instructions, slab);
    };
    match instructions.level() {
        // SAFETY: a value of `Instructions` proves that the machine has the features.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { avx512::multiply(groups, slab) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { avx2::multiply(groups, slab) },
        Level::Portable => matmul::multiply_body(groups, slab),
    }
}
