//! **Purpose.** Concurrent writes of several threads to one file on tmpfs.
//!
//! **Not here.** Files on disks, whose pages are better written by the host's write path.
//!
//! **Model.** The host lets one thread at a time write to a file, and most of the cost of a write
//! to tmpfs is the allocation of pages. So a thread that finds another one writing does not wait:
//! it maps the range of the file, populates the map with pages, and copies its bytes there. Mapped
//! and written pages are the same pages. Two threads that write an image from the page cache are a
//! fifth faster this way than two that wait for each other.
//!
//! **Invariants.** Memory that is mapped here is only written, only inside one call, and no
//! reference to it exists.
//!
//! **Locking.** `writer` is held across one system call of a long write, which takes the host's
//! lock of the file anyway. It is only taken by `try_lock`, so no thread waits for it. Short writes
//! do not touch it: its cache line would move to each core that writes a block.
//!
//! **References.** madvise(2), `MADV_POPULATE_WRITE`; the host's inode lock in
//! `generic_file_write_iter`.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::ptr;

use fourscore_sync::{Mutex, MutexGuard};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// The type of tmpfs in the result of `fstatfs`.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// For shorter writes a map takes longer than waiting.
const MIN_BYTES: usize = 128 << 10;
/// The alignment of maps, which is at least the page size of any host.
const MAP_ALIGN_BYTES: u64 = 64 << 10;

/// The state shared by threads that write a file on tmpfs.
#[derive(Debug, Default)]
pub(crate) struct MemoryFile {
    writer: Mutex<()>,
}

impl MemoryFile {
    /// `None` for a file on anything but tmpfs.
    pub(crate) fn of(file: &File) -> Option<Self> {
        let found = rustix::fs::fstatfs(file).ok()?;
        let is_tmpfs = u64::try_from(found.f_type) == Ok(TMPFS_MAGIC);
        is_tmpfs.then(Self::default)
    }

    /// Whether a thread makes a long write by system call now.
    pub(crate) fn is_being_written(&self) -> bool {
        self.writer.is_locked()
    }

    /// The lock for a write by system call, unless another thread holds it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, ()>> {
        self.writer.try_lock()
    }
}

/// Whether a write of this length may go through a map while another thread writes.
pub(crate) fn is_long(len_bytes: u64) -> bool {
    len_bytes >= MIN_BYTES as u64
}

/// Writes `bytes` at `offset` of a file on tmpfs through a memory map, while other threads write to
/// it by system call. The range is inside the file. Returns `false` with nothing changed if the
/// write is too short for this or if the map fails.
pub(crate) fn write_mapped(file: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> bool {
    if !is_long(bytes.len() as u64) {
        return false;
    }
    let start = offset / MAP_ALIGN_BYTES * MAP_ALIGN_BYTES;
    let Ok(before) = usize::try_from(offset - start) else {
        return false;
    };
    let len = before + bytes.len();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the host chooses the address of the new map, so no memory in use is touched.
    let mapped = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, file, start) };
    let Ok(map) = mapped else {
        return false;
    };
    // If tmpfs is full, this fails, where a store to the map would raise a signal.
    // SAFETY: `map` is `len` bytes long and was mapped above.
    let populated = unsafe { madvise(map, len, Advice::LinuxPopulateWrite) }.is_ok();
    if populated {
        // SAFETY: `before + bytes.len()` is the length of the map, which is writable, present,
        // and not part of any Rust object, so it cannot overlap `bytes`.
        unsafe {
            let to = map.cast::<u8>().add(before);
            ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }
    // SAFETY: `map` is `len` bytes long, was mapped above, and has no references.
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
    fn bytes_written_through_a_map_are_in_the_file() {
        let folder = on_tmpfs();
        let file = tempfile::tempfile_in(folder.path()).expect("a file");
        file.set_len(1 << 20).expect("enough memory");
        assert!(MemoryFile::of(&file).is_some());
        let bytes: Vec<u8> = (0..=250).cycle().take(MIN_BYTES + 777).collect();
        assert!(write_mapped(file.as_fd(), &bytes, 70_001));
        let mut found = vec![9; bytes.len() + 2];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut found, 70_000).expect("its bytes");
        assert_eq!(found[1..=bytes.len()], bytes[..]);
        assert_eq!((found[0], found[bytes.len() + 1]), (0, 0));
        assert!(!write_mapped(file.as_fd(), &bytes[..100], 0), "too short");
        let read_only = File::open(format!("/proc/self/fd/{}", {
            use std::os::fd::AsRawFd;
            file.as_raw_fd()
        }));
        let read_only = read_only.expect("the same file");
        assert!(!write_mapped(read_only.as_fd(), &bytes, 0), "not writable");
    }

    /// There are no pages past the end of the file: the host returns an error and sends no signal.
    #[test]
    fn a_range_that_cannot_be_populated_is_refused() {
        let folder = on_tmpfs();
        let file = tempfile::tempfile_in(folder.path()).expect("a file");
        assert!(!write_mapped(file.as_fd(), &vec![1; MIN_BYTES], 0));
    }

    #[test]
    fn concurrent_writes_all_arrive() {
        let folder = on_tmpfs();
        let path = folder.path().join("image");
        let device = create_image(&path, 16 << 20, DeviceOptions::read_write());
        let device = device.expect("enough memory");
        let offset_of = |number: u64| number * (200 << 10);
        thread::scope(|scope| {
            for thread in 0..4u64 {
                let device = &device;
                scope.spawn(move || {
                    for number in (thread..80).step_by(4) {
                        let byte = u8::try_from(number).expect("small") + 1;
                        let bytes = vec![byte; 200 << 10];
                        device
                            .write_at(&bytes, offset_of(number))
                            .expect("enough memory");
                    }
                });
            }
        });
        let mut found = vec![0; 200 << 10];
        for number in 0..80 {
            device
                .read_at(&mut found, offset_of(number))
                .expect("written");
            let byte = u8::try_from(number).expect("small") + 1;
            assert!(found.iter().all(|&one| one == byte), "{number}");
        }
    }
}

/// Tests of the number of cache lines that writes move between cores.
#[cfg(all(test, feature = "count"))]
mod count_tests {
    use crate::{BlockDevice, DeviceOptions, create_image};
    use fourscore_sync::count::with_cores;

    /// The lines that an operation moves if each of 80 cores in turn writes `len_bytes`.
    fn moved(len_bytes: usize) -> f64 {
        let folder = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
        let device = create_image(
            &folder.path().join("image"),
            1 << 20,
            DeviceOptions::read_write(),
        );
        let (device, bytes) = (device.expect("enough memory"), vec![1; len_bytes]);
        with_cores(80, |cores| {
            let report = cores.run(4, |_, _| device.write_at(&bytes, 0).expect("enough memory"));
            report.transfers_per_op()
        })
    }

    #[test]
    fn short_writes_move_no_line_and_long_ones_that_of_the_lock() {
        assert!(moved(4096) < 0.001);
        assert!(moved(super::MIN_BYTES) > 0.9);
    }
}
