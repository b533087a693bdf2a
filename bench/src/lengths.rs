//! How many tokens a request asks for: one number, evenly spread, or with a long tail.

use std::fmt;
use std::str::FromStr;

/// Lengths of answers in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lengths {
    Fixed(u32),
    /// Every number between the two equally often.
    Even {
        low: u32,
        high: u32,
    },
    /// Exponential with this mean, cut at eight times the mean: many short, few long.
    Tail {
        mean: u32,
    },
}

impl Lengths {
    /// One length, at least 1.
    pub fn sample(self, rng: &mut fastrand::Rng) -> u32 {
        match self {
            Self::Fixed(tokens) => tokens,
            Self::Even { low, high } => rng.u32(low..=high),
            Self::Tail { mean } => {
                let drawn = -(1.0 - rng.f64()).ln() * f64::from(mean);
                let longest = f64::from(mean.saturating_mul(8));
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "between 1 and eight times a u32, which saturates"
                )]
                let tokens = drawn.round().clamp(1.0, longest) as u32;
                tokens
            }
        }
    }

    /// The length of request `index`, whoever asks and however often.
    pub fn of(self, index: u32) -> u32 {
        self.sample(&mut fastrand::Rng::with_seed(u64::from(index)))
    }
}

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let count = |text: &str| {
            let tokens = text.parse().ok().filter(|it: &u32| 0 < *it);
            tokens.ok_or_else(|| format!("{text:?}: N, LOW-HIGH or tail:MEAN, all at least 1"))
        };
        if let Some(mean) = text.strip_prefix("tail:") {
            return Ok(Self::Tail { mean: count(mean)? });
        }
        let Some((low, high)) = text.split_once('-') else { return Ok(Self::Fixed(count(text)?)) };
        let (low, high) = (count(low)?, count(high)?);
        if low <= high { Ok(Self::Even { low, high }) } else { Err(format!("{low} > {high}")) }
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(tokens) => write!(f, "{tokens}"),
            Self::Even { low, high } => write!(f, "{low}-{high}"),
            Self::Tail { mean } => write!(f, "tail:{mean}"),
        }
    }
}

#[cfg(test)]
mod tests;
