//! Quantiles and medians of small samples.

/// The value below which `part` (0 to 1) of the values lie, between neighbours by proportion.
/// `None` of nothing.
pub fn quantile(values: &[f64], part: f64) -> Option<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|it| it.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let at = part.clamp(0.0, 1.0) * last as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and the last index"
    )]
    let below = at.floor() as usize;
    let above = (below + 1).min(last);
    let share = at - at.floor();
    Some(sorted[below] * (1.0 - share) + sorted[above] * share)
}

pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// Half the distance between the quartiles over the median: how much rounds differ.
pub fn spread(values: &[f64]) -> Option<f64> {
    let middle = median(values).filter(|it| *it != 0.0)?;
    Some((quantile(values, 0.75)? - quantile(values, 0.25)?) / 2.0 / middle)
}

#[cfg(test)]
mod tests;
