//! **Purpose.** The command line: verbs, options, and an example for each verb.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::image::ImageSpec;
use crate::mkfs::ProgramName;
use crate::verbosity::Verbosity;

/// ext4 in user space, made for many cores.
///
/// IMAGE is an image file or a block device; IMAGE@p2, IMAGE@NAME and IMAGE@PARTUUID are a
/// partition of it (NAME is that of the partition or of its file system), and IMAGE@OFFSET is the
/// file system that begins OFFSET bytes into it (K, M, G and T are powers of 1024, s is sectors of
/// 512 bytes, 0x a hexadecimal number). IMAGE PATH may be written IMAGE:PATH. Patterns (*, ?,
/// [a-z]) in paths inside an image are quoted from the shell.
#[derive(Debug, Parser)]
#[command(
    name = "fourscore",
    version,
    propagate_version = true,
    subcommand_required = true
)]
#[command(arg_required_else_help = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) verbosity: Verbosity,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

impl Cli {
    /// Applies the defaults of the program under whose name the command was called.
    pub(crate) fn under_name(mut self, program: Option<ProgramName>) -> Self {
        if let (Verb::Mkfs(mkfs), Some(program)) = (&mut self.verb, program) {
            mkfs.set_default_type(program);
        }
        self
    }
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Shows the superblock, in the terms of dumpe2fs
    #[command(after_help = "Example:\n  fourscore info --groups disk.img")]
    Info(Info),
    /// Lists a directory of an image
    #[command(
        disable_help_flag = true,
        after_help = "Example:\n  fourscore ls -l disk.img /etc"
    )]
    Ls(Ls),
    /// Shows all attributes of a file, directory or other object
    #[command(after_help = "Example:\n  fourscore stat disk.img /etc/passwd")]
    Stat(Stat),
    /// Writes the contents of files to standard output
    #[command(after_help = "Example:\n  fourscore cat disk.img@1M /boot/vmlinuz > vmlinuz")]
    Cat(Cat),
    /// Prints the target of a symbolic link
    #[command(after_help = "Example:\n  fourscore readlink disk.img /etc/localtime")]
    Readlink(OnePath),
    /// Copies files and trees into an image, or out of one
    ///
    /// A path inside an image is IMAGE:PATH, or IMAGE@p2:PATH for a partition. A path of the host
    /// that contains a colon begins with ./. Into an image it works as GNU cp: existing files are
    /// written over, through symbolic links inside the image, and directories are merged. New files
    /// belong to the user who copies, unless -a or --owner says otherwise.
    #[command(after_help = "Examples:\n  fourscore cp disk.img:/etc/fstab .\n  \
                            fourscore cp -a rootfs/. overlay/opt disk.img:/\n  \
                            fourscore cp --owner root:root - disk.img:/etc/motd < motd\n  \
                            fourscore cp -r old.img:/home disk.img:/")]
    Cp(crate::cp::Cp),
    /// Changes an image without mounting it, by a command or by a script
    ///
    /// Without --atomic the changes before an error stay. A script has one change on a line; words
    /// are separated and quoted as in a shell, # begins a comment, and <FILE behind write names a
    /// file of this machine. New objects belong to user and group 0. Names of users and groups are
    /// those of /etc/passwd and /etc/group in the image.
    #[command(
        after_help = "Examples:\n  fourscore edit disk.img rm -r /var/cache\n  \
                            echo eighty | fourscore edit disk.img write /etc/hostname\n  \
                            fourscore edit disk.img --atomic -f changes.txt"
    )]
    Edit(Box<crate::edit::Edit>),
    /// Copies the tree of an image to a directory, or as a tar archive to standard output
    ///
    /// A directory gets owners (as root), modes, times in nanoseconds, hard links, symbolic links,
    /// devices, extended attributes, ACLs and holes. Nothing is written outside of it, even if the
    /// image contains hostile names. The archive has the pax format; GNU tar restores all
    /// attributes with `--xattrs --xattrs-include='*'`.
    #[command(after_help = "Examples:\n  fourscore extract disk.img tree/\n  \
                            fourscore extract disk.img - | ssh host tar -xf - -C /srv")]
    Extract(Extract),
    /// Prints one canonical line for each object, sorted by path
    ///
    /// Fields: path type mode uid gid links size mtime rdev target xattrs. --full adds: inode,
    /// blocks of 512 bytes, atime, ctime, btime. --hash adds: SHA-256 of the data; for files over
    /// 1 GiB, SHA-256 of the hashes of their chunks of 16 MiB, so that large holes are fast. A
    /// field that does not apply is `-`; bytes that are not visible ASCII are `\ooo`.
    #[command(after_help = "Example:\n  diff <(fourscore walk --hash disk.img) \
                            <(fourscore walk --hash --host tree/)")]
    Walk(Walk),
    /// Makes an image from directories, archives, file systems and container images
    ///
    /// Owners, modes, times, hard links, devices, extended attributes, ACLs and holes are kept.
    /// The same sources, options and SOURCE_DATE_EPOCH make an identical image; with --canonical
    /// the same files do so from any kind of source.
    #[command(after_help = "Examples:\n  fourscore build rootfs/ -o disk.ext4\n  \
                            zcat x.tgz | fourscore build - --size +20% -L data -o disk.ext4\n  \
                            fourscore build oci:image:latest overlay/ --owner 0:0 -o disk.ext4\n  \
                            fourscore build saved.tar --platform linux/arm64 -o disk.img@1M\n  \
                            fourscore build old.ext4 --shrink -o - | zstd > small.ext4.zst")]
    Build(Box<crate::build::Build>),
    /// Mounts an image on a directory, through FUSE
    ///
    /// Options of the mount: ro, suid, dev, noexec, allow_other, nonempty, nowriteback (write(2)
    /// reports that there is no space, instead of fsync(2) and close(2)), sync, dirsync, fakeroot
    /// (no permission checks), offset=, journal_path=, norecovery, fsname=. Options of ext4: data=,
    /// commit=, errors=, barrier=, noatime, relatime, strictatime, lazytime, discard, grpid,
    /// cache_size=, mb_*.
    /// Unmount with `fourscore umount DIR`, with `umount DIR` or, as a user, `fusermount3 -u DIR`.
    #[command(after_help = "Examples:\n  fourscore mount disk.img mnt\n  \
                            fourscore mount -o ro,allow_other disk.img@p2 /mnt")]
    Mount(crate::mount::Mount),
    /// Unmounts for a server whose sandbox forbids that
    #[command(hide = true)]
    KeepMount(crate::mount::keeper::KeepMount),
    /// Makes an empty file system, with the options of mke2fs
    ///
    /// An image file that does not exist is created if SIZE is given. With a fixed UUID (-U), hash
    /// seed (-E hash_seed=) and time (SOURCE_DATE_EPOCH), the same options make an identical file
    /// system.
    #[command(after_help = "Example:\n  fourscore mkfs -L data -O quota disk.img 10G")]
    Mkfs(Box<crate::mkfs::Mkfs>),
    /// Shows the fragmentation of the free space, as e2freefrag does
    #[command(after_help = "Example:\n  fourscore freefrag disk.img")]
    Freefrag(Freefrag),
    /// Shows the extents of a file, as filefrag -v does
    #[command(after_help = "Example:\n  fourscore filefrag disk.img /var/log/syslog")]
    Filefrag(OnePath),
    /// Shows the statistics of an image or of a mount
    ///
    /// For an image: mb_groups and mb_structs_summary, as the kernel shows them in /proc/fs/ext4
    /// and in the same format, so that they can be compared line by line.
    ///
    /// For a mount point: the latencies of requests by operation, and the counters of the
    /// allocator, the journal and the caches.
    #[command(after_help = "Example:\n  fourscore stats disk.img mb_groups | \
                            diff - /proc/fs/ext4/loop0/mb_groups")]
    Stats(crate::stats::Stats),
    /// Shows which attributes inodes share, what they could share, and whether it pays
    ///
    /// Counts the users of each block of extended attributes and of each value in an inode of its
    /// own, compares their contents, and simulates a sharing cache of each given size, as if the
    /// attributes were set in the order of the inodes. Advises to switch sharing off if fewer than
    /// 5 of 100 lookups would hit. Reference counts and hashes of the image are not believed: what
    /// is wrong with them is reported, and the exit status is 1 then.
    #[command(after_help = "Examples:\n  fourscore xattr-report disk.img\n  \
                            fourscore xattr-report --cache 64K,1M --blocks --json disk.img")]
    XattrReport(crate::xattr_report::XattrReport),
    /// Changes label, UUID, reserved blocks and features of an image; or tunables of a mount
    ///
    /// The options are those of tune2fs. All changes are made at once by one write of the
    /// superblock. What would move, allocate or rewrite other blocks is refused.
    #[command(
        after_help = "Examples:\n  fourscore tune disk.img -L data -m 1 -c 0 -O fast_commit\n  \
                            fourscore tune /mnt mb_stream_req=32"
    )]
    Tune(Box<crate::tune::Tune>),
    /// Runs requests, for a command that is called as debugfs
    #[command(hide = true)]
    Debugfs(crate::debugfs::Debugfs),
    /// Changes the size of a file system; of one that is mounted, makes it larger
    ///
    /// An image file gets the length that the file system needs. A crash leaves the old or the new
    /// size, or one on the way, with all files. What is mounted grows in the server of its mount,
    /// while programs use it.
    #[command(after_help = "Examples:\n  fourscore resize disk.img 4G\n  \
                            fourscore resize disk.img@p2\n  \
                            fourscore resize -M disk.img\n  \
                            fourscore resize mnt 8G")]
    Resize(crate::resize::Resize),
    /// Prints the label, for a command that is called as e2label
    #[command(hide = true)]
    PrintLabel(crate::tune::PrintLabel),
    /// Unmounts, and returns when all data is on the device and the server has ended
    ///
    /// Open files stay usable; the command waits until the last one is closed.
    #[command(after_help = "Example:\n  fourscore umount mnt")]
    Umount(crate::live::Umount),
    /// Runs a benchmark and prints its speed
    #[command(
        after_help = "Examples:\n  fourscore bench alloc --scenario 16g-aged-64k --workload \
                            files --threads 1,2,64 --switch trim=0\n  \
                            fourscore bench read-tree disk.img --threads 1,2"
    )]
    Bench(crate::bench::Bench),
    /// Reruns published experiments: ext4 before a change, with it, and ours
    #[command(after_help = "Examples:\n  fourscore lab list\n  fourscore lab run s4-goals")]
    Lab(crate::lab::Lab),
    /// Checks what e2fsck checks, on all cores, and repairs it if that is asked for
    ///
    /// Prints one line for each violated invariant: the object and what was found, the name of the
    /// invariant, and what a repair would do. A dirty journal is first replayed in memory.
    /// Exit status: 0 clean, 1 repaired, 4 errors found, 8 the check could not run, 2 wrong command
    /// line.
    #[command(after_help = "Examples:\n  fourscore check -n --json disk.img\n  \
                            fourscore check -y disk.img")]
    Check(crate::check::Check),
    /// Prints completions for a shell
    #[command(after_help = "Example:\n  \
                            fourscore completions bash > ~/.local/share/bash-completion/completions/fourscore")]
    Completions(crate::manual::Completions),
    /// Prints the man page of the command or of a verb
    #[command(after_help = "Examples:\n  fourscore man mount | man -l -\n  \
                            fourscore man --output ~/.local/share/man/man1")]
    Man(crate::manual::ManArgs),
}

/// `info`
#[derive(Debug, Args)]
pub(crate) struct Info {
    /// Image file or block device, with @p2 or @OFFSET for a partition
    #[arg(required_unless_present = "features")]
    pub(crate) image: Option<ImageSpec>,
    /// Lists the block groups too
    #[arg(long)]
    pub(crate) groups: bool,
    /// Numbers of blocks and inodes of the block groups are hexadecimal
    #[arg(long, conflicts_with_all = ["features", "quota", "json"])]
    pub(crate) hex: bool,
    /// Lists only where the metadata of each block group is, as a table for programs
    #[arg(long, conflicts_with_all = ["features", "quota", "json"])]
    pub(crate) table: bool,
    /// Lists only the blocks that are marked as bad
    #[arg(long, conflicts_with_all = ["features", "quota", "json"])]
    pub(crate) bad_blocks: bool,
    /// Shows what users, groups and projects use and may use, as repquota does
    #[arg(long, conflicts_with_all = ["groups", "features"])]
    pub(crate) quota: bool,
    /// Shows only the feature flags and which of them can be read and written
    #[arg(long, conflicts_with_all = ["groups", "image"])]
    pub(crate) features: bool,
    /// Number of the block with a backup of the superblock, which is shown in the place of the
    /// primary one, with the group descriptors behind it
    #[arg(long, value_name = "BLOCK", conflicts_with = "features")]
    pub(crate) superblock: Option<u64>,
    /// Size of the blocks in which --superblock counts, in bytes [default: found by trying]
    #[arg(long, value_name = "BYTES", conflicts_with = "features")]
    pub(crate) block_size: Option<u32>,
    /// As `dumpe2fs -m`: says whether a host uses the file system, by its MMP block
    #[arg(long, hide = true)]
    pub(crate) mmp_status: bool,
    /// Prints JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `ls`
#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Image file or block device, with @p2 or @OFFSET for a partition
    pub(crate) image: ImageSpec,
    /// Paths inside the image, or patterns
    #[arg(default_value = "/", value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Shows mode, links, owner, size and time
    #[arg(short = 'l', long)]
    pub(crate) long: bool,
    /// Lists . and .. too; other names that begin with a dot are always listed
    #[arg(short = 'a', long)]
    pub(crate) all: bool,
    /// Lists directories themselves and not what is in them
    #[arg(short = 'd', long, conflicts_with = "recursive")]
    pub(crate) directory: bool,
    /// Shows sizes with K, M, G and T, with -l
    #[arg(short = 'h', long)]
    pub(crate) human_readable: bool,
    /// Sorts by the time of the last change, newest first
    #[arg(short = 't')]
    pub(crate) by_time: bool,
    /// Lists subdirectories too
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
    /// Prints help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Prints JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `stat`
#[derive(Debug, Args)]
pub(crate) struct Stat {
    /// Image file or block device, with @p2 or @OFFSET for a partition
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
    /// Image file or block device, with @p2 or @OFFSET for a partition
    pub(crate) image: ImageSpec,
    /// Paths inside the image, or patterns
    #[arg(required = true)]
    pub(crate) paths: Vec<PathBuf>,
}

/// `readlink`, `filefrag`
#[derive(Debug, Args)]
pub(crate) struct OnePath {
    /// Image file or block device, with @p2 or @OFFSET for a partition
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
    /// Image file or block device, with @p2 or @OFFSET for a partition
    pub(crate) image: ImageSpec,
    /// Directory, created if it does not exist, or `-` for a tar archive on standard output
    pub(crate) destination: PathBuf,
    /// Paths inside the image, or patterns; they keep their directories [default: everything]
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Number of threads [default: all cores]
    #[arg(long)]
    pub(crate) threads: Option<usize>,
}

/// `walk`
#[derive(Debug, Args)]
pub(crate) struct Walk {
    /// Image file or block device, with @p2 or @OFFSET for a partition
    #[arg(required_unless_present = "host")]
    pub(crate) image: Option<ImageSpec>,
    /// Path inside the image at which the walk begins
    #[arg(conflicts_with = "host")]
    pub(crate) path: Option<PathBuf>,
    /// Prints JSON, an object on each line
    #[arg(long)]
    pub(crate) json: bool,
    /// Walks a directory of this host instead of an image
    #[arg(long, value_name = "DIR", conflicts_with = "image")]
    pub(crate) host: Option<PathBuf>,
    /// Adds SHA-256 of the data of regular files
    #[arg(long)]
    pub(crate) hash: bool,
    /// Adds the fields that differ between file systems with the same tree: inode number, blocks,
    /// all times, and size and links of directories
    #[arg(long)]
    pub(crate) full: bool,
    /// Number of threads [default: all cores]
    #[arg(long)]
    pub(crate) threads: Option<usize>,
}

/// `freefrag`
#[derive(Debug, Args)]
pub(crate) struct Freefrag {
    /// Image file or block device, with @p2 or @OFFSET for a partition
    pub(crate) image: ImageSpec,
    /// Counts free chunks of this size in KiB too
    #[arg(short = 'c', long, value_name = "KIB")]
    pub(crate) chunk_kb: Option<u64>,
    /// Prints JSON
    #[arg(long)]
    pub(crate) json: bool,
}
