//! Clusters of several blocks: they are claimed with their first block, freed with their last
//! block, and counted as whole clusters. The kernel does the same to a twin.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions as HostOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

use fourscore::{Fallocate, Fs, InodeNr, MountOptions, SetXattr};
use fourscore_block::RecordingDevice;
use fourscore_journal::{Background, JournalOptions};
use fourscore_sync::Arc;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::assert_clean;
use rustix::fs::{FallocateFlags, fallocate};

use crate::common::{
    OWNER, ROOT, device_to_read, mount, require_e2fsprogs, require_kernel, unmount_clean, write_out,
};

/// Blocks and clusters in bytes.
const SIZES: [(u64, u64); 4] = [
    (4096, 16 << 10),
    (4096, 64 << 10),
    (1024, 16 << 10),
    (1024, 64 << 10),
];

fn image(block: u64, cluster: u64) -> Image {
    let image = Image::builder(MiB(64))
        .kind("ext4")
        .block_size_bytes(u32::try_from(block).unwrap())
        .features(&["bigalloc"])
        .journal(MiB(4))
        .arguments(["-C", &cluster.to_string()]);
    image.make().unwrap()
}

/// An operation on both files, in bytes.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write(u64, u64),
    Truncate(u64),
    Range(Fallocate, u64, u64),
}

/// A file of ours and one of the kernel's.
struct Pair {
    fs: Arc<Fs>,
    ours: InodeNr,
    host: File,
    block: u64,
    cluster: u64,
}

impl Pair {
    fn step(&self, step: Step) {
        match step {
            Step::Write(at, len) => {
                let bytes =
                    vec![u8::try_from(1 + at % 255).unwrap(); usize::try_from(len).unwrap()];
                self.fs.write_at(self.ours, &bytes, at).unwrap();
                self.host.write_all_at(&bytes, at).unwrap();
            }
            Step::Truncate(size) => {
                self.fs.truncate(self.ours, size).unwrap();
                self.host.set_len(size).unwrap();
            }
            Step::Range(what, at, len) => {
                self.fs.fallocate(self.ours, what, at, len).unwrap();
                let flags = match what {
                    Fallocate::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    Fallocate::CollapseRange => FallocateFlags::COLLAPSE_RANGE,
                    Fallocate::InsertRange => FallocateFlags::INSERT_RANGE,
                    _ => FallocateFlags::empty(),
                };
                fallocate(&self.host, flags, at, len).unwrap();
            }
        }
    }

    /// Returns the number of clusters that hold a block of our file.
    fn clusters(&self) -> u64 {
        let mut found = BTreeSet::new();
        for extent in self.fs.extents(self.ours).unwrap() {
            let blocks = extent.logical.0..extent.logical_end().0;
            found.extend(blocks.map(|at| u64::from(at) * self.block / self.cluster));
        }
        found.len() as u64
    }

    fn compare(&self, step: Step) {
        self.host.sync_all().unwrap();
        let (ours, theirs) = (
            self.fs.stat(self.ours).unwrap(),
            self.host.metadata().unwrap(),
        );
        assert_eq!(ours.size_bytes, theirs.len(), "{step:?}");
        // Either file may have a node of a tree beside the clusters of its data.
        let data = self.clusters() * self.cluster / 512;
        let node = [data, data + self.cluster / 512];
        assert!(node.contains(&ours.sectors), "{step:?}: {}", ours.sectors);
        assert!(
            node.contains(&theirs.blocks()),
            "{step:?}: {}",
            theirs.blocks()
        );
        let len = usize::try_from(theirs.len()).unwrap();
        let (mut found, mut expected) = (vec![1; len], vec![2; len]);
        assert_eq!(self.fs.read_at(self.ours, &mut found, 0).unwrap(), len);
        self.host.read_exact_at(&mut expected, 0).unwrap();
        assert!(found == expected, "{step:?}");
    }
}

#[test]
fn clusters_come_and_go_as_in_linux() {
    use Fallocate::{Allocate, CollapseRange, InsertRange, PunchHole};
    require_kernel!();
    for (block, cluster) in SIZES {
        let (mine, theirs) = (image(block, cluster), image(block, cluster));
        let kernel = KernelMount::new(theirs.path(), Access::ReadWrite, "").unwrap();
        let mut options = HostOptions::new();
        options.read(true).write(true).create_new(true);
        let host = options.open(kernel.path().join("file")).unwrap();
        let fs = mount(&mine);
        let ours = fs.create(ROOT, b"file", &OWNER).unwrap();
        let pair = Pair {
            fs,
            ours,
            host,
            block,
            cluster,
        };
        let steps = [
            Step::Write(0, 10),
            Step::Write(2 * block, block),
            // Writes over the border of two clusters, then into a third with a hole in front.
            Step::Write(cluster - 100, 200),
            Step::Write(5 * cluster + block, block),
            // The first cluster is freed with the last of its three pieces.
            Step::Range(PunchHole, 0, block),
            Step::Range(PunchHole, cluster - block, block),
            Step::Range(PunchHole, 2 * block, block),
            // Writes between existing blocks, on both sides of a hole.
            Step::Write(cluster + 2 * block, 3 * cluster),
            Step::Range(PunchHole, cluster + 3 * block, 2 * cluster),
            Step::Range(Allocate, cluster + block, 2 * cluster),
            Step::Range(PunchHole, block, 2 * cluster),
            Step::Truncate(4 * cluster + block / 2),
            Step::Truncate(6 * cluster),
            Step::Write(4 * cluster + 2 * block, block),
            Step::Range(InsertRange, cluster, 2 * cluster),
            Step::Range(CollapseRange, 0, cluster),
            Step::Truncate(cluster + 1),
            Step::Truncate(0),
            Step::Range(Allocate, block, cluster),
        ];
        for step in steps {
            pair.step(step);
            pair.compare(step);
        }
        let Pair { fs, host, .. } = pair;
        let part = fs.fallocate(ours, InsertRange, block, cluster);
        assert_eq!(part.unwrap_err().errno(), 22, "not a whole cluster");
        unmount_clean(fs, &mine);
        drop(host);
        kernel.unmount().unwrap();
        // We continue on the image that the kernel wrote.
        let fs = mount(&theirs);
        let file = fs.lookup(ROOT, b"file").unwrap();
        fs.write_at(file, &[7; 100], 3 * cluster).unwrap();
        fs.truncate(file, 0).unwrap();
        assert_eq!(fs.stat(file).unwrap().sectors, 0);
        unmount_clean(fs, &theirs);
    }
}

/// Blocks of a directory share clusters; a tree's nodes and a block of attributes do not.
#[test]
fn directories_fill_their_clusters() {
    require_e2fsprogs!();
    for (block, cluster) in SIZES {
        let image = image(block, cluster);
        let fs = mount(&image);
        let free = fs.statfs().unwrap().free_blocks;
        let dir = fs.mkdir(ROOT, b"dir", &OWNER).unwrap();
        let target = fs.create(ROOT, b"target", &OWNER).unwrap();
        fs.set_xattr(target, b"user.large", &[b'v'; 600], SetXattr::Any)
            .unwrap();
        let name = |number: u32| format!("a name of some length, number {number}").into_bytes();
        for number in 0..3000 {
            fs.link(target, dir, &name(number)).unwrap();
        }
        let stat = fs.stat(dir).unwrap();
        assert!(stat.size_bytes > 2 * cluster);
        let sectors = stat.size_bytes.div_ceil(cluster) * cluster / 512;
        assert_eq!(stat.sectors, sectors);
        assert_eq!(fs.stat(target).unwrap().sectors, cluster / 512);
        let link = fs.symlink(ROOT, b"link", &[b't'; 300], &OWNER).unwrap();
        assert_eq!(fs.stat(link).unwrap().sectors, cluster / 512);
        fs.sync().unwrap();
        let copy = image.copy().unwrap();
        mount(&copy).unmount().unwrap();
        assert_clean(copy.path());
        for number in 0..3000 {
            fs.unlink(dir, &name(number)).unwrap();
        }
        fs.rmdir(ROOT, b"dir").unwrap();
        fs.unlink(ROOT, b"target").unwrap();
        fs.unlink(ROOT, b"link").unwrap();
        assert_eq!(fs.statfs().unwrap().free_blocks, free);
        unmount_clean(fs, &image);
    }
}

/// Extents move in several transactions; after each of them no cluster belongs to two parts of the
/// file.
#[test]
fn a_cut_while_ranges_move_leaves_whole_clusters() {
    require_e2fsprogs!();
    let cluster = 16 << 10;
    let image = image(1024, cluster);
    let fs = mount(&image);
    let file = fs.create(ROOT, b"file", &OWNER).unwrap();
    for number in 0..3000_u64 {
        fs.write_at(file, &[1; 1024], number * 2048).unwrap();
    }
    fs.unmount().unwrap();
    let device = Arc::new(RecordingDevice::new(device_to_read(&image)));
    let interval = Duration::from_millis(1);
    let journal = JournalOptions {
        background: Background::Threads { interval },
        ..JournalOptions::default()
    };
    let options = MountOptions::new().journal(journal);
    let fs = Fs::mount(device.clone(), &options).unwrap();
    fs.fallocate(file, Fallocate::InsertRange, cluster, 3 * cluster)
        .unwrap();
    fs.fallocate(file, Fallocate::CollapseRange, 0, 2 * cluster)
        .unwrap();
    fs.truncate(file, 1 << 20).unwrap();
    fs.unmount().unwrap();
    let all = device.cuts() - 1;
    for part in 1..12 {
        let crashed = Image::blank(MiB(64)).unwrap();
        write_out(&device.as_of(all * part / 12).unwrap(), &crashed);
        mount(&crashed).unmount().unwrap();
        assert_clean(crashed.path());
    }
}
