//! One file over HTTP: resumed where a broken transfer stopped, checked before it gets its name.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use reqwest::{StatusCode, header};

use super::super::cache::Claim;
use super::super::{FetchError, Progress, digest};
use super::{Hub, Repository, Sibling, offline};

/// A transfer that breaks is taken up again this often.
const TRIES_MAX: u32 = 4;

/// Where files come from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer<'a> {
    pub(super) repository: &'a Repository,
    pub(super) revision: &'a str,
    pub(super) hub: &'a Hub,
    pub(super) client: &'a reqwest::Client,
}

impl Transfer<'_> {
    pub(super) async fn file(
        &self,
        sibling: &Sibling,
        claim: &Claim,
        tell: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), FetchError> {
        let part = claim.work.join(&sibling.name);
        for tries in 1.. {
            match self.attempt(sibling, &part, tell).await {
                Ok(()) => break,
                Err(FetchError::Offline { .. }) if tries < TRIES_MAX => {
                    let note = format!("{}: the transfer broke; resuming", sibling.name);
                    tell(Progress::Note(&note));
                }
                Err(it) => return Err(it),
            }
        }
        check(sibling, &part)?;
        claim.keep(&part, &sibling.name)?;
        Ok(())
    }

    /// Asks for what is missing of the file, and appends it.
    async fn attempt(
        &self,
        sibling: &Sibling,
        part: &Path,
        tell: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), FetchError> {
        let have = fs::metadata(part).map(|it| it.len()).unwrap_or(0);
        if 0 < have && sibling.size == Some(have) {
            return Ok(());
        }
        let mut response = self.ask(sibling, have).await?;
        let resumed = match response.status() {
            StatusCode::OK => false,
            StatusCode::PARTIAL_CONTENT if 0 < have => true,
            StatusCode::RANGE_NOT_SATISFIABLE => {
                drop(fs::remove_file(part));
                let detail = format!("{}: what was here did not fit", sibling.name);
                return Err(FetchError::Offline { detail });
            }
            status => {
                let asked = format!("{} of {}", sibling.name, self.repository.name);
                let detail = format!("{} answered {status} for {asked}", self.hub.endpoint);
                return Err(FetchError::Refused { detail });
            }
        };
        let mut file = OpenOptions::new()
            .create(true)
            .append(resumed)
            .write(true)
            .truncate(!resumed)
            .open(part)
            .map_err(|it| FetchError::write(part, it))?;
        let mut done = if resumed { have } else { 0 };
        let total = sibling.size.or_else(|| response.content_length().map(|it| done + it));
        while let Some(chunk) = response.chunk().await.map_err(offline)? {
            file.write_all(&chunk).map_err(|it| FetchError::write(part, it))?;
            done += chunk.len() as u64;
            // `check` refuses it; more of it must not fill the disk.
            if sibling.size.is_some_and(|size| size < done) {
                return Ok(());
            }
            if let Some(total) = total {
                tell(Progress::Bytes { what: &sibling.name, done, total });
            }
        }
        Ok(())
    }

    async fn ask(&self, sibling: &Sibling, have: u64) -> Result<reqwest::Response, FetchError> {
        let Repository { owner, name, .. } = self.repository;
        let path = format!("{owner}/{name}/resolve/{}/{}", self.revision, sibling.name);
        let mut request = self.hub.get(self.client, &path);
        if 0 < have {
            request = request.header(header::RANGE, format!("bytes={have}-"));
        }
        request.send().await.map_err(offline)
    }
}

fn check(sibling: &Sibling, part: &Path) -> Result<(), FetchError> {
    let damaged = |expected: String, found: String| {
        drop(fs::remove_file(part));
        Err(FetchError::Damaged { what: sibling.name.clone(), expected, found })
    };
    let bytes = fs::metadata(part).map_err(|it| FetchError::write(part, it))?.len();
    match sibling.size {
        Some(size) if size != bytes => return damaged(size.to_string(), bytes.to_string()),
        _ => {}
    }
    if let Some(lfs) = &sibling.lfs {
        let found = digest::of_file(part).map_err(|it| FetchError::write(part, it))?;
        if found != lfs.sha256 {
            return damaged(lfs.sha256.clone(), found);
        }
    }
    Ok(())
}
