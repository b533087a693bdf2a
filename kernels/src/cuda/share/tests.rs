use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsFd;

use super::*;

#[test]
fn a_descriptor_passes_and_outlives_the_sender() {
    let (here, there) = UnixStream::pair().unwrap();
    let mut file = tempfile();
    file.write_all(b"weights").unwrap();
    file.rewind().unwrap();
    send_descriptor(&here, file.as_fd()).unwrap();
    send_descriptor(&here, file.as_fd()).unwrap();
    drop((here, file));
    let mut text = String::new();
    File::from(receive_descriptor(&there).unwrap()).read_to_string(&mut text).unwrap();
    assert_eq!(text, "weights");
    drop(receive_descriptor(&there).unwrap());
    let end = receive_descriptor(&there).unwrap_err();
    assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn a_message_without_one_is_an_error() {
    let (mut here, there) = UnixStream::pair().unwrap();
    here.write_all(b"x").unwrap();
    assert_eq!(receive_descriptor(&there).unwrap_err().kind(), io::ErrorKind::InvalidData);
}

/// A file without a name.
fn tempfile() -> File {
    let path = std::env::temp_dir().join(format!("crossover-share-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}
