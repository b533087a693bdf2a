//! The draft vocabulary of a head: which entry of the target's each of its own stands for.

use std::path::Path;

use safetensors::tensor::Dtype as Stored;

use crate::model::LoadError;
use crate::model::checkpoint::Checkpoint;
use crate::model::error::Fault;

const OFFSETS: &str = "d2t";
const MEMBERS: &str = "t2d";

/// Takes the two maps out of the checkpoint: `d2t`, offsets from which the target's entries
/// follow, and `t2d`, which only repeats them and is checked for that.
pub(super) fn target_ids(
    checkpoint: &mut Checkpoint,
    dir: &Path,
    draft_vocab: usize,
    vocab: usize,
) -> Result<Vec<u32>, LoadError> {
    let fault = |place: &str, it: String| Fault::new(format_args!("tensor {place:?}"), it).at(dir);
    let offsets = whole(checkpoint, dir, OFFSETS, draft_vocab, &[Stored::I64, Stored::I32])?;
    let ids = match offsets {
        Some((Stored::I64, bytes)) => {
            let offsets = bytes.as_chunks().0.iter().map(|it| i64::from_le_bytes(*it));
            shifted(offsets, vocab).map_err(|it| fault(OFFSETS, it))?
        }
        Some((_, bytes)) => {
            let offsets = bytes.as_chunks().0.iter().map(|it| i32::from_le_bytes(*it).into());
            shifted(offsets, vocab).map_err(|it| fault(OFFSETS, it))?
        }
        None if draft_vocab == vocab => (0..).take(vocab).collect(),
        None => {
            let reason = format!("missing, though the draft vocabulary has only {draft_vocab}");
            return Err(fault(OFFSETS, reason));
        }
    };
    let mut members = vec![false; vocab];
    for id in &ids {
        members[*id as usize] = true;
    }
    let wanted = [Stored::BOOL, Stored::U8];
    if let Some((_, bytes)) = whole(checkpoint, dir, MEMBERS, vocab, &wanted)?
        && let Some(at) = (0..vocab).find(|it| (bytes[*it] != 0) != members[*it])
    {
        return Err(fault(MEMBERS, format!("does not agree with {OFFSETS} about token {at}")));
    }
    Ok(ids)
}

/// A vector of `len`, in one of the `wanted` formats; `None` when the checkpoint has none.
fn whole(
    checkpoint: &mut Checkpoint,
    dir: &Path,
    name: &str,
    len: usize,
    wanted: &[Stored],
) -> Result<Option<(Stored, Vec<u8>)>, LoadError> {
    let Some(entry) = checkpoint.tensors().get(name) else { return Ok(None) };
    let stored = entry.stored;
    if entry.dims != [len] || !wanted.contains(&stored) {
        let reason = format!("{:?} of {stored:?} instead of {len} of {wanted:?}", entry.dims);
        return Err(Fault::new(format_args!("tensor {name:?}"), reason).at(dir));
    }
    let bytes = checkpoint.read(name)?;
    checkpoint.drop(name);
    Ok(Some((stored, bytes)))
}

/// `i + offset` for each entry i, all of them different entries of the target's vocabulary.
fn shifted(offsets: impl Iterator<Item = i64>, vocab: usize) -> Result<Vec<u32>, String> {
    let mut seen = vec![false; vocab];
    let mut ids = Vec::new();
    for (entry, offset) in (0_i64..).zip(offsets) {
        let id = entry.checked_add(offset).and_then(|it| u32::try_from(it).ok());
        let slot = id.and_then(|it| seen.get_mut(it as usize));
        let (Some(id), Some(slot)) = (id, slot) else {
            return Err(format!("entry {entry} + {offset} is outside the vocabulary"));
        };
        if *slot {
            let reason = "maps two entries to token";
            return Err(format!("{reason} {id}: are these ids instead of offsets?"));
        }
        *slot = true;
        ids.push(id);
    }
    Ok(ids)
}
