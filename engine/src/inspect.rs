//! Says in words what is understood of a model or of a draft head, without computing anything.

use std::fmt::Write;
use std::path::Path;

use crate::config::{raw, size};
use crate::model::{Head, Loaded, LoadedHead, Model, Rope, hub, load, load_head, load_model};

/// What stands at `path`; a head is read for the model at `model`. The error is one line.
pub fn inspect(path: &Path, model: Option<&Path>) -> Result<String, String> {
    let cache = raw::hub_cache();
    let path = hub::resolve(path, &cache)?;
    let Some(model) = model else {
        return load(&path).map(|it| of_model(&it)).map_err(|error| error.to_string());
    };
    let target = load_model(&hub::resolve(model, &cache)?).map_err(|error| error.to_string())?;
    let head = load_head(&path, &target.config, None).map_err(|error| error.to_string())?;
    Ok(of_head(&head))
}

fn of_model(loaded: &Loaded) -> String {
    let Loaded { model, tokenizer, template, stop_tokens, bos, notes } = loaded;
    let Model { config, tensors } = model;
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        writeln!(text, "{name:<18}{value}").expect("memory takes all");
    };
    line("name", config.name.clone());
    line("layers", config.layers.to_string());
    line("hidden", format!("{}, intermediate {}", config.hidden, config.intermediate));
    let (heads, kv_heads) = (config.heads, config.kv_heads);
    line("heads", format!("{heads} of {}, keys and values {kv_heads}", config.head_dim));
    line("vocabulary", format!("{}, tokenizer {}", config.vocab, tokenizer.vocab()));
    line("context", format!("{} tokens", config.context_max));
    line("rope", rope(&config.rope));
    line("norm epsilon", format!("{:e}", config.rms_eps));
    let mut parts = vec![if config.tied { "tied embedding" } else { "own lm_head" }];
    parts.extend(config.qkv_bias.then_some("query, key and value biases"));
    parts.extend(config.qk_norm.then_some("query and key norms"));
    line("parts", parts.join(", "));
    line("tensors", tensors_line(tensors.values().map(|it| (it.dtype, it.bytes.len()))));
    let ends: Vec<String> = stop_tokens
        .iter()
        .map(|it| format!("{} {:?}", it.0, String::from_utf8_lossy(tokenizer.bytes(*it))))
        .collect();
    line("ends of text", ends.join(", "));
    line("first token", bos.map_or_else(|| "none".to_owned(), |it| it.0.to_string()));
    line("chat template", if template.is_some() { "yes" } else { "no" }.to_owned());
    for note in notes {
        line("note", note.clone());
    }
    text
}

fn of_head(loaded: &LoadedHead) -> String {
    let LoadedHead { head: Head { config, tensors, target_ids }, notes } = loaded;
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        writeln!(text, "{name:<18}{value}").expect("memory takes all");
    };
    line("captured layers", format!("inputs of {:?}", config.captured_layers));
    line("hidden", format!("{}, intermediate {}", config.hidden, config.intermediate));
    let (heads, kv_heads) = (config.heads, config.kv_heads);
    line("heads", format!("{heads} of {}, keys and values {kv_heads}", config.head_dim));
    let reach = target_ids.iter().max().map_or(0, |it| it + 1);
    line("draft vocabulary", format!("{} of {reach} tokens", config.draft_vocab));
    line("rope", rope(&config.rope));
    line("norm epsilon", format!("{:e}", config.rms_eps));
    let residual = if config.norm_before_residual { "normed" } else { "plain" };
    line("residual", residual.to_owned());
    let own = tensors.contains_key("lm_head.weight");
    line("lm_head", if own { "its own" } else { "the target's" }.to_owned());
    line("tensors", tensors_line(tensors.values().map(|it| (it.dtype, it.bytes.len()))));
    for note in notes {
        line("note", note.clone());
    }
    text
}

fn rope(rope: &Rope) -> String {
    let scaled = if rope.factors.is_empty() { "" } else { ", scaled" };
    format!("theta {}{scaled}", rope.theta)
}

/// How many tensors of which kind, and their size.
fn tensors_line<D: std::fmt::Debug>(tensors: impl Iterator<Item = (D, usize)>) -> String {
    let mut kinds = std::collections::BTreeMap::<String, (usize, u64)>::new();
    for (dtype, bytes) in tensors {
        let kind = kinds.entry(format!("{dtype:?}").to_lowercase()).or_default();
        *kind = (kind.0 + 1, kind.1 + bytes as u64);
    }
    let words = kinds
        .iter()
        .map(|(kind, (count, bytes))| format!("{count} {kind} ({})", size::show(*bytes)));
    words.collect::<Vec<_>>().join(", ")
}
