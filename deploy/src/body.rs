//! Reads the body of an answer, up to a limit: an endless one must not fill the memory.

use std::error::Error as _;

use reqwest::Response;

/// Far more than metrics, a fleet, or the listing of a repository take.
pub(crate) const BYTES_MAX: usize = 16 << 20;

/// # Errors
/// A sentence: it broke off, or is larger than `BYTES_MAX`.
pub(crate) async fn read(mut answer: Response) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(|it| whole_chain(&it))? {
        if BYTES_MAX - bytes.len() < piece.len() {
            return Err(format!("an answer of more than {} MiB", BYTES_MAX >> 20));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// The chain says what the top does not: a name that did not resolve, a refused connection.
pub(crate) fn whole_chain(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(it) = cause {
        text = format!("{text}: {it}");
        cause = it.source();
    }
    text
}
