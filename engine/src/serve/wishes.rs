//! What a request may wish for beside its prompt: the fields that both text endpoints share.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::batch::ids::TokenId;
use crate::batch::pages::Salt;
use crate::batch::sampling::Sampling;
use crate::draft::DRAFTS_MAX;
use crate::serve::answer::Refusal;
use crate::serve::fields::{self, Fields};

/// Texts that one request may ask for: prompts times `n`.
pub const CHOICES_MAX: u32 = 128;
pub const TOP_LOGPROBS_MAX: u32 = 20;
const STOP_STRINGS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 1024;
const STOP_TOKENS_MAX: usize = 128;
const BIAS_MAX: usize = 1024;

/// What is known of the model when fields are judged.
#[derive(Clone, Copy, Debug)]
pub struct Bounds<'a> {
    pub vocab: u32,
    pub context_max: u32,
    /// Tokens that end a text by themselves.
    pub stop_tokens: &'a [TokenId],
}

#[derive(Clone, Debug, PartialEq)]
pub struct Wishes {
    /// Texts for each prompt.
    pub n: u32,
    /// Tokens of an answer at most, where the client gave it.
    pub new_max: Option<u32>,
    /// The field that says so.
    pub new_max_param: &'static str,
    /// Given by the client; else each text gets one by chance.
    pub seed: Option<u64>,
    /// All but the seed, which each text has of its own.
    pub sampling: Sampling,
    pub stops: Arc<Stops>,
    pub stream: Option<StreamOptions>,
    pub echo: bool,
    pub skip_special_tokens: bool,
    /// Lower goes first.
    pub priority: i32,
    /// Only requests with an equal `cache_salt` share prefixes in the cache.
    pub salt: Salt,
    pub drafts_max: u32,
    /// Longest time for the answer, waiting included; the engine's own bound holds as well.
    pub time_max: Option<Duration>,
}

/// Where a text is cut, beside the tokens that the loop knows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stops {
    pub strings: Vec<String>,
    /// Whether the string that ended the text belongs to it.
    pub include: bool,
    /// Tokens during which no string ends the text.
    pub tokens_min: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamOptions {
    /// A last event with the whole usage.
    pub usage: bool,
    /// The usage so far in every event.
    pub usage_always: bool,
}

impl Wishes {
    pub fn take(fields: &mut Fields, bounds: Bounds<'_>) -> Result<Self, Refusal> {
        refuse_unsupported(fields)?;
        let tokens_min = fields.count("min_tokens", bounds.context_max)?.unwrap_or(0);
        let n = fields.whole("n", 1..=CHOICES_MAX.into())?.unwrap_or(1);
        let n = u32::try_from(n).expect("bounded");
        if let Some(best_of) = fields.count("best_of", CHOICES_MAX)?
            && best_of != n
        {
            let message = "best_of must equal n: texts are not ranked";
            return Err(Refusal::field("best_of", "unsupported_value", message));
        }
        let (new_max, new_max_param) = new_max(fields)?;
        if let Some(new_max) = new_max
            && new_max < tokens_min
        {
            let message = format!("min_tokens is {tokens_min}, and {new_max_param} {new_max}");
            return Err(Refusal::field("min_tokens", "invalid_value", message));
        }
        let priority = fields.whole("priority", i32::MIN.into()..=i32::MAX.into())?.unwrap_or(0);
        Ok(Self {
            n,
            new_max,
            new_max_param,
            seed: seed(fields)?,
            sampling: sampling(fields, bounds, tokens_min)?,
            stops: Arc::new(stops(fields, tokens_min)?),
            stream: stream(fields)?,
            echo: fields.boolean("echo")?.unwrap_or(false),
            skip_special_tokens: fields.boolean("skip_special_tokens")?.unwrap_or(true),
            priority: i32::try_from(priority).expect("bounded"),
            salt: salt(fields)?,
            drafts_max: drafts_max(fields)?,
            time_max: fields.number("timeout", 0.001..=86_400.0)?.map(Duration::from_secs_f64),
        })
    }
}

/// Fields that change the text in ways this engine does not know, unless they ask for nothing;
/// and fields that are for the client's own books, or a hint that changes no text.
fn refuse_unsupported(fields: &mut Fields) -> Result<(), Refusal> {
    for name in [
        "audio",
        "chat_template",
        "function_call",
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "kv_transfer_params",
        "mm_processor_kwargs",
        "prompt_embeds",
        "prompt_logprobs",
        "reasoning_effort",
        "truncate_prompt_tokens",
        "verbosity",
        "web_search_options",
    ] {
        fields.refuse(name, &[])?;
    }
    for name in ["allowed_token_ids", "bad_words", "documents", "functions", "logits_processors"] {
        fields.refuse(name, &[json!([])])?;
    }
    fields.refuse("modalities", &[json!(["text"])])?;
    fields.refuse("suffix", &[json!("")])?;
    fields.refuse("use_beam_search", &[json!(false)])?;
    fields.refuse("length_penalty", &[json!(1), json!(1.0)])?;
    fields.refuse("return_token_ids", &[json!(false)])?;
    fields.refuse("return_tokens_as_token_ids", &[json!(false)])?;
    fields.refuse("spaces_between_special_tokens", &[json!(true)])?;
    for name in ["user", "metadata", "store", "service_tier", "safety_identifier"] {
        fields.value(name);
    }
    fields.value("prompt_cache_key");
    fields.value("prediction");
    Ok(())
}

/// The newer name wins, as it does elsewhere. Gives the one that did.
fn new_max(fields: &mut Fields) -> Result<(Option<u32>, &'static str), Refusal> {
    let (older, newer) = ("max_tokens", "max_completion_tokens");
    let max = fields.count(older, u32::MAX)?;
    match fields.count(newer, u32::MAX)? {
        None => Ok((max, older)),
        newest => Ok((newest, newer)),
    }
}

fn seed(fields: &mut Fields) -> Result<Option<u64>, Refusal> {
    let Some(value) = fields.value("seed") else { return Ok(None) };
    if let Some(seed) = value.as_u64() {
        return Ok(Some(seed));
    }
    fields::whole(&value, &fields.path("seed"), i64::MIN..=i64::MAX)
        .map(|seed| Some(seed.cast_unsigned()))
}

/// As many as the engine makes, or none, or a number.
fn drafts_max(fields: &mut Fields) -> Result<u32, Refusal> {
    let Some(value) = fields.value("speculative") else { return Ok(DRAFTS_MAX) };
    if let Some(speculates) = value.as_bool() {
        return Ok(if speculates { DRAFTS_MAX } else { 0 });
    }
    let most = fields::whole(&value, &fields.path("speculative"), 0..=DRAFTS_MAX.into())?;
    Ok(u32::try_from(most).expect("bounded"))
}

fn salt(fields: &mut Fields) -> Result<Salt, Refusal> {
    let Some(salt) = fields.string("cache_salt")? else { return Ok(Salt::default()) };
    if salt.is_empty() {
        let message = "cache_salt is empty; leave it out to share prefixes with everyone";
        return Err(Refusal::field("cache_salt", "invalid_value", message));
    }
    let digest = Sha256::digest(salt);
    Ok(Salt::from_digest(*digest.first_chunk().expect("a digest has 32 bytes")))
}

fn sampling(
    fields: &mut Fields,
    bounds: Bounds<'_>,
    outputs_min: u32,
) -> Result<Sampling, Refusal> {
    let mut single = |name, range, default| {
        let found = fields.number(name, range)?;
        Ok(found.map_or(default, to_single))
    };
    let temperature = single("temperature", 0.0..=100.0, 1.0)?;
    let top_p = single("top_p", 0.0..=1.0, 1.0)?;
    let min_p = single("min_p", 0.0..=1.0, 0.0)?;
    let presence_penalty = single("presence_penalty", -2.0..=2.0, 0.0)?;
    let frequency_penalty = single("frequency_penalty", -2.0..=2.0, 0.0)?;
    let repetition_penalty = single("repetition_penalty", 0.01..=100.0, 1.0)?;
    let top_k = fields.whole("top_k", -1..=u32::MAX.into())?.unwrap_or(0).max(0);
    let ignores_end = fields.boolean("ignore_eos")?.unwrap_or(false);
    let mut stop_tokens = if ignores_end { Vec::new() } else { bounds.stop_tokens.to_vec() };
    for (at, value) in
        (0..).zip(fields.list("stop_token_ids", STOP_TOKENS_MAX)?.unwrap_or_default())
    {
        stop_tokens.push(token(&value, &format!("stop_token_ids[{at}]"), bounds.vocab)?);
    }
    stop_tokens.sort_unstable();
    stop_tokens.dedup();
    Ok(Sampling {
        seed: 0,
        temperature,
        top_k: u32::try_from(top_k).expect("bounded"),
        // A nucleus of no size still holds the likeliest token.
        top_p: top_p.max(f32::MIN_POSITIVE),
        min_p,
        presence_penalty,
        frequency_penalty,
        repetition_penalty,
        bias: bias(fields, bounds.vocab)?,
        stop_tokens,
        outputs_min,
        logprobs: None,
        prompt_logprobs: None,
    })
}

#[expect(clippy::cast_possible_truncation, reason = "bounded; rounding to single is meant")]
fn to_single(number: f64) -> f32 {
    number as f32
}

pub fn token(value: &Value, path: &str, vocab: u32) -> Result<TokenId, Refusal> {
    let id = fields::whole(value, path, 0..=i64::from(vocab) - 1)?;
    Ok(TokenId(u32::try_from(id).expect("below vocab")))
}

fn bias(fields: &mut Fields, vocab: u32) -> Result<Vec<(TokenId, f32)>, Refusal> {
    let path = fields.path("logit_bias");
    let Some(value) = fields.value("logit_bias") else { return Ok(Vec::new()) };
    let Value::Object(map) = value else {
        return Err(fields::wrong_type(path, "an object from token ids to numbers", &value));
    };
    if BIAS_MAX < map.len() {
        let message = format!("{path} has {} entries, and {BIAS_MAX} are the most", map.len());
        return Err(Refusal::field(path, "invalid_value", message));
    }
    let mut bias = Vec::with_capacity(map.len());
    for (key, value) in &map {
        // "01" or "+1" beside "1" would be one token with two shifts.
        let parsed = key.parse::<u32>().ok().filter(|it| it.to_string() == *key);
        let Some(id) = parsed.filter(|it| *it < vocab) else {
            let message = format!("{path} has the key '{key}', which is no token id below {vocab}");
            return Err(Refusal::field(path, "invalid_value", message));
        };
        let shift = fields::number(value, &format!("{path}.{key}"), -100.0..=100.0)?;
        bias.push((TokenId(id), to_single(shift)));
    }
    bias.sort_unstable_by_key(|it| it.0);
    Ok(bias)
}

fn stops(fields: &mut Fields, tokens_min: u32) -> Result<Stops, Refusal> {
    let path = fields.path("stop");
    let given = match fields.value("stop") {
        None => Vec::new(),
        Some(text @ Value::String(_)) => vec![text],
        Some(Value::Array(items)) => items,
        Some(other) => return Err(fields::wrong_type(path, "a string or a list of them", &other)),
    };
    if STOP_STRINGS_MAX < given.len() {
        let message = format!("{path} has more than {STOP_STRINGS_MAX} strings");
        return Err(Refusal::field(path, "invalid_value", message));
    }
    let mut strings = Vec::with_capacity(given.len());
    for (at, value) in given.into_iter().enumerate() {
        match value {
            Value::String(text) if (1..=STOP_BYTES_MAX).contains(&text.len()) => strings.push(text),
            Value::String(_) => {
                let message = format!("{path}[{at}] must have 1 to {STOP_BYTES_MAX} bytes");
                return Err(Refusal::field(path, "invalid_value", message));
            }
            other => return Err(fields::wrong_type(format!("{path}[{at}]"), "a string", &other)),
        }
    }
    let include = fields.boolean("include_stop_str_in_output")?.unwrap_or(false);
    Ok(Stops { strings, include, tokens_min })
}

fn stream(fields: &mut Fields) -> Result<Option<StreamOptions>, Refusal> {
    let streams = fields.boolean("stream")?.unwrap_or(false);
    let Some(mut options) = fields.object("stream_options")? else {
        let plain = StreamOptions { usage: false, usage_always: false };
        return Ok(streams.then_some(plain));
    };
    if !streams {
        let message = "stream_options has a meaning only with stream: true";
        return Err(Refusal::field("stream_options", "invalid_value", message));
    }
    let usage = options.boolean("include_usage")?.unwrap_or(false);
    let always = options.boolean("continuous_usage_stats")?.unwrap_or(false);
    options.value("include_obfuscation");
    if let Some(name) = options.left().first() {
        let message = format!("{name} is not known");
        return Err(Refusal::field(name, "unknown_parameter", message));
    }
    Ok(Some(StreamOptions { usage, usage_always: usage && always }))
}

#[cfg(test)]
mod tests;
