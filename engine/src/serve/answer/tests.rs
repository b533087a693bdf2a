use super::*;

fn every_refusal() -> Vec<Refusal> {
    vec![
        Refusal::Malformed { message: "m".to_owned() },
        Refusal::field("top_p", "invalid_value", "m"),
        Refusal::UnknownModel { model: "m".to_owned() },
        Refusal::TooLong { param: "prompt", message: "m".to_owned() },
        Refusal::UnknownPath { path: "/x".to_owned() },
        Refusal::WrongMethod { allowed: "POST" },
        Refusal::BodyTooLarge { bytes_max: 1 },
        Refusal::BodyTooSlow,
        Refusal::Unsupported { message: "m" },
        Refusal::Loading,
        Refusal::Draining,
        Refusal::Overloaded,
        Refusal::Expired { after: Duration::from_secs(1) },
        Refusal::Failed,
    ]
}

#[test]
fn the_whole_map() {
    let lines: Vec<String> = every_refusal()
        .iter()
        .map(|refusal| {
            let error = &refusal.body()["error"];
            let answer = refuse(refusal);
            let retry = answer.headers().get(RETRY_AFTER).map_or("-", |it| it.to_str().unwrap());
            let (kind, code, param) = (&error["type"], &error["code"], &error["param"]);
            assert!(!error["message"].as_str().unwrap().is_empty());
            assert_eq!(answer.headers()[CONTENT_TYPE], "application/json");
            format!("{} {kind} {code} {param} {retry}", answer.status().as_u16()).replace('"', "")
        })
        .collect();
    assert_eq!(
        lines,
        [
            "400 invalid_request_error invalid_json null -",
            "400 invalid_request_error invalid_value top_p -",
            "404 invalid_request_error model_not_found model -",
            "400 invalid_request_error context_length_exceeded prompt -",
            "404 invalid_request_error unknown_url null -",
            "405 invalid_request_error method_not_supported null -",
            "413 invalid_request_error request_too_large null -",
            "408 invalid_request_error request_timeout null -",
            "400 invalid_request_error unsupported null -",
            "503 service_unavailable_error model_loading null 2",
            "503 service_unavailable_error server_is_draining null 2",
            "503 service_unavailable_error server_is_overloaded null 1",
            "504 server_error deadline_exceeded null -",
            "500 server_error engine_failed null -",
        ]
    );
}

#[test]
fn little_of_what_a_client_sent_comes_back() {
    let long = "ä".repeat(1 << 20);
    for refusal in [
        Refusal::Malformed { message: long.clone() },
        Refusal::field(&long, "unknown_parameter", &long),
        Refusal::UnknownModel { model: long.clone() },
        Refusal::UnknownPath { path: long },
    ] {
        assert!(refusal.body().to_string().len() < 3000);
        assert!(refusal.to_string().contains("ää..."));
    }
}
