//! What a calibration was made for, held against what endpoints say they are.

use serde::Deserialize;

/// The file's key. An empty part says nothing, and is compared with nothing.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct Key {
    pub model: String,
    pub quantisation: String,
    /// What one instance has: `cpu:0-3`, `gpu:0`, or words.
    pub device: String,
}

/// What an endpoint says it is.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Identity {
    /// The names it answers to; None if it lists none.
    pub models: Option<Vec<String>>,
    pub quantisation: Option<String>,
    pub device: Option<String>,
}

impl Key {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What a calibration for this key cannot be used for; None if nothing speaks against it.
    /// What an endpoint does not tell, it is not asked to have.
    pub fn mismatch(&self, found: &Identity) -> Option<String> {
        let differs = |part: &str, mine: &str, theirs: &str| {
            Some(format!("is for {part} {mine:?}, and the endpoint has {theirs:?}"))
        };
        let models = found.models.as_deref().unwrap_or_default();
        if !self.model.is_empty() && !models.is_empty() && !models.contains(&self.model) {
            return differs("model", &self.model, &models.join(", "));
        }
        let (mine, theirs) = (&self.quantisation, found.quantisation.as_deref());
        if let Some(theirs) = theirs
            && !mine.is_empty()
            && !mine.eq_ignore_ascii_case(theirs)
        {
            return differs("quantisation", mine, theirs);
        }
        let (mine, theirs) = (&self.device, found.device.as_deref());
        if let Some(theirs) = theirs
            && !mine.is_empty()
            && shape(mine) != shape(theirs)
        {
            return differs("device", mine, theirs);
        }
        None
    }
}

/// Instances of a pair have unlike cores of one kind, so what counts is the kind and how many:
/// `cpu:0-3` and `cpu:4-7` are alike. Other words are compared as they are.
fn shape(device: &str) -> (String, Option<u32>) {
    let words = || (device.to_ascii_lowercase(), None);
    let Some((kind, units)) = device.split_once(':') else { return words() };
    let mut count = 0;
    for part in units.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) else {
            return words();
        };
        let Some(more) = last.checked_sub(first) else { return words() };
        count += more.min(1 << 16) + 1;
    }
    (kind.to_ascii_lowercase(), Some(count))
}

#[cfg(test)]
mod tests;
