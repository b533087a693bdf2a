//! What requests share once the model is loaded.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::batch::guide::Guide;
use crate::batch::ids::TokenId;
use crate::config::{Serve, UnknownFields};
use crate::metrics::Metrics;
use crate::runner::Inbox;
use crate::runner::observer::Seen;
use crate::serve::answer::Refusal;
use crate::serve::aside::Aside;
use crate::serve::fields::Fields;
use crate::serve::grammar::{Grammar, Grammars};
use crate::serve::speech::{Conversation, Speech};
use crate::serve::tools::Form;
use crate::serve::wishes::Bounds;

/// Time for the template to show a conversation, for a prompt to be encoded, for a grammar.
const ASIDE_MAX: Duration = Duration::from_secs(30);
/// A prompt longer than this is encoded where it does not hold up other requests.
const INLINE_BYTES_MAX: usize = 4096;

/// The model as clients see it.
#[derive(Clone, Debug)]
pub struct About {
    /// At least one; the first is shown.
    pub names: Vec<String>,
    pub mode: &'static str,
    /// Prompt and answer together.
    pub context_max: u32,
    /// Whether the backend tells how likely the tokens of a prompt are.
    pub scores_prompts: bool,
    /// Equal for engines whose texts are equal.
    pub fingerprint: String,
    /// Seconds since 1970.
    pub created: u64,
    /// How most weights are stored, as calibration files name it: `q4_1`.
    pub quantisation: String,
    /// What it runs on, as the flag names it: `cpu:0-3`.
    pub device: String,
    /// The configuration as it is in force, for `/server_info`.
    pub config: String,
}

#[derive(Debug)]
pub struct Ready {
    pub about: About,
    pub options: Serve,
    pub speech: Arc<dyn Speech>,
    pub inbox: Inbox,
    pub metrics: Arc<Metrics>,
    pub seen: Arc<Seen>,
    pub seeds: Seeds,
    pub aside: Aside,
    /// Made when the first request needs them.
    pub grammars: OnceLock<Result<Grammars, String>>,
    pub form: OnceLock<Option<Form>>,
}

impl Ready {
    /// Half the cores, and at least two, for work whose size clients decide.
    pub fn places() -> Aside {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Aside::new((cores / 2).max(2), ASIDE_MAX)
    }

    pub fn bounds(&self) -> Bounds<'_> {
        Bounds {
            vocab: self.speech.vocab(),
            context_max: self.about.context_max,
            stop_tokens: self.speech.stop_tokens(),
        }
    }

    /// Takes the `model` field; a request without one means the one model that is here.
    pub fn check_model(&self, fields: &mut Fields) -> Result<(), Refusal> {
        match fields.string("model")? {
            Some(model) if !self.about.names.contains(&model) => {
                Err(Refusal::UnknownModel { model })
            }
            _ => Ok(()),
        }
    }

    /// Judges the fields that nobody took; gives their names if they are to be ignored.
    pub fn settle(&self, fields: Fields) -> Result<Vec<String>, Refusal> {
        let left = fields.left();
        match (self.options.unknown_fields, left.first()) {
            (UnknownFields::Reject, Some(name)) => {
                Err(Refusal::field(name, "unknown_parameter", format!("{name} is not known")))
            }
            _ => Ok(left),
        }
    }

    /// The tokens of `text`.
    pub async fn encode(&self, text: String, adds_special: bool) -> Result<Vec<TokenId>, Refusal> {
        if text.len() <= INLINE_BYTES_MAX {
            return Ok(self.speech.encode(&text, adds_special));
        }
        let speech = Arc::clone(&self.speech);
        self.aside.run("prompt", move || speech.encode(&text, adds_special)).await
    }

    /// The tokens of the prompt for a conversation.
    pub async fn encode_chat(
        &self,
        conversation: Conversation,
        adds_special: bool,
    ) -> Result<Vec<TokenId>, Refusal> {
        let speech = Arc::clone(&self.speech);
        // A template is a program, and may take its time.
        let encode = move || Ok(speech.encode(&speech.render(&conversation)?, adds_special));
        let encoded: Result<_, String> = self.aside.run("messages", encode).await?;
        encoded.map_err(|message| Refusal::field("messages", "invalid_value", message))
    }

    /// `count` guides for the grammar, which stands in the field that is named; none without one.
    pub async fn guides(
        self: &Arc<Self>,
        grammar: Option<(Grammar, &'static str)>,
        count: usize,
    ) -> Result<Vec<Box<dyn Guide>>, Refusal> {
        let Some((grammar, param)) = grammar else { return Ok(Vec::new()) };
        let ready = Arc::clone(self);
        let make = move || {
            let grammars = ready.grammars.get_or_init(|| Grammars::new(&*ready.speech));
            grammars.as_ref().map_err(Clone::clone)?.guides(&grammar, count)
        };
        let made: Result<_, String> = self.aside.run(param, make).await?;
        made.map_err(|detail| {
            Refusal::field(param, "invalid_value", format!("{param} cannot be followed: {detail}"))
        })
    }

    /// How the model writes calls; `None` if it is never told of tools.
    pub async fn form(self: &Arc<Self>) -> Result<Option<Form>, Refusal> {
        let ready = Arc::clone(self);
        let find = move || *ready.form.get_or_init(|| Form::of(&*ready.speech));
        self.aside.run("tools", find).await
    }

    /// `/v1/models`' entry.
    pub fn card(&self, name: &str) -> Value {
        json!({
            "id": name,
            "object": "model",
            "created": self.about.created,
            "owned_by": "crossover",
            "root": self.about.names[0],
            "parent": null,
            "max_model_len": self.about.context_max,
        })
    }
}

/// Seeds for requests that bring none: below 2^53, so that any client can send one back.
#[derive(Debug)]
pub struct Seeds {
    base: u64,
    drawn: AtomicU64,
}

impl Seeds {
    /// Each process draws others.
    pub fn by_chance() -> Self {
        Self { base: RandomState::new().build_hasher().finish(), drawn: AtomicU64::new(0) }
    }

    pub fn draw(&self) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        hasher.write_u64(self.base);
        hasher.write_u64(self.drawn.fetch_add(1, Ordering::Relaxed));
        hasher.finish() >> 11
    }
}
