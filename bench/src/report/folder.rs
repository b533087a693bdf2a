//! A result as a folder: raw lines, cells, table, pictures, and where it comes from.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::Path;

use serde::Serialize;

use super::{Results, plot, table};
use crate::cell::Cell;

/// Makes the folder and writes everything into it.
pub fn write(folder: &Path, results: &Results) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let origin = serde_json::to_string_pretty(&results.origin)?;
    fs::write(folder.join("origin.json"), origin + "\n")?;
    fs::write(folder.join("table.md"), table(results))?;
    lines(&folder.join("requests.jsonl"), &results.samples)?;
    lines(&folder.join("cells.jsonl"), &results.cells)?;
    fs::write(folder.join("cells.csv"), csv(&results.cells))?;
    for (name, title, value) in PICTURES {
        if let Some(picture) = plot::by_concurrency(results, title, *value) {
            fs::write(folder.join(name), picture)?;
        }
    }
    Ok(())
}

type Value = fn(&Cell) -> f64;

const PICTURES: &[(&str, &str, Value)] = &[
    ("total.svg", "total tok/s", |it| it.total),
    ("each.svg", "tok/s of one request, median", |it| it.each),
    ("ttft.svg", "ms to the first token, median", |it| it.ttft_ms),
];

fn lines<T: Serialize>(path: &Path, values: &[T]) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    for value in values {
        serde_json::to_writer(&mut out, value)?;
        out.write_all(b"\n")?;
    }
    out.flush()
}

/// A header and a line for each cell. Names hold no comma: they come from `NAME=URL` lists.
fn csv(cells: &[Cell]) -> String {
    let mut text = String::from(
        "target,load,round,total,good,each,ttft_ms,ttft_ms_p99,tpot_ms,tpot_ms_p99,round_tokens,\
         requests,shed,errors,broken,late_ms_p99,client_cores\n",
    );
    let optional = |it: Option<f64>| it.map(|it| format!("{it:.3}")).unwrap_or_default();
    for it in cells {
        let speeds = [it.total, it.good, it.each, it.ttft_ms, it.ttft_ms_p99];
        let speeds = speeds.iter().chain([&it.tpot_ms, &it.tpot_ms_p99]);
        let speeds: Vec<String> = speeds.map(|it| format!("{it:.3}")).collect();
        let counts = [it.requests, it.shed, it.errors, it.broken].map(|it| it.to_string());
        let fields = [
            it.place.target.replace(',', ";"),
            it.place.load.clone(),
            it.place.round.to_string(),
            speeds.join(","),
            optional(it.round_tokens),
            counts.join(","),
            format!("{:.3}", it.late_ms_p99),
            optional(it.client_cores),
        ];
        text.push_str(&fields.join(","));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests;
