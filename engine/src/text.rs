//! Text and tokens: chat templates, the tokenizer, and text that leaves piece by piece.

pub mod detokenizer;
pub mod stop;
pub mod template;
pub mod tokenizer;
