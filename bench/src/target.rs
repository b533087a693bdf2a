//! Where load goes, as it is written on the command line.

use std::net::IpAddr;

use router::config::Role;

/// Where requests go.
#[derive(Clone, Debug)]
pub struct Target {
    pub name: String,
    /// Base address, without a path.
    pub url: String,
    pub model: String,
    /// Sent with every request, for example `x-crossover-target`.
    pub headers: Vec<(String, String)>,
}

/// NAME=URL, or NAME=URL@ROLE to ask a router for a role.
pub fn parse(text: &str) -> Result<Target, String> {
    let (name, rest) = text.split_once('=').ok_or("a target is NAME=URL or NAME=URL@ROLE")?;
    let (url, role) = match rest.rsplit_once('@') {
        Some((url, role)) => (url, Some(role)),
        None => (rest, None),
    };
    let url = reqwest::Url::parse(url).map_err(|error| format!("{url}: {error}"))?;
    if url.scheme() != "http" {
        return Err(format!("{url}: this client speaks http only"));
    }
    if let Some(role) = role.filter(|it| Role::parse(it).is_none()) {
        let roles = Role::ALL.map(Role::label).join(" or ");
        return Err(format!("{role:?} is not a role; it is {roles}"));
    }
    let header = |role: &str| ("x-crossover-target".to_owned(), role.to_owned());
    Ok(Target {
        name: name.to_owned(),
        url: url.as_str().trim_end_matches('/').to_owned(),
        model: String::new(),
        headers: role.map(header).into_iter().collect(),
    })
}

/// Load is for one's own machine unless the operator says otherwise.
pub fn check(target: &Target, allow_remote: bool) -> Result<(), String> {
    if allow_remote || is_local(&target.url) {
        return Ok(());
    }
    let url = &target.url;
    Err(format!("{url} is not on this machine; pass --allow-remote to load it all the same"))
}

fn is_local(url: &str) -> bool {
    let Ok(url) = reqwest::Url::parse(url) else { return false };
    let host = url.host_str().unwrap_or("").trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|it| it.is_loopback())
}

#[cfg(test)]
mod tests;
