//! Logits in chunks: loops without branches, which the compiler turns into whole registers.

pub(super) const WIDTH: usize = 16;
pub(super) type Chunk = [f32; WIDTH];

/// The logits with the number of the first, the last chunk filled up with minus infinity.
pub(super) fn chunks(logits: &[f32]) -> impl Iterator<Item = (u32, Chunk)> {
    let (whole, rest) = logits.as_chunks::<WIDTH>();
    let mut last = [f32::NEG_INFINITY; WIDTH];
    last[..rest.len()].copy_from_slice(rest);
    (0..).step_by(WIDTH).zip(whole.iter().copied().chain([last]))
}

/// Applies `f` to each of a chunk; a plain loop, which `map` on arrays is not.
pub(super) fn each<T: Copy, U: Copy + Default>(
    chunk: &[T; WIDTH],
    f: impl Fn(T) -> U,
) -> [U; WIDTH] {
    let mut found = [U::default(); WIDTH];
    for (to, from) in found.iter_mut().zip(chunk) {
        *to = f(*from);
    }
    found
}

pub(super) fn any_reaches(chunk: &Chunk, least: f32) -> bool {
    chunk.iter().fold(false, |any, logit| any | (least <= *logit))
}
