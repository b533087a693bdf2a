use proptest::prelude::*;
use safetensors::tensor::{TensorView, serialize};
use tempfile::{TempDir, tempdir};

use super::*;

/// A tensor to be written.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) name: String,
    pub(crate) stored: Stored,
    pub(crate) dims: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl Written {
    pub(crate) fn zeros(name: &str, stored: Stored, dims: &[usize]) -> Self {
        let bytes = vec![0; dims.iter().product::<usize>() * stored.bitsize() / 8];
        Self { name: name.to_owned(), stored, dims: dims.to_vec(), bytes }
    }
}

/// The bytes of a safetensors file.
pub(crate) fn file(tensors: &[Written]) -> Vec<u8> {
    let views = tensors.iter().map(|it| {
        let view = TensorView::new(it.stored, it.dims.clone(), &it.bytes).unwrap();
        (it.name.clone(), view)
    });
    serialize(views, None).unwrap()
}

fn sample() -> Vec<Written> {
    let mut first = Written::zeros("model.first", Stored::BF16, &[3, 2]);
    first.bytes = (0..12).collect();
    vec![first, Written::zeros("second", Stored::F32, &[2])]
}

fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let dir = tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    dir
}

fn fails(files: &[(&str, &[u8])], part: &str) {
    let dir = folder(files);
    let error = Checkpoint::open(dir.path()).expect_err("it is wrong").to_string();
    assert!(error.contains(part), "{error:?} does not say {part:?}");
    assert!(!error.contains('\n'), "{error:?} is not one line");
}

#[test]
fn names_lose_their_prefix_and_bytes_are_read() {
    let dir = folder(&[(WHOLE, &file(&sample()))]);
    let mut checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.tensors().keys().collect::<Vec<_>>(), ["first", "second"]);
    let first = &checkpoint.tensors()["first"];
    assert_eq!((first.shape(), first.dtype()), (Some((3, 2)), Ok(Dtype::BF16)));
    assert_eq!(checkpoint.read("first").unwrap(), (0..12).collect::<Vec<u8>>());
    assert_eq!(checkpoint.read("second").unwrap(), [0; 8]);
}

#[test]
fn shards_hold_what_the_index_says() {
    let [first, second] = sample().try_into().unwrap();
    let (one, two) = (file(&[first]), file(&[second]));
    let index = |first: &str, second: &str| {
        let map = format!("\"model.first\": {first:?}, \"second\": {second:?}");
        format!("{{\"metadata\": {{}}, \"weight_map\": {{{map}}}}}").into_bytes()
    };
    let (a, b) = ("a.safetensors", "b.safetensors");
    let right = folder(&[(INDEX, &index(a, b)), (a, &one), (b, &two)]);
    let mut checkpoint = Checkpoint::open(right.path()).unwrap();
    assert_eq!(checkpoint.read("first").unwrap().len(), 12);
    assert_eq!(checkpoint.read("second").unwrap().len(), 8);

    fails(&[(INDEX, &index(a, b)), (a, &one)], "No such file");
    fails(&[(INDEX, &index(a, a)), (a, &one), (b, &two)], "\"second\": not in \"a.safetensors\"");
    let both = file(&sample());
    fails(&[(INDEX, &index(a, b)), (a, &both), (b, &two)], "\"second\": not in the index");
    let outside = index("../a.safetensors", b);
    fails(&[(INDEX, &outside), (a, &one), (b, &two)], "no file name of this folder");
    fails(&[(INDEX, b"{}"), (a, &one)], "\"weight_map\": missing");
    fails(&[(INDEX, b"{"), (a, &one)], "not JSON");
}

#[test]
fn each_mistake_is_named() {
    fails(&[], "neither model.safetensors nor");
    fails(&[("pytorch_model.bin", b"")], "\"pytorch_model.bin\" is a pickle");
    fails(&[(WHOLE, b"")], "truncated");
    fails(&[(WHOLE, &u64::MAX.to_le_bytes())], "too many");
    fails(&[(WHOLE, &90_000_000_u64.to_le_bytes())], "truncated");
    let whole = file(&sample());
    fails(&[(WHOLE, &whole[..whole.len() - 1])], "but its header describes");
    fails(&[(WHOLE, &[&*whole, b"more"].concat())], "but its header describes");
    let mut twice = sample();
    twice[1].name = "first".to_owned();
    fails(&[(WHOLE, &file(&twice))], "comes twice");
    let header = br#"{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}"#;
    let huge = [&(header.len() as u64).to_le_bytes(), header.as_slice()].concat();
    fails(&[(WHOLE, &huge)], "header");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// A changed header is read or refused, and whatever it lists can be read.
    #[test]
    fn any_change_is_survived(
        changes in prop::collection::vec((0_usize..file(&sample()).len(), any::<u8>()), 1..6),
        cut in 0_usize..file(&sample()).len() * 2,
    ) {
        let mut bytes = file(&sample());
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes.truncate(cut);
        let dir = folder(&[(WHOLE, &bytes)]);
        if let Ok(mut checkpoint) = Checkpoint::open(dir.path()) {
            for name in checkpoint.tensors().keys().cloned().collect::<Vec<_>>() {
                prop_assert!(checkpoint.read(&name).is_ok());
            }
        }
    }
}
