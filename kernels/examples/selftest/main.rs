//! Compares every kernel with its reference on random inputs, then times them: `selftest [quick
//! [FAMILY] | compare [FAMILY] | layers [quick | SHAPE] | models [SHAPE] | fp8 | together |
//! alone]`.
//!
//! Outputs are poisoned before each run. `quick` uses small shapes only and times nothing: for
//! compute-sanitizer, without the kernels whose blocks all wait for each other, of which `layers
//! quick` is as much; `compare` times nothing. A family is `matmul`, `attention`, `steps`,
//! `layers`, `sampling` or `collective`. `layers` is all layers in one kernel; without a
//! comparison `models` times whole steps, and `fp8` everything with 8-bit weights. `together` is
//! what two GPUs do, `alone` what one of them does when the other fails: it takes ten seconds and
//! leaves the GPU's context unusable. Kernels compiled at start are kept where `XDG_CACHE_HOME`
//! says. Exit code 1 when a comparison fails, 3 without a GPU.

#![expect(clippy::print_stdout, reason = "a program that prints its findings")]

mod attention;
mod collective;
mod layers;
mod matmul;
mod random;
mod sampling;
mod steps;
mod timing;

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use kernels::cuda::{Card, Device, DeviceError};
use kernels::ops::matmul::Format;

/// What was compared and how it came out.
#[derive(Debug, Default)]
pub(crate) struct Report {
    lines: Vec<String>,
    failures: usize,
}

impl Report {
    /// The relative error of `got`, at most `limit`. Something that is not a number fails.
    pub(crate) fn compare(&mut self, name: &str, got: &[f32], want: &[f32], limit: f64) {
        assert_eq!(got.len(), want.len(), "{name}");
        let square = |it: f64| it * it;
        let pairs = || got.iter().zip(want).map(|(&a, &b)| (f64::from(a), f64::from(b)));
        let off: f64 = pairs().map(|(a, b)| square(a - b)).sum();
        let norm: f64 = pairs().map(|(_, b)| square(b)).sum();
        let error = (off / norm.max(1e-30)).sqrt();
        self.check(&format!("{name}: relative error {error:.1e}"), error <= limit);
    }

    pub(crate) fn check(&mut self, name: &str, holds: bool) {
        self.failures += usize::from(!holds);
        self.lines.push(format!("{} {name}", if holds { "ok  " } else { "FAIL" }));
    }

    /// That two results have the same bits.
    pub(crate) fn same<T: PartialEq>(&mut self, name: &str, a: &[T], b: &[T]) {
        let differ = a.iter().zip(b).filter(|(a, b)| a != b).count();
        let holds = a.len() == b.len() && differ == 0;
        self.check(&format!("{name}: {differ} of {} differ", a.len()), holds);
    }
}

#[expect(clippy::disallowed_methods, reason = "a program of its own, which times its start")]
fn run(what: &str, report: &mut Report) -> Result<(), DeviceError> {
    let cache = env::var_os("XDG_CACHE_HOME").map(|it| PathBuf::from(it).join("kernels"));
    let start = Instant::now();
    let mut device = Device::open(&Card::Number(0), cache.as_deref())?;
    println!("opened in {:.2} s", start.elapsed().as_secs_f64());
    println!("{:?}, {} MiB free", device.facts(), device.memory_free()? >> 20);
    match what {
        "fp8" => return timing::run(device, Format::Fp8),
        "models" => {
            let (mut both, named) = ([Format::Bf16, Format::Fp8].into_iter(), env::args().nth(2));
            return both.try_for_each(|it| timing::models(&mut device, it, named.as_deref()));
        }
        _ => {}
    }
    let (quick, device) = (what == "quick", Arc::new(device));
    match what {
        "alone" => return collective::alone(&device, report),
        "together" => {
            collective::compare(&device, report, quick)?;
            return collective::time(&device);
        }
        "layers" => {
            let named = env::args().nth(2);
            if named.as_deref() == Some("quick") {
                return layers::quick(&device, report);
            }
            layers::compare(&device, report, named.as_deref())?;
            return timing::at_once(&device, named.as_deref());
        }
        _ => {}
    }
    let named = env::args().nth(2);
    let wanted = |family: &str| named.as_deref().is_none_or(|it| it == family);
    if wanted("matmul") {
        matmul::compare(&device, report, quick)?;
    }
    if wanted("attention") {
        attention::compare(&device, report, quick)?;
    }
    if wanted("steps") {
        steps::compare(&device, report)?;
    }
    if wanted("layers") && !quick {
        layers::compare(&device, report, None)?;
    }
    if wanted("sampling") {
        sampling::compare(&device, report)?;
    }
    if wanted("collective") {
        collective::compare(&device, report, quick)?;
    }
    let device = Arc::into_inner(device).expect("nobody else holds it any longer");
    match what {
        "quick" | "compare" => Ok(()),
        _ => timing::run(device, Format::Bf16),
    }
}

fn main() -> ExitCode {
    let what = env::args().nth(1).unwrap_or_default();
    let mut report = Report::default();
    let result = run(&what, &mut report);
    for line in &report.lines {
        println!("{line}");
    }
    println!("{} comparisons, {} failures", report.lines.len(), report.failures);
    match result {
        Err(error @ (DeviceError::NoDriver | DeviceError::NoDevice(_))) => {
            println!("skipped: {error}");
            ExitCode::from(3)
        }
        Err(error) => {
            println!("error: {error}");
            ExitCode::FAILURE
        }
        Ok(()) if report.failures == 0 => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
    }
}
