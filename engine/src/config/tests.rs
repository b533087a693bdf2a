use std::fs;
use std::path::Path;

use clap::{CommandFactory, Parser};

use super::calibration::Calibration;
use super::raw::{Line, Raw, Word};
use super::*;

fn config(words: &str) -> Result<Config, String> {
    let line = Line::try_parse_from(["engine"].into_iter().chain(words.split_whitespace()));
    Config::new(line.unwrap().raw).map_err(|it| it.to_string())
}

#[test]
fn a_model_is_enough() {
    let config = config("--model m.gguf").unwrap();
    assert_eq!(config.mode, Mode::Baseline);
    assert_eq!(config.device, Device::Cpu { cores: vec![] });
    assert_eq!(config.memory, Memory::Fraction(0.25));
}

#[test]
fn a_gpu_has_defaults_of_its_own() {
    let config = config("--model m --device cuda:0 --load-format dummy").unwrap();
    assert_eq!((config.running_max, config.rows_max), (256, 2048));
    assert_eq!(config.memory, Memory::Fraction(0.9));
    assert_eq!(config.load_format, LoadFormat::Dummy);
    let errors = self::config("--model m --load-format dummy").unwrap_err();
    assert_eq!(errors, "--load-format: dummy has a meaning only on a GPU\n");
}

#[test]
fn every_mistake_is_reported_at_once() {
    let words = "--mode eagle --running-max 0 --rows-max x --device gpu --activations i4 \
        --listen here --memory 1QB --memory-fraction 2 --unknown-fields drop --body-max 1 \
        --allowed-origins a/b \
        --context-max 1 --drain-seconds -1 --log-format xml --served-model-name a, \
        --quantization int4 --log a=b=c --calibration c";
    let words = words.replace("--drain-seconds -1", "--drain-seconds=-1");
    let errors = config(&words).unwrap_err();
    for flag in [
        "model",
        "mode",
        "running-max",
        "rows-max",
        "device",
        "activations",
        "listen",
        "memory",
        "unknown-fields",
        "body-max",
        "allowed-origins",
        "context-max",
        "drain-seconds",
        "log-format",
        "served-model-name",
        "quantization",
        "log",
        "calibration",
    ] {
        assert!(errors.contains(&format!("--{flag}: ")), "{flag} is missing in\n{errors}");
    }
}

#[test]
fn flags_without_a_meaning_are_mistakes() {
    let errors = config("--model m --draft d --draft-max 2 --draft-until 4 --eagle-layers 1");
    assert_eq!(errors.unwrap_err().lines().count(), 4);
    let errors = config("--model m --mode eagle3").unwrap_err();
    assert_eq!(errors, "--draft: is required\n");
    let errors = config("--model m --mode ngram --draft-until auto").unwrap_err();
    assert_eq!(errors, "--draft-until: 'auto' needs --calibration\n");
    let errors = config("--model m --mode eagle3 --draft d --simulate-acceptance 0.8");
    let wanted = "--simulate-acceptance: needs --load-format dummy: texts mean nothing\n";
    assert_eq!(errors.unwrap_err(), wanted);
    let errors = config("--model m --share-weights w").unwrap_err();
    assert_eq!(errors, "--share-weights: has a meaning only on one GPU\n");
    let errors = config("--model m --quantization fp8").unwrap_err();
    assert_eq!(errors, "--quantization: fp8 has a meaning only on a GPU\n");
    let errors = config("--model m --running-max 64 --rows-max 8").unwrap_err();
    assert!(errors.starts_with("--rows-max: 8 is less than running-max 64"), "{errors}");
}

#[test]
fn what_is_printed_gives_the_same_again() {
    for words in [
        "--model m",
        "--model m --mode ngram --draft-until 7 --memory 1.5GiB --device cpu:3,0-1",
        "--model a --mode eagle3 --draft d --draft-max 0 --eagle-layers 2,15,27 --log debug \
         --draft-until 4:5,8:3 --simulate-acceptance 0.8,0.75 --served-model-name x,y/z \
         --allowed-origins https://a.example,http://b:80 \
         --context-max 4096 --activations f32 --log-format json --device cuda:0 \
         --load-format dummy --share-weights /run/weights --quantization fp8",
    ] {
        let first = config(words).unwrap();
        let file: Raw = toml::from_str(&first.to_string()).unwrap();
        assert_eq!(Config::new(file).unwrap(), first);
    }
}

#[test]
fn a_flag_wins_over_the_file() {
    let flags = Raw { rows_max: Some(Word("64".to_owned())), ..Raw::default() };
    let file: Raw = toml::from_str("model = \"m\"\nrows-max = 128\nrunning-max = 8").unwrap();
    let config = Config::new(flags.or(file)).unwrap();
    assert_eq!((config.rows_max, config.running_max), (64, 8));
    let unknown = toml::from_str::<Raw>("modle = \"m\"").unwrap_err().to_string();
    assert!(unknown.contains("modle"), "{unknown}");
}

#[test]
fn sizes() {
    let check = |text, bytes| assert_eq!(size::parse(text).ok(), bytes, "{text}");
    check("1024", Some(1024));
    check("512MiB", Some(512 << 20));
    check("1.5 GiB", Some(3 << 29));
    check("2GB", Some(2_000_000_000));
    check("9223372036854775807", Some(u64::MAX >> 1));
    let beyond = ["18446744073709551615", "9223372036854775808", "99999999999GiB"];
    for wrong in ["", "GiB", "-1", "1XB", "0", "1e9", ".", "1.2.3"].into_iter().chain(beyond) {
        check(wrong, None);
    }
    assert_eq!(size::show(3 << 29), "1.5 GiB");
    assert_eq!(size::show(1000), "1000 B");
}

#[test]
fn devices() {
    let check = |text, cores| assert_eq!(device(text), cores, "{text}");
    check("cpu:0-1", Ok(Device::Cpu { cores: vec![0, 1] }));
    check("cpu:5,2-3", Ok(Device::Cpu { cores: vec![2, 3, 5] }));
    let numbers = |numbers: &[usize]| {
        Ok(Device::Cuda { cards: numbers.iter().map(|it| Card::Number(*it)).collect() })
    };
    check("cuda:1", numbers(&[1]));
    check("cuda:0,cuda:1", numbers(&[0, 1]));
    check("cuda:2,0,3", numbers(&[2, 0, 3]));
    let part = "MIG-41b35e1f-2b7d-5e3a-8d0c-6a1f0c6f9b42";
    check(part, Ok(Device::Cuda { cards: vec![Card::Named(part.to_owned())] }));
    for wrong in [
        "cuda:",
        "cuda:0,",
        "cuda:0,x",
        "cuda:0,cuda:0",
        "cuda:0,1,0",
        "0,1",
        "cpu:0,cuda:1",
        "cuda:x",
        "cuda",
        "cpu:",
        "cpu:3-1",
        "cpu:0,0",
        "cpu:x",
        "cpu:0-99999",
        "tpu",
    ] {
        assert!(device(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn several_gpus() {
    let device = |line: &str| config(&format!("--model m {line}")).map(|it| it.device.to_string());
    let check = |line, wanted: &str| assert_eq!(device(line).unwrap(), wanted, "{line}");
    check("--device cuda:0,1", "cuda:0,cuda:1");
    check("--device cuda:2 --tensor-parallel-size 2", "cuda:2,cuda:3");
    check("--device cuda:0,2 --tensor-parallel-size 2", "cuda:0,cuda:2");
    check("--device cuda:0 --tensor-parallel-size 1", "cuda:0");
    check("--tensor-parallel-size 1", "cpu");
    let refuses = |line, words: &str| {
        let error = device(line).unwrap_err();
        assert!(error.contains(words), "{line}: {error}");
    };
    refuses("--device cuda:0,1 --tensor-parallel-size 3", "--tensor-parallel-size: is 3, but");
    refuses("--device GPU-1,GPU-2 --tensor-parallel-size 1", "names 2 of them");
    refuses("--device GPU-1 --tensor-parallel-size 2", "names 1 of them");
    refuses("--tensor-parallel-size 2", "--tensor-parallel-size: is for GPUs");
    refuses("--device cuda:0 --tensor-parallel-size 9", "whole number from 1 to 8");
    refuses("--device cuda:0,1,2,3,4,5,6,7,8", "--device: names 9 GPUs");
    refuses("--device cuda:0,cuda:0", "names 'cuda:0' twice");
    refuses("--device cuda:0,1 --share-weights w", "only on one GPU");
}

#[test]
fn calibrations() {
    let right = r#"{"format": 1, "key": {}, "curves": {}, "depth": [[4, 5], [8, 3]]}"#;
    assert_eq!(Calibration::parse(right).unwrap().depth, [(4, 5), (8, 3)]);
    for wrong in ["", "{}", r#"{"format": 2}"#, r#"{"format": 1, "depth": [[8, 1], [4, 2]]}"#] {
        assert!(Calibration::parse(wrong).is_err(), "{wrong}");
    }
    assert!(Calibration::parse(r#"{"format": 1, "depth": [[8, 99]]}"#).is_err());
}

#[test]
fn the_readme_lists_every_flag() {
    let row = |flag: &clap::Arg| {
        let name = flag.get_long()?;
        let shown = flag.get_value_names().filter(|_| flag.get_action().takes_values());
        let shown = shown.map_or(String::new(), |it| format!(" {}", it[0].replace('|', "\\|")));
        let help = flag.get_help()?.to_string().replace('\n', " ");
        Some(format!("| `--{name}{shown}` | {help} |\n"))
    };
    let table: String = Line::command().get_arguments().filter_map(row).collect();
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = fs::read_to_string(readme).unwrap();
    assert!(readme.contains(&table), "the README's table of flags should be:\n{table}");
}
