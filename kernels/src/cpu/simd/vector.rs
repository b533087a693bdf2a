//! Sixteen numbers side by side, in the registers of each instruction set.
//!
//! For loops whose sums must stay in registers; for the others plain loops over arrays, which the
//! compiler turns into vectors, are enough.

use std::array::from_fn;

use crate::cpu::rows::LANES;

/// An instruction set as a value: whoever holds one may use it. Every set gives the same bits.
pub(crate) trait Vector: Copy {
    type Lanes: Copy;

    /// Sums that fit the registers, with room for what is added.
    const SUMS_MAX: usize;

    fn splat(self, x: f32) -> Self::Lanes;

    fn load(self, x: &[f32; LANES]) -> Self::Lanes;

    /// Numbers in single precision, as bytes.
    fn load_float(self, x: &[u8; 4 * LANES]) -> Self::Lanes;

    /// Numbers in half precision, as bits.
    fn load_half(self, x: &[u16; LANES]) -> Self::Lanes;

    /// Numbers in brain floating point, as bits.
    fn load_bfloat(self, x: &[u16; LANES]) -> Self::Lanes;

    /// Bits `shift..shift + bits` of each lane's four bytes, as a number.
    fn load_bits(self, x: &[u8; 4 * LANES], shift: u32, bits: u32) -> Self::Lanes;

    fn store(self, x: Self::Lanes, out: &mut [f32; LANES]);

    fn add(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;

    fn mul(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;

    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::Lanes, b: Self::Lanes, c: Self::Lanes) -> Self::Lanes;

    /// Asks for the cache line where `x` begins, where that is possible.
    #[inline(always)]
    fn prefetch<T>(self, x: &T) {
        #[cfg(target_arch = "x86_64")]
        super::prefetch::prefetch_line(std::ptr::from_ref(x).cast());
    }
}

/// What every machine has.
#[derive(Clone, Copy)]
pub(super) struct Portable;

impl Vector for Portable {
    type Lanes = [f32; LANES];

    const SUMS_MAX: usize = 6;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::Lanes {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::Lanes {
        *x
    }

    #[inline(always)]
    fn load_float(self, x: &[u8; 4 * LANES]) -> Self::Lanes {
        from_fn(|i| f32::from_le_bytes([x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]]))
    }

    #[inline(always)]
    fn load_half(self, x: &[u16; LANES]) -> Self::Lanes {
        from_fn(|i| half::f16::from_bits(x[i]).to_f32())
    }

    #[inline(always)]
    fn load_bfloat(self, x: &[u16; LANES]) -> Self::Lanes {
        from_fn(|i| f32::from_bits(u32::from(x[i]) << 16))
    }

    #[inline(always)]
    fn load_bits(self, x: &[u8; 4 * LANES], shift: u32, bits: u32) -> Self::Lanes {
        from_fn(|i| {
            let quad = [x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]];
            (u32::from_le_bytes(quad) >> shift & ((1 << bits) - 1)) as f32
        })
    }

    #[inline(always)]
    fn store(self, x: Self::Lanes, out: &mut [f32; LANES]) {
        *out = x;
    }

    #[inline(always)]
    fn add(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes {
        from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn mul(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes {
        from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn fma(self, a: Self::Lanes, b: Self::Lanes, c: Self::Lanes) -> Self::Lanes {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{LANES, Vector};

    /// AVX2, FMA and F16C.
    #[derive(Clone, Copy)]
    pub(in crate::cpu::simd) struct Avx2(());

    impl Avx2 {
        /// # Safety
        /// The machine has AVX2, FMA and F16C.
        pub(in crate::cpu::simd) unsafe fn new() -> Self {
            Self(())
        }
    }

    /// AVX-512 F and BW.
    #[derive(Clone, Copy)]
    pub(in crate::cpu::simd) struct Avx512(());

    impl Avx512 {
        /// # Safety
        /// The machine has AVX-512 F and BW.
        pub(in crate::cpu::simd) unsafe fn new() -> Self {
            Self(())
        }
    }

    // SAFETY for every block below: `self` proves that the machine has the instructions, and the
    // arrays have the bytes that are read or written; no access needs alignment.

    impl Vector for Avx2 {
        type Lanes = [__m256; 2];

        const SUMS_MAX: usize = 6;

        #[inline(always)]
        fn splat(self, x: f32) -> Self::Lanes {
            // SAFETY: see above.
            unsafe { [_mm256_set1_ps(x); 2] }
        }

        #[inline(always)]
        fn load(self, x: &[f32; LANES]) -> Self::Lanes {
            // SAFETY: see above.
            unsafe { [_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))] }
        }

        #[inline(always)]
        fn load_float(self, x: &[u8; 4 * LANES]) -> Self::Lanes {
            let at = x.as_ptr().cast::<f32>();
            // SAFETY: see above.
            unsafe { [_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8))] }
        }

        #[inline(always)]
        fn load_half(self, x: &[u16; LANES]) -> Self::Lanes {
            let at = x.as_ptr().cast::<__m128i>();
            // SAFETY: see above.
            let (a, b) = unsafe { (_mm_loadu_si128(at), _mm_loadu_si128(at.add(1))) };
            // SAFETY: see above.
            unsafe { [_mm256_cvtph_ps(a), _mm256_cvtph_ps(b)] }
        }

        #[inline(always)]
        fn load_bfloat(self, x: &[u16; LANES]) -> Self::Lanes {
            let at = x.as_ptr().cast::<__m128i>();
            // SAFETY: see above.
            unsafe {
                let a = _mm256_cvtepu16_epi32(_mm_loadu_si128(at));
                let b = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.add(1)));
                let (a, b) = (_mm256_slli_epi32::<16>(a), _mm256_slli_epi32::<16>(b));
                [_mm256_castsi256_ps(a), _mm256_castsi256_ps(b)]
            }
        }

        #[inline(always)]
        fn load_bits(self, x: &[u8; 4 * LANES], shift: u32, bits: u32) -> Self::Lanes {
            let at = x.as_ptr().cast::<__m256i>();
            // SAFETY: see above.
            unsafe {
                let shift = _mm256_set1_epi32(shift.cast_signed());
                let mask = _mm256_set1_epi32((1 << bits) - 1);
                let a = _mm256_srlv_epi32(_mm256_loadu_si256(at), shift);
                let b = _mm256_srlv_epi32(_mm256_loadu_si256(at.add(1)), shift);
                let (a, b) = (_mm256_and_si256(a, mask), _mm256_and_si256(b, mask));
                [_mm256_cvtepi32_ps(a), _mm256_cvtepi32_ps(b)]
            }
        }

        #[inline(always)]
        fn store(self, x: Self::Lanes, out: &mut [f32; LANES]) {
            // SAFETY: see above.
            unsafe {
                _mm256_storeu_ps(out.as_mut_ptr(), x[0]);
                _mm256_storeu_ps(out.as_mut_ptr().add(8), x[1]);
            }
        }

        #[inline(always)]
        fn add(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes {
            // SAFETY: see above.
            unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
        }

        #[inline(always)]
        fn mul(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes {
            // SAFETY: see above.
            unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
        }

        #[inline(always)]
        fn fma(self, a: Self::Lanes, b: Self::Lanes, c: Self::Lanes) -> Self::Lanes {
            // SAFETY: see above.
            unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
        }
    }

    impl Vector for Avx512 {
        type Lanes = __m512;

        const SUMS_MAX: usize = 24;

        #[inline(always)]
        fn splat(self, x: f32) -> Self::Lanes {
            // SAFETY: see above.
            unsafe { _mm512_set1_ps(x) }
        }

        #[inline(always)]
        fn load(self, x: &[f32; LANES]) -> Self::Lanes {
            // SAFETY: see above.
            unsafe { _mm512_loadu_ps(x.as_ptr()) }
        }

        #[inline(always)]
        fn load_float(self, x: &[u8; 4 * LANES]) -> Self::Lanes {
            // SAFETY: see above.
            unsafe { _mm512_loadu_ps(x.as_ptr().cast()) }
        }

        #[inline(always)]
        fn load_half(self, x: &[u16; LANES]) -> Self::Lanes {
            // SAFETY: see above.
            unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
        }

        #[inline(always)]
        fn load_bfloat(self, x: &[u16; LANES]) -> Self::Lanes {
            // SAFETY: see above.
            unsafe {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            }
        }

        #[inline(always)]
        fn load_bits(self, x: &[u8; 4 * LANES], shift: u32, bits: u32) -> Self::Lanes {
            // SAFETY: see above.
            unsafe {
                let shift = _mm512_set1_epi32(shift.cast_signed());
                let mask = _mm512_set1_epi32((1 << bits) - 1);
                let shifted = _mm512_srlv_epi32(_mm512_loadu_si512(x.as_ptr().cast()), shift);
                _mm512_cvtepi32_ps(_mm512_and_si512(shifted, mask))
            }
        }

        #[inline(always)]
        fn store(self, x: Self::Lanes, out: &mut [f32; LANES]) {
            // SAFETY: see above.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), x) };
        }

        #[inline(always)]
        fn add(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes {
            // SAFETY: see above.
            unsafe { _mm512_add_ps(a, b) }
        }

        #[inline(always)]
        fn mul(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes {
            // SAFETY: see above.
            unsafe { _mm512_mul_ps(a, b) }
        }

        #[inline(always)]
        fn fma(self, a: Self::Lanes, b: Self::Lanes, c: Self::Lanes) -> Self::Lanes {
            // SAFETY: see above.
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }
    }
}
