//! How sure a few repeats make one of a sign.

/// The chance that the mean of what was sampled is above 0, by Student's t; 0.5 of nothing.
///
/// The normal approximation of t is from Wallace (1959): good to the third decimal from two
/// degrees of freedom on.
pub fn chance_above_zero(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    if values.len() < 2 {
        return 0.5;
    }
    let mean = values.iter().sum::<f64>() / count;
    let freedom = count - 1.0;
    let variance = values.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / freedom;
    if variance == 0.0 {
        return if mean == 0.0 { 0.5 } else { f64::from(u8::from(0.0 < mean)) };
    }
    let t = mean / (variance / count).sqrt();
    let correction = (8.0 * freedom + 1.0) / (8.0 * freedom + 3.0);
    normal(correction * (freedom * (t * t / freedom).ln_1p()).sqrt() * t.signum())
}

/// The standard normal distribution function (Abramowitz and Stegun 26.2.17, error below 1e-7).
fn normal(z: f64) -> f64 {
    let x = z.abs();
    let k = 1.0 / (1.0 + 0.231_641_9 * x);
    let series = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let sum = series.iter().rev().fold(0.0, |sum, term| (sum + term) * k);
    let tail = (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt() * sum;
    if 0.0 < z { 1.0 - tail } else { tail }
}

#[cfg(test)]
mod tests;
