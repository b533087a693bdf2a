use std::fs;
use std::path::Path;

use super::check::check;
use super::raw::File;
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
        r#"{"format": 1, "threshold": {"high": 12, "low": 9},
            "curves": {"speculative": [[1, 90]], "throughput": [[1, 50], [8, 390]]}}"#,
    );
    let with = |head: &str| {
        read(&format!("[policy]\n{head}\ncalibration = {:?}\n{ENDPOINT}", path.to_str().unwrap()))
    };
    assert_eq!(with("high = \"auto\"").unwrap().policy.thresholds(), Some((12, 9)));
    assert_eq!(with("high = \"auto\"\nlow = 3").unwrap().policy.thresholds(), Some((12, 3)));
    assert_eq!(with("kind = \"marginal\"").unwrap().policy.name(), "marginal");
    assert_eq!(with("").unwrap().files, [path]);
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

/// The README lists every field of the file.
#[test]
fn the_readme_lists_every_field() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let raw = fs::read_to_string(root.join("src/config/raw.rs")).unwrap();
    let file = raw.split("pub struct File").nth(1).unwrap();
    let fields = file.lines().filter_map(|it| it.trim().strip_prefix("pub "));
    let names: Vec<_> = fields.filter_map(|it| it.split_once(':')).map(|it| it.0).collect();
    assert!(40 < names.len());
    for name in names {
        assert!(readme.contains(name), "README.md does not mention {name}");
    }
}
