//! Tests of batches through io_uring: they have the same outcomes as by plain system calls.

use fourscore_sync::thread;

use super::*;
use crate::open::{Caching, DeviceOptions, create_image};
use crate::{BlockDevice, IoBuf};

/// The device, or `None` if the kernel has no io_uring: then there is nothing to test, and the
/// error must name io_uring.
fn device(len_bytes: u64, caching: Caching) -> Option<(tempfile::TempDir, UringDevice)> {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let options = DeviceOptions {
        caching,
        ..DeviceOptions::read_write()
    };
    let file = create_image(&dir.path().join("image"), len_bytes, options).expect("create");
    match UringDevice::new(file) {
        Ok(device) => Some((dir, device)),
        Err(error) => {
            assert!(error.to_string().contains("refuses io_uring"), "{error}");
            eprintln!("SKIPPED: {error}");
            None
        }
    }
}

fn pattern(seed: usize, len: usize) -> IoBuf {
    let bytes: Vec<u8> = (0..=250).cycle().skip(seed % 251).take(len).collect();
    IoBuf::from(&bytes[..])
}

#[test]
fn many_requests_in_one_batch_are_all_carried_out() {
    for caching in [Caching::HostCached, Caching::Direct] {
        let Some((_dir, device)) = device(8 << 20, caching) else {
            return;
        };
        let mut batch = Batch::new();
        for index in 0..1000 {
            batch.write(
                vec![pattern(index, 4096), pattern(index + 7, 4096)],
                8192 * to_u64(index),
            );
        }
        batch.flush();
        for index in 0..1000 {
            batch.read(
                vec![IoBuf::zeroed(100), IoBuf::zeroed(4096)],
                8192 * to_u64(index) + 50,
            );
        }
        let outcomes = device.submit(batch).wait();
        assert_eq!(outcomes.len(), 2001);
        for (index, outcome) in outcomes.into_iter().skip(1001).enumerate() {
            outcome.result.expect("read");
            let written = [&*pattern(index, 4096), &*pattern(index + 7, 4096)].concat();
            let read = [&*outcome.bufs[0], &*outcome.bufs[1]].concat();
            assert!(written[50..4246] == read, "request {index}, {caching:?}");
        }
    }
}

#[test]
fn failures_are_reported_for_their_requests_and_cancel_the_flush() {
    let Some((_dir, device)) = device(8192, Caching::HostCached) else {
        return;
    };
    let mut batch = Batch::new();
    batch
        .write(vec![pattern(1, 100)], 0)
        .read(vec![IoBuf::zeroed(2)], 8191);
    batch
        .read(Vec::new(), 8192)
        .flush()
        .write(vec![pattern(2, 100)], 0)
        .flush();
    let outcomes = device.submit(batch).wait();
    let ok: Vec<bool> = outcomes
        .iter()
        .map(|outcome| outcome.result.is_ok())
        .collect();
    assert_eq!(ok, [true, false, true, false, false, false]);
    let error = outcomes[1].result.as_ref().expect_err("past the end");
    assert_eq!(
        error.to_string(),
        "read of 2 bytes at byte 8191: the device ends at byte 8192"
    );
    assert_eq!(
        outcomes[4].bufs[0].len(),
        100,
        "cancelled requests return their buffers"
    );
    let mut back = [0; 100];
    device.read_at(&mut back, 0).expect("read");
    assert_eq!(
        back[..],
        *pattern(1, 100),
        "the write after the cancelled flush was not made"
    );
}

#[test]
fn a_read_of_a_file_that_shrank_ends_with_an_error() {
    let Some((dir, device)) = device(1 << 20, Caching::HostCached) else {
        return;
    };
    let image = std::fs::File::options()
        .write(true)
        .open(dir.path().join("image"));
    image
        .and_then(|file| file.set_len(10_000))
        .expect("truncate");
    let mut batch = Batch::new();
    batch.read(vec![IoBuf::zeroed(20_000), IoBuf::zeroed(5)], 0);
    let outcomes = device.submit(batch).wait();
    let error = outcomes[0]
        .result
        .as_ref()
        .expect_err("only half of it is there");
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    assert!(
        error.to_string().contains("stopped at byte 10000"),
        "{error}"
    );
}

#[test]
fn a_request_may_have_more_buffers_than_one_entry() {
    let Some((_dir, device)) = device(1 << 20, Caching::HostCached) else {
        return;
    };
    let bufs = (0..5000).map(|index| pattern(index, index % 5)).collect();
    let mut batch = Batch::new();
    batch.write(bufs, 77);
    device.submit(batch).wait_all_ok().expect("write");
    let expected: Vec<u8> = (0..5000)
        .flat_map(|index| pattern(index, index % 5).to_vec())
        .collect();
    let mut back = vec![0; expected.len()];
    device.read_at(&mut back, 77).expect("read");
    assert!(back == expected);
}

#[test]
fn dropping_a_batch_waits_and_keeps_the_ring_usable() {
    let Some((_dir, device)) = device(1 << 20, Caching::HostCached) else {
        return;
    };
    for round in 0..50 {
        let mut batch = Batch::new();
        batch
            .write(vec![pattern(round, 65536)], 0)
            .read(vec![IoBuf::zeroed(65536)], 65536);
        batch.flush().write(vec![pattern(round, 10)], 500_000);
        drop(device.submit(batch));
    }
    let mut back = IoBuf::zeroed(65536);
    device
        .read_at(back.as_mut_slice().expect("own"), 0)
        .expect("read");
    assert!(
        *back == *pattern(49, 65536),
        "the first requests have ended"
    );
    let idle: usize = device
        .shared
        .idle
        .iter()
        .map(|idle| idle.lock().len())
        .sum();
    assert!((1..=MAX_IDLE * device.shared.idle.iter().count()).contains(&idle));
}

#[test]
fn another_thread_may_poll_and_wait_for_a_batch() {
    let Some((_dir, device)) = device(4 << 20, Caching::HostCached) else {
        return;
    };
    thread::scope(|scope| {
        for me in 0..4_usize {
            let device = &device;
            scope.spawn(move || {
                for round in 0..50 {
                    let at = to_u64(me) << 20;
                    let mut batch = Batch::new();
                    batch.write(vec![pattern(round, 4096)], at).flush();
                    batch.read(vec![IoBuf::zeroed(4096)], at);
                    let mut flight = device.submit(batch);
                    let poller = scope.spawn(move || {
                        while flight.poll() == Poll::Running {
                            thread::yield_now();
                        }
                        flight.wait()
                    });
                    let outcomes = poller.join().expect("no panic");
                    outcomes[2].result.as_ref().expect("read");
                    assert!(
                        *outcomes[2].bufs[0] == *pattern(round, 4096),
                        "{me} {round}"
                    );
                }
            });
        }
    });
}

#[test]
fn a_read_into_shared_memory_is_refused() {
    let Some((_dir, device)) = device(4096, Caching::HostCached) else {
        return;
    };
    let bytes: Arc<[u8]> = Arc::from(&[1, 2, 3][..]);
    let mut batch = Batch::new();
    batch.read(vec![IoBuf::from(Arc::clone(&bytes))], 0);
    let outcomes = device.submit(batch).wait();
    let error = outcomes[0]
        .result
        .as_ref()
        .expect_err("the bytes have another owner");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert_eq!(*bytes, [1, 2, 3]);
}

#[test]
fn requests_after_a_failed_flush_are_not_begun() {
    // fdatasync of a pipe fails, as on a disk whose flush fails.
    let (_reader, writer) = rustix::pipe::pipe().expect("pipe");
    let file = FileDevice::from_image(writer.into(), Hints::default()).expect("stat");
    let Ok(device) = UringDevice::new(file) else {
        return;
    };
    let mut batch = Batch::new();
    batch.flush().write(Vec::new(), 0).flush();
    let outcomes = device.submit(batch).wait();
    let error = outcomes[0].result.as_ref().expect_err("EINVAL");
    assert_eq!(crate::raw_os_error(error), Some(libc::EINVAL));
    for outcome in &outcomes[1..] {
        let text = outcome.result.as_ref().expect_err("cancelled").to_string();
        assert!(text.contains("not begun"), "{text}");
    }
}
