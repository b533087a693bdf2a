use super::*;
use crate::serve::speech::Conversation;

/// Tokens are bytes; 0 ends a text and is special.
#[derive(Debug)]
pub(crate) struct Bytes;

#[derive(Debug, Default)]
struct ByteSpeller(Vec<u8>);

impl Speech for Bytes {
    fn vocab(&self) -> u32 {
        256
    }

    fn stop_tokens(&self) -> &[TokenId] {
        &[TokenId(0)]
    }

    fn encode(&self, text: &str, _: bool) -> Vec<TokenId> {
        text.bytes().map(|it| TokenId(it.into())).collect()
    }

    fn decode(&self, _: &[TokenId], _: bool) -> String {
        String::new()
    }

    fn bytes(&self, token: TokenId) -> Vec<u8> {
        vec![u8::try_from(token.0).unwrap()]
    }

    fn is_special(&self, token: TokenId) -> bool {
        token == TokenId(0)
    }

    fn speller(&self, _: bool) -> Box<dyn Speller> {
        Box::<ByteSpeller>::default()
    }

    fn render(&self, _: &Conversation) -> Result<String, String> {
        Ok(String::new())
    }
}

impl Speller for ByteSpeller {
    fn push(&mut self, token: TokenId) -> String {
        if token != TokenId(0) {
            self.0.push(u8::try_from(token.0).unwrap());
        }
        let whole = std::str::from_utf8(&self.0).map(str::to_owned).unwrap_or_default();
        if !whole.is_empty() {
            self.0.clear();
        }
        whole
    }

    fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.0)).into_owned()
    }
}

fn round(text: &[u8], guessed: u32, reason: Option<Finish>) -> Round {
    Round {
        prompt: Vec::new(),
        tokens: text.iter().map(|it| TokenId((*it).into())).collect(),
        logprobs: text.iter().map(|_| TokenLogprobs { chosen: -1.0, top: vec![] }).collect(),
        guessed,
        kept: guessed.min(u32::try_from(text.len()).unwrap().saturating_sub(1)),
        cached: 5,
        end: reason.map(EndReason::Loop),
        started: crate::clock::now(),
        at: crate::clock::now(),
    }
}

fn choice(stops: Stops) -> Choice {
    Choice::new(&Bytes, &Arc::new(stops), true, true, 0, 0)
}

/// Runs `rounds` and gives the text, the ending and the cost.
fn check(stops: Stops, rounds: Vec<Round>) -> (String, Option<Ending>, Cost) {
    let mut choice = choice(stops);
    let mut text = String::new();
    for round in rounds {
        let delta = choice.take(round);
        text += &delta.text;
        if delta.finish.is_some() {
            return (text, delta.finish, choice.cost);
        }
    }
    (text, None, choice.cost)
}

fn stop_at(string: &str) -> Stops {
    Stops { strings: vec![string.to_owned()], ..Stops::default() }
}

#[test]
fn the_stop_token_costs_but_does_not_show() {
    let rounds = vec![round(b"ab", 1, None), round(b"c\0", 1, Some(Finish::Stop(TokenId(0))))];
    let (text, ending, cost) = check(Stops::default(), rounds);
    assert_eq!((text.as_str(), ending), ("abc", Some(Ending::Stop)));
    assert_eq!(cost, Cost { tokens: 4, accepted: 2, rejected: 0, cached: 5 });
}

#[test]
fn a_stop_token_that_is_text_shows_if_asked_for() {
    let rounds = || vec![round(b"ab", 0, Some(Finish::Stop(TokenId(b'b'.into()))))];
    assert_eq!(check(Stops::default(), rounds()).0, "a");
    let include = Stops { include: true, ..Stops::default() };
    assert_eq!(check(include, rounds()).0, "ab");
}

#[test]
fn a_stop_string_ends_the_text_in_the_middle_of_a_round() {
    let rounds = vec![round(b"xe", 3, None), round(b"ndyz", 3, Some(Finish::Length))];
    let (text, ending, cost) = check(stop_at("end"), rounds);
    assert_eq!((text.as_str(), ending), ("x", Some(Ending::Stop)));
    // What came after the stop counts for nothing: not as tokens, not as guesses that stood.
    assert_eq!((cost.tokens, cost.accepted, cost.rejected, cost.cached), (4, 3, 3, 5));
}

#[test]
fn what_was_held_back_comes_at_the_end() {
    let rounds = vec![round(b"xen", 0, Some(Finish::Length))];
    let (text, ending, _) = check(stop_at("end"), rounds);
    assert_eq!((text.as_str(), ending), ("xen", Some(Ending::Length)));
    let (text, ..) = check(Stops::default(), vec![round(b"a\xc3", 0, Some(Finish::Length))]);
    assert_eq!(text, "a\u{fffd}");
}

#[test]
fn no_string_stops_a_text_that_is_too_short() {
    let stops = Stops { tokens_min: 4, ..stop_at("a") };
    let (text, ending, cost) = check(stops, vec![round(b"aaaaaa", 0, None)]);
    assert_eq!((text.as_str(), ending, cost.tokens), ("aaa", Some(Ending::Stop), 4));
}

#[test]
fn offsets_count_characters_of_the_text() {
    let mut choice = choice(Stops::default());
    let delta = choice.take(round("aéb".as_bytes(), 0, None));
    let offsets: Vec<usize> = delta.logprobs.iter().map(|it| it.offset).collect();
    assert_eq!(offsets, [0, 1, 1, 2]);
}
