use super::*;

/// Runs everywhere: without a driver the gate must answer, not panic.
#[test]
fn a_machine_without_a_gpu_gets_an_answer() {
    match Device::open(&Card::Number(0), None) {
        Ok(device) => println!("found {:?}", device.facts()),
        Err(DeviceError::NoDriver | DeviceError::NoDevice(_)) => {}
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn errors_say_what_is_missing() {
    let says = |error: DeviceError, words: &str| {
        let text = error.to_string();
        assert!(text.contains(words), "{text}");
    };
    says(DeviceError::NoDriver, "libcuda.so.1");
    says(DeviceError::DriverTooOld { have: 12_040, need: 13_000 }, "speaks 12.4");
    says(DeviceError::NoPeer { from: 0, to: 2 }, "cuda:0 cannot reach the memory of cuda:2");
    says(DeviceError::OutOfMemory { bytes: 3 << 20 }, "3 MiB");
    says(DeviceError::NoKernels { target: "compute_75".to_owned() }, "libnvrtc");
}
