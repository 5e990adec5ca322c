//! **Purpose.** Freezing: the file system stands still and its device holds all of it, so that a
//! copy of the device needs no recovery, until it is thawed.
//!
//! **Model.** Whoever changes something is *inside* while he does: a plan from its beginning to its
//! end, with the data that is written for it. Freezing lets nobody in any more, waits until all are
//! out, commits, brings everything to its place and says on the device that nothing is left to be
//! recovered. Who wants in meanwhile waits.
//!
//! ```text
//! thawed -> freezing: nobody comes in, all leave -> frozen -> thawed
//! ```
//!
//! **Invariants.** *Nobody is inside while it is frozen.* Coming in and freezing are the two sides
//! of Dekker's protocol: each writes its own word, then reads the other's, with a full fence
//! between. So at least one sees the other.
//!
//! **Locking.** Coming in and leaving write a word of this core and read one that is written by
//! freezing alone. Who waits inside of nothing holds locks of inodes while he waits, as in Linux;
//! nobody comes in twice, since he would wait for himself.
//!
//! **Crash safety.** While it is frozen the device holds a file system that was left clean, but for
//! open files without names, which are on record.
//!
//! **References.** fsfreeze(8); ioctl `FIFREEZE`, `FITHAW`.

use crate::Result;
use crate::inode::lazy_times;
use crate::mount::errors;
use crate::mount::freezer::Rest;
use crate::mount::mark::{self, Mounted};
use crate::mount::state::Mount;

/// See [`Fs::freeze`](crate::Fs::freeze).
pub(crate) fn freeze(mount: &Mount) -> Result<()> {
    errors::noting(mount, stand_still(mount))
}

fn stand_still(mount: &Mount) -> Result<()> {
    lazy_times::write_times(mount)?;
    mount.freezer().close()?;
    match settle(mount) {
        Ok(()) => {
            mount.freezer().set_frozen();
            Ok(())
        }
        Err(error) => {
            mount.rest_mmp(Rest::Ends);
            mount.freezer().open();
            Err(error)
        }
    }
}

/// Brings everything to its place, and says so on the device.
fn settle(mount: &Mount) -> Result<()> {
    mount.journal().quiesce()?;
    mount.rest_mmp(Rest::Begins);
    let left = Mounted::left_behind(mount.orphans());
    mark::mark(
        &*mount.core.device,
        mount.core.superblock(),
        left,
        Some(mount.free_on_disk()),
    )?;
    Ok(mount.core.device.flush()?)
}

/// See [`Fs::thaw`](crate::Fs::thaw).
pub(crate) fn thaw(mount: &Mount) -> Result<()> {
    mount.freezer().begin_thaw()?;
    if let Err(error) = mark::mark(
        &*mount.core.device,
        mount.core.superblock(),
        Mounted::Again,
        None,
    ) {
        mount.freezer().set_frozen();
        return Err(error);
    }
    mount.rest_mmp(Rest::Ends);
    mount.freezer().open();
    Ok(())
}

#[cfg(all(test, not(feature = "shuttle"), not(feature = "count")))]
mod tests {
    use std::time::Duration;

    use fourscore_sync::thread;

    use super::*;

    #[test]
    fn nobody_is_inside_while_it_is_closed_and_all_come_in_afterwards() {
        let freezer = Freezer::default();
        let (entered, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let inside = freezer.enter();
                        entered.fetch_add(1, Ordering::Relaxed);
                        drop(inside);
                    }
                });
            }
            for _ in 0..20 {
                freezer.close().unwrap();
                assert!(matches!(freezer.close(), Err(Error::Busy)));
                let before = entered.load(Ordering::Relaxed);
                thread::sleep(Duration::from_millis(2));
                assert_eq!(entered.load(Ordering::Relaxed), before);
                freezer.set_frozen();
                freezer.begin_thaw().unwrap();
                freezer.open();
                assert!(freezer.begin_thaw().is_err());
                while entered.load(Ordering::Relaxed) == before {
                    thread::yield_now();
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(
            freezer
                .inside
                .iter()
                .all(|core| core.load(Ordering::Relaxed) == 0)
        );
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod model_tests {
    use fourscore_sync::{Arc, model, thread};

    use super::*;

    #[test]
    fn two_who_come_in_and_one_who_freezes_meet_in_any_order() {
        model::check(2_000, || {
            let freezer = Arc::new(Freezer::default());
            let halves = Arc::new(AtomicU64::new(0));
            let writers: Vec<_> = (0..2)
                .map(|_| {
                    let (freezer, halves) = (Arc::clone(&freezer), Arc::clone(&halves));
                    thread::spawn(move || {
                        let _inside = freezer.enter();
                        halves.fetch_add(1, Ordering::SeqCst);
                        thread::yield_now();
                        halves.fetch_add(1, Ordering::SeqCst);
                    })
                })
                .collect();
            freezer.close().unwrap();
            let seen = halves.load(Ordering::SeqCst);
            assert_eq!(seen % 2, 0, "somebody is inside");
            thread::yield_now();
            assert_eq!(halves.load(Ordering::SeqCst), seen, "somebody came in");
            freezer.open();
            for writer in writers {
                writer.join().unwrap();
            }
            assert_eq!(halves.load(Ordering::SeqCst), 4);
        });
    }
}
