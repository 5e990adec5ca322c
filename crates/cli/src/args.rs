//! **Purpose.** The command line: verbs, options, and an example for each verb.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::image::ImageSpec;
use crate::mkfs::ProgramName;

/// ext4 in user space, made for many cores.
///
/// IMAGE is an image file or a block device; IMAGE@OFFSET is the file system of a partition
/// that begins OFFSET bytes into it (K, M, G and T are powers of 1024).
#[derive(Debug, Parser)]
#[command(
    name = "fourscore",
    version,
    propagate_version = true,
    subcommand_required = true
)]
#[command(arg_required_else_help = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

impl Cli {
    /// What the command does under another program's name.
    pub(crate) fn under_name(mut self, program: Option<ProgramName>) -> Self {
        if let (Verb::Mkfs(mkfs), Some(program)) = (&mut self.verb, program) {
            mkfs.set_default_type(program);
        }
        self
    }
}

/// What is to be done.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Shows the superblock, in the terms of dumpe2fs
    #[command(after_help = "Example:\n  fourscore info --groups disk.img")]
    Info(Info),
    /// Lists a directory of an image
    #[command(after_help = "Example:\n  fourscore ls -l disk.img /etc")]
    Ls(Ls),
    /// Shows everything that is known about an object
    #[command(after_help = "Example:\n  fourscore stat disk.img /etc/passwd")]
    Stat(Stat),
    /// Writes the content of files to standard output
    #[command(after_help = "Example:\n  fourscore cat disk.img@1M /boot/vmlinuz > vmlinuz")]
    Cat(Cat),
    /// Prints the target of a symbolic link
    #[command(after_help = "Example:\n  fourscore readlink disk.img /etc/localtime")]
    Readlink(OnePath),
    /// Copies files and trees into an image, or out of one
    ///
    /// A side inside of an image is IMAGE:PATH, or IMAGE@OFFSET:PATH for a partition. A path of the
    /// host with a colon in it is written with ./ in front. Without -a files are copied with their
    /// permissions, and replace files that are there; with -a everything survives.
    #[command(after_help = "Examples:\n  fourscore cp disk.img:/etc/fstab .\n  \
                            fourscore cp -a rootfs/etc overlay/opt disk.img:/")]
    Cp(crate::cp::Cp),
    /// Copies the whole tree to a directory, or as a tar to standard output
    ///
    /// To a directory: owners (as root), modes, times in nanoseconds, hard links, symbolic links,
    /// devices, extended attributes, ACLs and holes are kept, and nothing is ever written outside
    /// of DIR, whatever the names in the image are. As a tar: pax format; GNU tar restores
    /// everything with `--xattrs --xattrs-include='*'`.
    #[command(after_help = "Examples:\n  fourscore extract disk.img tree/\n  \
                            fourscore extract disk.img - | ssh host tar -xf - -C /srv")]
    Extract(Extract),
    /// Prints one canonical line for each object, sorted by path
    ///
    /// Fields: path type mode uid gid links size mtime rdev target xattrs. With --full: inode,
    /// blocks of 512 bytes, atime, ctime, btime. With --hash: SHA-256 of the content; for files
    /// over 1 GiB that of the hashes of its pieces of 16 MiB, so that holes of terabytes take no
    /// time. A field that does not apply is `-`; bytes that are not visible ASCII are `\ooo`.
    #[command(after_help = "Example:\n  diff <(fourscore walk --hash disk.img) \
                            <(fourscore walk --hash --host tree/)")]
    Walk(Walk),
    /// Makes an image from directories, archives, file systems and container images
    ///
    /// Owners, modes, times, hard links, devices, extended attributes, ACLs and holes survive.
    /// The same sources and options with the same SOURCE_DATE_EPOCH make the same bytes; with
    /// --canonical so do the same files from other sources.
    #[command(after_help = "Examples:\n  fourscore build rootfs/ -o disk.ext4\n  \
                            zcat x.tgz | fourscore build - --size +20% -L data -o disk.ext4\n  \
                            fourscore build oci:image:latest overlay/ --owner 0:0 -o disk.ext4\n  \
                            fourscore build saved.tar --platform linux/arm64 -o disk.img@1M\n  \
                            fourscore build old.ext4 --shrink -o - | zstd > small.ext4.zst")]
    Build(Box<crate::build::Build>),
    /// Mounts an image on a directory, through FUSE
    ///
    /// Options of the mount: ro, suid, dev, noexec, allow_other, nonempty, nowriteback (write(2)
    /// tells when there is no space, instead of fsync(2) and close(2)), sync, dirsync, fakeroot
    /// (nobody is asked for permission), offset=, norecovery, fsname=. Options of ext4: data=,
    /// commit=, errors=, barrier=, noatime, relatime, strictatime, lazytime, discard, grpid, mb_*.
    /// `umount DIR`, or as a user `fusermount3 -u DIR`, ends it.
    #[command(after_help = "Examples:\n  fourscore mount disk.img mnt\n  \
                            fourscore mount -o ro,allow_other disk.img@1M /mnt")]
    Mount(crate::mount::Mount),
    /// Ends the mount of a server that may not do so itself
    #[command(hide = true)]
    KeepMount(crate::mount::keeper::KeepMount),
    /// Makes an empty file system, with the options of mke2fs
    ///
    /// An image file that does not exist is made if SIZE is given. With a fixed UUID (-U), hash
    /// seed (-E hash_seed=) and time (SOURCE_DATE_EPOCH), the same options make the same bytes.
    #[command(after_help = "Example:\n  fourscore mkfs -L data -O quota disk.img 10G")]
    Mkfs(Box<crate::mkfs::Mkfs>),
    /// Shows how fragmented the free space is, as e2freefrag does
    #[command(after_help = "Example:\n  fourscore freefrag disk.img")]
    Freefrag(Freefrag),
    /// Shows the extents of a file, as filefrag -v does
    #[command(after_help = "Example:\n  fourscore filefrag disk.img /var/log/syslog")]
    Filefrag(OnePath),
    /// Shows what the allocator's files in /proc/fs/ext4 would show of a file system
    ///
    /// Of a mount point: what its server did so far, that is how long requests took by operation,
    /// and the figures of allocator, journal and caches.
    ///
    /// In the format of the kernel, so that they can be compared line by line.
    #[command(after_help = "Example:\n  fourscore stats disk.img mb_groups | \
                            diff - /proc/fs/ext4/loop0/mb_groups")]
    Stats(crate::stats::Stats),
    /// Changes tunables of a live mount, or shows them
    #[command(after_help = "Example:\n  fourscore tune /mnt mb_stream_req=32")]
    Tune(crate::live::Tune),
    /// Ends a mount, and returns when everything is in its place and the server has ended
    ///
    /// Who has something open keeps it; this waits until the last one is done.
    #[command(after_help = "Example:\n  fourscore umount mnt")]
    Umount(crate::live::Umount),
    /// Runs a workload and says how fast it was
    #[command(
        after_help = "Examples:\n  fourscore bench alloc --scenario 16g-aged-64k --workload \
                            files --threads 1,2,64 --switch trim=0\n  \
                            fourscore bench read-tree disk.img --threads 1,2"
    )]
    Bench(crate::bench::Bench),
    /// Checks everything e2fsck checks, on all cores, and changes nothing
    ///
    /// One line for each broken invariant: what it is about, its name, and what a repair would do.
    /// A dirty journal is replayed in memory first. Exit status: 0 sound, 4 errors left, 8 not
    /// checked, 2 wrong command line.
    #[command(after_help = "Example:\n  fourscore check -n --json disk.img")]
    Check(crate::check::Check),
}

/// `info`
#[derive(Debug, Args)]
pub(crate) struct Info {
    /// Image file or block device, with @OFFSET for a partition
    #[arg(required_unless_present = "features")]
    pub(crate) image: Option<ImageSpec>,
    /// Lists the block groups as well
    #[arg(long)]
    pub(crate) groups: bool,
    /// Shows which feature flags can be read and written, and nothing else
    #[arg(long, conflicts_with_all = ["groups", "image"])]
    pub(crate) features: bool,
    /// Prints JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `ls`
#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Image file or block device, with @OFFSET for a partition
    pub(crate) image: ImageSpec,
    /// Path inside the image
    #[arg(default_value = "/")]
    pub(crate) path: PathBuf,
    /// Shows mode, links, owner, size and time
    #[arg(short = 'l', long)]
    pub(crate) long: bool,
    /// Lists subdirectories too
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
    /// Prints JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `stat`
#[derive(Debug, Args)]
pub(crate) struct Stat {
    /// Image file or block device, with @OFFSET for a partition
    pub(crate) image: ImageSpec,
    /// Path inside the image
    pub(crate) path: PathBuf,
    /// Follows a symbolic link at the end of the path
    #[arg(short = 'L', long)]
    pub(crate) dereference: bool,
    /// Prints JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `cat`
#[derive(Debug, Args)]
pub(crate) struct Cat {
    /// Image file or block device, with @OFFSET for a partition
    pub(crate) image: ImageSpec,
    /// Paths inside the image
    #[arg(required = true)]
    pub(crate) paths: Vec<PathBuf>,
}

/// `readlink`, `filefrag`
#[derive(Debug, Args)]
pub(crate) struct OnePath {
    /// Image file or block device, with @OFFSET for a partition
    pub(crate) image: ImageSpec,
    /// Path inside the image
    pub(crate) path: PathBuf,
    /// Prints JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `extract`
#[derive(Debug, Args)]
pub(crate) struct Extract {
    /// Image file or block device, with @OFFSET for a partition
    pub(crate) image: ImageSpec,
    /// Where to put the tree (made if it does not exist), or `-` for a tar on standard output
    pub(crate) destination: PathBuf,
    /// How many threads to use [default: all cores]
    #[arg(long)]
    pub(crate) threads: Option<usize>,
}

/// `walk`
#[derive(Debug, Args)]
pub(crate) struct Walk {
    /// Image file or block device, with @OFFSET for a partition
    #[arg(required_unless_present = "host")]
    pub(crate) image: Option<ImageSpec>,
    /// Where to start inside the image
    #[arg(conflicts_with = "host")]
    pub(crate) path: Option<PathBuf>,
    /// Walks a directory of this host instead
    #[arg(long, value_name = "DIR", conflicts_with = "image")]
    pub(crate) host: Option<PathBuf>,
    /// Adds SHA-256 of the content of regular files
    #[arg(long)]
    pub(crate) hash: bool,
    /// Adds what only readers of the same file system share: inode number, blocks, all times,
    /// and size and links of directories
    #[arg(long)]
    pub(crate) full: bool,
    /// How many threads to use [default: all cores]
    #[arg(long)]
    pub(crate) threads: Option<usize>,
}

/// `freefrag`
#[derive(Debug, Args)]
pub(crate) struct Freefrag {
    /// Image file or block device, with @OFFSET for a partition
    pub(crate) image: ImageSpec,
    /// Counts free chunks of this many KiB too
    #[arg(short = 'c', long, value_name = "KIB")]
    pub(crate) chunk_kb: Option<u64>,
    /// Prints JSON
    #[arg(long)]
    pub(crate) json: bool,
}
