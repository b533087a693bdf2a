//! The bytes that each token stands for, worked out once.

use serde_json::Value;

use super::spec;
use crate::batch::ids::TokenId;
use crate::model::error::Fault;

/// Bytes and kind of every token.
#[derive(Debug)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// Where the bytes of each token end; they begin where those of the one before end.
    ends: Vec<usize>,
    special: Vec<bool>,
    invents_space: bool,
}

/// How a vocabulary writes bytes as text.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Spelling {
    /// Each byte has a printable character of its own (GPT-2).
    Bytes,
    /// A space is `▁`, and `<0x0A>` is a byte (SentencePiece).
    Spaces { byte_tokens: bool },
}

const SPACE: char = '\u{2581}';

impl Pieces {
    pub(super) fn new(json: &Value, vocab: usize) -> Result<Self, Fault> {
        let (spelling, invents_space) = spelling(&json["decoder"])?;
        let mut texts: Vec<Option<Vec<u8>>> = vec![None; vocab];
        let mut special = vec![false; vocab];
        for (text, id) in spec::vocabulary(&json["model"])? {
            texts[id as usize] = Some(spelling.bytes(text));
        }
        for added in spec::added_tokens(json)? {
            texts[added.id as usize] = Some(added.content.into_bytes());
            special[added.id as usize] = added.special;
        }
        let len = texts.iter().rposition(Option::is_some).map_or(0, |it| it + 1);
        special.truncate(len);
        let mut bytes = Vec::new();
        let mut ends = Vec::new();
        for text in &texts[..len] {
            bytes.extend(text.iter().flatten());
            ends.push(bytes.len());
        }
        Ok(Self { bytes, ends, special, invents_space })
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn bytes(&self, token: TokenId) -> &[u8] {
        let at = token.0 as usize;
        let Some(end) = self.ends.get(at) else { return &[] };
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.bytes[start..*end]
    }

    pub(super) fn is_special(&self, token: TokenId) -> bool {
        self.special.get(token.0 as usize).copied().unwrap_or(false)
    }

    pub(super) fn invents_space(&self) -> bool {
        self.invents_space
    }
}

impl Spelling {
    fn bytes(self, text: &str) -> Vec<u8> {
        match self {
            Self::Bytes => {
                let bytes: Option<Vec<_>> = text.chars().map(byte_of).collect();
                bytes.unwrap_or_else(|| text.as_bytes().to_vec())
            }
            Self::Spaces { byte_tokens } => match byte_token(text).filter(|_| byte_tokens) {
                Some(byte) => vec![byte],
                None => text.replace(SPACE, " ").into_bytes(),
            },
        }
    }
}

/// How tokens are spelled, and whether a text has a first space that is not its own.
fn spelling(decoder: &Value) -> Result<(Spelling, bool), Fault> {
    let mut steps = vec![decoder];
    if decoder["type"] == "Sequence" {
        steps = decoder["decoders"].as_array().into_iter().flatten().collect();
    }
    let mut spelling = None;
    let mut byte_tokens = false;
    let mut fused = false;
    let mut invents_space = false;
    for step in steps {
        match step["type"].as_str().unwrap_or_default() {
            "ByteLevel" => spelling = Some(Spelling::Bytes),
            "Metaspace" if step["replacement"].as_str().is_none_or(|it| it == "\u{2581}") => {
                spelling = Some(Spelling::Spaces { byte_tokens: false });
                let never = step["prepend_scheme"] == "never" || step["add_prefix_space"] == false;
                invents_space |= !never;
            }
            "Replace" if step["pattern"]["String"] == "\u{2581}" && step["content"] == " " => {
                spelling = Some(Spelling::Spaces { byte_tokens: false });
            }
            "ByteFallback" => byte_tokens = true,
            "Fuse" => fused = true,
            // Before that it would take a space off every token.
            "Strip" if fused && step["content"] == " " && step["stop"] == 0 => {
                invents_space |= step["start"] == 1;
            }
            other => {
                let reason = format_args!("{other:?} as {step} is not supported");
                return Err(Fault::new("decoder", reason));
            }
        }
    }
    match spelling {
        Some(Spelling::Bytes) => Ok((Spelling::Bytes, false)),
        Some(Spelling::Spaces { .. }) => Ok((Spelling::Spaces { byte_tokens }, invents_space)),
        None => Err(Fault::new("decoder", "says nothing about spaces")),
    }
}

/// The byte that GPT-2 writes as `character`: printable ones as themselves, the others from
/// U+0100 on in their order.
pub(super) fn byte_of(character: char) -> Option<u8> {
    let printable = |it: u8| matches!(it, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let code = u32::from(character);
    match u8::try_from(code) {
        Ok(byte) => printable(byte).then_some(byte),
        Err(_) => {
            let nth = usize::try_from(code - 0x100).ok()?;
            (0..=u8::MAX).filter(|it| !printable(*it)).nth(nth)
        }
    }
}

/// The byte of a token such as `<0x0A>`.
fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let hexadecimal = digits.len() == 2 && digits.bytes().all(|it| it.is_ascii_hexdigit());
    if hexadecimal { u8::from_str_radix(digits, 16).ok() } else { None }
}
