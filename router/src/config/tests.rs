use std::fs;
use std::path::Path;

use clap::CommandFactory;

use super::check::check;
use super::raw::{Args, File};
use super::*;
use crate::policy::switch::Switch;

const ENDPOINT: &str = r#"
[[endpoint]]
name = "a"
role = "speculative"
url = "http://127.0.0.1:8101"
"#;

fn read(text: &str) -> Result<Config, String> {
    let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
    check(&file).map_err(|errors| errors.to_string())
}

/// The mistakes of a file, one a line.
fn refused(text: &str) -> Vec<String> {
    read(text).expect_err(text).lines().map(str::to_owned).collect()
}

#[test]
fn defaults_hold_where_nothing_is_written() {
    let config = read(ENDPOINT).unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:8000");
    assert_eq!(config.admin.to_string(), "127.0.0.1:8001");
    let usual = Switch { high: 8, low: 6, dwell: Duration::from_secs(1) };
    assert_eq!(config.policy, Policy::Switch(usual));
    assert_eq!(config.timeouts.idle, Some(Duration::from_secs(300)));
    assert_eq!(config.timeouts.total, None);
    assert!(config.timeouts.pool_idle < Duration::from_secs(5));
    let endpoint = &config.endpoints[0];
    assert_eq!((endpoint.in_flight_max, endpoint.weight_milli), (256, 1000));
    assert_eq!(endpoint.kind, Kind::OpenAi);
    assert_eq!(endpoint.authority, "127.0.0.1:8101");
}

/// All numbers of the pair's load are those of all routers together.
#[test]
fn one_of_several_routers_goes_by_its_part() {
    let of = |replicas: u32, high: u32| {
        let policy = format!("replicas = {replicas}\n[policy]\nhigh = {high}\n{ENDPOINT}");
        let config = read(&policy).unwrap();
        (config.policy.thresholds().unwrap(), config.endpoints[0].in_flight_max)
    };
    assert_eq!(of(1, 8), ((8, 6), 256));
    assert_eq!(of(4, 8), ((2, 1), 64));
    // Together they stay within what is written, ...
    assert_eq!(of(3, 8), ((2, 2), 85));
    // ... but each of them lets a lone request be fast, and a threshold of 0 stays what it is.
    assert_eq!(of(64, 8), ((1, 1), 4));
    assert_eq!(of(4, 0), ((0, 0), 64));
    assert_eq!(refused(&format!("replicas = 0\n{ENDPOINT}")), ["replicas: 0 is outside 1 to 64"]);
}

#[test]
fn every_mistake_is_reported_at_once() {
    let found = refused(
        r#"
listen = "nowhere"
[policy]
kind = "fastest"
[limits]
streams_max = 0
[timeouts]
connect_ms = 999999999
[[endpoint]]
role = "quick"
url = "ftp://x"
[[endpoint]]
name = "b c"
url = "http://u:p@x/path"
kind = "tgi"
http = "3"
weight = 0.0
"#,
    );
    let text = found.join("\n");
    for part in [
        "listen: \"nowhere\"",
        "policy.kind: \"fastest\"",
        "limits.streams_max: 0 is outside 1 to 65536",
        "timeouts.connect_ms: 999999999 is outside",
        "endpoint.name: is missing",
        "endpoint \"?\" role: is not",
        "endpoint \"?\" url: \"ftp://x\"",
        "endpoint.name: \"b c\"",
        "endpoint \"b c\" role: is missing",
        "endpoint \"b c\" url: \"http://u:p@x/path\" has a path",
        "endpoint \"b c\" url: holds a user name",
        "endpoint \"b c\" kind: \"tgi\"",
        "endpoint \"b c\" http: \"3\"",
        "endpoint \"b c\" weight: 0 is outside",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[test]
fn unknown_fields_and_wrong_types_are_refused() {
    assert!(read("lisen = 1").unwrap_err().contains("unknown field `lisen`"));
    assert!(read("[policy]\nhigh = -1").is_err());
    assert!(read("threads = \"many\"").is_err());
}

#[test]
fn relations_are_checked() {
    assert_eq!(refused(""), ["endpoint: at least one [[endpoint]] is needed"]);
    let twice = format!("{ENDPOINT}{ENDPOINT}");
    assert_eq!(refused(&twice), ["endpoint.name: \"a\" is used twice"]);
    let low = format!("[policy]\nhigh = 4\nlow = 5\n{ENDPOINT}");
    assert_eq!(refused(&low), ["policy.low: 5 is above policy.high, which is 4"]);
    let same = format!("listen = \"127.0.0.1:9\"\nadmin = \"127.0.0.1:9\"\n{ENDPOINT}");
    assert_eq!(refused(&same), ["admin: is the same address as listen"]);
    let pin = format!("[policy]\nkind = \"pin\"\n{ENDPOINT}");
    assert_eq!(refused(&pin), ["policy.role: pin needs a role: speculative or throughput"]);
    let auto = format!("[policy]\nhigh = \"auto\"\n{ENDPOINT}");
    assert_eq!(refused(&auto), ["policy.high: auto needs policy.calibration"]);
    let marginal = format!("[policy]\nkind = \"marginal\"\n{ENDPOINT}");
    assert_eq!(refused(&marginal), ["policy.calibration: marginal needs a calibration file"]);
}

fn write(name: &str, text: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("router-config-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_calibration_sets_the_threshold_and_the_curves() {
    let path = write(
        "calibration.json",
        r#"{"format": 1, "threshold": {"high": 12, "low": 9, "confidence": 0.6},
            "curves": {"speculative": [[1, 90]], "throughput": [[1, 50], [8, 390]]}}"#,
    );
    let with = |head: &str| {
        read(&format!("[policy]\n{head}\ncalibration = {:?}\n{ENDPOINT}", path.to_str().unwrap()))
    };
    assert_eq!(with("high = \"auto\"").unwrap().policy.thresholds(), Some((12, 9)));
    assert_eq!(with("high = \"auto\"\nlow = 3").unwrap().policy.thresholds(), Some((12, 3)));
    // Only what takes the threshold from the file rests on its confidence.
    assert_eq!(with("high = \"auto\"").unwrap().threshold_confidence, Some(0.6));
    assert_eq!(with("high = 12").unwrap().threshold_confidence, None);
    assert_eq!(with("kind = \"marginal\"").unwrap().policy.name(), "marginal");
    assert_eq!(with("").unwrap().files, [path]);
}

/// What takes nothing from a calibration does not mind what it was made for: when the models have
/// been changed, `pin` is the way to go on.
#[test]
fn only_policies_that_use_a_calibration_rest_on_it() {
    let path = write(
        "stale.json",
        r#"{"format": 1, "key": {"model": "old"}, "threshold": {"high": 12},
            "curves": {"speculative": [[1, 90]], "throughput": [[1, 50]]}}"#,
    );
    for (head, is_used) in [
        ("kind = \"marginal\"", true),
        ("high = \"auto\"", true),
        ("kind = \"spill\"\nhigh = \"auto\"", true),
        ("", false),
        ("high = 12", false),
        ("kind = \"spill\"", false),
        ("kind = \"pin\"\nrole = \"throughput\"", false),
        ("kind = \"pin\"\nrole = \"throughput\"\nhigh = \"auto\"", false),
    ] {
        let path = path.to_str().unwrap();
        let config =
            read(&format!("[policy]\n{head}\ncalibration = {path:?}\n{ENDPOINT}")).unwrap();
        assert_eq!(config.calibrated_for.is_some(), is_used, "{head}");
        assert_eq!(config.is_calibration_idle, !is_used, "{head}");
    }
    assert!(!read(ENDPOINT).unwrap().is_calibration_idle);
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let found = refused(&format!(
        "[access]\nkeys_file = \"/nowhere/keys\"\n[tls]\ncertificate = \"/nowhere/c\"\nkey = \
         \"/nowhere/k\"\n[policy]\ncalibration = \"/nowhere/j\"\n{ENDPOINT}key_file = \
         \"/nowhere/e\""
    ));
    assert_eq!(found.len(), 4, "{found:?}");
    let empty = write("keys", "# none yet\n");
    let text = format!("[access]\nkeys_file = {:?}\n{ENDPOINT}", empty.to_str().unwrap());
    assert_eq!(refused(&text), ["access.keys_file: holds no key"]);
}

#[test]
fn targets_name_their_authority() {
    for (url, authority) in [
        ("http://engine", "engine"),
        ("http://engine:80", "engine"),
        ("http://engine:8101/", "engine:8101"),
        ("http://[::1]:8101", "[::1]:8101"),
    ] {
        let text = format!("[[endpoint]]\nname = \"a\"\nrole = \"throughput\"\nurl = {url:?}");
        assert_eq!(read(&text).unwrap().endpoints[0].authority, authority);
    }
}

#[test]
fn ports_that_are_none_are_refused() {
    for port in ["81010", "abc", "-1", "+80", "0", ""] {
        for host in ["http://h", "https://h", "http://[::1]"] {
            let url = format!("{host}:{port}");
            let text = format!("[[endpoint]]\nname = \"a\"\nrole = \"throughput\"\nurl = {url:?}");
            let why = format!("{url:?} has no port from 1 to 65535 after its colon");
            assert_eq!(refused(&text), [format!("endpoint \"a\" url: {why}")]);
        }
        let url = format!("http://h:{port}");
        let text = format!("[trace]\ncollector = {url:?}\n{ENDPOINT}");
        let why = format!("trace.collector: {url:?} is not like http://127.0.0.1:4318");
        assert_eq!(refused(&text), [why]);
    }
}

#[test]
fn a_key_file_without_a_key_is_refused() {
    let path = write("no-key", " \n");
    let text = format!("{ENDPOINT}key_file = {:?}", path.to_str().unwrap());
    assert_eq!(refused(&text), ["endpoint \"a\" key_file: holds no key"]);
}

/// The rows of the first table after that heading in the README: cells without the bars.
fn table(heading: &str) -> Vec<Vec<String>> {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md"));
    let readme = readme.unwrap();
    let part = readme.split(&format!("\n{heading}\n")).nth(1).expect(heading);
    let rows = part.lines().skip_while(|it| !it.starts_with('|')).skip(2);
    let rows = rows.take_while(|it| it.starts_with('|'));
    rows.map(|it| it.split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

/// Names and defaults of the fields, as the README has them.
fn documented() -> Vec<(String, String)> {
    let plain = |it: &str| it.trim().trim_matches('`').to_owned();
    let rows = table("## The file").into_iter();
    rows.flat_map(|row| {
        let names: Vec<_> = row[1].split(',').map(plain).collect();
        let mut defaults: Vec<_> = row[2].split(',').map(plain).collect();
        defaults.resize(names.len(), String::new());
        names.into_iter().zip(defaults)
    })
    .collect()
}

/// The README lists every field of the file, and no other.
#[test]
fn the_readme_lists_every_field() {
    let raw = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/config/raw.rs");
    let raw = fs::read_to_string(raw).unwrap();
    let sections = ["policy", "limits", "queue", "timeouts", "health", "breaker", "shutdown"];
    let sections = [&sections[..], &["access", "trace", "tls", "endpoint"]].concat();
    let mut fields = Vec::new();
    for part in raw.split("\npub struct ").skip_while(|it| !it.starts_with("File")) {
        let (name, body) = part.split_once(" {").unwrap();
        let section = name.to_lowercase();
        for field in body.lines().filter_map(|it| it.trim().strip_prefix("pub ")) {
            let Some((field, _)) = field.split_once(':') else { continue };
            match section.as_str() {
                "file" if sections.contains(&field) => {}
                "file" => fields.push(field.to_owned()),
                _ => fields.push(format!("{section}.{field}")),
            }
        }
    }
    let mut names: Vec<_> = documented().into_iter().map(|it| it.0).collect();
    for list in [&mut fields, &mut names] {
        list.sort();
    }
    assert!(40 < names.len());
    assert_eq!(names, fields);
}

/// Written out, the README's defaults change nothing.
#[test]
fn the_defaults_are_those_of_the_readme() {
    let mut file: toml::Table = toml::from_str(ENDPOINT).unwrap();
    let mut written = 0;
    for (name, default) in documented() {
        // The first has none, the second is told in words.
        if default.is_empty() || name == "policy.low" {
            continue;
        }
        let read = toml::from_str::<toml::Table>(&format!("x = {default}"));
        let value = read.map_or(default.into(), |mut it| it.remove("x").unwrap());
        let into = match name.split_once('.') {
            None => &mut file,
            Some(("endpoint", _)) => file["endpoint"][0].as_table_mut().unwrap(),
            Some((table, _)) => {
                let table = file.entry(table).or_insert_with(|| toml::Table::new().into());
                table.as_table_mut().unwrap()
            }
        };
        into.insert(name.split('.').next_back().unwrap().to_owned(), value);
        written += 1;
    }
    assert!(30 < written);
    let text = toml::to_string(&file).unwrap();
    let (spelt, silent) = (read(&text).unwrap(), read(ENDPOINT).unwrap());
    assert_eq!(format!("{spelt:#?}"), format!("{silent:#?}"), "{text}");
}

#[test]
fn the_readme_lists_every_flag() {
    let mut listed: Vec<_> = table("## Flags")
        .iter()
        .flat_map(|row| row[1].split('`').skip(1).step_by(2).map(str::to_owned))
        .map(|it| it.trim_start_matches("--").split(' ').next().unwrap().to_owned())
        .collect();
    let command = Args::command();
    let mut flags: Vec<_> = command.get_arguments().filter_map(|it| it.get_long()).collect();
    flags.sort_unstable();
    listed.sort();
    assert_eq!(listed, flags);
}
