//! **Purpose.** Makes the seed images in `fuzz/images`. Needs root, loop devices, e2fsprogs and
//! xfs_io; run it only to change them: `cargo run -p fourscore-fuzz --example make_images`.
//!
//! mke2fs makes a file system of 1 MiB (4 MiB with a journal), the kernel fills it with a little of
//! what its features are about, or dies while doing so.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use fourscore::{Fs, InodeNr, OpenOptions};
use fourscore_block::DeviceOptions;
use fourscore_fuzz::sparse;
use fourscore_ondisk::checksum::InodeGeneration;
use fourscore_ondisk::htree;
use fourscore_testkit::{Access, Image, KernelMount, MiB, oracle, tools};

/// How an image is made.
struct Recipe {
    name: &'static str,
    size: MiB,
    block_bytes: u32,
    features: &'static str,
    arguments: &'static [&'static str],
    fill: fn(&Path) -> Result<()>,
    /// Makes files that stay open until the file system is dead.
    hold: fn(&Path) -> Result<Vec<File>>,
    death: Death,
    /// Commands of debugfs after the kernel has let go.
    debugfs: &'static [&'static str],
    /// What no program makes from so little.
    forge: fn(&Path) -> Result<()>,
}

/// Whether the file system is unmounted or dies.
#[derive(PartialEq)]
enum Death {
    None,
    LogFlushed,
    LogLost,
}

const fn recipe(
    name: &'static str,
    features: &'static str,
    fill: fn(&Path) -> Result<()>,
) -> Recipe {
    Recipe {
        name,
        size: MiB(1),
        block_bytes: 1024,
        features,
        arguments: &["-t", "ext4", "-N", "64"],
        fill,
        hold: |_| Ok(Vec::new()),
        death: Death::None,
        debugfs: &[],
        forge: |_| Ok(()),
    }
}

const fn dirty(
    name: &'static str,
    features: &'static str,
    fill: fn(&Path) -> Result<()>,
) -> Recipe {
    Recipe {
        size: MiB(3),
        death: Death::LogFlushed,
        ..recipe(name, features, fill)
    }
}

const RECIPES: &[Recipe] = &[
    Recipe {
        arguments: &["-t", "ext2", "-N", "64"],
        ..recipe(
            "ext2",
            "none,filetype,sparse_super,ext_attr,dir_index",
            pointers,
        )
    },
    Recipe {
        arguments: &["-t", "ext3", "-N", "64"],
        ..dirty(
            "ext3-dirty",
            "has_journal,filetype,dir_index,ext_attr",
            busy,
        )
    },
    recipe("ext4", "^has_journal", one_of_each),
    dirty("ext4-dirty", "has_journal", busy),
    Recipe {
        death: Death::LogLost,
        ..dirty("fast-commit", "has_journal,fast_commit", fast_commits)
    },
    recipe("inline", "^has_journal,inline_data,ea_inode", inline),
    Recipe {
        size: MiB(3),
        arguments: &["-t", "ext4", "-N", "64", "-C", "4096"],
        ..recipe("bigalloc", "^has_journal,bigalloc", one_of_each)
    },
    Recipe {
        debugfs: &[
            "set_inode_field /folded flags 0x40080000",
            "set_super_value encoding 1",
            "feature casefold",
        ],
        ..recipe("casefold", "^has_journal", folded)
    },
    recipe("encrypt", "^has_journal,encrypt", encrypted),
    Recipe {
        arguments: &["-t", "ext4", "-g", "256", "-N", "128"],
        ..recipe(
            "meta-bg",
            "^has_journal,meta_bg,^resize_inode,64bit,metadata_csum_seed",
            one_of_each,
        )
    },
    recipe("htree", "^has_journal,large_dir,dir_nlink", large_directory),
    Recipe {
        arguments: &["-t", "ext4", "-N", "128"],
        hold: orphans,
        ..dirty("orphan-file", "has_journal,orphan_file,mmp", busy)
    },
    Recipe {
        arguments: &["-t", "ext4", "-N", "64"],
        ..dirty(
            "checksum-v1",
            "has_journal,^metadata_csum,uninit_bg,^64bit",
            busy,
        )
    },
    Recipe {
        arguments: &["-t", "ext4", "-N", "64", "-I", "1024"],
        ..recipe("large-inode", "^has_journal,verity", one_of_each)
    },
    Recipe {
        forge: deepen_index,
        ..recipe("htree-deep", "^has_journal,large_dir", small_index)
    },
    Recipe {
        block_bytes: 4096,
        size: MiB(16),
        ..dirty("4k", "has_journal,fast_commit,orphan_file", few_of_each)
    },
    Recipe {
        block_bytes: LARGE_BLOCK_BYTES,
        size: MiB(8),
        ..recipe("64k", "^has_journal,large_dir", few_of_each)
    },
];

/// Larger than the pages of most kernels, so mke2fs must fill such an image.
const LARGE_BLOCK_BYTES: u32 = 65_536;

fn main() -> Result<()> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for recipe in RECIPES {
        if wanted.is_empty() || wanted.iter().any(|name| name == recipe.name) {
            recipe
                .make()
                .with_context(|| format!("image {}", recipe.name))?;
        }
    }
    Ok(())
}

impl Recipe {
    fn make(&self) -> Result<()> {
        let mut builder = Image::builder(self.size).arguments(self.arguments.iter().copied());
        builder = builder
            .block_size_bytes(self.block_bytes)
            .features(&[self.features]);
        if self.death != Death::None {
            // The fewest blocks that a journal may have.
            builder = builder.journal(MiB(u64::from(self.block_bytes) >> 10));
        }
        let image = if self.block_bytes == LARGE_BLOCK_BYTES {
            let staging = Image::builder(MiB(16)).kind("ext4").make()?;
            let mount = KernelMount::new(staging.path(), Access::ReadWrite, "")?;
            (self.fill)(mount.path())?;
            builder.source(mount.path()).make()?
        } else {
            let image = builder.make()?;
            self.fill_mounted(&image)?;
            image
        };
        if !self.debugfs.is_empty() {
            oracle::debugfs_write(image.path(), self.debugfs)?;
            oracle::e2fsck_repair(image.path(), &["-D"])?;
        }
        (self.forge)(image.path())?;
        if self.death == Death::None {
            let fsck = oracle::e2fsck(image.path())?;
            ensure!(fsck.is_clean(), "{}", fsck.output);
        }
        let file = sparse::encode(&fs::read(image.path())?);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("images");
        fs::write(path.join(format!("{}.sparse", self.name)), &file)?;
        println!("{:12} {:8} bytes", self.name, file.len());
        Ok(())
    }

    /// Lets the kernel fill the image, and die if it is to die.
    fn fill_mounted(&self, image: &Image) -> Result<()> {
        let options = if self.name == "checksum-v1" {
            "journal_checksum"
        } else {
            ""
        };
        let mount = KernelMount::new(image.path(), Access::ReadWrite, options)?;
        (self.fill)(mount.path())?;
        let held = (self.hold)(mount.path())?;
        let shutdown = match self.death {
            Death::None => None,
            Death::LogFlushed => Some("shutdown -f"),
            Death::LogLost => Some("shutdown"),
        };
        if let Some(shutdown) = shutdown {
            tools::stdout_of(
                tools::command("xfs_io")?
                    .args(["-x", "-c", shutdown])
                    .arg(mount.path()),
            )?;
        }
        drop(held);
        mount.unmount()
    }
}

fn write(root: &Path, name: &str, at: u64, len: usize) -> Result<()> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(root.join(name))?;
    Ok(file.write_all_at(&vec![b'x'; len], at)?)
}

fn set_xattr(path: &Path, name: &str, value: &str) -> Result<()> {
    let arguments = ["-h", "-n", name, "-v", value];
    tools::stdout_of(tools::command("setfattr")?.args(arguments).arg(path)).map(drop)
}

/// Direct, indirect, double and triple indirect blocks.
fn pointers(root: &Path) -> Result<()> {
    one_of_each(root)?;
    for (name, at) in [
        ("indirect", 13),
        ("double", 12 + 256 + 300),
        ("triple", 12 + 256 + 65_536),
    ] {
        write(root, name, at << 10, 10)?;
    }
    Ok(())
}

/// A tree with one of each kind of object, holes, a deep extent tree, attributes and an ACL.
fn one_of_each(root: &Path) -> Result<()> {
    fs::create_dir_all(root.join("dir/below"))?;
    write(root, "empty", 0, 0)?;
    write(root, "dir/file", 0, 1500)?;
    write(root, "dir/below/sparse", 5 << 30, 1)?;
    // Zeroes, so that changes are spent on the tree and not on the content.
    let fragments = File::create(root.join("fragments"))?;
    for nth in 0..360 {
        fragments.write_all_at(&[0], nth * 2 * 4096)?;
    }
    let mut fallocate = tools::command("fallocate")?;
    tools::stdout_of(
        fallocate
            .args(["-o", "4096", "-l", "20000"])
            .arg(root.join("dir/file")),
    )
    .or_else(|error| {
        if error.to_string().contains("not supported") {
            Ok(String::new())
        } else {
            Err(error)
        }
    })?;
    fs::hard_link(root.join("dir/file"), root.join("hard"))?;
    symlink("dir/file", root.join("link"))?;
    symlink(format!("dir/{}file", "./".repeat(80)), root.join("slow"))?;
    symlink("loop", root.join("loop"))?;
    for (name, kind, numbers) in [("fifo", "p", &[][..]), ("device", "b", &["259", "70000"])] {
        let mut mknod = tools::command("mknod")?;
        tools::stdout_of(mknod.arg(root.join(name)).arg(kind).args(numbers))?;
    }
    fs::create_dir(root.join("many"))?;
    for nth in 0..40 {
        fs::hard_link(
            root.join("empty"),
            root.join(format!("many/{nth}-{}", "n".repeat(60))),
        )?;
    }
    let file = root.join("dir/file");
    set_xattr(&file, "user.small", "value")?;
    set_xattr(&file, "user.large", &"v".repeat(300))?;
    set_xattr(&file, "security.label", "label")?;
    set_xattr(&root.join("link"), "trusted.link", "l")?;
    let acl = |path: &Path, arguments: &[&str]| {
        tools::stdout_of(tools::command("setfacl")?.args(arguments).arg(path)).map(drop)
    };
    acl(&file, &["-m", "u:1000:rw,g:5:r"])?;
    acl(&root.join("dir"), &["-d", "-m", "u:7:rwx"])
}

/// Files, directories and links in several transactions, some removed again.
fn busy(root: &Path) -> Result<()> {
    for round in 0..3 {
        let folder = root.join(format!("round-{round}"));
        fs::create_dir(&folder)?;
        for nth in 0..10 {
            let name = format!("round-{round}/{nth}");
            write(root, &name, nth * 5000, 2000)?;
            symlink(&name, folder.join(format!("link-{nth}")))?;
        }
        set_xattr(&folder, "user.round", &"r".repeat(200))?;
        File::open(&folder)?.sync_all()?;
        for nth in 0..5 {
            fs::remove_file(folder.join(nth.to_string()))?;
        }
        fs::create_dir(folder.join("gone"))?;
        File::open(root)?.sync_all()?;
        fs::remove_dir(folder.join("gone"))?;
        File::open(root)?.sync_all()?;
    }
    Ok(())
}

/// Changes that the kernel logs as fast commits.
fn fast_commits(root: &Path) -> Result<()> {
    fs::create_dir(root.join("dir"))?;
    File::open(root)?.sync_all()?;
    tools::stdout_of(&mut tools::command("sync")?)?;
    for nth in 0..8 {
        let name = format!("dir/file-{nth}");
        write(root, &name, 0, 3000)?;
        write(root, &name, 20_000, 100)?;
        File::open(root.join(&name))?.sync_all()?;
    }
    fs::hard_link(root.join("dir/file-1"), root.join("dir/hard"))?;
    fs::remove_file(root.join("dir/file-2"))?;
    File::options()
        .write(true)
        .open(root.join("dir/file-0"))?
        .set_len(1000)?;
    for name in ["dir/file-1", "dir/file-3", "dir/file-0"] {
        write(root, name, 9000, 10)?;
        File::open(root.join(name))?.sync_all()?;
    }
    Ok(())
}

/// Small files and directories inside their inodes, and a value in an inode of its own.
fn inline(root: &Path) -> Result<()> {
    for len in [1, 59, 60, 61, 120] {
        write(root, &format!("inline-{len}"), 0, len)?;
    }
    fs::create_dir(root.join("small"))?;
    for name in ["a", "bb", "ccc", "dddddddddddddddddddddd"] {
        fs::hard_link(root.join("inline-1"), root.join("small").join(name))?;
    }
    one_of_each(root)?;
    set_xattr(&root.join("fragments"), "user.inode", &"i".repeat(5000))
}

/// A directory to be casefolded, large enough for an index.
fn folded(root: &Path) -> Result<()> {
    fs::create_dir(root.join("folded"))?;
    write(root, "file", 0, 10)?;
    for nth in 0..40 {
        let name = format!("folded/Name-\u{c4}{nth}-{}", "Z".repeat(20));
        fs::hard_link(root.join("file"), root.join(name))?;
    }
    fs::hard_link(root.join("file"), root.join("folded/stra\u{df}e"))?;
    Ok(())
}

/// A directory under an encryption policy whose key is forgotten.
fn encrypted(root: &Path) -> Result<()> {
    use std::io::Write as _;
    use std::process::Stdio;
    let folder = root.join("secret");
    fs::create_dir(&folder)?;
    let mut add_key = tools::command("xfs_io")?;
    add_key
        .args(["-c", "add_enckey"])
        .arg(root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = add_key.spawn()?;
    child
        .stdin
        .take()
        .context("no stdin")?
        .write_all(&[0x80; 64])?;
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let key = text.trim().rsplit(' ').next().context("no key")?.to_owned();
    let policy = format!("set_encpolicy -v 2 {key}");
    tools::stdout_of(tools::command("xfs_io")?.args(["-c", &policy]).arg(&folder))?;
    for name in ["a", "file", &"e".repeat(200)] {
        fs::write(folder.join(name), "secret")?;
    }
    symlink("some/where", folder.join("link"))?;
    fs::create_dir(folder.join("many"))?;
    for nth in 0..30 {
        fs::hard_link(folder.join("a"), folder.join(format!("many/{nth}")))?;
    }
    Ok(())
}

/// An index of two levels.
fn large_directory(root: &Path) -> Result<()> {
    write(root, "file", 0, 10)?;
    fs::create_dir(root.join("dir"))?;
    for nth in 0..420 {
        let name = format!("dir/{nth}-{}", "n".repeat(240));
        fs::hard_link(root.join("file"), root.join(name))?;
    }
    ensure!(
        fs::metadata(root.join("dir"))?.len() > 126 << 10,
        "one level is enough"
    );
    ensure!(
        fs::metadata(root.join("file"))?.nlink() == 421,
        "links are missing"
    );
    Ok(())
}

/// Files that are open and have no name any more.
fn orphans(root: &Path) -> Result<Vec<File>> {
    let mut open = Vec::new();
    for nth in 0..6 {
        let name = format!("orphan-{nth}");
        write(root, &name, 0, 5000)?;
        open.push(File::open(root.join(&name))?);
        fs::remove_file(root.join(&name))?;
    }
    write(root, "kept", 0, 100)?;
    File::open(root)?.sync_all()?;
    Ok(open)
}

/// Little of much, for large blocks.
fn few_of_each(root: &Path) -> Result<()> {
    fs::create_dir_all(root.join("dir/below"))?;
    write(root, "dir/file", 0, 9_000)?;
    write(root, "dir/file", 140_000, 9_000)?;
    write(root, "dir/below/sparse", 5 << 30, 1)?;
    let fragments = File::create(root.join("fragments"))?;
    for nth in 0..6 {
        fragments.write_all_at(b"x", nth * 2 * u64::from(LARGE_BLOCK_BYTES))?;
    }
    fs::hard_link(root.join("dir/file"), root.join("hard"))?;
    symlink("dir/file", root.join("link"))?;
    symlink(format!("dir/{}file", "./".repeat(80)), root.join("slow"))?;
    for nth in 0..30 {
        fs::hard_link(
            root.join("fragments"),
            root.join(format!("dir/below/{nth}")),
        )?;
    }
    set_xattr(&root.join("dir/file"), "user.large", &"v".repeat(300))?;
    File::open(root.join("dir/file"))?.sync_all()?;
    fs::remove_file(root.join("dir/below/7"))?;
    write(root, "after", 0, 10)?;
    File::open(root.join("after"))?.sync_all()?;
    Ok(())
}

/// A directory of a few blocks.
fn small_index(root: &Path) -> Result<()> {
    write(root, "file", 0, 10)?;
    fs::create_dir(root.join("dir"))?;
    for nth in 0..24 {
        let name = format!("dir/{nth}-{}", "n".repeat(200));
        fs::hard_link(root.join("file"), root.join(name))?;
    }
    one_of_each(root)
}

/// Puts two levels between the root of an index and its leaves: made the ordinary way, so deep an
/// index takes 15 000 blocks.
fn deepen_index(image: &Path) -> Result<()> {
    oracle::debugfs_write(image, &["expand_dir /dir", "expand_dir /dir"])?;
    let mut bytes = fs::read(image)?;
    let device = fourscore_block::open_path(image, DeviceOptions::default())?;
    let opened = Fs::open(fourscore_sync::Arc::new(device), &OpenOptions::new())?;
    let dir = opened.lookup(InodeNr::ROOT, b"dir")?;
    let mut blocks = Vec::new();
    for extent in opened.extents(dir)? {
        let first = usize::try_from(extent.physical.0)?;
        blocks.extend(first..first + usize::try_from(extent.blocks)?);
    }
    let generation = InodeGeneration(opened.stat(dir)?.generation);
    let seed = opened
        .superblock()
        .checksum_seed()
        .for_inode(dir, generation);
    let &[root, .., upper, lower] = &blocks[..] else {
        anyhow::bail!("too few blocks in the directory");
    };
    let range = |block: usize| block * 1024..(block + 1) * 1024;
    let number = |at: usize| (blocks.len() - at).to_le_bytes();
    let count = u16::from_le_bytes([bytes[root * 1024 + 34], bytes[root * 1024 + 35]]);
    ensure!(
        count > 1 && bytes[root * 1024 + 30] == 0,
        "no index of one level"
    );
    let entries = bytes[root * 1024 + 32..][..usize::from(count) * 8].to_vec();
    for (block, entries) in [
        (lower, &entries[..]),
        (upper, &[&[0, 0, 1, 0][..], &number(1)[..4]].concat()),
    ] {
        let node = &mut bytes[range(block)];
        node.fill(0);
        node[4..6].copy_from_slice(&1024_u16.to_le_bytes());
        node[8..8 + entries.len()].copy_from_slice(entries);
        node[8..10].copy_from_slice(&126_u16.to_le_bytes());
        htree::seal_node(node, seed)?;
    }
    let node = &mut bytes[range(root)];
    node[30] = 2;
    node[34..36].copy_from_slice(&1_u16.to_le_bytes());
    node[36..40].copy_from_slice(&number(2)[..4]);
    htree::seal_root(node, seed)?;
    Ok(fs::write(image, bytes)?)
}
