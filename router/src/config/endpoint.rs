//! Checks one `[[endpoint]]`.

use std::sync::Arc;

use http::HeaderValue;
use http::uri::{Authority, Uri};

use super::check::Checks;
use super::raw::Endpoint;
use super::{EndpointSpec, Kind, Role, Target, Tls};
use crate::policy::part;
use crate::tls;

pub(super) fn check(c: &mut Checks, raw: &Endpoint, replicas: u32) -> EndpointSpec {
    let name = name(c, raw);
    let field = |part: &str| format!("endpoint {name:?} {part}");
    let role = raw.role.as_deref().map(Role::parse);
    let role = match role {
        Some(Some(role)) => role,
        Some(None) => {
            c.refuse(field("role"), "is not speculative or throughput");
            Role::Speculative
        }
        None => {
            c.refuse(field("role"), "is missing: speculative or throughput");
            Role::Speculative
        }
    };
    let kind_text = raw.kind.as_deref().unwrap_or("openai");
    let kind = Kind::ALL.into_iter().find(|it| it.label() == kind_text).unwrap_or_else(|| {
        c.refuse(field("kind"), format!("{kind_text:?}: crossover, vllm, sglang or openai"));
        Kind::OpenAi
    });
    let weight = c.within(&field("weight"), raw.weight, (0.001, 1.0, 1000.0));
    let host_header = raw.host_header.as_deref().unwrap_or("upstream");
    if !["upstream", "preserve"].contains(&host_header) {
        c.refuse(field("host_header"), format!("{host_header:?}: upstream or preserve"));
    }
    let target = target(c, &field, raw);
    let authority = HeaderValue::try_from(target.authority()).unwrap_or_else(|_| {
        c.refuse(field("url"), "has a host that no header may have");
        HeaderValue::from_static("")
    });
    let in_flight_max = c.within(&field("in_flight_max"), raw.in_flight_max, (1, 256, 65_536));
    EndpointSpec {
        role,
        kind,
        target: Arc::new(target),
        authority,
        in_flight_max: part(in_flight_max, replicas),
        weight_milli: to_milli(weight),
        host_preserved: host_header == "preserve",
        authorization: authorization(c, &field("key_file"), raw),
        name: name.into(),
    }
}

fn name(c: &mut Checks, raw: &Endpoint) -> String {
    let Some(name) = &raw.name else {
        c.refuse("endpoint.name", "is missing");
        return "?".to_owned();
    };
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
    if name.is_empty() || 64 < name.len() || !name.chars().all(is_plain) {
        c.refuse("endpoint.name", format!("{name:?}: 1 to 64 of letters, digits, - _ ."));
    }
    name.clone()
}

fn target(c: &mut Checks, field: &dyn Fn(&str) -> String, raw: &Endpoint) -> Target {
    let mut target = Target { host: String::new(), port: 0, tls: None, http2: false };
    match raw.http.as_deref().unwrap_or("1") {
        "1" => {}
        "2" => target.http2 = true,
        other => c.refuse(field("http"), format!("{other:?}: \"1\" or \"2\"")),
    }
    let Some(url) = &raw.url else {
        c.refuse(field("url"), "is missing");
        return target;
    };
    let Ok(uri) = url.parse::<Uri>() else {
        c.refuse(field("url"), format!("{url:?} is not a URL"));
        return target;
    };
    let has_tls = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => {
            c.refuse(field("url"), format!("{url:?} starts with neither http:// nor https://"));
            return target;
        }
    };
    if uri.path() != "/" || uri.query().is_some() {
        c.refuse(field("url"), format!("{url:?} has a path; paths of requests pass unchanged"));
    }
    if uri.authority().is_some_and(|it| it.as_str().contains('@')) {
        c.refuse(field("url"), "holds a user name; use key_file");
    }
    let host = uri.host().unwrap_or_default();
    target.host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    if target.host.is_empty() {
        c.refuse(field("url"), format!("{url:?} has no host"));
    }
    match port(&uri) {
        Ok(port) => target.port = port.unwrap_or(if has_tls { 443 } else { 80 }),
        Err(why) => c.refuse(field("url"), format!("{url:?} {why}")),
    }
    if has_tls {
        let made = tls::client(raw.ca_file.as_deref(), target.http2);
        target.tls = made.map_err(|why| c.refuse(field("ca_file"), why)).ok().map(Tls);
    } else if raw.ca_file.is_some() {
        c.refuse(field("ca_file"), "is only of use with https://");
    }
    target
}

/// The port that a URL names, if it names one. What stands there and is none reads as no port at
/// all elsewhere, and would be taken for the usual one.
pub(super) fn port(uri: &Uri) -> Result<Option<u16>, &'static str> {
    let authority = uri.authority().map_or("", Authority::as_str);
    let host = authority.rsplit('@').next().unwrap_or_default();
    let after = host.strip_prefix(uri.host().unwrap_or_default()).unwrap_or_default();
    let Some(digits) = after.strip_prefix(':') else { return Ok(None) };
    let port = digits.parse().ok().filter(|it| *it != 0 && !digits.starts_with('+'));
    port.map(Some).ok_or("has no port from 1 to 65535 after its colon")
}

fn authorization(c: &mut Checks, field: &str, raw: &Endpoint) -> Option<HeaderValue> {
    let text = c.read(field, raw.key_file.as_ref()?)?;
    if text.trim().is_empty() {
        c.refuse(field, "holds no key");
        return None;
    }
    match HeaderValue::try_from(format!("Bearer {}", text.trim())) {
        Ok(mut value) => {
            value.set_sensitive(true);
            Some(value)
        }
        Err(_) => {
            c.refuse(field, "holds characters that no header may have");
            None
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to lie in 0.001 to 1000"
)]
fn to_milli(weight: f64) -> u32 {
    (weight * 1000.0).round() as u32
}
