//! Models from the Hugging Face hub: which files of a repository make a model, and their download.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::StatusCode;
use serde::{Deserialize, Serialize};

use super::cache::{Cache, Leftovers};
use super::{FetchError, Progress};
use crate::body;
use crate::config::raw::Environment;
use transfer::Transfer;

mod transfer;

const CONNECT_MAX: Duration = Duration::from_secs(10);
const SILENCE_MAX: Duration = Duration::from_secs(60);
const FILES_MAX: usize = 1000;

/// `owner/name[@revision][:file]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    pub owner: String,
    pub name: String,
    pub revision: String,
    pub file: Option<String>,
}

/// A hub and how to talk to it.
#[derive(Clone, Debug)]
pub(super) struct Hub {
    endpoint: String,
    token: Option<String>,
}

/// What the hub says of a repository at one revision.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Listing {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Sibling {
    #[serde(rename = "rfilename")]
    name: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Lfs {
    sha256: String,
}

impl Repository {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (text, file) = match text.split_once(':') {
            Some((text, file)) => (text, Some(file.to_owned())),
            None => (text, None),
        };
        let (text, revision) = text.split_once('@').unwrap_or((text, "main"));
        let (owner, name) = text.split_once('/')?;
        let all_plain = [owner, name, revision].into_iter().all(is_plain);
        let file_is_plain = file.as_deref().is_none_or(is_plain);
        (all_plain && file_is_plain).then(|| Self {
            owner: owner.to_owned(),
            name: name.to_owned(),
            revision: revision.to_owned(),
            file,
        })
    }
}

/// One path component that means nothing but itself, on disk and in a URL.
fn is_plain(text: &str) -> bool {
    let allowed = |it: char| it.is_ascii_alphanumeric() || matches!(it, '-' | '_' | '.');
    !text.is_empty() && !text.starts_with('.') && text.chars().all(allowed)
}

impl Hub {
    pub(super) fn of(environment: &Environment) -> Self {
        let endpoint = environment.hub_endpoint.as_deref().unwrap_or("https://huggingface.co");
        Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: environment.hub_token.clone(),
        }
    }

    fn get(&self, client: &reqwest::Client, path: &str) -> reqwest::RequestBuilder {
        let request = client.get(format!("{}/{path}", self.endpoint));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }
}

/// The model in `repository`: a GGUF file, or a directory with its configuration, tokenizer and
/// safetensors. Files that are here already, at the right size, are not asked for again; a broken
/// transfer is resumed.
pub(super) fn fetch(
    repository: &Repository,
    hub: &Hub,
    cache: &Cache,
    tell: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf, FetchError> {
    let refused = |detail: String| FetchError::Refused { detail };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|it| refused(format!("no runtime: {it}")))?;
    let client = reqwest::Client::builder()
        .connect_timeout(CONNECT_MAX)
        .read_timeout(SILENCE_MAX)
        .build()
        .map_err(|it| refused(format!("no client: {it}")))?;
    runtime.block_on(async {
        let known = cache.entry(&format!(
            "hub--{}--{}--{}.json",
            repository.owner, repository.name, repository.revision
        ));
        let listing = match list(repository, hub, &client).await {
            Err(FetchError::Offline { detail }) => recall(&known)
                .inspect(|_| tell(Progress::Note("the hub does not answer: using what is here")))
                .ok_or(FetchError::Offline { detail })?,
            listing => listing?,
        };
        let chosen = choose(repository, &listing)?;
        let entry = format!("hub--{}--{}--{}", repository.owner, repository.name, listing.sha);
        let dir = cache.entry(&entry);
        let missing: Vec<_> = chosen.iter().filter(|it| !is_here(&dir, it)).collect();
        if !missing.is_empty() {
            let needed = missing.iter().filter_map(|it| it.size).sum();
            let claim = cache.claim(&entry, needed, Leftovers::Resume, tell)?;
            let transfer = Transfer { repository, revision: &listing.sha, hub, client: &client };
            for sibling in missing {
                transfer.file(sibling, &claim, tell).await?;
            }
        }
        // Only for a day without the hub: where it cannot be kept, the model is here all the same.
        if recall(&known).as_ref() != Some(&listing) {
            let written = serde_json::to_vec(&listing).expect("strings and numbers");
            drop(fs::write(&known, written));
        }
        Ok(match chosen.as_slice() {
            [only] if only.name.ends_with(".gguf") => dir.join(&only.name),
            _ => dir,
        })
    })
}

/// A file has its name only when it was whole; its size still tells what was done to it since.
fn is_here(dir: &Path, sibling: &Sibling) -> bool {
    fs::metadata(dir.join(&sibling.name))
        .is_ok_and(|it| sibling.size.is_none_or(|size| size == it.len()))
}

/// The listing of the last fetch; one that is cut short counts as none.
fn recall(known: &Path) -> Option<Listing> {
    serde_json::from_slice(&fs::read(known).ok()?).ok()
}

async fn list(
    repository: &Repository,
    hub: &Hub,
    client: &reqwest::Client,
) -> Result<Listing, FetchError> {
    let Repository { owner, name, revision, .. } = repository;
    let path = format!("api/models/{owner}/{name}/revision/{revision}?blobs=true");
    let response = hub.get(client, &path).send().await.map_err(offline)?;
    let asked = format!("{owner}/{name}@{revision}");
    match response.status() {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => {
            let hint = format!("{} has no such repository or revision", hub.endpoint);
            return Err(FetchError::NotFound { asked, hint });
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            let hint = "it does not exist, or is gated: set HF_TOKEN to a token that may read it";
            return Err(FetchError::NotFound { asked, hint: hint.to_owned() });
        }
        status => {
            let detail = format!("{} answered {status} for {asked}", hub.endpoint);
            return Err(FetchError::Refused { detail });
        }
    }
    let bytes = body::read(response).await.map_err(|detail| FetchError::Offline { detail })?;
    let listing: Listing = serde_json::from_slice(&bytes).map_err(|it| {
        let detail = format!("{} sent no listing: {it}", hub.endpoint);
        FetchError::Offline { detail }
    })?;
    if !is_plain(&listing.sha) || FILES_MAX < listing.siblings.len() {
        let detail = format!("{} sent a listing that makes no sense", hub.endpoint);
        return Err(FetchError::Refused { detail });
    }
    Ok(listing)
}

/// The files that make a model. Only the top directory counts.
fn choose<'a>(
    repository: &Repository,
    listing: &'a Listing,
) -> Result<Vec<&'a Sibling>, FetchError> {
    let asked = format!("{}/{}", repository.owner, repository.name);
    let not_found = |hint: String| FetchError::NotFound { asked, hint };
    let top: Vec<_> = listing.siblings.iter().filter(|it| is_plain(&it.name)).collect();
    if let Some(file) = &repository.file {
        let found: Vec<_> = top.into_iter().filter(|it| it.name == *file).collect();
        let hint = format!("the repository has no file {file}");
        return if found.is_empty() { Err(not_found(hint)) } else { Ok(found) };
    }
    if top.iter().any(|it| it.name.ends_with(".safetensors")) {
        return Ok(top.into_iter().filter(|it| is_part(&it.name)).collect());
    }
    let packed: Vec<_> = top.into_iter().filter(|it| it.name.ends_with(".gguf")).collect();
    match packed.as_slice() {
        [] => Err(not_found("the repository has neither safetensors nor a GGUF file".to_owned())),
        [_] => Ok(packed),
        _ => {
            let names: Vec<_> = packed.iter().map(|it| it.name.as_str()).collect();
            Err(not_found(format!("name one of its files after a colon: {}", names.join(", "))))
        }
    }
}

fn is_part(name: &str) -> bool {
    const NAMES: [&str; 6] = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
    ];
    NAMES.contains(&name)
        || name.ends_with(".safetensors")
        || name.ends_with(".safetensors.index.json")
}

fn offline(error: reqwest::Error) -> FetchError {
    FetchError::Offline { detail: body::whole_chain(&error) }
}

#[cfg(test)]
mod tests;
