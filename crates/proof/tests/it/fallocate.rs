//! Ranges of files: the same calls are applied through the kernel's mount to one image and through
//! us to another.

use fourscore::{
    Fallocate, Fs, InodeNr, MountOptions, NewAttributes, QuotaKind, QuotaLimits, Seek,
};
use fourscore_block::{DeviceOp, FaultyDevice, RamDevice, Rule};
use fourscore_sync::Arc;
use fourscore_testkit::explore::Rng;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{File, OpenOptions as HostOptions};
use std::os::unix::fs::{FileExt, MetadataExt};

use crate::common::{
    PLAIN, content, image_of, mount, mount_with, open, pattern, require_e2fsprogs, require_kernel,
    unmount_clean,
};

const ALL: [Fallocate; 7] = [
    Fallocate::Allocate,
    Fallocate::AllocateKeepSize,
    Fallocate::PunchHole,
    Fallocate::ZeroRange,
    Fallocate::ZeroRangeKeepSize,
    Fallocate::CollapseRange,
    Fallocate::InsertRange,
];

fn flags(what: Fallocate) -> FallocateFlags {
    match what {
        Fallocate::Allocate => FallocateFlags::empty(),
        Fallocate::AllocateKeepSize => FallocateFlags::KEEP_SIZE,
        Fallocate::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        Fallocate::ZeroRange => FallocateFlags::ZERO_RANGE,
        Fallocate::ZeroRangeKeepSize => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        Fallocate::CollapseRange => FallocateFlags::COLLAPSE_RANGE,
        Fallocate::InsertRange => FallocateFlags::INSERT_RANGE,
    }
}

fn image_with(block_size: u32, features: &[&str], arguments: &[&str]) -> Image {
    let image = Image::builder(MiB(64))
        .kind("ext4")
        .block_size_bytes(block_size)
        .features(features)
        .arguments(arguments.iter().copied());
    image.make().unwrap()
}

/// A file of ours and one of the kernel's, to which the same operations are applied.
struct Pair {
    fs: Arc<Fs>,
    ours: InodeNr,
    host: File,
}

impl Pair {
    fn step(&self, rng: &mut Rng, unit: u64) {
        let (mut offset, mut len) = (rng.bits() % 200_000, 1 + rng.bits() % 60_000);
        match rng.below(10) {
            0..=2 => {
                let bytes = vec![u8::try_from(1 + rng.below(255)).unwrap(); 20_000];
                let bytes = &bytes[..usize::try_from(1 + len % 20_000).unwrap()];
                self.fs.write_at(self.ours, bytes, offset).unwrap();
                self.host.write_all_at(bytes, offset).unwrap();
            }
            3 => {
                self.fs.truncate(self.ours, offset).unwrap();
                self.host.set_len(offset).unwrap();
            }
            _ => {
                let what = *rng.pick(&ALL);
                if rng.happens(7, 8) {
                    offset -= offset % unit;
                    len += unit - len % unit;
                }
                let ours = self.fs.fallocate(self.ours, what, offset, len);
                let theirs = fallocate(&self.host, flags(what), offset, len);
                let ours = ours.map_err(|error| error.errno());
                let theirs = theirs.map_err(rustix::io::Errno::raw_os_error);
                assert_eq!(ours, theirs, "{what:?} {offset} {len}");
            }
        }
    }

    /// Compares data, size, and space except for a few nodes.
    fn compare(&self, cluster_size: u64) {
        let found = self.fs.stat(self.ours).unwrap();
        let size = self.host.metadata().unwrap().len();
        assert_eq!(found.size_bytes, size);
        let mut expected = vec![0; usize::try_from(size).unwrap()];
        self.host.read_exact_at(&mut expected, 0).unwrap();
        let mut content = vec![1; expected.len()];
        assert_eq!(
            self.fs.read_at(self.ours, &mut content, 0).unwrap(),
            expected.len()
        );
        let differs = content.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!(differs, None, "of {size} bytes");
        // Data that the kernel has not written yet has no blocks there.
        self.host.sync_all().unwrap();
        let sectors = self.host.metadata().unwrap().blocks();
        let nodes = 4 * cluster_size / 512;
        assert!(
            found.sectors.abs_diff(sectors) <= nodes,
            "{} and {sectors}",
            found.sectors
        );
    }

    fn data(&self) -> Vec<u64> {
        let mut found = Vec::new();
        let (mut at, mut what) = (0, Seek::Data);
        while let Some(next) = self.fs.seek(self.ours, at, what).unwrap() {
            found.push(next);
            (at, what) = match what {
                Seek::Data => (next, Seek::Hole),
                Seek::Hole => (next, Seek::Data),
            };
        }
        found
    }
}

#[test]
fn ranges_end_as_the_kernel_leaves_them() {
    require_kernel!();
    // In files that are mapped by pointers, only holes can be punched.
    let pointers: &[&str] = &["^extent", "^64bit"];
    let bigalloc: &[&str] = &["bigalloc"];
    let runs = [
        (1, 4096_u32, 4096_u32, &[][..]),
        (2, 1024, 1024, &[]),
        (3, 1024, 1024, &[]),
        (4, 1024, 1024, pointers),
        (5, 4096, 4096, pointers),
        (6, 4096, 16 << 10, bigalloc),
        (7, 1024, 16 << 10, bigalloc),
        (8, 4096, 64 << 10, bigalloc),
    ];
    for (seed, block_size, cluster_size, features) in runs {
        let size = cluster_size.to_string();
        let clusters = ["-C", &size];
        let clusters = if cluster_size > block_size {
            &clusters[..]
        } else {
            &[]
        };
        let made = || image_with(block_size, features, clusters);
        let (mine, theirs) = (made(), made());
        let kernel = KernelMount::new(theirs.path(), Access::ReadWrite, "").unwrap();
        let host = HostOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(kernel.path().join("file"))
            .unwrap();
        let fs = mount(&mine);
        let ours = fs.create(InodeNr::ROOT, b"file", &PLAIN).unwrap();
        let pair = Pair { fs, ours, host };
        let mut rng = Rng::new(seed);
        for step in 0..400 {
            let unit = *rng.pick(&[block_size, cluster_size]);
            pair.step(&mut rng, unit.into());
            if step % 20 == 19 {
                pair.compare(cluster_size.into());
            }
        }
        let data = pair.data();
        let Pair { fs, ours, host } = pair;
        let size = host.metadata().unwrap().len();
        drop(host);
        kernel.unmount().unwrap();
        unmount_clean(fs, &mine);
        let kernel = KernelMount::new(mine.path(), Access::ReadOnly, "").unwrap();
        let file = File::open(kernel.path().join("file")).unwrap();
        assert_eq!(file.metadata().unwrap().len(), size, "inode {ours}");
        let mut found = Vec::new();
        let mut next = 0;
        while let Ok(start) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(next)) {
            next = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(start)).unwrap();
            found.extend([start, next]);
        }
        assert_eq!(data, found);
    }
}

/// More extents than fit into a leaf or into one step are moved and freed.
#[test]
fn files_of_many_extents_change_in_steps() {
    require_e2fsprogs!();
    let image = image_of(1024, &[]);
    let fs = mount(&image);
    let file = fs.create(InodeNr::ROOT, b"file", &PLAIN).unwrap();
    let marked = |number: u64| vec![u8::try_from(number % 251).unwrap() + 1; 1024];
    let pieces = 1_500;
    for number in 0..pieces {
        fs.write_at(file, &marked(number), number * 2048).unwrap();
    }
    let before = fs.stat(file).unwrap();
    let expect = |at: u64, number: Option<u64>| {
        let mut found = vec![9; 1024];
        fs.read_at(file, &mut found, at).unwrap();
        let expected = number.map_or(vec![0; 1024], marked);
        assert!(found == expected, "at {at}: {number:?}");
    };
    fs.fallocate(file, Fallocate::InsertRange, 2048, 3 << 20)
        .unwrap();
    expect(0, Some(0));
    expect(2048, None);
    for number in 1..pieces {
        expect((3 << 20) + number * 2048, Some(number));
    }
    fs.fallocate(file, Fallocate::CollapseRange, 1024, 3 << 20)
        .unwrap();
    for number in 1..pieces {
        expect(number * 2048, Some(number));
        expect(number * 2048 - 1024, None);
    }
    assert_eq!(fs.stat(file).unwrap().size_bytes, before.size_bytes);
    fs.fallocate(file, Fallocate::ZeroRange, 0, 1 << 20)
        .unwrap();
    expect(4096, None);
    expect(1 << 20, Some((1 << 20) / 2048));
    fs.fallocate(file, Fallocate::PunchHole, 0, 1 << 32)
        .unwrap();
    let after = fs.stat(file).unwrap();
    assert_eq!((after.size_bytes, after.sectors), (before.size_bytes, 0));
    unmount_clean(fs, &image);
}

/// Extents of several leaves move in one step, which does not begin before all of them are read.
#[test]
fn what_a_collapse_cannot_read_leaves_the_file_as_it_was() {
    require_e2fsprogs!();
    let image = image_of(1024, &[]);
    let fs = mount(&image);
    let file = fs.create(InodeNr::ROOT, b"file", &PLAIN).unwrap();
    for number in 0..250 {
        fs.write_at(file, &[7; 1024], number * 2048).unwrap();
    }
    fs.unmount().unwrap();
    let before = std::fs::read(image.path()).unwrap();
    let mut expected = vec![0; 250 * 2048 - 1024];
    for block in expected.chunks_mut(1024).step_by(2) {
        block.fill(7);
    }
    let mut failed = 0;
    for nth in 1.. {
        let device = Arc::new(FaultyDevice::new(Arc::new(RamDevice::from_bytes(&before))));
        let fs = Fs::mount(device.clone(), &MountOptions::new()).unwrap();
        fs.lookup(InodeNr::ROOT, b"file").unwrap();
        device.add(Rule::nth(DeviceOp::Read, nth).and_after());
        let collapsed = fs.fallocate(file, Fallocate::CollapseRange, 0, 10 << 10);
        device.heal();
        let mut found = vec![9; 250 * 2048];
        let got = fs.read_at(file, &mut found, 0).unwrap();
        found.truncate(got);
        if collapsed.is_ok() {
            assert!(found == expected[10 << 10..]);
            break;
        }
        assert!(found == expected, "read {nth}: {collapsed:?}");
        failed += 1;
    }
    assert!(failed > 1, "only {failed} reads");
}

#[test]
fn what_makes_no_sense_is_refused_as_linux_does() {
    require!(Need::Program("mke2fs"));
    let image = image_of(1024, &[]);
    let fs = mount(&image);
    let file = fs.create(InodeNr::ROOT, b"file", &PLAIN).unwrap();
    fs.write_at(file, &[1; 5000], 0).unwrap();
    let refused = |what, offset, len, errno| {
        let error = fs.fallocate(file, what, offset, len).unwrap_err();
        assert_eq!(error.errno(), errno, "{what:?} {offset} {len}: {error}");
    };
    for what in ALL {
        refused(what, 0, 0, 22);
        refused(what, u64::MAX, 1024, 27);
        refused(what, 0, 1 << 43, 27);
    }
    for what in [Fallocate::CollapseRange, Fallocate::InsertRange] {
        refused(what, 100, 1024, 22);
        refused(what, 1024, 100, 22);
        refused(what, 5120, 1024, 22);
    }
    refused(Fallocate::CollapseRange, 1024, 4096, 22);
    refused(
        Fallocate::InsertRange,
        0,
        (u64::from(u32::MAX) << 10) - 1024,
        27,
    );
    refused(Fallocate::Allocate, 0, 1 << 30, 28);
    let root = fs.fallocate(InodeNr::ROOT, Fallocate::PunchHole, 0, 1);
    assert_eq!(root.unwrap_err().errno(), 21);
    let link = fs.symlink(InodeNr::ROOT, b"link", b"file", &PLAIN).unwrap();
    assert!(fs.fallocate(link, Fallocate::PunchHole, 0, 1).is_err());
    unmount_clean(fs, &image);
}

/// Creates a file in the root directory, and writes to it until no space is left.
fn fill(fs: &Fs, name: &[u8]) {
    let file = fs.create(InodeNr::ROOT, name, &PLAIN).unwrap();
    let (mut at_byte, mut step) = (0, 1 << 20);
    while step >= 1024 {
        match fs.write_at(file, &vec![0xee; step], at_byte) {
            Ok(written) => at_byte += written as u64,
            Err(error) => {
                assert_eq!(error.errno(), 28, "{error}");
                step /= 2;
            }
        }
    }
}

/// Why a preallocated extent cannot be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Disk,
    Quota,
}

/// A file system with a preallocated file that has one extent, and no space for another block.
struct Full {
    fs: Arc<Fs>,
    image: Image,
    file: InodeNr,
    /// What the file holds.
    model: Vec<u8>,
}

impl Full {
    fn new(features: &[&str], options: &str, limit: Limit, blocks: u16) -> Self {
        let image = Image::builder(MiB(24))
            .kind("ext4")
            .block_size_bytes(1024)
            .journal(MiB(4))
            .features(&[features, &["quota"]].concat());
        let image = image.arguments(["-m", "0"]).make().unwrap();
        let words = ["usrquota", options].join(",");
        let options = MountOptions::new().parse(&words).unwrap().use_reserve();
        let fs = mount_with(&image, &options);
        // What the blocks held earlier must not be seen.
        fill(&fs, b"earlier");
        fs.unlink(InodeNr::ROOT, b"earlier").unwrap();
        fs.sync().unwrap();
        let owner = NewAttributes::owned_by(5, 5);
        let file = fs.create(InodeNr::ROOT, b"file", &owner).unwrap();
        let bytes = u64::from(blocks) * 1024;
        fs.fallocate(file, Fallocate::Allocate, 0, bytes).unwrap();
        match limit {
            Limit::Disk => fill(&fs, b"fill"),
            Limit::Quota => {
                let limits = QuotaLimits {
                    hard_bytes: fs.stat(file).unwrap().sectors * 512,
                    ..QuotaLimits::default()
                };
                fs.set_quota(QuotaKind::User, 5, limits).unwrap();
            }
        }
        let model = vec![0; usize::from(blocks) * 1024];
        Self {
            fs,
            image,
            file,
            model,
        }
    }

    fn write(&mut self, seed: u8, len: usize, at: usize) {
        let bytes = pattern(seed, len);
        let written = self.fs.write_at(self.file, &bytes, at as u64);
        assert!(written.is_ok(), "{len} bytes at {at}: {written:?}");
        self.model[at..at + len].copy_from_slice(&bytes);
    }

    fn assert_content(self) {
        let Self {
            fs,
            image,
            file,
            model,
        } = self;
        assert!(content(&fs, file) == model);
        unmount_clean(fs, &image);
        assert!(content(&open(&image), file) == model);
    }
}

/// What is preallocated can be written to when no block is left for nodes of the tree, or the owner
/// may have no more: nothing but zeroes is seen around the data.
#[test]
fn preallocated_space_takes_data_when_no_other_is_left() {
    require_e2fsprogs!();
    let every: [(&[&str], &str, Limit, u16); 5] = [
        (&[], "data=ordered", Limit::Disk, 2048),
        (&[], "data=ordered", Limit::Quota, 2048),
        (&["bigalloc"], "data=ordered", Limit::Disk, 2048),
        (&["fast_commit"], "data=writeback", Limit::Disk, 2048),
        (&[], "data=journal", Limit::Disk, 100),
    ];
    for (features, options, limit, blocks) in every {
        println!("{features:?} {options} {limit:?}");
        let mut full = Full::new(features, options, limit, blocks);
        let blocks = usize::from(blocks);
        for block in (0..blocks / 2).step_by(2) {
            full.write(u8::try_from(block % 256).unwrap(), 1024, block * 1024);
        }
        for block in (blocks / 2..blocks - 8).step_by(8).rev() {
            full.write(3, 3000, block * 1024 + 700);
        }
        full.assert_content();
    }
}

/// Preallocated blocks behind the end of a file stay unwritten: e2fsck refuses others.
#[test]
fn preallocated_space_behind_the_end_takes_data_when_no_other_is_left() {
    require_e2fsprogs!();
    let mut full = Full::new(&[], "data=ordered", Limit::Quota, 1000);
    full.fs.truncate(full.file, 0).unwrap();
    let what = Fallocate::AllocateKeepSize;
    full.fs.fallocate(full.file, what, 0, 1000 * 1024).unwrap();
    for block in (0..500).step_by(2) {
        full.write(7, 1024, block * 1024);
    }
    full.model.truncate(499 * 1024);
    full.assert_content();
}

/// Splitting an extent of a file takes a node of the tree, for which space is kept that nothing
/// else can use: on a full disk, holes are punched, and ranges are taken out and inserted.
#[test]
fn extents_are_split_on_a_full_disk() {
    require_e2fsprogs!();
    const KIB: usize = 1024;
    for features in [&[][..], &["bigalloc"]] {
        let image = Image::builder(MiB(24)).kind("ext4").block_size_bytes(1024);
        let image = image.features(features).arguments(["-m", "0"]);
        let image = image.make().unwrap();
        let fs = mount(&image);
        let file = |name: &[u8]| {
            let file = fs.create(InodeNr::ROOT, name, &PLAIN).unwrap();
            let mut model = vec![0; 4 * 256 * KIB];
            for (nth, at) in (0..4).zip((0..).step_by(256 * KIB)) {
                let bytes = pattern(nth, 96 * KIB);
                fs.write_at(file, &bytes, at as u64).unwrap();
                model[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            model.truncate((3 * 256 + 96) * KIB);
            (file, model)
        };
        let [(one, mut punched), (two, mut shorter), (three, mut longer)] =
            [file(b"one"), file(b"two"), file(b"three")];
        fill(&fs, b"fill");
        let change = |file, what, from: usize, len: usize| {
            let changed = fs.fallocate(file, what, from as u64, len as u64);
            assert!(changed.is_ok(), "{features:?}, {what:?}: {changed:?}");
        };
        for at in [20 * KIB, (256 + 50) * KIB] {
            change(one, Fallocate::PunchHole, at, 17 * KIB);
            punched[at..at + 17 * KIB].fill(0);
        }
        fill(&fs, b"more");
        change(two, Fallocate::CollapseRange, 32 * KIB, 16 * KIB);
        shorter.drain(32 * KIB..48 * KIB);
        fill(&fs, b"and more");
        change(three, Fallocate::InsertRange, 32 * KIB, 16 * KIB);
        longer.splice(32 * KIB..32 * KIB, vec![0; 16 * KIB]);
        for (file, model) in [(one, punched), (two, shorter), (three, longer)] {
            assert!(content(&fs, file) == model);
        }
        unmount_clean(fs, &image);
    }
}

/// The space that is kept for nodes is not available, as in a mount of the kernel, and is free.
#[test]
fn space_for_nodes_is_kept_as_the_kernel_keeps_it() {
    require_kernel!();
    for features in [&[][..], &["bigalloc"], &["^extent", "^64bit"]] {
        let image = Image::builder(MiB(64)).kind("ext4").block_size_bytes(1024);
        let image = image.features(features).make().unwrap();
        let kernel = KernelMount::new(image.path(), Access::ReadOnly, "").unwrap();
        let theirs = rustix::fs::statvfs(kernel.path()).unwrap();
        kernel.unmount().unwrap();
        let read = open(&image).statfs().unwrap();
        let fs = mount(&image);
        let mounted = fs.statfs().unwrap();
        for ours in [read, mounted] {
            let ours = (ours.free_blocks, ours.available_blocks);
            assert_eq!(ours, (theirs.f_bfree, theirs.f_bavail), "{features:?}");
        }
        fill(&fs, b"fill");
        let full = fs.statfs().unwrap();
        let kept = mounted.free_blocks - mounted.available_blocks;
        // What is reserved for the super-user is no whole number of clusters.
        let is_kept = full.available_blocks == 0 && full.free_blocks.abs_diff(kept) < 16;
        assert!(is_kept, "{full:?}, {kept} kept");
        unmount_clean(fs, &image);
    }
}
