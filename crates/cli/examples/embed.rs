//! What a program does with the library: the Rust blocks of README.md and docs/EMBED.md, word for
//! word. The test `documents` runs it.
//!
//! ```console
//! $ fourscore build rootfs/ -o disk.ext4
//! $ cargo run --release -p fourscore-cli --example embed disk.ext4
//! ```
#![expect(clippy::print_stdout, reason = "an example shows what it did")]

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use fourscore::block::{Access, DeviceOptions, Window, open_path};
use fourscore::{Follow, Fs, InodeNr, MountOptions, NewAttributes, OpenInode, OpenOptions};
use fourscore_check::{CheckOptions, check};

fn main() -> anyhow::Result<()> {
    let image = std::env::args_os().nth(1);
    let image = image.ok_or_else(|| anyhow::anyhow!("usage: embed IMAGE"))?;
    run(image.as_ref())
}

/// Reads an image with a file /etc/motd, writes to it, and checks it.
pub(crate) fn run(image: &Path) -> anyhow::Result<()> {
    use_paths(image)?;
    read(image)?;
    write(image)?;
    keep_open(image)?;
    open_partition(image, 0)?;
    check_all(image)
}

fn use_paths(image: &Path) -> anyhow::Result<()> {
    let device = open_path(image, DeviceOptions::read_write())?;
    let fs = Fs::mount(Arc::new(device), &MountOptions::new())?;

    let files = fs.paths();
    files.create_dir_all("/srv/www")?;
    files.write("/srv/www/index.html", "<p>hello")?;
    let motd = files.read_to_string("/etc/motd")?;

    let mut log = files.create("/srv/log")?;
    writeln!(log, "{} bytes of {motd}", motd.len())?;
    log.sync_all()?;

    for entry in files.walk("/srv") {
        println!("{}", String::from_utf8_lossy(&entry?.path));
    }
    files.remove_dir_all("/srv")?;
    drop(log);
    fs.unmount()?;
    Ok(())
}

fn read(image: &Path) -> anyhow::Result<()> {
    let device = open_path(image, DeviceOptions::default())?;
    let fs = Fs::open(Arc::new(device), &OpenOptions::new())?;

    let motd = fs.resolve(b"/etc/motd", Follow::Yes)?;
    let stat = fs.stat(motd)?;
    let mut content = vec![0; usize::try_from(stat.size_bytes)?];
    let len = fs.read_at(motd, &mut content, 0)?;
    print!("{}", String::from_utf8_lossy(&content[..len]));

    let etc = fs.resolve(b"/etc", Follow::Yes)?;
    for entry in fs.read_dir(etc)? {
        println!("{} {}", entry.inode, String::from_utf8_lossy(&entry.name));
    }
    Ok(())
}

fn write(image: &Path) -> anyhow::Result<()> {
    let owner = NewAttributes::owned_by(0, 0);
    let device = open_path(image, DeviceOptions::read_write())?;
    let fs = Fs::mount(Arc::new(device), &MountOptions::new())?;
    let file = fs.create(InodeNr::ROOT, b"note", &owner)?;
    fs.write_at(file, b"kept", 0)?;
    fs.fsync(file)?;
    fs.unmount()?;
    Ok(())
}

fn keep_open(image: &Path) -> anyhow::Result<()> {
    let owner = NewAttributes::owned_by(0, 0).permissions(0o600);
    let device = open_path(image, DeviceOptions::read_write())?;
    let fs = Fs::mount(Arc::new(device), &MountOptions::new())?;
    let temporary = OpenInode::unnamed(&*fs, InodeNr::ROOT, &owner)?;
    fs.write_at(temporary.inode(), b"no name leads here", 0)?;
    temporary.close()?;
    Ok(fs.unmount()?)
}

fn open_partition(image: &Path, offset_bytes: u64) -> anyhow::Result<()> {
    let disk = Arc::new(open_path(image, DeviceOptions::default())?);
    let partition = Window::from_offset(disk, offset_bytes, Access::ReadOnly)?;
    Fs::open(Arc::new(partition), &OpenOptions::new())?;
    Ok(())
}

fn check_all(image: &Path) -> anyhow::Result<()> {
    let device = open_path(image, DeviceOptions::default())?;
    let report = check(Arc::new(device), &CheckOptions::default())?;
    for finding in report.findings() {
        println!("{finding}");
    }
    Ok(())
}
