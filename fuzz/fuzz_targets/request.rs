//! The body of a request: judged, its prompt made, its grammar followed, or refused by name.
#![no_main]

use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use engine::batch::guide::Guide;
use engine::batch::ids::TokenId;
use engine::config::{Serve, UnknownFields};
use engine::metrics::{Fixed, Metrics};
use engine::runner::Inbox;
use engine::runner::observer::Seen;
use engine::serve::answer::Refusal;
use engine::serve::fields::Fields;
use engine::serve::generate::Order;
use engine::serve::ready::{About, Ready, Seeds};
use engine::serve::{chat, completions, tokens};
use libfuzzer_sys::fuzz_target;
use tokio::runtime::{Builder, Runtime};

static READY: LazyLock<Arc<Ready>> = LazyLock::new(|| Arc::new(ready()));
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_current_thread().enable_time().build().expect("a runtime without I/O")
});

fn ready() -> Ready {
    let about = About {
        names: vec!["m".to_owned()],
        mode: "baseline",
        context_max: 4096,
        scores_prompts: true,
        fingerprint: String::new(),
        created: 0,
        quantisation: String::new(),
        device: String::new(),
        config: String::new(),
    };
    let options = Serve {
        listen: "127.0.0.1:0".parse().expect("an address"),
        unknown_fields: UnknownFields::Reject,
        allowed_origins: Vec::new(),
        body_max: 1 << 20,
        connections_max: 1,
        head_max: Duration::from_secs(30),
        request_max: Duration::from_secs(1),
        drain_max: Duration::from_secs(1),
    };
    let metrics = Arc::new(Metrics::new(&Fixed {
        model: "m".to_owned(),
        mode: "baseline",
        context_max: 4096,
        page_tokens: 16,
        pages: 16,
        simulated_acceptance: false,
    }));
    Ready {
        about,
        options,
        speech: Arc::new(fuzz::language()),
        inbox: Inbox::new(1).0,
        metrics,
        seen: Arc::new(Seen::default()),
        seeds: Seeds::by_chance(),
        aside: Ready::places(),
        grammars: OnceLock::new(),
        form: OnceLock::new(),
    }
}

// The first byte chooses the path.
fuzz_target!(|bytes: &[u8]| {
    let Some((path, body)) = bytes.split_first() else { return };
    if let Err(refusal) = RUNTIME.block_on(read(*path, body)) {
        assert!(!matches!(refusal, Refusal::Failed), "only an engine that broke fails");
    }
});

async fn read(path: u8, body: &[u8]) -> Result<(), Refusal> {
    let ready = &*READY;
    let mut fields = Fields::parse(body)?;
    let order = match path {
        b'p' => completions::read(ready, &mut fields).await?.0,
        b't' => {
            let _found = tokens::tokenize(ready, &mut fields).await?;
            return ready.settle(fields).map(drop);
        }
        b'd' => {
            let _found = tokens::detokenize(ready, &mut fields).await?;
            return ready.settle(fields).map(drop);
        }
        _ => chat::read(ready, &mut fields).await?.0,
    };
    ready.settle(fields)?;
    let Order { prompts, grammar, .. } = order;
    for token in prompts.iter().flat_map(|it| &it.0) {
        assert!(token.0 < 320);
    }
    for guide in ready.guides(grammar, 1).await? {
        follow(guide);
    }
    Ok(())
}

/// Writes a few tokens that the grammar allows, and takes them back.
fn follow(mut guide: Box<dyn Guide>) {
    let mut masks = Vec::new();
    for _ in 0..8 {
        let mut mask = [0; 10];
        if guide.is_complete() || guide.allow(&mut mask).is_err() {
            break;
        }
        let first = (0..320).find(|it| mask[it / 32] & 1 << (it % 32) != 0);
        let first = first.expect("a mask allows something");
        if first == 319 {
            break;
        }
        masks.push(mask);
        let token = TokenId(u32::try_from(first).expect("below 320"));
        assert!(guide.advance(token), "what the mask allows is allowed");
    }
    let Some(start) = masks.first() else { return };
    guide.rewind(u32::try_from(masks.len()).expect("few"));
    let mut mask = [0; 10];
    assert!(guide.allow(&mut mask).is_ok(), "it stood here before");
    assert_eq!(mask, *start);
}
