//! Tests of outputs.

use std::fs;
use std::os::unix::fs::symlink;

use super::*;

fn refusal(path: &Path) -> String {
    let found = Target::find(path, Overwrite::OwnImages);
    found.expect_err("it must be refused").to_string()
}

#[test]
fn only_empty_targets_are_accepted_by_default() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("empty"), "").unwrap();
    File::create(at("holes")).unwrap().set_len(1 << 30).unwrap();
    fs::write(at("zeroes"), [0; 100_000]).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    for free in ["missing", "empty", "holes", "zeroes", "dangling"] {
        Target::find(&at(free), Overwrite::OwnImages).unwrap_or_else(|error| panic!("{error}"));
    }
    fs::write(at("text"), "before").unwrap();
    assert!(refusal(&at("text")).ends_with("text: holds text"));
    symlink("text", at("link")).unwrap();
    assert!(refusal(&at("link")).ends_with("link: holds text"));
    let late = [&[0; 5000][..], b"\x01"].concat();
    fs::write(at("late"), late).unwrap();
    assert!(refusal(&at("late")).ends_with("holds data of an unknown kind, at byte 5000"));
    Target::find(&at("text"), Overwrite::AnyContent).unwrap();
    assert_eq!(fs::read(at("text")).unwrap(), b"before");
    assert!(!at("missing").exists());
}

#[test]
fn other_file_types_are_refused_even_if_forced() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let _socket = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for path in [&socket, folder.path(), Path::new("/dev/null")] {
        let error = Target::find(path, Overwrite::EvenInUse).unwrap_err();
        let error = error.to_string();
        assert!(
            error.ends_with("neither a file nor a block device"),
            "{error}"
        );
    }
}

#[test]
fn a_target_is_locked_against_other_writers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let other = open_path(&path, DeviceOptions::read_write()).unwrap();
    assert!(refusal(&path).contains("is being written by"));
    Target::find(&path, Overwrite::EvenInUse).unwrap();
    drop(other);
    let target = Target::find(&path, Overwrite::OwnImages).unwrap();
    open_path(&path, DeviceOptions::read_write()).unwrap_err();
    drop(target);
    open_path(&path, DeviceOptions::read_write()).unwrap();
}

#[test]
fn a_part_must_be_inside_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    File::create(&path)
        .unwrap()
        .set_len((8 << 20) + 5000)
        .unwrap();
    let part = |offset, size| Target::find_part(&path, offset, size, Overwrite::OwnImages);
    assert_eq!(
        part(1 << 20, None).unwrap().part_bytes(),
        Some((7 << 20) + 4096)
    );
    let sized = part(1 << 20, Some(1 << 20)).unwrap();
    assert_eq!(
        (sized.part_bytes(), sized.capacity_bytes()),
        (Some(1 << 20), Some(1 << 20))
    );
    drop(sized);
    let error = part(1 << 20, Some(8 << 20)).unwrap_err().to_string();
    assert!(error.contains("past the end of the file"), "{error}");
    let error = part(9 << 20, None).unwrap_err().to_string();
    assert!(error.contains("ends at byte 8393608"), "{error}");
    let missing = folder.path().join("missing");
    Target::find_part(&missing, 1 << 20, None, Overwrite::EvenInUse).unwrap_err();
    assert!(!missing.exists());
}
