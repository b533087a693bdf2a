//! The reference texts of the default pair, written by a separate plain implementation.

use serde_json::Value;

/// A text, and what speculation made of it.
#[derive(Clone, Debug)]
pub struct Row {
    pub prompt: Vec<u32>,
    pub output: Vec<u32>,
    /// For each output after the first, how far the likeliest token stood above the second.
    pub gaps: Vec<f64>,
    chains: Value,
}

impl Row {
    /// Drafts kept in each round of a chain of `depth`.
    pub fn kept(&self, depth: u32) -> Vec<u32> {
        numbers(&self.chains[depth.to_string()]["accepted_per_round"])
    }
}

/// The rows, and how many tokens each may have.
pub fn golden() -> (Vec<Row>, usize) {
    let text = include_str!("../golden/smollm2-eagle3-float32.json");
    let file: Value = serde_json::from_str(text).expect("the file is JSON");
    let gap = |it: &Value| it.as_f64().expect("a gap is a number");
    let row = |it: &Value| Row {
        prompt: numbers(&it["prompt_ids"]),
        output: numbers(&it["output_ids"]),
        gaps: list(&it["top2_logit_gap"]).iter().map(gap).collect(),
        chains: it["chains"].clone(),
    };
    let len_max = file["max_new_tokens"].as_u64().expect("a bound");
    let len_max = usize::try_from(len_max).expect("a small bound");
    (list(&file["rows"]).iter().map(row).collect(), len_max)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn numbers(value: &Value) -> Vec<u32> {
    let number = |it: &Value| it.as_u64().and_then(|it| u32::try_from(it).ok()).expect("a token");
    list(value).iter().map(number).collect()
}
