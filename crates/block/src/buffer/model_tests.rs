//! Tests of a buffer under the schedules that shuttle tries.

use fourscore_sync::{model, thread};

use super::*;

const SCHEDULES: usize = 1500;

fn tag() -> VerifiedAs {
    VerifiedAs::new(Structure::BlockBitmap, InodeNr(0))
}

fn buffer() -> Arc<Buffer> {
    Arc::new(Buffer::new(PhysBlock(1), Arc::from([0; 2])))
}

/// Adds one to both bytes, one after the other.
fn bump(buffer: &Buffer, tid: u32) -> Result<(), Retired> {
    let change = |bytes: &mut [u8]| {
        bytes[0] += 1;
        thread::yield_now();
        bytes[1] += 1;
    };
    buffer.modify(Tid(tid), tag(), change).map(|_| ())
}

fn pair(bytes: &[u8]) -> u8 {
    assert_eq!(bytes[0], bytes[1], "half of a change was seen");
    bytes[0]
}

fn run(tasks: Vec<Box<dyn FnOnce() + Send>>) {
    let tasks: Vec<_> = tasks.into_iter().map(thread::spawn).collect();
    for task in tasks {
        task.join().expect("a task");
    }
}

#[test]
fn readers_see_whole_changes_in_their_order() {
    model::check(SCHEDULES, || {
        let buffer = buffer();
        let writer = || -> Box<dyn FnOnce() + Send> {
            let buffer = Arc::clone(&buffer);
            Box::new(move || {
                bump(&buffer, 1).expect("not retired");
                let guard = epoch::pin();
                assert!(pair(buffer.bytes(&guard)) >= 1, "own change not seen");
                bump(&buffer, 1).expect("not retired");
            })
        };
        let reader = || -> Box<dyn FnOnce() + Send> {
            let buffer = Arc::clone(&buffer);
            Box::new(move || {
                let guard = epoch::pin();
                let first = buffer.bytes(&guard);
                let before = pair(first);
                let second = pair(buffer.bytes(&guard));
                assert!(
                    second >= before,
                    "an older version was read after a newer one"
                );
                assert_eq!(pair(first), before, "a version changed under its reader");
            })
        };
        run(vec![writer(), writer(), reader(), reader()]);
        assert_eq!(pair(buffer.bytes(&epoch::pin())), 4);
    });
}

#[test]
fn sealing_returns_the_changes_of_one_transaction_only() {
    model::check(SCHEDULES, || {
        let buffer = buffer();
        bump(&buffer, 1).expect("not retired");
        bump(&buffer, 1).expect("not retired");
        let sealer = {
            let buffer = Arc::clone(&buffer);
            thread::spawn(move || {
                let finish = |_, bytes: &mut [u8]| assert_eq!(pair(bytes), 2, "not what 1 left");
                let sealed = buffer.seal_with(Tid(1), finish).expect("dirty in 1");
                thread::yield_now();
                assert_eq!(pair(&sealed.bytes), 2, "changes of 2 in what 1 left");
                buffer.checkpointed(Tid(1));
            })
        };
        let next = {
            let buffer = Arc::clone(&buffer);
            Box::new(move || {
                bump(&buffer, 2).expect("not retired");
                bump(&buffer, 2).expect("not retired");
            })
        };
        let reader = {
            let buffer = Arc::clone(&buffer);
            Box::new(move || {
                assert!(pair(buffer.bytes(&epoch::pin())) >= 2);
            })
        };
        run(vec![next, reader]);
        sealer.join().expect("a task");
        let sealed = buffer.seal(Tid(2)).expect("dirty in 2");
        assert_eq!(pair(&sealed.bytes), 4);
        buffer.checkpointed(Tid(2));
        assert_eq!(buffer.retire(), Retire::Done);
    });
}

#[test]
fn a_change_and_a_retirement_never_both_succeed() {
    model::check(SCHEDULES, || {
        let buffer = buffer();
        let changer = {
            let buffer = Arc::clone(&buffer);
            thread::spawn(move || bump(&buffer, 1).is_ok())
        };
        let retired = buffer.retire() == Retire::Done;
        let changed = changer.join().expect("a task");
        assert!(
            !(retired && changed),
            "a change to a buffer that has left the cache"
        );
        assert!(retired || changed, "one of them must succeed");
    });
}

#[test]
fn a_check_counts_only_for_the_bytes_it_has_seen() {
    model::check(SCHEDULES, || {
        let buffer = buffer();
        let other = VerifiedAs::new(Structure::Xattrs, InodeNr(5));
        let changer = {
            let buffer = Arc::clone(&buffer);
            thread::spawn(move || bump(&buffer, 1).expect("not retired"))
        };
        let guard = epoch::pin();
        let check = |bytes: &[u8]| {
            if pair(bytes) == 0 {
                Ok(())
            } else {
                Err("changed")
            }
        };
        let verdict = buffer.verified(other, &guard, check);
        changer.join().expect("a task");
        // Whatever the result of the first check: the changed bytes have not passed as `other`.
        assert_eq!(
            buffer.verified(other, &guard, check),
            Err("changed"),
            "{verdict:?}"
        );
    });
}
