//! Tests of image files as devices: every test runs on the device of Linux and on the portable one.

use std::fmt::Debug;
use std::fs::File;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read};
use std::path::{Path, PathBuf};

use super::{open_path, portable};
use crate::open::{Access, Caching, DeviceOptions, Sharing};
use crate::{Batch, BlockDevice, IoBuf, Poll};

/// How a device is opened.
type Open<D> = fn(&Path, DeviceOptions) -> std::io::Result<D>;

/// Runs a test of [`Open`] on both devices.
macro_rules! on_both {
    ($test:ident) => {
        $test(open_path);
        $test(portable::open_path);
    };
}

/// A folder with the image of a test.
struct Scratch {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Scratch {
    fn with_image(len_bytes: u64) -> Self {
        let folder = tempfile::tempdir().expect("a scratch directory");
        let path = folder.path().join("image");
        let file = File::create_new(&path).expect("a new file");
        file.set_len(len_bytes).expect("a sparse file");
        Self {
            _folder: folder,
            path,
        }
    }

    fn open<D>(&self, open: Open<D>) -> D {
        open(&self.path, DeviceOptions::read_write()).expect("opened")
    }
}

/// The kind of the error of a call that must fail.
fn refusal<T: Debug>(result: std::io::Result<T>) -> ErrorKind {
    result.expect_err("refused").kind()
}

#[test]
fn written_bytes_are_in_the_file_and_read_back() {
    fn test<D: BlockDevice>(open: Open<D>) {
        for caching in [Caching::HostCached, Caching::Direct] {
            let scratch = Scratch::with_image(1 << 20);
            let options = DeviceOptions {
                caching,
                ..DeviceOptions::read_write()
            };
            let device = open(&scratch.path, options).expect("opened");
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
            File::open(&scratch.path)
                .and_then(|mut file| file.read_to_end(&mut content))
                .expect("read");
            assert_eq!(content[..16384], back[..], "{caching:?}");
        }
    }
    on_both!(test);
}

#[test]
fn a_transfer_may_have_more_buffers_than_one_system_call() {
    fn test<D: BlockDevice>(open: Open<D>) {
        let scratch = Scratch::with_image(10_000);
        let device = scratch.open(open);
        let pattern: Vec<u8> = (0..=250).cycle().take(9000).collect();
        let bufs: Vec<IoSlice<'_>> = pattern.chunks(3).map(IoSlice::new).collect();
        device.write_vectored_at(&bufs, 500).expect("write");
        let mut back = vec![0; 9000];
        let mut bufs: Vec<IoSliceMut<'_>> = back.chunks_mut(2).map(IoSliceMut::new).collect();
        device.read_vectored_at(&mut bufs, 500).expect("read");
        assert_eq!(back, pattern);
    }
    on_both!(test);
}

#[test]
fn errors_name_the_operation_and_the_end_of_the_device() {
    fn test<D: BlockDevice>(open: Open<D>) {
        let scratch = Scratch::with_image(5000);
        let device = scratch.open(open);
        let error = device
            .read_at(&mut [0; 10], 4995)
            .expect_err("past the end");
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        assert_eq!(
            error.to_string(),
            "read of 10 bytes at byte 4995: the device ends at byte 5000"
        );
        assert_eq!(
            refusal(device.write_at(&[0; 10], 4995)),
            ErrorKind::StorageFull
        );
        File::options()
            .write(true)
            .open(&scratch.path)
            .and_then(|file| file.set_len(100))
            .expect("truncate");
        let error = device
            .read_at(&mut [0; 300], 0)
            .expect_err("the file shrank");
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        let text = error.to_string();
        assert!(text.contains("the host stopped at byte 100"), "{text}");
    }
    on_both!(test);
}

#[test]
fn a_read_only_device_refuses_writes() {
    fn test<D: BlockDevice>(open: Open<D>) {
        let scratch = Scratch::with_image(8192);
        let device = open(&scratch.path, DeviceOptions::default()).expect("opened");
        assert!(device.hints().read_only && !device.hints().discard);
        for refused in [
            device.write_at(&[1], 0),
            device.write_fua(&[IoSlice::new(&[1])], 0),
            device.write_zeroes(0..1),
            device.lengthen(16_384).map(drop),
        ] {
            assert_eq!(refusal(refused), ErrorKind::ReadOnlyFilesystem);
        }
        device.discard(0..1).expect_err("refused");
        device.flush().expect("nothing to write");
        assert_eq!(device.len_bytes(), 8192);
    }
    on_both!(test);
}

#[test]
fn zeroes_replace_bytes_and_a_discard_is_refused_where_it_is_not_offered() {
    fn test<D: BlockDevice>(open: Open<D>) {
        let scratch = Scratch::with_image(1 << 20);
        let device = scratch.open(open);
        device.write_at(&vec![1; 1 << 20], 0).expect("fill");
        device
            .write_zeroes(100..(1 << 20) - 100)
            .expect("zero a range");
        let mut back = vec![9; 1 << 20];
        device.read_at(&mut back, 0).expect("read");
        let (inside, ends) = (100..(1 << 20) - 100, [0..100, (1 << 20) - 100..1 << 20]);
        assert!(back[inside].iter().all(|&byte| byte == 0));
        let [first, last] = ends.map(|range| &back[range]);
        assert!(first.iter().chain(last).all(|&byte| byte == 1));
        match device.discard(0..4096) {
            Ok(()) => assert!(device.hints().discard),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
        }
    }
    on_both!(test);
}

#[test]
fn an_image_becomes_longer_and_never_shorter() {
    fn test<D: BlockDevice>(open: Open<D>) {
        let scratch = Scratch::with_image(5000);
        let device = scratch.open(open);
        assert_eq!(device.lengthen(4000).expect("no change"), 5000);
        assert_eq!(device.lengthen(9000).expect("longer"), 9000);
        let mut back = [9; 4000];
        device.read_at(&mut back, 5000).expect("the new bytes");
        assert_eq!(back, [0; 4000]);
        // Another process has made it longer still.
        File::options()
            .write(true)
            .open(&scratch.path)
            .and_then(|file| file.set_len(20_000))
            .expect("longer");
        assert_eq!(device.lengthen(10_000).expect("asked"), 20_000);
        assert_eq!(device.len_bytes(), 20_000);
    }
    on_both!(test);
}

#[test]
fn an_image_has_one_writer_unless_opened_unlocked() {
    fn test<D: BlockDevice>(open: Open<D>) {
        let scratch = Scratch::with_image(4096);
        let path = &scratch.path;
        let first = scratch.open(open);
        let second = open(path, DeviceOptions::read_write());
        assert_eq!(refusal(second), ErrorKind::ResourceBusy);
        open(path, DeviceOptions::default()).expect("readers take no lock");
        let unlocked = DeviceOptions {
            sharing: Sharing::Unlocked,
            ..DeviceOptions::read_write()
        };
        assert_eq!(unlocked.access, Access::ReadWrite);
        drop(open(path, unlocked).expect("unlocked"));
        let still = open(path, DeviceOptions::read_write());
        assert_eq!(refusal(still), ErrorKind::ResourceBusy);
        // As in a child process that was forked meanwhile and has not called exec yet.
        let range = first.host_range(0..4096).expect("a file");
        let inherited = range.file.try_clone().expect("a descriptor");
        drop(first);
        let next = open(path, DeviceOptions::read_write()).expect("released");
        drop(inherited);
        next.unlock();
        open(path, DeviceOptions::read_write()).expect("unlocked before its end");
    }
    on_both!(test);
}

#[test]
fn both_devices_lock_each_other_out() {
    let scratch = Scratch::with_image(4096);
    let first = scratch.open(portable::open_path);
    let second = open_path(&scratch.path, DeviceOptions::read_write());
    assert_eq!(refusal(second), ErrorKind::ResourceBusy);
    drop(first);
    let first = scratch.open(open_path);
    let second = portable::open_path(&scratch.path, DeviceOptions::read_write());
    assert_eq!(refusal(second), ErrorKind::ResourceBusy);
    drop(first);
}

#[test]
fn a_batch_is_cancelled_from_the_flush_after_a_failure_on() {
    fn test<D: BlockDevice>(open: Open<D>) {
        let scratch = Scratch::with_image(8192);
        let device = scratch.open(open);
        let mut batch = Batch::with_capacity(6);
        batch.write(vec![IoBuf::from(&b"one"[..])], 0).flush();
        batch
            .write(vec![IoBuf::from(&b"past"[..])], 8190)
            .write(vec![IoBuf::from(&b"two"[..])], 3);
        batch.flush().write(vec![IoBuf::from(&b"never"[..])], 100);
        assert_eq!((batch.len(), batch.is_empty()), (6, false));
        let mut flight = device.submit(batch);
        while flight.poll() == Poll::Running {}
        let outcomes = flight.wait();
        let is_ok = outcomes.iter().map(|outcome| outcome.result.is_ok());
        let ok: Vec<bool> = is_ok.collect();
        assert_eq!(ok, [true, true, false, true, false, false]);
        assert_eq!(outcomes[3].len_bytes(), 3);
        let error = outcomes[5].result.as_ref().expect_err("cancelled");
        assert!(error.to_string().contains("not begun"), "{error}");
        let mut back = [0; 8];
        let host = device.host_range(0..8).expect("a plain file");
        crate::positioned::read_exact(host.file, &mut back, host.offset).expect("the bytes");
        assert_eq!(&back, b"onetwo\0\0");
        assert!(device.host_range(0..8193).is_none());
    }
    on_both!(test);
}

#[test]
fn what_is_no_image_is_refused() {
    fn test<D: BlockDevice>(open: Open<D>) {
        let scratch = Scratch::with_image(4096);
        let folder = scratch.path.parent().expect("a folder");
        let error = open(folder, DeviceOptions::default()).expect_err("a folder");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().starts_with("is a directory"), "{error}");
        let missing = open(&folder.join("none"), DeviceOptions::default());
        assert_eq!(refusal(missing), ErrorKind::NotFound);
    }
    on_both!(test);
    let null = portable::open_path(Path::new("/dev/null"), DeviceOptions::default());
    let error = null.expect_err("no image");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("on Linux only"), "{error}");
}

#[test]
fn only_linux_takes_part_in_multi_mount_protection() {
    assert!(!super::node_name().expect("Linux has it").is_empty());
    let error = portable::node_name().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}
