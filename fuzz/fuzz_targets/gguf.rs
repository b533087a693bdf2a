//! A GGUF file: a model, its tokenizer and its template, or an error that says what is wrong.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static FILE: LazyLock<PathBuf> = LazyLock::new(|| fuzz::folder("gguf").join("model.gguf"));

fuzz_target!(|bytes: &[u8]| {
    fuzz::write(&FILE, bytes);
    match engine::model::load(&FILE) {
        Ok(loaded) => {
            let tokens = fuzz::check(&loaded.tokenizer, "Hello, wörld 12\n");
            let _text = loaded.tokenizer.decode(&tokens, true);
            for tensor in loaded.model.tensors.values() {
                let len = tensor.dtype.bytes(tensor.rows * tensor.cols);
                assert_eq!(len, Some(tensor.bytes.len()));
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "one line"),
    }
});
