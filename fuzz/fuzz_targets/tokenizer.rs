//! Text to tokens and back, tokens in any order, and `tokenizer.json` files of any kind.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use engine::batch::ids::TokenId;
use engine::model::load_dummy;
use engine::text::detokenizer::Detokenizer;
use engine::text::stop::StopStrings;
use engine::text::tokenizer::Tokenizer;
use libfuzzer_sys::fuzz_target;

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(fuzz::tokenizer);
/// The other one is a part of a real one and does not know every byte.
static BYTES: LazyLock<Tokenizer> = LazyLock::new(|| fuzz::language().tokenizer);
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = fuzz::folder("json");
    fuzz::write(&folder.join("config.json"), fuzz::config(320));
    folder
});

// The first byte says what the others are: a file (`{`), tokens (`#`), or a text.
fuzz_target!(|bytes: &[u8]| match bytes {
    [b'{', ..] => file(bytes),
    [b'#', tokens @ ..] => {
        let pairs = tokens.chunks_exact(2).map(|it| u16::from_le_bytes([it[0], it[1]]));
        let tokens: Vec<_> = pairs.map(|it| TokenId(it.into())).collect();
        pieces(&TOKENIZER, &tokens);
    }
    _ => text(&String::from_utf8_lossy(bytes)),
});

fn file(bytes: &[u8]) {
    fuzz::write(&FOLDER.join("tokenizer.json"), bytes);
    let Ok(loaded) = load_dummy(&FOLDER) else { return };
    let tokens = fuzz::check(&loaded.tokenizer, " Hello,  wörld 12\n\u{2581}<|im_end|>");
    pieces(&loaded.tokenizer, &tokens);
}

fn text(text: &str) {
    assert_eq!(BYTES.decode(&fuzz::check(&BYTES, text), false), text);
    pieces(&TOKENIZER, &fuzz::check(&TOKENIZER, text));
    stops(text);
}

/// Piece by piece is the whole.
fn pieces(tokenizer: &Tokenizer, tokens: &[TokenId]) {
    for skip in [false, true] {
        let mut speller = Detokenizer::new(tokenizer.clone(), skip);
        let mut text: String = tokens.iter().map(|it| speller.push(*it)).collect();
        text += &speller.finish();
        assert_eq!(text, tokenizer.decode(tokens, skip));
    }
}

/// A text ends at the same place however it comes. Its own first words are what stops it.
fn stops(text: &str) {
    let mut words = text.split_inclusive(' ').map(str::to_owned);
    let wanted: Vec<_> = words.by_ref().take(2).collect();
    let rest: String = words.collect();
    let cut = |pieces: &[String]| {
        let mut stop = StopStrings::new(&wanted, false);
        let mut out = String::new();
        let mut stopped = None;
        for piece in pieces {
            let released = stop.push(piece);
            out += &released.text;
            stopped = released.stopped;
        }
        out += &stop.finish();
        (out, stopped)
    };
    let single: Vec<_> = rest.chars().map(String::from).collect();
    assert_eq!(cut(std::slice::from_ref(&rest)), cut(&single));
}
