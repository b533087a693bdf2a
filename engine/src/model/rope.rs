//! Rotary scaling, worked out once into divisors of the inverse frequencies.

use std::f64::consts::TAU;

use crate::model::Rope;
use crate::model::error::Fault;

/// How a context longer than the trained one is reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scaling {
    None,
    /// Every position divided by the same number.
    Linear {
        factor: f64,
    },
    /// Llama 3.1: slow frequencies are divided, fast ones kept, those between blended.
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        original_context: f64,
    },
}

/// The rotary embedding of heads of `head_dim` values.
pub(crate) fn rope(theta: f64, scaling: Scaling, head_dim: usize) -> Result<Rope, Fault> {
    let positive = |what: &str, it: f64| {
        if it.is_finite() && 0.0 < it {
            return Ok(());
        }
        Err(Fault::whole(format_args!("the rotary {what} {it} is no use")))
    };
    positive("base", theta)?;
    let pairs = head_dim / 2;
    let factors = match scaling {
        Scaling::None => Vec::new(),
        Scaling::Linear { factor } => {
            positive("factor", factor)?;
            vec![to_f32(factor); pairs]
        }
        Scaling::Llama3 { factor, low, high, original_context } => {
            positive("factor", factor)?;
            positive("low_freq_factor", low)?;
            positive("original context", original_context)?;
            if !(low < high && high.is_finite()) {
                return Err(Fault::whole("high_freq_factor is not above low_freq_factor"));
            }
            let divisor = |pair: usize| {
                let wavelength = TAU * theta.powf(2.0 * to_f64(pair) / to_f64(head_dim));
                let turns = original_context / wavelength;
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                to_f32(1.0 / ((1.0 - kept) / factor + kept))
            };
            (0..pairs).map(divisor).collect()
        }
    };
    Ok(Rope { theta: to_f32(theta), factors })
}

#[expect(clippy::cast_possible_truncation, reason = "rounding is what is wanted")]
pub(crate) fn to_f32(value: f64) -> f32 {
    value as f32
}

fn to_f64(count: usize) -> f64 {
    f64::from(u32::try_from(count).expect("a head has far fewer values"))
}

#[cfg(test)]
mod tests;
