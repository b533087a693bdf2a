//! Rotary scaling, worked out once into divisors of the inverse frequencies.

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
    };
    Ok(Rope { theta: to_f32(theta), factors })
}

#[expect(clippy::cast_possible_truncation, reason = "rounding is what is wanted")]
pub(crate) fn to_f32(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests;
