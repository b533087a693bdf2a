//! API keys: only their digests are kept, and all are compared in constant time.

use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

/// One key a line; blank lines and lines that start with # are comments.
pub fn digests(text: &str) -> Vec<[u8; 32]> {
    let lines = text.lines().map(str::trim);
    let keys = lines.filter(|it| !it.is_empty() && !it.starts_with('#'));
    keys.map(|key| Sha256::digest(key.as_bytes()).into()).collect()
}

/// Does the request show one of the keys, as `Authorization: Bearer KEY`?
pub fn admits(digests: &[[u8; 32]], headers: &HeaderMap) -> bool {
    let Some(shown) = headers.get(AUTHORIZATION) else { return false };
    let Some((scheme, key)) = shown.as_bytes().split_at_checked(7) else { return false };
    if !scheme.eq_ignore_ascii_case(b"bearer ") {
        return false;
    }
    let shown: [u8; 32] = Sha256::digest(key.trim_ascii()).into();
    let mut found = Choice::from(0);
    for digest in digests {
        found |= digest.ct_eq(&shown);
    }
    found.into()
}

#[cfg(test)]
mod tests;
