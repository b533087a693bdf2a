//! When requests come: at random, in bursts, in a square wave, over a day, or as recorded.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A day in seconds.
const DAY_S: f64 = 86_400.0;

/// How the rate of requests a second changes.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// Independent requests at a constant rate.
    Poisson { rate: f64 },
    /// `size` requests at once, bursts independent, `rate` requests a second in all.
    Bursts { rate: f64, size: u32 },
    /// Half of each period at `high`, then half at `low`, independent within.
    Square { low: f64, high: f64, hertz: f64 },
    /// A sine over 24 hours from a tenth to nineteen tenths of `mean`, quietest at midnight.
    Daily { mean: f64 },
    /// Seconds from the start, in order.
    Recorded(Arc<[f64]>),
}

impl Shape {
    /// Requests a second at `at_s`, where a rate is known in advance.
    fn rate(&self, at_s: f64) -> f64 {
        match *self {
            Self::Poisson { rate } => rate,
            Self::Bursts { rate, size } => rate / f64::from(size),
            Self::Square { low, high, hertz } => {
                if (at_s * hertz).fract() < 0.5 {
                    high
                } else {
                    low
                }
            }
            Self::Daily { mean } => {
                mean * (1.0 - 0.9 * (at_s / DAY_S * std::f64::consts::TAU).cos())
            }
            Self::Recorded(_) => 0.0,
        }
    }

    /// Requests a second on average.
    pub fn rate_mean(&self) -> f64 {
        match self {
            Self::Bursts { rate, .. } => *rate,
            Self::Square { low, high, .. } => (low + high) / 2.0,
            Self::Daily { mean } => *mean,
            Self::Recorded(times) => {
                let last = times.last().copied().unwrap_or(0.0);
                times.len() as f64 / last.max(1.0)
            }
            Self::Poisson { rate } => *rate,
        }
    }

    fn rate_max(&self) -> f64 {
        match *self {
            Self::Square { low, high, .. } => low.max(high),
            Self::Daily { mean } => 1.9 * mean,
            _ => self.rate(0.0),
        }
    }

    /// The same traffic for `times` as many receivers.
    pub fn times(&self, times: f64) -> Self {
        match self.clone() {
            Self::Poisson { rate } => Self::Poisson { rate: rate * times },
            Self::Bursts { rate, size } => Self::Bursts { rate: rate * times, size },
            Self::Square { low, high, hertz } => {
                Self::Square { low: low * times, high: high * times, hertz }
            }
            Self::Daily { mean } => Self::Daily { mean: mean * times },
            recorded @ Self::Recorded(_) => recorded,
        }
    }
}

/// Arrival times in order; chance comes from `rng`, so equal seeds give equal times.
#[derive(Clone, Debug)]
pub struct Arrivals {
    shape: Shape,
    rng: fastrand::Rng,
    at_s: f64,
    /// Requests of the present burst that are still to come, or recorded times that are past.
    count: usize,
}

impl Arrivals {
    pub fn new(shape: Shape, seed: u64) -> Self {
        Self { shape, rng: fastrand::Rng::with_seed(seed), at_s: 0.0, count: 0 }
    }

    /// The next time of a Poisson stream whose rate changes: candidates at the highest rate, of
    /// which a share is kept.
    fn next_independent(&mut self) -> f64 {
        let rate_max = self.shape.rate_max();
        loop {
            self.at_s -= (1.0 - self.rng.f64()).ln() / rate_max;
            if self.rng.f64() * rate_max < self.shape.rate(self.at_s) {
                return self.at_s;
            }
        }
    }
}

impl Iterator for Arrivals {
    type Item = f64;

    fn next(&mut self) -> Option<f64> {
        match &self.shape {
            Shape::Recorded(times) => {
                let at = times.get(self.count).copied();
                self.count += 1;
                at
            }
            Shape::Bursts { size, .. } => {
                if self.count == 0 {
                    self.count = usize::try_from(*size).expect("32 bits fit");
                    self.next_independent();
                }
                self.count -= 1;
                Some(self.at_s)
            }
            _ => Some(self.next_independent()),
        }
    }
}

const FORMS: &str = "one of poisson:RATE, bursts:RATExSIZE, square:LOW-HIGH@HERTZ, daily:MEAN, \
                     trace:FILE (a line for each request: seconds from the start)";

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, rest) = text.split_once(':').ok_or(FORMS)?;
        let rate = |text: &str| {
            let rate = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
            let is_rate = f64::is_finite(rate) && 0.0 < rate;
            if is_rate { Ok(rate) } else { Err(format!("{text}: a rate is above 0")) }
        };
        match kind {
            "poisson" => Ok(Self::Poisson { rate: rate(rest)? }),
            "bursts" => {
                let (all, size) = rest.split_once('x').ok_or(FORMS)?;
                let size = size.parse().ok().filter(|it| 0 < *it);
                Ok(Self::Bursts { rate: rate(all)?, size: size.ok_or("a burst has a size")? })
            }
            "square" => {
                let (rates, hertz) = rest.split_once('@').ok_or(FORMS)?;
                let (low, high) = rates.split_once('-').ok_or(FORMS)?;
                Ok(Self::Square { low: rate(low)?, high: rate(high)?, hertz: rate(hertz)? })
            }
            "daily" => Ok(Self::Daily { mean: rate(rest)? }),
            "trace" => recorded(rest),
            _ => Err(FORMS.to_owned()),
        }
    }
}

fn recorded(path: &str) -> Result<Shape, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let lines = text.lines().map(str::trim).filter(|it| !it.is_empty() && !it.starts_with('#'));
    let times: Result<Vec<f64>, _> = lines.map(str::parse).collect();
    let times = times.map_err(|error| format!("{path}: {error}"))?;
    let in_order = times.windows(2).all(|pair| pair[0] <= pair[1]);
    let is_time = |it: &f64| it.is_finite() && 0.0 <= *it;
    if times.is_empty() || !in_order || !times.iter().all(is_time) {
        return Err(format!("{path}: needs seconds of at least 0, in order, one a line"));
    }
    Ok(Shape::Recorded(times.into()))
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Poisson { rate } => write!(f, "poisson:{rate}"),
            Self::Bursts { rate, size } => write!(f, "bursts:{rate}x{size}"),
            Self::Square { low, high, hertz } => write!(f, "square:{low}-{high}@{hertz}"),
            Self::Daily { mean } => write!(f, "daily:{mean}"),
            Self::Recorded(times) => write!(f, "trace of {}", times.len()),
        }
    }
}

#[cfg(test)]
mod tests;
