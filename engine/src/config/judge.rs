//! Turns words into values and keeps every mistake, so that one start reports all of them.

use std::ops::RangeInclusive;

use kernels::cuda::Card;
use kernels::ops::collective::RANKS_MAX;

use crate::config::calibration::Calibration;
use crate::config::raw::{Raw, Word};
use crate::config::words::{fraction, layers, rates, table};
use crate::config::{
    ConfigError, DepthRule, Device, LoadFormat, Memory, Mode, Quantization, Until, size,
};
use crate::draft::DRAFTS_MAX;

/// Reads words and keeps every mistake.
#[derive(Debug, Default)]
pub(super) struct Judge {
    pub(super) errors: Vec<ConfigError>,
}

impl Judge {
    pub(super) fn error(&mut self, flag: &'static str, detail: impl Into<String>) {
        self.errors.push(ConfigError { flag, detail: detail.into() });
    }

    /// What cores cannot do, and what several GPUs cannot.
    pub(super) fn suits(
        &mut self,
        device: &Device,
        load_format: LoadFormat,
        quantization: Quantization,
        shares_weights: bool,
    ) {
        let gpus = match device {
            Device::Cpu { .. } => 0,
            Device::Cuda { cards } => cards.len(),
        };
        if gpus == 0 && load_format == LoadFormat::Dummy {
            self.error("load-format", "dummy has a meaning only on a GPU");
        }
        if gpus == 0 && quantization == Quantization::Fp8 {
            self.error("quantization", "fp8 has a meaning only on a GPU");
        }
        if gpus != 1 && shares_weights {
            self.error("share-weights", "has a meaning only on one GPU");
        }
    }

    /// The GPUs that compute together: those named, or so many from the one named on.
    pub(super) fn together(&mut self, device: Device, count: Option<Word>) -> Device {
        let most = u32::try_from(RANKS_MAX).expect("a few");
        let asked = count.is_some();
        let count = self.whole("tensor-parallel-size", count, 1, 1..=most) as usize;
        match device {
            Device::Cuda { cards } if RANKS_MAX < cards.len() => {
                let detail = format!("names {} GPUs, and {most} is the most", cards.len());
                self.error("device", detail);
                Device::Cuda { cards }
            }
            Device::Cuda { cards } if !asked || cards.len() == count => Device::Cuda { cards },
            Device::Cuda { cards } => {
                if let [Card::Number(first)] = cards[..] {
                    return Device::Cuda {
                        cards: (first..).map(Card::Number).take(count).collect(),
                    };
                }
                let detail = format!("is {count}, but --device names {} of them", cards.len());
                self.error("tensor-parallel-size", detail);
                Device::Cuda { cards }
            }
            Device::Cpu { cores } => {
                if 1 < count {
                    let detail = "is for GPUs: name the first, such as --device cuda:0";
                    self.error("tensor-parallel-size", detail);
                }
                Device::Cpu { cores }
            }
        }
    }

    /// Nobody is to take texts of pretended drafts for those of a model.
    pub(super) fn simulated(&mut self, mode: &Mode, load_format: LoadFormat) {
        let is_simulated = matches!(mode, Mode::Eagle3 { simulated: Some(_), .. });
        if is_simulated && load_format != LoadFormat::Dummy {
            self.error("simulate-acceptance", "needs --load-format dummy: texts mean nothing");
        }
    }

    pub(super) fn required(&mut self, flag: &'static str, word: Option<Word>) -> String {
        match word {
            Some(Word(text)) if !text.is_empty() => text,
            _ => {
                self.error(flag, "is required");
                String::new()
            }
        }
    }

    pub(super) fn whole(
        &mut self,
        flag: &'static str,
        word: Option<Word>,
        default: u32,
        range: RangeInclusive<u32>,
    ) -> u32 {
        let Some(Word(text)) = word else { return default };
        match text.parse() {
            Ok(number) if range.contains(&number) => number,
            _ => {
                let (low, high) = (range.start(), range.end());
                self.error(flag, format!("'{text}' is not a whole number from {low} to {high}"));
                default
            }
        }
    }

    /// What `parse` makes of the word, or of `default` where there is none or a wrong one.
    pub(super) fn parsed<T>(
        &mut self,
        flag: &'static str,
        word: Option<Word>,
        default: &str,
        parse: fn(&str) -> Result<T, String>,
    ) -> T {
        let text = word.map_or_else(|| default.to_owned(), |it| it.0);
        parse(&text).unwrap_or_else(|detail| {
            self.error(flag, format!("'{text}' {detail}"));
            parse(default).expect("defaults are written right")
        })
    }
}

pub(super) fn mode(judge: &mut Judge, raw: &Raw) -> Mode {
    let name = raw.mode.as_ref().map_or("baseline", |it| it.0.as_str());
    let only = |judge: &mut Judge, flag, word: &Option<Word>, modes| {
        if word.is_some() {
            judge.error(flag, format!("has a meaning only with --mode {modes}, not {name}"));
        }
    };
    if name != "eagle3" {
        only(judge, "draft", &raw.draft, "eagle3");
        only(judge, "eagle-layers", &raw.eagle_layers, "eagle3");
        only(judge, "simulate-acceptance", &raw.simulate_acceptance, "eagle3");
    }
    let is_auto = raw.draft_until.as_ref().is_some_and(|it| it.0 == "auto");
    if raw.calibration.is_some() && !is_auto {
        judge.error("calibration", "has a meaning only with --draft-until auto");
    }
    match name {
        "baseline" => {
            only(judge, "draft-max", &raw.draft_max, "eagle3 or ngram");
            only(judge, "draft-until", &raw.draft_until, "eagle3 or ngram");
            Mode::Baseline
        }
        "eagle3" => Mode::Eagle3 {
            head: judge.required("draft", raw.draft.clone()).into(),
            layers: raw
                .eagle_layers
                .clone()
                .map(|word| judge.parsed("eagle-layers", Some(word), "0", layers)),
            depth: depth(judge, raw, 3),
            simulated: raw
                .simulate_acceptance
                .clone()
                .map(|word| judge.parsed("simulate-acceptance", Some(word), "0", rates)),
        },
        "ngram" => Mode::Ngram { depth: depth(judge, raw, 4) },
        _ => {
            judge.error("mode", format!("'{name}' is not baseline, eagle3 or ngram"));
            Mode::Baseline
        }
    }
}

fn depth(judge: &mut Judge, raw: &Raw, default: u32) -> DepthRule {
    let max = judge.whole("draft-max", raw.draft_max.clone(), default, 0..=DRAFTS_MAX);
    let until = match raw.draft_until.as_ref().map(|it| it.0.as_str()) {
        None => Until::Always,
        Some("auto") => Until::Table(calibrated(judge, raw)),
        Some(text) if text.contains(':') => {
            Until::Table(judge.parsed("draft-until", raw.draft_until.clone(), "1:1", table))
        }
        Some(_) => {
            let word = raw.draft_until.clone();
            Until::Decoding(judge.whole("draft-until", word, 1, 0..=65_536))
        }
    };
    DepthRule { max, until }
}

fn calibrated(judge: &mut Judge, raw: &Raw) -> Vec<(u32, u32)> {
    let Some(Word(path)) = &raw.calibration else {
        judge.error("draft-until", "'auto' needs --calibration");
        return Vec::new();
    };
    match Calibration::read(path.as_ref()) {
        Ok(calibration) if calibration.depth.is_empty() => {
            judge.error("calibration", format!("{path} has no depths, which 'auto' needs"));
            Vec::new()
        }
        Ok(calibration) => calibration.depth,
        Err(detail) => {
            judge.error("calibration", detail);
            Vec::new()
        }
    }
}

/// `default`: the share where nothing is said.
pub(super) fn memory(
    judge: &mut Judge,
    bytes: Option<Word>,
    share: Option<Word>,
    default: &str,
) -> Memory {
    if bytes.is_some() && share.is_some() {
        judge.error("memory", "give either --memory or --memory-fraction");
    }
    if bytes.is_some() {
        Memory::Bytes(judge.parsed("memory", bytes, "1GiB", size::parse))
    } else {
        Memory::Fraction(judge.parsed("memory-fraction", share, default, fraction))
    }
}
