use proptest::prelude::*;
use serde_json::json;

use super::*;

const CHATML: &str = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + \
    message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}\
    {{ '<|im_start|>assistant\n' }}{% endif %}";

fn template(source: &str) -> ChatTemplate {
    let sources = BTreeMap::from([("default".to_owned(), source.to_owned())]);
    let specials = BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned())]);
    ChatTemplate::new(sources, specials).unwrap()
}

fn chat(messages: &Json) -> Chat<'_> {
    Chat {
        messages,
        tools: None,
        add_generation_prompt: false,
        continue_final: false,
        kwargs: None,
    }
}

/// What `source` makes of `messages`.
fn rendered(source: &str, messages: Json) -> Result<String, TemplateError> {
    template(source).render(&chat(&messages), 0)
}

fn check(source: &str, messages: Json, expected: &str) {
    assert_eq!(rendered(source, messages).as_deref(), Ok(expected), "{source}");
}

fn user(words: &str) -> Json {
    json!([{ "role": "user", "content": words }])
}

#[test]
fn a_conversation_becomes_a_prompt() {
    let messages = user("Hi <b> & \"you\"");
    let asked = Chat { add_generation_prompt: true, ..chat(&messages) };
    let prompt = template(CHATML).render(&asked, 0).unwrap();
    let expected = "<|im_start|>user\nHi <b> & \"you\"<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(prompt, expected, "and nothing is escaped");
    check("{{ bos_token }}{{ eos_token }}", json!([]), "<s>");
}

#[test]
fn templates_find_what_hugging_face_gives_them() {
    check(
        "{% for m in messages %}\n  {% if true %}\n{{ m }}\n{% endif %}{% endfor %}",
        json!([1]),
        "1\n",
    );
    check(
        "{{ tools is none }} {{ documents is none }} {{ tools is defined }}",
        json!([]),
        "True True True",
    );
    check(
        "{% for m in messages %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}",
        json!([1, 2]),
        "1",
    );
    check("{{ messages[0].content.strip().split(' ')[-1].upper() }}", user(" a b "), "B");
    check("{{ messages[0].content.startswith('a') }}{{ 'x'.title() }}", user("ab"), "TrueX");
    check(
        "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}",
        user("x"),
        "role=user;content=x;",
    );
    check(
        "{% set ns = namespace(n=0) %}\
         {% for m in messages %}{% set ns.n = ns.n + m %}\
         {% endfor %}{{ ns.n }}",
        json!([1, 2]),
        "3",
    );
    check("{{ messages[::-1][0] }}{{ messages[1:] | length }}", json!([1, 2, 3]), "32");
    check(
        "{%- generation -%} a {% endgeneration %}{% generation %}b{%- endgeneration -%}",
        json!([]),
        "a b",
    );
    check("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(1) }}", json!([]), "[1]");
    check("{{ strftime_now('%d %b %Y') }}", json!([]), "01 Jan 1970");
    let day = template("{{ strftime_now('%Y-%m-%d %H:%M') }}");
    assert_eq!(day.render(&chat(&json!([])), 1_800_000_000).unwrap(), "2027-01-15 08:00");
}

#[test]
fn developers_are_heard_by_templates_that_know_systems_only() {
    let messages = json!([
        { "role": "developer", "content": "a" },
        { "role": "user", "content": "b" },
        { "role": "developer", "content": "c" },
    ]);
    let knows = |role: &str| {
        format!(
            "{{% for m in messages %}}{{% if m.role == '{role}' %}}{{{{ m.role ~ m.content }}}}\
             {{% endif %}}{{% endfor %}}"
        )
    };
    check(&knows("system"), messages.clone(), "systemasystemc");
    check(&knows("developer"), messages, "developeradeveloperc");
}

/// Expected texts are those of Jinja2, in Python.
#[test]
fn values_are_what_they_are_in_python() {
    let with_tools = "{% if tools is iterable and tools | length > 0 %}tools{% endif %}-";
    check(with_tools, json!([]), "-");
    let kinds = |test: &str| {
        let source = format!("{{% for v in messages %}}{{{{ v is {test} }}}} {{% endfor %}}");
        check(&source, json!([null, true, 1, 1.5, "a", "", [], {}]), {
            "False False False False True True True True "
        });
    };
    kinds("iterable");
    kinds("sequence");
    check("{{ nope is iterable }}{{ nope is sequence }}", json!([]), "TrueTrue");
    let floats = json!([1e-7, 1e16, 1.5, 100.0, -0.0]);
    let each = |shown: &str| format!("{{% for v in messages %}}{{{{ {shown} }}}} {{% endfor %}}");
    check(&each("v"), floats.clone(), "1e-07 1e+16 1.5 100.0 -0.0 ");
    check(&each("v | string + ''"), floats, "1e-07 1e+16 1.5 100.0 -0.0 ");
    check("{{ (messages | string)[:8] }}{{ 'é' | string }}", user("x"), "[{'role'é");
}

/// Expected texts are those of Python's json.dumps.
#[test]
fn json_looks_as_python_writes_it() {
    let value = json!([{ "b": [1, 2.0, true, null], "a": "é\n\"<'\u{1F600}", "c": {}, "d": [] }]);
    let check = |call: &str, expected: &str| check(call, value.clone(), expected);
    let plain = r#"{"b": [1, 2.0, true, null], "a": "é\n\"<'😀", "c": {}, "d": []}"#;
    check("{{ messages[0] | tojson }}", plain);
    check(
        "{{ messages[0] | tojson(separators=(',', ':')) }}",
        &plain.replace(", ", ",").replace(": ", ":"),
    );
    let ascii = r#"{"b": [1, 2.0, true, null], "a": "\u00e9\n\"<'\ud83d\ude00", "c": {}, "d": []}"#;
    check("{{ messages[0] | tojson(ensure_ascii=true) }}", ascii);
    let lines = "{\n  \"b\": [\n    1,\n    2.0,\n    true,\n    null\n  ],\
        \n  \"a\": \"é\\n\\\"<'😀\",\n  \"c\": {},\n  \"d\": []\n}";
    check("{{ messages[0] | tojson(indent=2) }}", lines);
    check("{{ messages[0] | tojson(2) }}", lines);
    check("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}", r#"{"a": 2, "b": 1}"#);
    check("{{ '\x7f' | tojson }}{{ '\x7f' | tojson(ensure_ascii=true) }}", "\"\x7f\"\"\\u007f\"");
    let floats = json!([1e-7, 1e16, -1.5e300, 1e15, 0.0001, 0.1, 100.0, -0.0]);
    let shown = "[1e-07, 1e+16, -1.5e+300, 1000000000000000.0, 0.0001, 0.1, 100.0, -0.0]";
    self::check("{{ messages | tojson }}", floats, shown);
}

#[test]
fn a_template_may_refuse() {
    let source = "{{ raise_exception('Roles must alternate') }}";
    let refused = TemplateError::Refused("Roles must alternate".to_owned());
    assert_eq!(rendered(source, json!([])), Err(refused));
    let nested = "{% macro f() %}{{ raise_exception('no') }}{% endmacro %}{{ f() }}";
    assert_eq!(rendered(nested, json!([])), Err(TemplateError::Refused("no".to_owned())));
    let failed = rendered(CHATML, json!([{ "role": "user" }])).unwrap_err();
    assert!(matches!(failed, TemplateError::Failed(_)), "{failed}");
    let missing = ChatTemplate::new(BTreeMap::new(), BTreeMap::new());
    assert!(missing.is_err());
    let broken = BTreeMap::from([("default".to_owned(), "{% for %}".to_owned())]);
    assert!(ChatTemplate::new(broken, BTreeMap::new()).is_err());
}

/// A template that looks at a conversation before it does what `source` does, so that it can be
/// made at all: a trial has no system message.
fn spared(source: &str) -> String {
    format!("{{% if messages[0].role == 'system' %}}{source}{{% endif %}}")
}

#[test]
fn work_is_bounded() {
    let system = |words: &str| json!([{ "role": "system", "content": words }]);
    let hostile = [
        "{% for a in range(100000) %}{% for b in range(100000) %}{{ a }}{% endfor %}{% endfor %}",
        "{{ 'x' * 1000000000 }}",
        "{% set ns = namespace(s='xx') %}\
         {% for i in range(60) %}{% set ns.s = ns.s + ns.s %}\
         {% endfor %}",
        "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    ];
    // Sums of lists take no room before somebody looks; beyond 32 in a chain minijinja makes them.
    let doubled = "{% set ns = namespace(l=[1]) %}\
        {% for i in range(24) %}{% set ns.l = ns.l + ns.l %}{% endfor %}";
    for looks in ["{{ ns.l }}", "{% set x %}{{ ns.l }}{% endset %}", "{{ [{'a': ns.l}] | tojson }}"]
    {
        let outcome = rendered(&spared(&format!("{doubled}{looks}")), system("x"));
        assert_eq!(outcome, Err(TemplateError::TooMuch), "{looks}");
    }
    for source in hostile {
        let outcome = rendered(&spared(source), system(&"x".repeat(30_000)));
        assert!(outcome.is_err(), "{source}");
    }
    let long = user(&"word ".repeat(200_000));
    assert!(rendered(CHATML, long).is_ok(), "a megabyte is no attack");
}

fn made(source: &str, time_max: Duration) -> Result<ChatTemplate, TemplateError> {
    let sources = BTreeMap::from([("default".to_owned(), source.to_owned())]);
    ChatTemplate::new_within(time_max, sources, BTreeMap::new())
}

/// Whatever a model's file brings, it is compiled in bounded time or refused.
#[test]
fn a_template_that_takes_too_long_is_not_used() {
    let endless = |source: &str| {
        let outcome = made(source, Duration::from_millis(20));
        assert_eq!(outcome.err(), Some(TemplateError::Endless), "{source}");
    };
    // Worked out while it is compiled, and a second or so in the making.
    endless("{{ [1] * 20000000 == [1] * 20000000 }}");
    let sums = vec!["[1] * 50000"; 40].join(" + ");
    endless(&format!("{{{{ {sums} }}}}"));
    let patient = Duration::from_secs(600);
    let refused = |source: &str| {
        let outcome = made(source, patient);
        assert_eq!(outcome.err(), Some(TemplateError::Endless));
    };
    refused("{% for m in messages %}{{ 'x' * 50000000 }}{% endfor %}");
    refused(&"{# #}".repeat(30_000));
    // A long chain of operators is read, if with a deep stack.
    assert!(made(&format!("{{{{ 0{} }}}}", "+1".repeat(60_000)), patient).is_ok());
    let deep = "[".repeat(100_000);
    assert!(made(&format!("{{{{ {deep} }}}}"), patient).is_err());
}

#[test]
fn an_answer_continues_the_last_message() {
    let continued = |words: &str| {
        let messages = json!([
            { "role": "user", "content": "Sure" }, { "role": "assistant", "content": words }
        ]);
        template(CHATML).render(&Chat { continue_final: true, ..chat(&messages) }, 0)
    };
    let start = "<|im_start|>user\nSure<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(continued("Sure"), Ok(format!("{start}Sure")));
    assert_eq!(continued("Sure, "), Ok(format!("{start}Sure, ")));
    // Words that the template writes as well, and a mark that a client may guess.
    for words in
        ["<", "|", ">", "end", "<|im_end|>", "im_end|>\n", "\n<", "x", "yxxxxxxxxxxxxxxxxxy"]
    {
        assert_eq!(continued(words), Ok(format!("{start}{words}")));
    }
    assert!(continued(" \n").is_err());
    let stripped = "{{ messages[0].content | trim }}.";
    let messages = user(" Hi  ");
    let asked = Chat { continue_final: true, ..chat(&messages) };
    assert_eq!(template(stripped).render(&asked, 0).as_deref(), Ok("Hi"));
    for hides in ["nothing", "Hi", "{{ messages[0].content | upper }}"] {
        assert!(template(hides).render(&asked, 0).is_err(), "the template does not show it");
    }
    let twice = |first: &str| {
        let source = format!("[{{{{ {first} }}}}] {{{{ messages[0].content }}}}.");
        template(&source).render(&asked, 0)
    };
    assert_eq!(twice("messages[0].content").as_deref(), Ok("[ Hi  ]  Hi  "));
    assert_eq!(twice("messages[0].content | trim").as_deref(), Ok("[Hi]  Hi  "));
    let both = Chat { add_generation_prompt: true, ..asked };
    assert!(template(CHATML).render(&both, 0).is_err());
    let parts = json!([{ "role": "assistant", "content": [{ "type": "text", "text": "Hi" }] }]);
    let asked = Chat { continue_final: true, ..chat(&parts) };
    let shown = template("{{ messages[0].content[0].text }}!").render(&asked, 0);
    assert_eq!(shown.as_deref(), Ok("Hi"));
    let text = "{{ messages[0].content[0].text }}";
    let shown = template(&format!("{text}-{text}!")).render(&asked, 0);
    assert_eq!(shown.as_deref(), Ok("Hi-Hi"));
}

#[test]
fn tools_and_own_variables_reach_the_template() {
    let sources = [("default", "d{{ x }}{{ tools }}"), ("tool_use", "t{{ tools[0].name }}")];
    let sources = sources.map(|(name, it)| (name.to_owned(), it.to_owned()));
    let template = ChatTemplate::new(BTreeMap::from(sources), BTreeMap::new()).unwrap();
    let (messages, tools) = (json!([]), json!([{ "name": "f" }]));
    let asked = Chat { tools: Some(&tools), ..chat(&messages) };
    assert_eq!(template.render(&asked, 0).as_deref(), Ok("tf"));
    let own = json!({ "x": 7, "tools": "mine", "messages": "mine" });
    let asked = Chat { kwargs: own.as_object(), ..chat(&messages) };
    assert_eq!(template.render(&asked, 0).as_deref(), Ok("d7None"), "what is fixed stays");
}

fn any_json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<i32>().prop_map(|it| Json::from(f64::from(it) / 4.0)),
        "\\PC{0,8}".prop_map(Json::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        let key = prop_oneof![Just("role".to_owned()), Just("content".to_owned()), "[a-z]{1,4}"];
        let map = prop::collection::vec((key, inner.clone()), 0..4);
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Json::from),
            map.prop_map(|it| Json::Object(it.into_iter().collect())),
        ]
    })
}

/// Pieces that templates are made of, in any order.
const TEMPLATES: &str = "([{}%#\\-+ \n'a-z0-9.\\[\\]()|~*]|\
    \\{% | %\\}|\\{\\{|\\}\\}|for |if |set |generation){0,40}";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_conversation_has_an_outcome(messages in any_json()) {
        let _outcome = rendered(CHATML, messages.clone());
        let json = rendered("{{ messages | tojson }}", messages.clone()).unwrap();
        let read = serde_json::from_str::<Json>(&json).unwrap();
        prop_assert_eq!(read.to_string(), messages.to_string());
    }

    #[test]
    fn any_template_has_an_outcome(source in TEMPLATES) {
        let sources = BTreeMap::from([("default".to_owned(), source)]);
        if let Ok(template) = ChatTemplate::new(sources, BTreeMap::new()) {
            let _outcome = template.render(&chat(&user("x")), 0);
        }
    }
}
