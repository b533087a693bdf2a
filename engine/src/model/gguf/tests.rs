use std::io::Cursor;

use proptest::prelude::*;

use super::*;

/// Writes small files, right or wrong.
#[derive(Clone, Default)]
pub(crate) struct Writer {
    pub(crate) values: Vec<(String, Value)>,
    pub(crate) tensors: Vec<Written>,
}

#[derive(Clone)]
pub(crate) struct Written {
    pub(crate) name: String,
    pub(crate) dims: Vec<usize>,
    pub(crate) kind: u32,
    pub(crate) bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn set(&mut self, key: &str, value: Value) {
        self.values.retain(|it| it.0 != key);
        self.values.push((key.to_owned(), value));
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) {
        self.set(key, Value::Text(value.to_owned()));
    }

    pub(crate) fn size(&mut self, key: &str, value: u64) {
        self.set(key, Value::Unsigned(value));
    }

    pub(crate) fn f32_tensor(&mut self, name: &str, dims: &[usize], values: &[f32]) {
        let bytes = values.iter().flat_map(|it| it.to_le_bytes()).collect();
        let (name, dims) = (name.to_owned(), dims.to_vec());
        self.tensors.push(Written { name, dims, kind: 0, bytes });
    }

    pub(crate) fn file(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3_u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.values.len() as u64).to_le_bytes());
        for (key, value) in &self.values {
            write_text(&mut out, key);
            out.extend(kind(value).to_le_bytes());
            write_value(&mut out, value);
        }
        let mut start = 0_u64;
        for tensor in &self.tensors {
            write_text(&mut out, &tensor.name);
            out.extend(u32::try_from(tensor.dims.len()).unwrap().to_le_bytes());
            tensor.dims.iter().for_each(|it| out.extend((*it as u64).to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            out.extend(start.to_le_bytes());
            start = (start + tensor.bytes.len() as u64).next_multiple_of(32);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(&tensor.bytes);
        }
        out
    }
}

fn write_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn kind(value: &Value) -> u32 {
    match value {
        Value::Unsigned(_) => 10,
        Value::Signed(_) => 11,
        Value::Float(_) => 12,
        Value::Bool(_) => 7,
        Value::Text(_) => 8,
        Value::Array(_) => 9,
    }
}

fn write_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Unsigned(it) => out.extend(it.to_le_bytes()),
        Value::Signed(it) => out.extend(it.to_le_bytes()),
        Value::Float(it) => out.extend(it.to_le_bytes()),
        Value::Bool(it) => out.push(u8::from(*it)),
        Value::Text(it) => write_text(out, it),
        Value::Array(items) => {
            out.extend(items.first().map_or(4, kind).to_le_bytes());
            out.extend((items.len() as u64).to_le_bytes());
            items.iter().for_each(|it| write_value(out, it));
        }
    }
}

fn sample() -> Writer {
    let mut writer = Writer::default();
    writer.text("general.architecture", "llama");
    writer.size("a.count", 7);
    writer.set("a.level", Value::Signed(-3));
    writer.set("a.ratio", Value::Float(0.5));
    writer.set("a.is", Value::Bool(true));
    writer.set("a.list", Value::Array(vec![Value::Unsigned(4), Value::Unsigned(4)]));
    writer.set("a.texts", Value::Array(vec![Value::Text("x".into()), Value::Text("yz".into())]));
    writer.f32_tensor("first", &[3, 2], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let bytes = (0..36).collect();
    writer.tensors.push(Written { name: "second".into(), dims: vec![32, 2], kind: 2, bytes });
    writer
}

fn open(file: &[u8]) -> Result<Gguf<Cursor<&[u8]>>, Fault> {
    Gguf::open(Cursor::new(file), file.len() as u64)
}

fn fails(file: &[u8], part: &str) {
    let error = open(file).expect_err("the file is wrong").at("x.gguf".as_ref()).to_string();
    assert!(error.contains(part), "{error:?} does not say {part:?}");
    assert!(!error.contains('\n'), "{error:?} is not one line");
}

#[test]
fn what_was_written_is_read() {
    let file = sample().file();
    let mut gguf = open(&file).unwrap();
    assert_eq!(gguf.text("general.architecture"), Ok(Some("llama")));
    assert_eq!(gguf.size("a.count"), Ok(Some(7)));
    assert_eq!(gguf.float("a.ratio"), Ok(Some(0.5)));
    assert_eq!(gguf.size_everywhere("a.list"), Ok(Some(4)));
    assert_eq!(gguf.size("absent"), Ok(None));
    assert!(gguf.size("a.level").is_err(), "a negative count");
    assert!(gguf.text("a.count").is_err(), "a count is no text");
    let first = gguf.tensors()["first"].clone();
    assert_eq!((first.dtype, first.shape()), (Dtype::F32, Some((2, 3))));
    let values: Vec<u8> = (0_u8..6).flat_map(|it| f32::from(it).to_le_bytes()).collect();
    assert_eq!(gguf.read("first"), Ok(values));
    assert_eq!(gguf.read("second"), Ok((0..36).collect()));
}

#[test]
fn each_mistake_is_named() {
    fails(b"", "ends too early");
    fails(b"GGML\x03\0\0\0", "not a GGUF file");
    fails(b"GGUF\x01\0\0\0", "version 1");
    fails(b"GGUF\0\0\0\x03", "big-endian");
    fails(&[b"GGUF\x03\0\0\0".as_slice(), &[255; 16]].concat(), "too many");

    let mut twice = sample();
    twice.values.push(("a.is".into(), Value::Bool(false)));
    fails(&twice.file(), "\"a.is\" comes twice");

    let mut twice = sample();
    twice.tensors.push(twice.tensors[0].clone());
    fails(&twice.file(), "\"first\" comes twice");

    let mut unknown = sample();
    unknown.tensors[1].kind = 10;
    fails(&unknown.file(), "\"second\": byte 346: stored as Q2_K");
    unknown.tensors[1].kind = 77;
    fails(&unknown.file(), "ggml type 77");

    let mut ragged = sample();
    ragged.tensors[1].dims = vec![16, 4];
    fails(&ragged.file(), "cannot be stored as Q4_0");
    ragged.tensors[1].dims = vec![1 << 40, 1 << 40];
    fails(&ragged.file(), "cannot be stored as Q4_0");
    ragged.tensors[1].dims = vec![32, 0];
    fails(&ragged.file(), "cannot be stored as Q4_0");
    ragged.tensors[1].dims = vec![];
    fails(&ragged.file(), "0 dimensions");

    let mut overlapping = sample();
    overlapping.tensors[0].dims = vec![3, 5];
    fails(&overlapping.file(), "\"first\": its data overlaps that of \"second\"");

    let mut nested = sample();
    let inner = Value::Array(vec![Value::Unsigned(1)]);
    nested.values.push(("n".into(), Value::Array(vec![inner])));
    fails(&nested.file(), "array of arrays");

    let file = sample().file();
    fails(&file[..file.len() - 1], "\"second\": its data ends at byte");
}

/// Lengths that would fill the memory if they were believed.
#[test]
fn a_huge_length_allocates_nothing() {
    let start = |rest: &[u8]| {
        let counts = [0_u64, 1].map(u64::to_le_bytes).concat();
        [b"GGUF\x03\0\0\0".as_slice(), &counts, rest].concat()
    };
    fails(&start(&u64::MAX.to_le_bytes()), "passes the file's end");
    let key = [&1_u64.to_le_bytes(), b"k".as_slice()].concat();
    let text = [key.as_slice(), &8_u32.to_le_bytes(), &(1_u64 << 60).to_le_bytes()].concat();
    fails(&start(&text), "passes the file's end");
    for item in [0_u32, 8, 12] {
        let kinds = [9_u32.to_le_bytes(), item.to_le_bytes()].concat();
        let array = [key.as_slice(), &kinds, &(1_u64 << 50).to_le_bytes()].concat();
        fails(&start(&array), "items pass the file's end");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_cut_is_an_error(cut in 0_usize..sample().file().len()) {
        let file = sample().file();
        prop_assert!(open(&file[..cut]).is_err());
    }

    /// A changed file is read or refused, and whatever it lists can be read.
    #[test]
    fn any_change_is_survived(
        changes in prop::collection::vec((0_usize..sample().file().len(), any::<u8>()), 1..6),
    ) {
        let mut file = sample().file();
        for (at, byte) in changes {
            file[at] = byte;
        }
        if let Ok(mut gguf) = open(&file) {
            for name in gguf.tensors().keys().cloned().collect::<Vec<_>>() {
                prop_assert!(gguf.read(&name).is_ok());
            }
        }
    }

    #[test]
    fn any_tail_is_survived(tail in prop::collection::vec(any::<u8>(), 0..200)) {
        let file = [b"GGUF\x03\0\0\0".as_slice(), &tail].concat();
        let _outcome = open(&file);
    }
}
