//! What operations move between cores. Reading moves nothing, however many there are; what writing
//! in separate directories moves is bounded by a number for each operation.
//!
//! The counting build knows of every shared location which core touched its cache line last.
//! Each operation is run on 2, 80 and 192 virtual cores in turn. What is read is the same files;
//! once every core has seen them, no line may move any more. Who writes has a directory of its own.
#![cfg(feature = "count")]

use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;

use fourscore::block::{DeviceOptions, open_path};
use fourscore::{Arc, Follow, Fs, InodeNr, MountOptions, NewAttributes, OpenOptions, Seek};
use fourscore_journal::{Background, Batching, JournalOptions};
use fourscore_sync::CoreNr;
use fourscore_sync::count::{Cores, Report, with_cores};
use fourscore_testkit::image::{Image, MiB};

const BLOCK_BYTES: u64 = 4096;
/// More than fit into an inode and into one leaf of the tree.
const EXTENTS: u64 = 500;

/// A tree with a file of many extents, a long directory and a deep path.
fn image(source: &Path) -> Image {
    let deep = source.join("a/b/c/d");
    std::fs::create_dir_all(&deep).unwrap();
    for nr in 0..400 {
        std::fs::write(
            deep.join(format!("file with a name of some length {nr}")),
            b"x",
        )
        .unwrap();
    }
    std::os::unix::fs::symlink("/a/b/c", source.join("link")).unwrap();
    let file = std::fs::File::create(source.join("holes")).unwrap();
    for extent in 0..EXTENTS {
        file.write_all_at(b"data", extent * 2 * BLOCK_BYTES)
            .unwrap();
    }
    Image::builder(MiB(64))
        .block_size_bytes(4096)
        .source(source)
        .make()
        .unwrap()
}

/// Runs `operation` on every core until all have seen everything, then counts.
fn assert_moves_nothing(cores: &Cores, what: &str, operation: impl Fn(u64)) {
    let rounds = 3;
    cores.run(rounds, |_, round| operation(round as u64));
    let report = cores.run(rounds, |_, round| operation(round as u64));
    assert_eq!(report.transfers(), 0, "{what}: {report}");
    assert!(report.operations() > 0);
}

fn assert_reading_moves_nothing(cores: &Cores, image: &Path) {
    let device = open_path(image, DeviceOptions::default()).unwrap();
    let fs = Fs::open(Arc::new(device), &OpenOptions::new()).unwrap();
    let holes = fs.resolve(b"/holes", Follow::Yes).unwrap();

    assert_moves_nothing(cores, "path walk", |_| {
        let path = b"/link/d/file with a name of some length 399";
        fs.resolve(path, Follow::Yes).unwrap();
    });
    assert_moves_nothing(cores, "stat of a cached inode", |_| {
        assert_eq!(fs.stat(holes).unwrap().inode, holes);
    });
    assert_moves_nothing(cores, "map of a deep extent tree", |round| {
        let at = round * 2 * BLOCK_BYTES;
        let next = fs.seek(holes, at + BLOCK_BYTES, Seek::Data).unwrap();
        assert_eq!(next, Some(at + 2 * BLOCK_BYTES));
    });
    assert_moves_nothing(cores, "read of a block", |round| {
        let mut data = [0; 4];
        fs.read_at(holes, &mut data, (EXTENTS - 1 - round) * 2 * BLOCK_BYTES)
            .unwrap();
        assert_eq!(&data, b"data");
    });
    assert_moves_nothing(cores, "list of a directory", |_| {
        let mut names = 0;
        fs.for_each_entry(InodeNr::ROOT, |_| {
            names += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(names, 6);
    });
}

#[test]
fn reading_moves_no_line() {
    let source = tempfile::tempdir().unwrap();
    let image = image(source.path());
    for size in [2, 80, 192] {
        with_cores(size, |cores| {
            assert_reading_moves_nothing(cores, image.path())
        });
    }
}

const OWNER: NewAttributes = NewAttributes {
    permissions: 0o755,
    umask: 0,
    uid: 7,
    gid: 8,
};

/// How many groups belong together.
enum Groups {
    /// Each is by itself, so that every directory gets its own.
    Alone,
    /// All, so that every core has its own for the files of one directory.
    Together,
}

/// An image of 256 groups.
fn image_of_many_groups(groups: &Groups) -> Image {
    let (flex_bg, size): (_, &[&str]) = match groups {
        Groups::Alone => ("^flex_bg", &[]),
        Groups::Together => ("flex_bg", &["-G", "256"]),
    };
    Image::builder(MiB(8192))
        .kind("ext4")
        .block_size_bytes(4096)
        .features(&[flex_bg, "^resize_inode"])
        .journal(MiB(64))
        .arguments(["-g", "8192", "-N", "131072"])
        .arguments(size.iter().copied())
        .make()
        .unwrap()
}

/// Mounts an image so that nobody works in the background, whom nobody would count.
fn mount(image: &Path) -> Arc<Fs> {
    let device = open_path(image, DeviceOptions::read_write()).unwrap();
    let journal = JournalOptions {
        background: Background::None,
        batching: Batching::Off,
        ..JournalOptions::default()
    };
    let options = MountOptions::new().journal(journal);
    Fs::mount(Arc::new(device), &options).unwrap()
}

/// What each operation moves when every core works in a directory of its own.
fn writing_apart(cores: &Cores, image: &Path) -> Vec<(&'static str, Report)> {
    /// More names than fit into one block of a directory would divide it, which is not counted.
    const ROUNDS: usize = 12;
    let fs = mount(image);
    let dirs: Vec<InodeNr> = CoreNr::all()
        .map(|core| {
            let name = format!("dir {}", core.index()).into_bytes();
            cores.on(core, || fs.mkdir(InodeNr::ROOT, &name, &OWNER).unwrap())
        })
        .collect();
    let dir = |core: CoreNr| dirs[core.index()];
    let name = |round: usize| format!("file {round}").into_bytes();
    let file = |core, round| fs.lookup(dir(core), &name(round)).unwrap();
    // Everything once by every core: groups and buddies are loaded, blocks join the transaction.
    cores.run(2, |core, round| {
        let warm = format!("warm {round}").into_bytes();
        let file = fs.create(dir(core), &warm, &OWNER).unwrap();
        fs.append(file, &[1; 4096]).unwrap();
        fs.truncate(file, 0).unwrap();
        fs.append(file, &[1; 4096]).unwrap();
        if round == 0 {
            fs.unlink(dir(core), &warm).unwrap();
        }
    });
    let create = cores.run(ROUNDS, |core, round| {
        fs.create(dir(core), &name(round), &OWNER).unwrap();
    });
    cores.run(ROUNDS, |core, round| {
        fs.stat(file(core, round)).unwrap();
    });
    let stat = cores.run(ROUNDS, |core, round| {
        fs.stat(file(core, round)).unwrap();
    });
    let append = cores.run(ROUNDS, |core, round| {
        fs.append(file(core, round), &[2; 4096]).unwrap();
    });
    let truncate = cores.run(ROUNDS, |core, round| {
        fs.truncate(file(core, round), 0).unwrap();
    });
    let unlink = cores.run(ROUNDS, |core, round| {
        fs.unlink(dir(core), &name(round)).unwrap();
    });
    fs.unmount().unwrap();
    vec![
        ("create", create),
        ("stat", stat),
        ("append", append),
        ("truncate", truncate),
        ("unlink", unlink),
    ]
}

/// The most lines that an operation moves, on any number of cores. Cores that have no group of
/// their own for blocks meet in the bitmap, its count of references, the buddy and the counts of a
/// group (append and truncate); who opens or ends an inode meets others in a shard of the inode
/// cache (unlink). The device of the test moves one more when it is written.
const MOST_MOVED: [(&str, f64); 5] = [
    ("create", 0.25),
    ("stat", 0.25),
    ("append", 6.5),
    ("truncate", 5.0),
    ("unlink", 2.0),
];

#[test]
fn writing_apart_moves_few_lines_on_any_number_of_cores() {
    let image = image_of_many_groups(&Groups::Alone);
    for size in [2, 80, 192] {
        let image = image.copy().unwrap();
        let reports = with_cores(size, |cores| writing_apart(cores, image.path()));
        fourscore_testkit::oracle::assert_clean(image.path());
        for ((what, report), (named, most)) in reports.iter().zip(MOST_MOVED) {
            assert_eq!(*what, named);
            println!("{what}: {report}");
            assert!(report.transfers_per_op() <= most, "{what}: {report}");
        }
    }
}

/// Creators in one directory meet in its inode and its leaves, but not in more than that.
#[test]
fn creators_in_one_directory_move_few_lines_on_any_number_of_cores() {
    const ROUNDS: usize = 6;
    let image = image_of_many_groups(&Groups::Together);
    let mut moved = Vec::new();
    for size in [2, 80, 192] {
        let image = image.copy().unwrap();
        moved.push(with_cores(size, |cores| {
            let fs = mount(image.path());
            let dir = fs.mkdir(InodeNr::ROOT, b"dir", &OWNER).unwrap();
            let name = |core: CoreNr, number: usize| {
                format!("name {number} of core {}", core.index()).into_bytes()
            };
            // Many leaves, half of the names of which are free.
            for number in 0..8000 {
                let (core, own) = (CoreNr::new(0).unwrap(), number + ROUNDS + 2);
                fs.create(dir, &name(core, own), &OWNER).unwrap();
            }
            for number in (0..8000).step_by(2) {
                let (core, own) = (CoreNr::new(0).unwrap(), number + ROUNDS + 2);
                fs.unlink(dir, &name(core, own)).unwrap();
            }
            cores.run(2, |core, round| {
                fs.create(dir, &name(core, ROUNDS + round), &OWNER).unwrap();
            });
            let report = cores.run(ROUNDS, |core, round| {
                fs.create(dir, &name(core, round), &OWNER).unwrap();
            });
            fs.unmount().unwrap();
            report
        }));
        fourscore_testkit::oracle::assert_clean(image.path());
    }
    for many in &moved {
        println!("{many}");
        assert!(many.transfers_per_op() <= 14.0, "{many}");
    }
}
