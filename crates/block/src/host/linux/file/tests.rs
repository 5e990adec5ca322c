//! Tests of what only files of Linux have. What every device of an image has is tested in
//! `host::tests`.

use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;

use super::*;
use crate::open::{DeviceOptions, create_image, open_path};
use crate::raw_os_error;

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("a scratch directory")
}

#[test]
fn a_short_write_is_continued() {
    let mut file = tempfile::tempfile().expect("file");
    file.write_all(b"0123456789").expect("fill");
    let bufs = [
        IoSlice::new(b"abc"),
        IoSlice::new(b""),
        IoSlice::new(b"def"),
    ];
    let operation = Operation::new(DeviceOp::Write, 2, 6);
    let more = host_io::write_rest(
        file.as_fd(),
        &bufs,
        &operation,
        2,
        2,
        Durability::AfterFlush,
    );
    assert_eq!(more.expect("write"), 4);
    let mut back = [0; 10];
    let operation = Operation::new(DeviceOp::Read, 0, 10);
    host_io::read_all(file.as_fd(), &mut [IoSliceMut::new(&mut back)], &operation).expect("read");
    assert_eq!(&back, b"0123cdef89");
}

#[test]
fn errors_of_the_host_keep_their_number() {
    let dir = scratch();
    let path = dir.path().join("image");
    drop(create_image(&path, 8192, DeviceOptions::default()).expect("create"));
    let device = open_path(&path, DeviceOptions::default()).expect("open");
    let operation = Operation::new(DeviceOp::Write, 0, 1);
    let bufs = [IoSlice::new(b"x")];
    let error = host_io::write_all(
        device.cached.as_fd(),
        &bufs,
        &operation,
        Durability::AfterFlush,
    );
    assert_eq!(raw_os_error(&error.expect_err("EBADF")), Some(libc::EBADF));
}

#[test]
fn a_discard_frees_space_of_the_host_and_written_zeroes_read_as_zeroes() {
    let dir = scratch();
    let path = dir.path().join("image");
    let device = create_image(&path, 1 << 20, DeviceOptions::default()).expect("create");
    device.write_at(&vec![1; 1 << 20], 0).expect("fill");
    device.flush().expect("flush");
    let full = std::fs::metadata(&path).expect("stat").blocks();
    if let Err(error) = device.discard(0..1 << 19) {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    } else {
        assert!(std::fs::metadata(&path).expect("stat").blocks() < full);
    }
    device
        .write_zeroes((1 << 19) + 100..(1 << 20) - 100)
        .expect("zero");
    let mut back = vec![9; 1 << 19];
    device.read_at(&mut back, 1 << 19).expect("read");
    assert!(
        back[..100]
            .iter()
            .chain(&back[(1 << 19) - 100..])
            .all(|&byte| byte == 1)
    );
    assert!(back[100..(1 << 19) - 100].iter().all(|&byte| byte == 0));
    assert_eq!(std::fs::metadata(&path).expect("stat").len(), 1 << 20);
    device.discard(5..5).expect("an empty range");
}

#[test]
fn other_kinds_of_files_are_refused_by_name() {
    let dir = scratch();
    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .expect("mkfifo");
    for (path, what) in [
        (dir.path(), "is a directory"),
        (fifo.as_path(), "is a fifo"),
        (std::path::Path::new("/dev/null"), "is a character device"),
    ] {
        let error = open_path(path, DeviceOptions::default()).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().starts_with(what), "{error}");
    }
    let error = open_path(&dir.path().join("none"), DeviceOptions::default());
    assert_eq!(
        error.expect_err("nothing there").kind(),
        ErrorKind::NotFound
    );
    assert!(create_image(&dir.path().join("fifo"), 1, DeviceOptions::default()).is_err());
}
