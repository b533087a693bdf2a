//! Reads metrics in Prometheus' text form, as far as sums over one label need it.

/// One scrape.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exposition(Vec<Sample>);

#[derive(Clone, Debug, PartialEq)]
struct Sample {
    name: String,
    labels: String,
    value: f64,
}

impl Exposition {
    /// Lines that cannot be read are left out.
    pub fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(sample).collect())
    }

    /// The sum of all samples of `name` that carry every one of `labels`; `None` without one.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let wanted: Vec<_> =
            labels.iter().map(|(key, value)| format!("{key}=\"{value}\"")).collect();
        let matching = self.0.iter().filter(|it| {
            it.name == name
                && wanted.iter().all(|label| it.labels.split(',').any(|has| has == label))
        });
        matching.map(|it| it.value).reduce(|a, b| a + b)
    }
}

fn sample(line: &str) -> Option<Sample> {
    if line.starts_with('#') {
        return None;
    }
    let (series, rest) = match line.split_once('{') {
        Some((name, rest)) => {
            // A label's value may hold braces and blanks; the last brace ends the labels.
            let (labels, rest) = rest.rsplit_once('}')?;
            ((name, labels), rest)
        }
        None => {
            let (name, rest) = line.split_once(' ')?;
            ((name, ""), rest)
        }
    };
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name: series.0.to_owned(), labels: series.1.to_owned(), value })
}

#[cfg(test)]
mod tests;
