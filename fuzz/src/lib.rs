//! What the targets share: files to load, and the language of a small model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, process};

use engine::batch::ids::TokenId;
use engine::model::load_dummy;
use engine::serve::language::Language;
use engine::text::template::ChatTemplate;
use engine::text::tokenizer::Tokenizer;

/// A template with the things that templates do: roles, tools, loops.
const TEMPLATE: &str = "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}\
    {% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\
    {% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}\
    <|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A folder of this process, for files that are read by their path.
pub fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("crossover-fuzz-{}-{name}", process::id()));
    fs::create_dir_all(&path).expect("a place for files");
    path
}

pub fn write(path: &Path, bytes: impl AsRef<[u8]>) {
    fs::write(path, bytes).expect("room for a file");
}

/// `config.json` of a model of two layers with `vocab` tokens.
pub fn config(vocab: usize) -> String {
    include_str!("../../tests/fixtures/models/llama/config.json")
        .replace("\"vocab_size\": 320", &format!("\"vocab_size\": {vocab}"))
}

/// A tokenizer of a few thousand byte pairs.
pub fn tokenizer() -> Tokenizer {
    let dir = folder("tokenizer");
    write(&dir.join("config.json"), config(49_152));
    let json = include_bytes!("../../tests/fixtures/smollm2-cut/tokenizer.json");
    write(&dir.join("tokenizer.json"), json);
    load_dummy(&dir).expect("the fixture is right").tokenizer
}

/// Bytes for tokens, and a template.
pub fn language() -> Language {
    let dir = folder("language");
    write(&dir.join("config.json"), config(320));
    let loaded = load_dummy(&dir).expect("the fixture is right");
    let sources = BTreeMap::from([("default".to_owned(), TEMPLATE.to_owned())]);
    let template = ChatTemplate::new(sources, BTreeMap::new()).expect("it compiles");
    let (tokenizer, stop_tokens) = (loaded.tokenizer, vec![TokenId(319)]);
    Language { tokenizer, template: Some(template), stop_tokens, vocab: 320 }
}

/// What a tokenizer must hold to, whatever it is: tokens exist, and pieces make the whole.
pub fn check(tokenizer: &Tokenizer, text: &str) -> Vec<TokenId> {
    let tokens = tokenizer.encode(text, true);
    for token in &tokens {
        assert!((token.0 as usize) < tokenizer.vocab(), "{token:?} of {text:?}");
    }
    tokens
}
