//! Speaks to a person at a terminal, or in plain lines to a log.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::fetch::Progress;

/// What is printed while something goes on. Lines go to standard output; what moves is drawn on
/// standard error, and told there in tenths without a terminal.
#[derive(Debug, Default)]
pub struct Screen {
    live: Option<ProgressBar>,
    tenths_told: u64,
}

impl Screen {
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether somebody sees what moves.
    pub fn is_live(&self) -> bool {
        io::stderr().is_terminal()
    }

    /// One whole line.
    pub fn line(&self, text: &str) {
        self.around(|| {
            let mut out = io::stdout().lock();
            // A reader that went away is no reason to stop what is being reported on.
            drop(writeln!(out, "{text}").and_then(|()| out.flush()));
        });
    }

    /// One line for a person, beside the result.
    pub fn error(&self, text: &str) {
        self.around(|| drop(writeln!(io::stderr().lock(), "{text}")));
    }

    /// What goes on right now; replaces what was said before. Nothing without a terminal.
    pub fn status(&mut self, text: &str) {
        if !self.is_live() {
            return;
        }
        let bar = self.live.get_or_insert_with(|| {
            let style = ProgressStyle::with_template("{spinner} {wide_msg}");
            let bar = ProgressBar::new_spinner().with_style(style.expect("a fixed template"));
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        bar.set_message(text.to_owned());
    }

    /// Takes away what moves.
    pub fn clear(&mut self) {
        if let Some(bar) = self.live.take() {
            bar.finish_and_clear();
        }
    }

    /// The progress of a fetch, on standard error: what is fetched is told on the other one.
    pub fn progress(&mut self, progress: Progress<'_>) {
        match progress {
            Progress::Note(note) => {
                self.clear();
                self.error(note);
            }
            Progress::Bytes { what, done, total } if self.is_live() => {
                let is_another = |it: &ProgressBar| it.length() != Some(total);
                if self.live.as_ref().is_none_or(is_another) {
                    self.clear();
                    self.live = Some(bytes_bar(what, total));
                }
                if let Some(bar) = &self.live {
                    bar.set_position(done);
                }
                if total <= done {
                    self.clear();
                }
            }
            Progress::Bytes { what, done, total } => {
                let tenths = done.saturating_mul(10) / total.max(1);
                if tenths != self.tenths_told {
                    self.error(&format!(
                        "{what}: {} of {} MB",
                        done / 1_000_000,
                        total / 1_000_000
                    ));
                }
                self.tenths_told = tenths;
            }
        }
    }

    fn around(&self, print: impl FnOnce()) {
        match &self.live {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.clear();
    }
}

fn bytes_bar(what: &str, total: u64) -> ProgressBar {
    let template = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    let style = ProgressStyle::with_template(template).expect("a fixed template");
    ProgressBar::new(total).with_style(style).with_message(what.to_owned())
}
