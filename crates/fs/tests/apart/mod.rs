//! Operations of cores that work in a directory each, for the tests that count cache lines.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "a module of several test programs, none of which needs all of it"
)]

use fourscore::{Fs, InodeNr, MountOptions, NewAttributes, OpenOptions, Trim, XattrSharing};
use fourscore_block::{DeviceOptions, open_path};
use fourscore_journal::{Background, Batching, JournalOptions};
use fourscore_sync::count::{Cores, Report};
use fourscore_sync::{Arc, CoreNr};
use fourscore_testkit::image::{Image, MiB};
use std::path::Path;

pub const OWNER: NewAttributes = NewAttributes::owned_by(7, 8).permissions(0o755);

/// The number of groups, and how many of them form one flexible group.
pub enum Groups {
    /// 1024 groups, each by itself: several for every core.
    Plenty,
    /// 256 groups, each by itself: little more than one for each of 192 cores.
    Tight,
    /// 256 groups, all together, so that every core has its own group for the files of one
    /// directory.
    Together,
}

/// An image of many groups, with a further feature.
pub fn image_of_many_groups(groups: &Groups, feature: &str) -> Image {
    image_with_log(groups, feature, MiB(64))
}

/// As [`image_of_many_groups`], with a log of another size.
pub fn image_with_log(groups: &Groups, feature: &str, log: MiB) -> Image {
    let (flex_bg, arguments): (_, &[&str]) = match groups {
        Groups::Plenty => ("^flex_bg", &["-g", "2048"]),
        Groups::Tight => ("^flex_bg", &["-g", "8192"]),
        Groups::Together => ("flex_bg", &["-g", "8192", "-G", "256"]),
    };
    Image::builder(MiB(8192))
        .kind("ext4")
        .block_size_bytes(4096)
        .features(&[flex_bg, "^resize_inode", feature])
        .journal(log)
        .arguments(["-N", "131072"])
        .arguments(arguments.iter().copied())
        .make()
        .unwrap()
}

/// A cache size that a machine with many cores can spare.
const CACHE_BYTES: usize = 4 << 30;

/// Mounts an image without background threads, whose accesses would not be counted.
pub fn mount(image: &Path) -> Arc<Fs> {
    mount_with(image, XattrSharing::default())
}

/// As [`mount`], with equal attributes looked for as `sharing` says.
pub fn mount_with(image: &Path, sharing: XattrSharing) -> Arc<Fs> {
    let device = open_path(image, DeviceOptions::read_write()).unwrap();
    let journal = JournalOptions {
        background: Background::None,
        batching: Batching::Off,
        ..JournalOptions::default()
    };
    // In a small table, inodes of different cores share cache lines by chance.
    let open = OpenOptions::new().cache_bytes(CACHE_BYTES);
    let options = MountOptions::new().open(open).journal(journal);
    let options = options.xattr_sharing(sharing);
    Fs::mount(Arc::new(device), &options).unwrap()
}

/// The cache lines that each operation moves when every core works in a directory of its own.
pub fn writing_apart(cores: &Cores, image: &Path) -> Vec<(&'static str, Report)> {
    /// More names than fit into one block of a directory would split it, which is not counted.
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
    // All groups are in memory, as they are after a while: loading a group notifies all cores that
    // there is one less to wait for.
    fs.trim(&Trim::default()).unwrap();
    // Every core does every operation once: groups and buddies are loaded, blocks join the
    // transaction.
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
