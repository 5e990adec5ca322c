//! Tests of devices that are files of the host: transfers, refusals and the resulting file.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;

use super::*;
use crate::open::{Access, Caching, DeviceOptions, Sharing, create_image, open_path};
use crate::{Batch, IoBuf, raw_os_error};

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("a scratch directory")
}

#[test]
fn written_bytes_are_in_the_file_and_read_back() {
    let dir = scratch();
    let path = dir.path().join("image");
    for caching in [Caching::HostCached, Caching::Direct] {
        let _ = std::fs::remove_file(&path);
        let options = DeviceOptions {
            caching,
            ..DeviceOptions::read_write()
        };
        let device = create_image(&path, 1 << 20, options).expect("create");
        assert_eq!(device.len_bytes(), 1 << 20);
        let block = IoBuf::from(&[5_u8; 8192][..]);
        device.write_at(&block, 4096).expect("an aligned write");
        device
            .write_fua(&[IoSlice::new(b"ab"), IoSlice::new(b"cde")], 4095)
            .expect("unaligned");
        device.flush().expect("flush");
        let mut back = IoBuf::zeroed(16384);
        device
            .read_at(back.as_mut_slice().expect("own"), 0)
            .expect("an aligned read");
        assert_eq!(&back[4090..4102], b"\0\0\0\0\0abcde\x05\x05", "{caching:?}");
        let mut content = Vec::new();
        File::open(&path)
            .expect("open")
            .read_to_end(&mut content)
            .expect("read");
        assert_eq!(content[..16384], back[..], "{caching:?}");
    }
}

#[test]
fn a_transfer_may_have_more_buffers_than_one_system_call() {
    let dir = scratch();
    let device = create_image(&dir.path().join("image"), 10_000, DeviceOptions::default());
    let device = device.expect("create");
    let pattern: Vec<u8> = (0..=250).cycle().take(9000).collect();
    let bufs: Vec<IoSlice<'_>> = pattern.chunks(3).map(IoSlice::new).collect();
    device.write_vectored_at(&bufs, 500).expect("write");
    let mut back = vec![0; 9000];
    let mut bufs: Vec<IoSliceMut<'_>> = back.chunks_mut(2).map(IoSliceMut::new).collect();
    device.read_vectored_at(&mut bufs, 500).expect("read");
    assert_eq!(back, pattern);
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
fn errors_name_the_operation_and_the_end_of_the_device() {
    let dir = scratch();
    let path = dir.path().join("image");
    let device = create_image(&path, 5000, DeviceOptions::default()).expect("create");
    let error = device
        .read_at(&mut [0; 10], 4995)
        .expect_err("past the end");
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    assert_eq!(
        error.to_string(),
        "read of 10 bytes at byte 4995: the device ends at byte 5000"
    );
    File::options()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_len(100))
        .expect("truncate");
    let error = device
        .read_at(&mut [0; 300], 0)
        .expect_err("the file shrank");
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    assert!(
        error.to_string().contains("the host stopped at byte 100"),
        "{error}"
    );
}

#[test]
fn a_read_only_device_refuses_writes_and_errors_keep_the_errno() {
    let dir = scratch();
    let path = dir.path().join("image");
    drop(create_image(&path, 8192, DeviceOptions::default()).expect("create"));
    let device = open_path(&path, DeviceOptions::default()).expect("open");
    assert!(device.hints().read_only && !device.hints().discard);
    for refused in [
        device.write_at(&[1], 0),
        device.discard(0..1),
        device.write_zeroes(0..1),
    ] {
        assert_eq!(
            refused.expect_err("refused").kind(),
            ErrorKind::ReadOnlyFilesystem
        );
    }
    // An error of the host keeps its errno in the payload.
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

#[test]
fn an_image_has_one_writer_unless_opened_unlocked() {
    let dir = scratch();
    let path = dir.path().join("image");
    let first = create_image(&path, 4096, DeviceOptions::default()).expect("create");
    let second = open_path(&path, DeviceOptions::read_write()).expect_err("locked");
    assert_eq!(second.kind(), ErrorKind::ResourceBusy);
    assert!(
        open_path(&path, DeviceOptions::default()).is_ok(),
        "readers take no lock"
    );
    let unlocked = DeviceOptions {
        sharing: Sharing::Unlocked,
        ..DeviceOptions::read_write()
    };
    assert_eq!(unlocked.access, Access::ReadWrite);
    assert!(open_path(&path, unlocked).is_ok());
    // As in a child process that was forked meanwhile and has not called exec yet.
    let range = first.host_range(0..4096).expect("a file");
    let inherited = range.fd.try_clone_to_owned().expect("a descriptor");
    drop(first);
    assert!(open_path(&path, DeviceOptions::read_write()).is_ok());
    drop(inherited);
}

#[test]
fn a_batch_is_cancelled_from_the_flush_after_a_failure_on() {
    let dir = scratch();
    let device = create_image(&dir.path().join("image"), 8192, DeviceOptions::default());
    let device = device.expect("create");
    let mut batch = Batch::with_capacity(6);
    batch.write(vec![IoBuf::from(&b"one"[..])], 0).flush();
    batch
        .write(vec![IoBuf::from(&b"past"[..])], 8190)
        .write(vec![IoBuf::from(&b"two"[..])], 3);
    batch.flush().write(vec![IoBuf::from(&b"never"[..])], 100);
    assert_eq!((batch.len(), batch.is_empty()), (6, false));
    let mut flight = device.submit(batch);
    while flight.poll() == crate::Poll::Running {}
    let outcomes = flight.wait();
    let ok: Vec<bool> = outcomes
        .iter()
        .map(|outcome| outcome.result.is_ok())
        .collect();
    assert_eq!(ok, [true, true, false, true, false, false]);
    assert_eq!(outcomes[3].len_bytes(), 3);
    let error = outcomes[5].result.as_ref().expect_err("cancelled");
    assert!(error.to_string().contains("not begun"), "{error}");
    let mut back = [0; 8];
    let host = device.host_range(0..8).expect("a plain file");
    rustix::io::pread(host.fd, &mut back, host.offset).expect("read the host's file");
    assert_eq!(&back, b"onetwo\0\0");
    assert!(device.host_range(0..8193).is_none());
}
