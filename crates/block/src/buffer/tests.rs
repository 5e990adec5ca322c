//! Tests of a buffer: when it is copied, and the bytes that readers, sealing and retiring see.

use super::*;

const TAG: u64 = (Structure::DirectoryLeaf as u64) << 32 | 12;

fn tag() -> VerifiedAs {
    VerifiedAs::new(Structure::DirectoryLeaf, InodeNr(12))
}

fn buffer(content: &[u8]) -> Buffer {
    Buffer::new(PhysBlock(77), Arc::from(content))
}

fn set(buffer: &Buffer, tid: u32, byte: u8) -> Joined {
    buffer
        .modify(Tid(tid), tag(), |bytes| bytes[0] = byte)
        .expect("not retired")
        .1
}

fn live(buffer: &Buffer) -> u8 {
    buffer.bytes(&epoch::pin())[0]
}

fn live_address(buffer: &Buffer) -> usize {
    buffer.bytes(&epoch::pin()).as_ptr().addr()
}

fn change_address(buffer: &Buffer, tid: u32) -> usize {
    buffer
        .modify(Tid(tid), tag(), |bytes| bytes.as_ptr().addr())
        .expect("not retired")
        .0
}

#[test]
fn tags_distinguish_structures_and_owners() {
    assert_eq!(tag().key, TAG);
    assert_ne!(
        tag(),
        VerifiedAs::new(Structure::DirectoryLeaf, InodeNr(13))
    );
    assert_ne!(tag(), VerifiedAs::new(Structure::Xattrs, InodeNr(12)));
    assert_ne!(
        VerifiedAs::new(Structure::Superblock, InodeNr(0)),
        UNVERIFIED
    );
    for structure in Structure::ALL {
        let tag = VerifiedAs::new(structure, InodeNr(u32::MAX));
        assert_eq!(tag.structure(), Some(structure));
        assert_eq!(tag.owner(), InodeNr(u32::MAX));
    }
    assert_eq!(UNVERIFIED.structure(), None);
}

/// A thread that held the locks of two buffers could deadlock with one that takes them in the other
/// order.
#[test]
fn a_thread_holds_the_lock_of_one_buffer_at_a_time() {
    let (one, other) = (buffer(b"one"), buffer(b"two"));
    let both = || one.modify(Tid(1), tag(), |_| set(&other, 1, b'x')).is_ok();
    let both = std::panic::catch_unwind(std::panic::AssertUnwindSafe(both));
    assert_eq!(both.is_err(), cfg!(debug_assertions));
    set(&other, 1, b'y');
    assert_eq!(live(&other), b'y');
}

#[test]
fn a_look_does_not_freeze_a_draft() {
    let buffer = buffer(b"old");
    let looked = || buffer.look(|bytes| (bytes[0], bytes.as_ptr().addr()));
    assert_eq!(looked().0, b'o');
    set(&buffer, 1, b'n');
    let address = change_address(&buffer, 1);
    assert_eq!(looked(), (b'n', address));
    let verified = buffer.look_verified(tag(), |_| Err(()), |bytes| bytes[0]);
    assert_eq!(verified, Ok(b'n'), "verified by the writer");
    let other = VerifiedAs::new(Structure::Xattrs, InodeNr(12));
    assert_eq!(buffer.look_verified(other, |_| Err(()), |_| ()), Err(()));
    assert_eq!(change_address(&buffer, 1), address, "nothing was copied");
    assert_eq!(live(&buffer), b'n');
    assert_ne!(change_address(&buffer, 1), address, "a reader has it");
}

#[test]
fn many_looks_freeze_a_draft() {
    let buffer = buffer(b"old");
    set(&buffer, 1, b'n');
    let address = change_address(&buffer, 1);
    let look = || buffer.look_verified(tag(), |_| Err(()), |bytes| bytes[0]);
    for _ in 0..MAX_LOOKS {
        assert_eq!(look(), Ok(b'n'));
    }
    assert_eq!(change_address(&buffer, 1), address, "it is still a draft");
    for _ in 0..=MAX_LOOKS {
        assert_eq!(look(), Ok(b'n'));
    }
    assert_ne!(change_address(&buffer, 1), address, "a reader has it");
}

#[test]
fn the_bytes_a_reader_holds_never_change() {
    let buffer = buffer(b"old");
    let guard = epoch::pin();
    let before = buffer.bytes(&guard);
    assert_eq!(set(&buffer, 1, b'b'), Joined::First);
    let between = buffer.bytes(&guard);
    assert_eq!(set(&buffer, 1, b'c'), Joined::Again);
    assert_eq!(
        (before, between, buffer.bytes(&guard)),
        (&b"old"[..], &b"bld"[..], &b"cld"[..])
    );
}

#[test]
fn a_draft_is_changed_in_place_until_it_is_read_or_sealed() {
    let buffer = buffer(&[0; 64]);
    let original = live_address(&buffer);
    let draft = change_address(&buffer, 1);
    assert_ne!(draft, original, "a frozen version is copied");
    assert_eq!(
        change_address(&buffer, 1),
        draft,
        "a draft is changed in place"
    );
    assert_eq!(live_address(&buffer), draft, "freezing moves the draft");
    let second = change_address(&buffer, 1);
    assert_ne!(second, draft, "the frozen version is copied again");
    let sealed = buffer.seal(Tid(1)).expect("dirty in 1");
    assert_eq!(
        sealed.bytes.as_ptr().addr(),
        second,
        "sealing moves the draft"
    );
    assert_eq!(
        live_address(&buffer),
        second,
        "the sealed bytes are the live ones"
    );
    assert_ne!(change_address(&buffer, 2), second);
}

#[test]
fn a_check_runs_once_for_the_same_bytes_and_tag() {
    let buffer = buffer(b"content");
    let guard = epoch::pin();
    let mut checks = 0;
    let mut verify = |tag| {
        let check = |_: &[u8]| -> Result<(), ()> {
            checks += 1;
            Ok(())
        };
        buffer.verified(tag, &guard, check).map(<[u8]>::len)
    };
    assert_eq!([verify(tag()), verify(tag())], [Ok(7); 2]);
    assert_eq!(
        verify(VerifiedAs::new(Structure::Xattrs, InodeNr(12))),
        Ok(7)
    );
    assert_eq!(checks, 2, "once for each tag");
    assert_eq!(buffer.verified(tag(), &guard, |_| Err("bad")), Err("bad"));
    assert_eq!(
        buffer.verified(tag(), &guard, |_| Err("still")),
        Err("still"),
        "errors are not cached"
    );
    set(&buffer, 1, b'x');
    let verified = buffer.verified(tag(), &guard, |_| Err("not called"));
    assert_eq!(verified, Ok(&b"xontent"[..]), "verified by the writer");
}

#[test]
fn each_transaction_seals_its_own_content_and_a_checksum_reaches_the_live_bytes() {
    let buffer = buffer(&[0; 2]);
    let checksum = |found: VerifiedAs, bytes: &mut [u8]| {
        assert_eq!(found, tag());
        bytes[1] = bytes[0] + 100;
    };
    set(&buffer, 1, 1);
    let first = buffer.seal_with(Tid(1), checksum).expect("dirty in 1");
    assert_eq!(
        (&*first.bytes, first.block, first.tid),
        (&[1, 101][..], PhysBlock(77), Tid(1))
    );
    assert_eq!(buffer.bytes(&epoch::pin()), [1, 101]);
    assert!(buffer.seal(Tid(1)).is_none(), "only once");
    set(&buffer, 2, 2);
    assert_eq!(live(&buffer), 2, "this read freezes it");
    let second = buffer.seal_with(Tid(2), checksum).expect("dirty in 2");
    assert_eq!(
        (&*second.bytes, &*first.bytes),
        (&[2, 102][..], &[1, 101][..])
    );
    assert_eq!(buffer.bytes(&epoch::pin()), [2, 102]);
    assert!(buffer.seal(Tid(3)).is_none(), "3 changed nothing");
}

#[test]
fn a_newer_transaction_keeps_the_content_of_the_committing_one() {
    for read_between in [false, true] {
        let buffer = buffer(&[0; 2]);
        set(&buffer, 1, 1);
        if read_between {
            assert_eq!(live(&buffer), 1);
        }
        assert_eq!(set(&buffer, 2, 2), Joined::First);
        assert_eq!(set(&buffer, 2, 3), Joined::Again);
        assert_eq!(live(&buffer), 3);
        let older = buffer
            .seal_with(Tid(1), |found, bytes| {
                assert_eq!(found, tag());
                bytes[1] = 9;
            })
            .expect("kept for the commit");
        assert_eq!(&*older.bytes, [1, 9]);
        assert_eq!(
            buffer.bytes(&epoch::pin()),
            [3, 0],
            "a newer transaction has changed the live content"
        );
        let newer = buffer.seal(Tid(2)).expect("dirty in 2");
        assert_eq!((&*newer.bytes, &*older.bytes), (&[3, 0][..], &[1, 9][..]));
    }
}

#[test]
fn only_checkpointed_buffers_retire_and_a_retired_one_refuses_changes() {
    let buffer = buffer(&[0]);
    set(&buffer, 1, 1);
    assert_eq!(buffer.retire(), Retire::InUse, "dirty");
    let _sealed = buffer.seal(Tid(1));
    assert_eq!(buffer.retire(), Retire::InUse, "not checkpointed");
    set(&buffer, 2, 2);
    let _sealed = buffer.seal(Tid(2));
    buffer.checkpointed(Tid(1));
    assert_eq!(buffer.retire(), Retire::InUse, "2 is not checkpointed");
    buffer.checkpointed(Tid(2));
    assert_eq!(buffer.retire(), Retire::Done);
    assert_eq!(buffer.modify(Tid(3), tag(), |_| ()), Err(Retired));
    assert_eq!(live(&buffer), 2, "it can still be read");
}

#[test]
fn forgetting_keeps_the_content_of_the_committing_transaction() {
    let buffer = buffer(&[0]);
    set(&buffer, 1, 1);
    set(&buffer, 2, 2);
    buffer.forget(Tid(2));
    assert_eq!(buffer.modify(Tid(2), tag(), |_| ()), Err(Retired));
    assert!(buffer.seal(Tid(2)).is_none(), "discarded");
    assert_eq!(*buffer.seal(Tid(1)).expect("kept").bytes, [1]);
    let untouched = self::buffer(&[0]);
    set(&untouched, 1, 1);
    untouched.forget(Tid(2));
    assert_eq!(
        *untouched.seal(Tid(1)).expect("not touched by 2").bytes,
        [1]
    );
}

#[test]
fn a_change_that_panics_leaves_a_buffer_that_can_be_read() {
    let buffer = buffer(&[0; 2]);
    let change = || {
        buffer.modify(Tid(1), tag(), |bytes| {
            bytes[0] = 1;
            panic!("a bug in the caller");
        })
    };
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(change));
    assert!(outcome.is_err());
    assert_eq!(live(&buffer), 1);
}

/// The structure that each transaction is sealed as, if it joined without a change.
fn sealed_as(buffer: &Buffer, tid: u32) -> Option<Structure> {
    let mut structure = None;
    let finish = |tag: VerifiedAs, _: &mut [u8]| structure = tag.structure();
    buffer.seal_with(Tid(tid), finish).expect("it has joined");
    structure
}

#[test]
fn a_block_that_joins_without_a_change_is_sealed_as_it_is() {
    let buffer = buffer(&[1, 2]);
    let check = |_: &[u8]| Ok::<_, ()>(());
    buffer.verified(tag(), &epoch::pin(), check).unwrap();
    assert_eq!(buffer.join(Tid(1)), Ok(Joined::First));
    assert_eq!(buffer.join(Tid(1)), Ok(Joined::Again));
    assert!(buffer.is_dirty_in(Tid(1)));
    assert_eq!(sealed_as(&buffer, 1), None);
    assert_eq!(live(&buffer), 1);
}

#[test]
fn a_block_that_joins_before_an_older_change_is_sealed_keeps_its_tag() {
    let buffer = buffer(&[1, 2]);
    set(&buffer, 1, 7);
    assert_eq!(buffer.join(Tid(2)), Ok(Joined::First));
    assert_eq!(sealed_as(&buffer, 1), Some(Structure::DirectoryLeaf));
    assert_eq!(sealed_as(&buffer, 2), Some(Structure::DirectoryLeaf));
    buffer.forget(Tid(3));
    assert_eq!(buffer.join(Tid(3)), Err(Retired));
}
