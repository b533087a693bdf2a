//! A safetensors file beside a right `config.json`, or an index of shards: read, or refused.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = fuzz::folder("safetensors");
    fuzz::write(&folder.join("config.json"), fuzz::config(320));
    folder
});

// The first byte says what the others are: an index (`{`), or a file, whose length is a number.
fuzz_target!(|bytes: &[u8]| {
    let index = FOLDER.join("model.safetensors.index.json");
    if bytes.first() == Some(&b'{') {
        fuzz::write(&index, bytes);
    } else {
        let _absent = fs::remove_file(&index);
        fuzz::write(&FOLDER.join("model.safetensors"), bytes);
    }
    match engine::model::load_model(&FOLDER) {
        Ok(model) => {
            for tensor in model.tensors.values() {
                let len = tensor.dtype.bytes(tensor.rows * tensor.cols);
                assert_eq!(len, Some(tensor.bytes.len()));
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "one line"),
    }
});
