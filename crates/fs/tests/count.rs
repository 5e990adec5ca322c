//! Cache lines that operations move between cores. Reading moves no line, however many cores read;
//! for creators in one directory the number is bounded. (Writers in separate directories:
//! `count_apart`.)
//!
//! The counting build knows for every shared location which core touched its cache line last. Each
//! operation is run on 2, 80 and 192 virtual cores in turn. All cores read the same files; once
//! every core has read them, no line may move any more.
//!
//! A binary of its own, because only the build with the feature `count` has it.

mod apart;

use fourscore::{Follow, Fs, InodeNr, OpenOptions, Seek};
use fourscore_block::{DeviceOptions, open_path};
use fourscore_sync::count::{Cores, with_cores};
use fourscore_sync::{Arc, CoreNr};
use fourscore_testkit::image::{Image, MiB};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;

use apart::{Groups, OWNER, image_of_many_groups, mount};

const BLOCK_BYTES: u64 = 4096;
/// More extents than fit into an inode and into one leaf of the tree.
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

/// Runs `operation` on every core until all cores have read everything, then counts.
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
    let long = fs.resolve(b"/a/b/c/d", Follow::Yes).unwrap();
    assert_moves_nothing(cores, "look for a name that is known", |_| {
        let name = b"file with a name of some length 7";
        fs.lookup(long, name).unwrap();
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

/// Creators in one directory share its inode and its leaves, but no more than that.
#[test]
fn creators_in_one_directory_move_few_lines_on_any_number_of_cores() {
    const ROUNDS: usize = 6;
    let image = image_of_many_groups(&Groups::Together, "^fast_commit");
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
