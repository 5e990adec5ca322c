//! **Purpose.** Several threads writing one file that the host keeps in memory (tmpfs).
//!
//! **Not here.** Files on disks, whose pages are better left to the host's write path.
//!
//! **Model.** The host lets one thread at a time write to a file, and most of what a write to
//! tmpfs costs is finding a page for it. So whoever finds the turn taken does not wait: the thread
//! maps the place, has the host put pages there, and copies its bytes in. Mapped and written pages
//! are the same pages. Two threads that read from a page cache and write an image so are a fifth
//! faster than two that wait for each other.
//!
//! **Invariants.** Memory that is mapped here is only written, only inside one call, and no
//! reference to it exists.
//!
//! **Locking.** `turn` is held across one system call that takes the host's lock of the file
//! anyway; it is only ever tried, never waited for.
//!
//! **References.** madvise(2), `MADV_POPULATE_WRITE`; the host's inode lock in
//! `generic_file_write_iter`.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::ptr;

use fourscore_sync::{Mutex, MutexGuard};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// What `fstatfs` says of tmpfs.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// Shorter writes are over before anything could be mapped.
const LEAST_BYTES: usize = 128 << 10;
/// What maps begin at multiples of; larger than the pages of every host.
const MAP_ALIGN_BYTES: u64 = 64 << 10;

/// What threads that write a file in memory share.
#[derive(Debug, Default)]
pub(crate) struct MemoryFile {
    turn: Mutex<()>,
}

impl MemoryFile {
    /// `None` for a file on anything but tmpfs.
    pub(crate) fn of(file: &File) -> Option<Self> {
        let found = rustix::fs::fstatfs(file).ok()?;
        let is_tmpfs = u64::try_from(found.f_type) == Ok(TMPFS_MAGIC);
        is_tmpfs.then(Self::default)
    }

    /// Whether somebody has the turn just now.
    pub(crate) fn is_being_written(&self) -> bool {
        self.turn.is_locked()
    }

    /// The turn to write by system call, if nobody has it.
    pub(crate) fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        self.turn.try_lock()
    }
}

/// Puts `bytes` at `offset` of a file in memory beside others who write there by system call; all
/// of it lies in front of the file's end. `false` if this cannot be done, or is not worth it:
/// then nothing was changed.
pub(crate) fn write_beside(file: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> bool {
    if bytes.len() < LEAST_BYTES {
        return false;
    }
    let start = offset / MAP_ALIGN_BYTES * MAP_ALIGN_BYTES;
    let Ok(before) = usize::try_from(offset - start) else {
        return false;
    };
    let len = before + bytes.len();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the place of the new map is the host's choice, so no memory in use is touched.
    let mapped = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, file, start) };
    let Ok(map) = mapped else {
        return false;
    };
    // What a full tmpfs would answer with a signal on a store, it answers here with an error.
    // SAFETY: `map` is `len` bytes long and ours.
    let populated = unsafe { madvise(map, len, Advice::LinuxPopulateWrite) }.is_ok();
    if populated {
        // SAFETY: `before + bytes.len()` is the length of the map, which is writable, present,
        // and not part of any Rust object, so it cannot overlap `bytes`.
        unsafe {
            let to = map.cast::<u8>().add(before);
            ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }
    // SAFETY: `map` is `len` bytes long, ours, and nothing refers to it any more.
    let unmapped = unsafe { munmap(map, len) };
    debug_assert!(unmapped.is_ok(), "a map that was just made");
    populated
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::{BlockDevice, DeviceOptions, create_image};
    use fourscore_sync::thread;

    const SHM: &str = "/dev/shm";

    fn on_tmpfs() -> tempfile::TempDir {
        tempfile::tempdir_in(SHM).expect("a folder in memory")
    }

    #[test]
    fn bytes_beside_are_the_files_bytes() {
        let folder = on_tmpfs();
        let file = tempfile::tempfile_in(folder.path()).expect("a file");
        file.set_len(1 << 20).expect("room");
        assert!(MemoryFile::of(&file).is_some());
        let bytes: Vec<u8> = (0..=250).cycle().take(LEAST_BYTES + 777).collect();
        assert!(write_beside(file.as_fd(), &bytes, 70_001));
        let mut found = vec![9; bytes.len() + 2];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut found, 70_000).expect("its bytes");
        assert_eq!(found[1..=bytes.len()], bytes[..]);
        assert_eq!((found[0], found[bytes.len() + 1]), (0, 0));
        assert!(!write_beside(file.as_fd(), &bytes[..100], 0), "too short");
        let read_only = File::open(format!("/proc/self/fd/{}", {
            use std::os::fd::AsRawFd;
            file.as_raw_fd()
        }));
        let read_only = read_only.expect("the same file");
        assert!(!write_beside(read_only.as_fd(), &bytes, 0), "not writable");
    }

    /// Behind the end of the file there is no page: the host says so instead of sending a signal.
    #[test]
    fn what_cannot_be_populated_is_left_to_the_caller() {
        let folder = on_tmpfs();
        let file = tempfile::tempfile_in(folder.path()).expect("a file");
        assert!(!write_beside(file.as_fd(), &vec![1; LEAST_BYTES], 0));
    }

    #[test]
    fn a_taken_turn_does_not_stop_a_device() {
        let folder = on_tmpfs();
        let path = folder.path().join("image");
        let device = create_image(&path, 16 << 20, DeviceOptions::read_write());
        let device = device.expect("room");
        let place = |number: u64| number * (200 << 10);
        thread::scope(|scope| {
            for thread in 0..4u64 {
                let device = &device;
                scope.spawn(move || {
                    for number in (thread..80).step_by(4) {
                        let byte = u8::try_from(number).expect("small") + 1;
                        let bytes = vec![byte; 200 << 10];
                        device.write_at(&bytes, place(number)).expect("room");
                    }
                });
            }
        });
        let mut found = vec![0; 200 << 10];
        for number in 0..80 {
            device.read_at(&mut found, place(number)).expect("written");
            let byte = u8::try_from(number).expect("small") + 1;
            assert!(found.iter().all(|&one| one == byte), "{number}");
        }
    }
}
