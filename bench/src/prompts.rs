//! Prompts: built-in ones, different enough that a prefix cache does not answer for the model, or
//! a file's.

use std::path::Path;

/// Where prompts come from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Prompts {
    BuiltIn(Set),
    Lines(Vec<String>),
}

impl Prompts {
    /// The set, or the lines of a file: as they stand, or as JSON strings.
    pub fn new(set: Set, file: Option<&Path>) -> Result<Self, String> {
        let Some(file) = file else { return Ok(Self::BuiltIn(set)) };
        let at = file.display();
        let text = std::fs::read_to_string(file).map_err(|error| format!("{at}: {error}"))?;
        let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| line.to_owned());
        let lines: Vec<String> =
            text.lines().map(str::trim).filter(|it| !it.is_empty()).map(line).collect();
        if lines.is_empty() { Err(format!("{at} holds no prompt")) } else { Ok(Self::Lines(lines)) }
    }

    /// The text of prompt `index`; a file begins anew at its end.
    pub fn text(&self, index: u32) -> String {
        match self {
            Self::BuiltIn(set) => prompt(*set, index),
            Self::Lines(lines) => {
                let index = usize::try_from(index).expect("32 bits fit");
                lines[index % lines.len()].clone()
            }
        }
    }
}

/// A kind of traffic.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum Set {
    /// Short questions, as people ask an assistant.
    Chat,
    /// Small programs.
    Code,
    /// A page to be made short.
    Summary,
    /// Several pages before the question.
    Long,
    /// Different questions after one long common beginning.
    Shared,
}

const TOPICS: &[&str] = &[
    "the tides",
    "bread",
    "glass",
    "the bicycle",
    "volcanoes",
    "honey bees",
    "the compass",
    "paper",
    "earthquakes",
    "the piano",
    "coffee",
    "lighthouses",
    "steam engines",
    "snow",
    "the calendar",
    "salt",
    "whales",
    "vaccines",
    "bridges",
    "the printing press",
    "rice",
    "telescopes",
    "rivers",
    "clocks",
    "cotton",
    "the violin",
    "magnets",
    "deserts",
    "maps",
    "soap",
    "penguins",
    "steel",
];

const ASKS: &[&str] = &[
    "Explain how {} came to be, in a few sentences.",
    "Write three tips about {} for a beginner.",
    "What would a child ask about {}, and what is a good answer?",
    "Write a short story in which {} matters.",
    "List the main facts about {}.",
    "Why do people care about {}? Give two reasons and an example.",
    "Describe {} to someone who has never heard of it.",
    "Write a short letter to a friend about {}.",
];

const PROGRAMS: &[&str] = &[
    "reverses a list",
    "counts the words of a text",
    "checks whether a number is prime",
    "merges two sorted lists",
    "finds the longest line of a file",
    "computes a factorial",
    "removes duplicates from a list",
    "sorts names by their last letter",
    "parses a date",
    "finds all palindromes in a sentence",
    "rotates a matrix",
    "converts degrees to radians",
];

const LANGUAGES: &[&str] = &["Python", "JavaScript", "C", "Go", "Java", "Ruby"];

/// The text of prompt `index`; equal indices give equal texts, and neighbours differ early.
pub fn prompt(set: Set, index: u32) -> String {
    let pick = |list: &'static [&'static str], at: usize| list[at % list.len()];
    let index = index as usize;
    let topic = pick(TOPICS, index);
    let ask = pick(ASKS, index / TOPICS.len() + index).replace("{}", topic);
    match set {
        Set::Chat if index < TOPICS.len() * ASKS.len() => ask,
        Set::Chat => format!("{ask} (Question {index}.)"),
        Set::Code => {
            let language = pick(LANGUAGES, index / PROGRAMS.len() + index);
            let program = pick(PROGRAMS, index);
            format!("Write a {language} function that {program}. Variant {index}.")
        }
        Set::Summary => format!("Summarise in two sentences.\n\n{}", page(index, 12)),
        Set::Long => format!("{}\n\nQuestion: what does the text say of {topic}?", page(index, 60)),
        Set::Shared => format!("{}\n\n{ask} (Question {index}.)", page(0, 40)),
    }
}

/// Sentences that read like an encyclopaedia's, without being one.
fn page(seed: usize, sentences: usize) -> String {
    let sentence = |at: usize| {
        let first = TOPICS[(seed * 7 + at * 5) % TOPICS.len()];
        let second = TOPICS[(seed * 3 + at * 11 + 1) % TOPICS.len()];
        let year = 1500 + (seed * 37 + at * 13) % 500;
        format!("In {year} people who knew {first} began to think differently about {second}.")
    };
    (0..sentences).map(sentence).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
