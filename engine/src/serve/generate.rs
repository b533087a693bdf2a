//! From a request whose fields are judged to the texts that the loop writes for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Response;
use tokio::sync::mpsc;

use crate::batch::ids::TokenId;
use crate::batch::sampling::Sampling;
use crate::batch::step::{Finish, Refused};
use crate::clock;
use crate::runner::{EndReason, Job, NotTaken, Round};
use crate::serve::answer::{Body, Refusal};
use crate::serve::answers::Answers;
use crate::serve::choice::Choice;
use crate::serve::gate::Pass;
use crate::serve::grammar::Grammar;
use crate::serve::ready::Ready;
use crate::serve::record::Record;
use crate::serve::wishes::Wishes;
use crate::serve::writer::{Head, Shape, Writer};

/// A request whose fields are judged.
#[derive(Debug)]
pub struct Order {
    /// For each prompt its tokens, and how many characters stand before each of its answers.
    pub prompts: Vec<(Vec<TokenId>, usize)>,
    pub wishes: Wishes,
    /// What each text must match, and the field that says so.
    pub grammar: Option<(Grammar, &'static str)>,
    /// Tokens of an answer if the client did not say; `None` for as many as fit.
    pub new_max_default: Option<u32>,
    /// The field to name when the prompt is too long.
    pub prompt_param: &'static str,
}

/// Hands the texts to the loop, and answers once they are taken in.
pub async fn generate(
    ready: Arc<Ready>,
    order: Order,
    shape: Box<dyn Shape>,
    head: Head,
    mut record: Record,
    pass: Pass,
) -> Result<Response<Body>, Refusal> {
    let stream = order.wishes.stream;
    let own_max = order.wishes.time_max.unwrap_or(Duration::MAX);
    let n = order.wishes.n;
    let deadline = record.arrival + ready.options.request_max.min(own_max);
    let (texts, prompt_tokens) = match start(&ready, order, deadline, &head.id, &mut record).await {
        Ok(started) => started,
        Err(refusal) => {
            record.refuse(&refusal);
            return Err(refusal);
        }
    };
    let answers = Answers::new(texts, n, prompt_tokens, deadline, record);
    let writer = Writer { ready, shape, head };
    match stream {
        None => writer.whole(answers, pass).await,
        Some(options) => Ok(writer.stream(answers, options, pass)),
    }
}

type Texts = Vec<(Choice, mpsc::Receiver<Round>)>;

/// Gives the texts and the tokens of all prompts.
async fn start(
    ready: &Arc<Ready>,
    order: Order,
    deadline: Instant,
    answer_id: &str,
    record: &mut Record,
) -> Result<(Texts, u32), Refusal> {
    let Order { prompts, wishes, grammar, new_max_default, prompt_param } = order;
    let mut guides = ready.guides(grammar, prompts.len() * wishes.n as usize).await?;
    let reports = wishes.sampling.logprobs.is_some();
    let only_echoes = wishes.echo && wishes.new_max == Some(0);
    let base = wishes.seed.unwrap_or_else(|| ready.seeds.draw());
    let mut jobs = Vec::new();
    let mut choices = Vec::new();
    let mut lens = Vec::new();
    for (place, (prompt, before)) in (0..).zip(prompts) {
        let len = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        // The loop writes one token at least; of an echo alone nobody sees it.
        let wanted = if only_echoes { Some(1) } else { wishes.new_max };
        let wanted = wanted.map(|it| (it, wishes.new_max_param));
        let new_max = room(ready, len, wanted, new_max_default, prompt_param)?;
        lens.push((len, new_max));
        for n in 0..wishes.n {
            // A given seed gives each prompt the texts it would have had alone.
            let shift = if wishes.seed.is_some() { n } else { place * wishes.n + n };
            let seed = base.wrapping_add(shift.into());
            let skips = wishes.skip_special_tokens;
            let speech = &*ready.speech;
            let choice = Choice::new(speech, &wishes.stops, skips, reports, seed, before);
            choices.push(if only_echoes { choice.only_prompt() } else { choice });
            jobs.push(Job {
                prompt: prompt.clone(),
                new_max,
                sampling: Arc::new(Sampling { seed, ..wishes.sampling.clone() }),
                priority: wishes.priority,
                drafts_max: wishes.drafts_max,
                guide: guides.pop(),
                salt: wishes.salt,
                deadline,
            });
        }
    }
    // From here on the client may leave, which counts its texts.
    record.open = u32::try_from(jobs.len()).expect("bounded");
    let receivers = if only_echoes && wishes.sampling.prompt_logprobs.is_none() {
        jobs.iter().map(|_| ended_at_once()).collect()
    } else {
        let names = [Arc::clone(&record.name), answer_id.into()];
        let taken = ready.inbox.submit(names, jobs).await;
        taken.map_err(|it| {
            record.open = 0;
            refusal(it, prompt_param)
        })?
    };
    for (len, new_max) in &lens {
        ready.metrics.requests.tokens.prompt.observe((*len).into());
        ready.metrics.requests.tokens.new_max.observe((*new_max).into());
    }
    let prompt_tokens = lens.iter().map(|(len, _)| len).sum();
    let texts: Texts = choices.into_iter().zip(receivers).collect();
    record.accept(prompt_tokens, wishes.n);
    ready.metrics.requests.prompt_tokens.inc_by(prompt_tokens.into());
    Ok((texts, prompt_tokens))
}

/// The channel of a text that asks for no tokens.
fn ended_at_once() -> mpsc::Receiver<Round> {
    let (sender, receiver) = mpsc::channel(1);
    let end = EndReason::Loop(Finish::Length);
    let now = clock::now();
    sender.try_send(Round::ending(end, (now, now))).expect("it has room for one");
    receiver
}

/// Tokens that an answer may have beside its prompt; `wanted` comes with the name of its field.
fn room(
    ready: &Ready,
    prompt: u32,
    wanted: Option<(u32, &'static str)>,
    default: Option<u32>,
    param: &'static str,
) -> Result<u32, Refusal> {
    let max = ready.about.context_max;
    if max <= prompt {
        let message = format!(
            "the prompt has {prompt} tokens, and prompt and answer together may have {max}"
        );
        return Err(Refusal::TooLong { param, message });
    }
    let left = max - prompt;
    match wanted {
        Some((0, name)) => {
            Err(Refusal::field(name, "invalid_value", format!("{name} must be 1 or more")))
        }
        Some((wanted, name)) if left < wanted => {
            let message = format!(
                "the prompt has {prompt} tokens and {name} is {wanted}, and {max} is the most"
            );
            Err(Refusal::TooLong { param: name, message })
        }
        Some((wanted, _)) => Ok(wanted),
        None => Ok(default.unwrap_or(left).min(left)),
    }
}

fn refusal(not_taken: NotTaken, prompt_param: &'static str) -> Refusal {
    match not_taken {
        NotTaken::Full | NotTaken::Refused(Refused::QueueFull) => Refusal::Overloaded,
        NotTaken::TooMany { most } => {
            let message = format!("more texts are asked for at once than fit here: {most}");
            Refusal::field("n", "invalid_value", message)
        }
        NotTaken::Stopped => Refusal::Failed,
        NotTaken::Refused(Refused::TooLong { tokens_max }) => {
            let message = format!("prompt and answer together may have {tokens_max} tokens");
            Refusal::TooLong { param: prompt_param, message }
        }
        NotTaken::Refused(Refused::Empty) => {
            let message = format!("{prompt_param} is empty");
            Refusal::field(prompt_param, "invalid_value", message)
        }
        NotTaken::Refused(Refused::UnknownToken(token)) => {
            let message = format!("{prompt_param} has the token {}, which is unknown", token.0);
            Refusal::field(prompt_param, "invalid_value", message)
        }
    }
}
