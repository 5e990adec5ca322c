//! Damaged images on a mount: the server neither dies nor hangs nor violates its sandbox, and files
//! that the damage cannot affect are served correctly.
//!
//! A round damages a copy of an image at one to three positions and mounts it. It compares the
//! files that the damage cannot affect with those that the kernel showed on the undamaged image.
//! Then two threads walk the mount and change it at random. The mount is unmounted, or the server
//! is killed and the image is mounted and walked again.
//!
//! The mount options always have a policy for errors, since the superblock may request a panic.
//!
//! `cargo xtask fuzz mount --seconds 3600` runs for that time; `FOURSCORE_MOUNT_SEED` is the first
//! seed. The image of a failed round, as it was before the mount, is kept in
//! `target/tmp/mount-findings`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fourscore_ondisk::InodeNr;
use fourscore_sync::{Mutex, thread};
use fourscore_testkit::damage::{Damage, Kind, Patient};
use fourscore_testkit::explore::rng::{Rng, mix};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{Image, MiB, oracle, require};
use rustix::fs::{FallocateFlags, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::common::{fourscore, text};
use crate::mounted::{Mounted, TIMEOUT, is_mounted, umount, wait_until};
use crate::place;

/// Rounds of each run of the tests.
const ROUNDS: u64 = 40;
/// Memory limit of a server in KiB: 1 GiB, as for the other fuzz targets.
const MOST_MEMORY_KIB: u64 = 1 << 20;
/// Objects that are walked at most, since an image may have loops.
const MOST_WALKED: usize = 1500;
const MOST_DEEP: usize = 12;
/// Bytes that are read at the start and at the end of a file.
const READ_BYTES: u64 = 64 << 10;
const CHANGES: usize = 150;

/// How an image is made.
struct Form {
    kind: &'static str,
    block_size_bytes: u32,
    arguments: &'static [&'static str],
}

const fn form(
    kind: &'static str,
    block_size_bytes: u32,
    arguments: &'static [&'static str],
) -> Form {
    Form {
        kind,
        block_size_bytes,
        arguments,
    }
}

/// The images. Together they have every form of each structure that is damaged.
const FORMS: [Form; 6] = [
    form("ext4", 1024, &[]),
    form("ext4", 4096, &["-O", "inline_data"]),
    form(
        "ext4",
        1024,
        &["-O", "orphan_file,ea_inode,meta_bg,^resize_inode"],
    ),
    form(
        "ext4",
        4096,
        &["-O", "bigalloc,^metadata_csum", "-C", "16384"],
    ),
    form("ext3", 1024, &[]),
    form("ext2", 1024, &["-I", "128"]),
];

const OPTIONS: [&str; 7] = [
    "errors=continue",
    "errors=continue",
    "errors=remount-ro",
    "errors=continue,nowriteback",
    "errors=continue,sync",
    "errors=continue,ro",
    "errors=continue,norecovery",
];

/// Errors that no damage explains: the server has died, or has rejected a request of the kernel.
const NEVER: [Errno; 6] = [
    Errno::NOSYS,
    Errno::NOTCONN,
    Errno::CONNABORTED,
    Errno::FAULT,
    Errno::NOMEM,
    Errno::PROTO,
];

/// The errors of the kernel for a mount without a server.
const GONE: [Errno; 3] = [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED];

/// An undamaged image, and its files as the kernel shows them.
struct Sound {
    image: Image,
    shown: BTreeMap<PathBuf, Shown>,
}

struct Shown {
    inode: InodeNr,
    what: What,
}

#[derive(Debug, PartialEq)]
enum What {
    Directory,
    File(Vec<u8>),
    Link(PathBuf),
    Other,
}

impl What {
    fn of(path: &Path) -> io::Result<Self> {
        let file_type = fs::symlink_metadata(path)?.file_type();
        Ok(if file_type.is_dir() {
            Self::Directory
        } else if file_type.is_file() {
            Self::File(fs::read(path)?)
        } else if file_type.is_symlink() {
            Self::Link(fs::read_link(path)?)
        } else {
            Self::Other
        })
    }
}

/// Creates objects of each kind in few blocks.
fn fill(root: &Path) -> Result<()> {
    for directory in ["plain/below", "indexed", "a/b/c/d"] {
        fs::create_dir_all(root.join(directory))?;
    }
    for nr in 0..300 {
        let name = format!("indexed/a-name-that-takes-some-room-{nr:04}");
        fs::write(root.join(name), nr.to_string())?;
    }
    for nr in 0..20 {
        let content = vec![b'a' + u8::try_from(nr)?; nr * 137];
        fs::write(root.join(format!("plain/{nr}")), content)?;
    }
    fs::write(root.join("a/b/c/d/large"), [9; 40_000])?;
    let pieces = File::create(root.join("pieces"))?;
    for nr in 0..60 {
        pieces.write_all_at(format!("piece {nr}").as_bytes(), nr * 8192)?;
        pieces.sync_data()?;
    }
    File::create(root.join("sparse"))?.write_all_at(b"far away", 3 << 20)?;
    fs::hard_link(root.join("plain/7"), root.join("plain/below/again"))?;
    std::os::unix::fs::symlink("plain/1", root.join("link"))?;
    std::os::unix::fs::symlink("x".repeat(300), root.join("long"))?;
    place::run("mkfifo", &["fifo"], root)?;
    place::run("mknod", &["device", "c", "1", "3"], root)?;
    for (name, length) in [("plain/3", 20), ("plain/4", 400), ("a/b", 500)] {
        let value = vec![b'v'; length];
        rustix::fs::setxattr(root.join(name), "user.note", &value, XattrFlags::CREATE)?;
    }
    Ok(())
}

/// Everything below a folder of an undamaged file system.
fn shown(root: &Path) -> Result<BTreeMap<PathBuf, Shown>> {
    let mut shown = BTreeMap::new();
    let mut waiting = vec![root.to_path_buf()];
    while let Some(path) = waiting.pop() {
        let what = What::of(&path)?;
        if what == What::Directory {
            for entry in fs::read_dir(&path)? {
                waiting.push(entry?.path());
            }
        }
        let inode = InodeNr(u32::try_from(fs::symlink_metadata(&path)?.ino())?);
        shown.insert(path.strip_prefix(root)?.to_owned(), Shown { inode, what });
    }
    Ok(shown)
}

impl Sound {
    fn new(form: &Form) -> Result<Self> {
        let builder = Image::builder(MiB(12)).kind(form.kind);
        let builder = builder.block_size_bytes(form.block_size_bytes);
        let image = builder.arguments(form.arguments.iter().copied()).make()?;
        let kernel = KernelMount::new(image.path(), Access::ReadWrite, "")?;
        fill(kernel.path())?;
        kernel.unmount()?;
        oracle::assert_clean(image.path());
        let kernel = KernelMount::new(image.path(), Access::ReadOnly, "")?;
        let shown = shown(kernel.path())?;
        kernel.unmount()?;
        Ok(Self { image, shown })
    }

    fn all() -> Vec<Self> {
        let made = FORMS.iter().map(Self::new);
        made.collect::<Result<_>>().expect("images")
    }
}

/// A damaged copy of an image.
struct Damaged {
    image: Image,
    damages: Vec<Damage>,
    /// The inodes that the damage may affect; `None` if it may affect all.
    reach: Option<BTreeSet<InodeNr>>,
}

impl Damaged {
    fn new(sound: &Sound, rng: &mut Rng) -> Result<Self> {
        let image = sound.image.copy()?;
        let patient = Patient::new(image.path())?;
        let places = if rng.happens(1, 2) {
            1
        } else {
            1 + rng.below(3)
        };
        let damages = (0..places).map(|_| patient.damage(rng.bits()));
        let damages = damages.collect::<Result<Vec<_>>>()?;
        let reach = reach(&patient, &damages);
        Ok(Self {
            image,
            damages,
            reach,
        })
    }
}

fn reach(patient: &Patient, damages: &[Damage]) -> Option<BTreeSet<InodeNr>> {
    let anatomy = patient.anatomy();
    let first = anatomy.superblock().first_inode();
    let mut reached = BTreeSet::new();
    for damage in damages {
        match damage.kind {
            // Reading does not use it.
            Kind::BlockBitmap | Kind::InodeBitmap => continue,
            Kind::Superblock | Kind::Descriptor | Kind::Orphans | Kind::Journal | Kind::Quota => {
                return None;
            }
            _ => {}
        }
        let sites = anatomy.sites(damage.kind).iter();
        let site = sites
            .filter(|site| (site.at..site.at + site.length as u64).contains(&damage.at))
            .find_map(|site| site.inode)?;
        if site < first {
            return None;
        }
        reached.insert(site);
    }
    Some(reached)
}

/// The counters of all rounds.
#[derive(Debug, Default)]
struct Tally {
    rounds: u64,
    refused: u64,
    killed: u64,
    walked: u64,
    compared: u64,
    /// Failed system calls by error.
    errors: BTreeMap<i32, u64>,
    most_memory_kib: u64,
}

impl Tally {
    fn errors(&self, errno: Errno) -> u64 {
        self.errors.get(&errno.raw_os_error()).copied().unwrap_or(0)
    }
}

/// A server of a damaged image.
struct Server {
    mounted: Mounted,
    message: PathBuf,
}

impl Server {
    /// Mounts. `None` if the image was refused, in one line.
    fn start(image: &Image, options: &str) -> Result<Option<Self>> {
        let (point, message) = (image.folder().join("mnt"), image.folder().join("message"));
        fs::create_dir_all(&point)?;
        let mut command = fourscore(&["mount", "-f", "-o", options]);
        command.arg(image.path()).arg(&point);
        let stderr = File::create(&message)?;
        let server = command.stdout(Stdio::null()).stderr(stderr).spawn()?;
        let mut server = Self {
            mounted: Mounted {
                server,
                point: point.clone(),
            },
            message,
        };
        let outside = fs::metadata(image.folder())?.dev();
        let start = Instant::now();
        while start.elapsed() < TIMEOUT {
            if let Some(status) = server.mounted.server.try_wait()? {
                let message = server.ended(status)?;
                ensure!(
                    message.lines().count() == 1,
                    "refused in one line: {message}"
                );
                ensure!(!is_mounted(&point), "what was refused is mounted");
                return Ok(None);
            }
            // The first reply comes after the image has been opened; the root may be damaged.
            let is_served = match fs::metadata(&point) {
                Ok(root) => root.dev() != outside,
                Err(why) => !GONE.contains(&Errno::from_io_error(&why).unwrap_or(Errno::NOTCONN)),
            };
            if is_served {
                return Ok(Some(server));
            }
            thread::sleep(Duration::from_millis(2));
        }
        bail!("a mount without an end")
    }

    /// The messages of a server that has ended correctly.
    fn ended(&self, status: ExitStatus) -> Result<String> {
        let message = String::from_utf8_lossy(&fs::read(&self.message)?).into_owned();
        let is_sound = matches!(status.code(), Some(0 | 1)) && !message.contains("panicked");
        ensure!(is_sound, "the server: {status}: {message}");
        Ok(message)
    }

    fn unmount(mut self) -> Result<()> {
        umount(&self.mounted.point);
        let status = self.mounted.end();
        self.ended(status).map(drop)
    }

    fn kill(mut self) {
        self.mounted.signal(Signal::KILL);
        self.mounted.end();
        let point = &self.mounted.point;
        wait_until("the mount is removed", || !is_mounted(point));
    }

    /// Peak memory in KiB.
    fn memory_kib(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.mounted.server.id()))?;
        let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let most = most.and_then(|most| most.trim().strip_suffix(" kB"));
        Ok(most.context("a size")?.parse()?)
    }

    /// Calls `visit` on the mount. If it does not end, the server is killed.
    fn visited(&self, visit: impl FnOnce(&Path) -> Result<()> + Send) -> Result<()> {
        thread::scope(|scope| {
            let visit = scope.spawn(|| visit(&self.mounted.point));
            let start = Instant::now();
            let mut is_overdue = false;
            while !visit.is_finished() {
                if start.elapsed() > TIMEOUT && !is_overdue {
                    is_overdue = true;
                    self.mounted.signal(Signal::KILL);
                }
                thread::sleep(Duration::from_millis(2));
            }
            ensure!(!is_overdue, "a call without an end");
            visit.join().expect("it has not panicked")
        })
    }
}

/// A thread that uses a mount, and the errors it finds.
struct Visitor<'t> {
    tally: &'t Mutex<Tally>,
}

impl Visitor<'_> {
    /// Records an error.
    fn met<T>(&self, result: io::Result<T>) -> Option<T> {
        let errno = match result {
            Ok(value) => return Some(value),
            Err(why) => why.raw_os_error().unwrap_or_default(),
        };
        *self.tally.lock().errors.entry(errno).or_default() += 1;
        None
    }

    /// Compares the files that the damage cannot affect.
    fn compare(&self, point: &Path, sound: &Sound, reach: &BTreeSet<InodeNr>) -> Result<()> {
        let is_reached = |path: &Path| {
            let mut above = path.ancestors().filter_map(|path| sound.shown.get(path));
            above.any(|shown| reach.contains(&shown.inode))
        };
        for (path, shown) in &sound.shown {
            if is_reached(path) {
                continue;
            }
            let found = What::of(&point.join(path));
            let found = found.with_context(|| path.display().to_string())?;
            ensure!(found == shown.what, "{} is another", path.display());
            self.tally.lock().compared += 1;
        }
        Ok(())
    }

    /// Reads all objects.
    fn walk(&self, point: &Path) {
        let mut waiting = vec![(point.to_path_buf(), 0)];
        let mut walked = 0;
        while let Some((path, depth)) = waiting.pop() {
            walked += 1;
            if walked > MOST_WALKED {
                break;
            }
            self.tally.lock().walked += 1;
            let Some(metadata) = self.met(fs::symlink_metadata(&path)) else {
                continue;
            };
            self.met(attributes(&path));
            if metadata.is_symlink() {
                self.met(fs::read_link(&path));
            } else if metadata.is_file() {
                self.met(read(&path, metadata.len()));
            } else if metadata.is_dir() && depth < MOST_DEEP {
                let entries = self.met(fs::read_dir(&path)).into_iter().flatten();
                // A directory may fail at every further entry.
                for entry in entries.take(MOST_WALKED) {
                    let Some(entry) = self.met(entry) else {
                        break;
                    };
                    waiting.push((entry.path(), depth + 1));
                }
            }
        }
    }

    /// Changes objects at random.
    fn change(&self, point: &Path, sound: &Sound, rng: &mut Rng) {
        let names: Vec<&PathBuf> = sound.shown.keys().collect();
        for nr in 0..CHANGES {
            let one = point.join(rng.pick(&names));
            let other = match rng.happens(1, 3) {
                true => point.join(rng.pick(&names)),
                false => one.with_file_name(format!("new-{nr}")),
            };
            self.met(changed(rng, &one, &other));
        }
    }
}

/// Reads a file at its start and at its end.
fn read(path: &Path, length: u64) -> io::Result<()> {
    let mut file = opened(path, OpenOptions::new().read(true))?;
    let mut content = Vec::new();
    (&file).take(READ_BYTES).read_to_end(&mut content)?;
    file.seek(SeekFrom::Start(length.saturating_sub(READ_BYTES)))?;
    (&file).take(READ_BYTES).read_to_end(&mut content)?;
    Ok(())
}

/// Opens an object that may have become a fifo, which must not block.
fn opened(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let at_once = OFlags::NONBLOCK.bits().cast_signed();
    options.custom_flags(at_once).open(path)
}

/// Lists the attributes of a file, and reads each.
fn attributes(path: &Path) -> io::Result<()> {
    let mut room = vec![0; 1 << 16];
    let length = rustix::fs::llistxattr(path, &mut room[..])?;
    let mut value = vec![0; 1 << 16];
    for name in room[..length].split(|&byte| byte == 0) {
        if !name.is_empty() {
            rustix::fs::lgetxattr(path, name, &mut value[..])?;
        }
    }
    Ok(())
}

/// Changes `one`, perhaps together with `other`.
fn changed(rng: &mut Rng, one: &Path, other: &Path) -> io::Result<()> {
    let place = rng.bits() % (1 << 20);
    let to_write = |path| opened(path, OpenOptions::new().read(true).write(true));
    match rng.below(18) {
        0 | 1 => to_write(one)?.write_all_at(&[b'w'; 3000], place),
        2 => to_write(one)?.set_len(place),
        3 => to_write(one)?.set_len(place << 20),
        4 => fs::rename(one, other),
        5 => fs::remove_file(one),
        6 => fs::remove_dir(one),
        7 => opened(other, OpenOptions::new().write(true).create(true))?.write_all_at(b"new", 0),
        8 => fs::create_dir(other),
        9 => fs::hard_link(one, other),
        10 => std::os::unix::fs::symlink(one, other),
        11 => {
            let value = vec![b'w'; rng.below(3000)];
            let flags = XattrFlags::empty();
            Ok(rustix::fs::lsetxattr(one, "user.new", &value, flags)?)
        }
        12 => Ok(rustix::fs::lremovexattr(one, "user.note")?),
        13 => {
            // Not through a symbolic link out of the mount.
            match fs::symlink_metadata(one)?.is_symlink() {
                true => Ok(()),
                false => fs::set_permissions(one, fs::Permissions::from_mode(0o750)),
            }
        }
        14 | 15 => {
            let flags = match rng.below(3) {
                0 => FallocateFlags::empty(),
                1 => FallocateFlags::ZERO_RANGE,
                _ => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            };
            Ok(rustix::fs::fallocate(to_write(one)?, flags, place, 20_000)?)
        }
        16 => to_write(one)?.sync_all(),
        _ => {
            let here = rustix::fs::CWD;
            let flags = RenameFlags::EXCHANGE;
            Ok(rustix::fs::renameat_with(here, one, here, other, flags)?)
        }
    }
}

/// One round: one mount of a damaged image, or two.
fn round(seed: u64, sounds: &[Sound], tally: &Mutex<Tally>) -> Result<()> {
    let mut rng = Rng::new(mix(seed));
    let sound = rng.pick(sounds);
    let damaged = Damaged::new(sound, &mut rng)?;
    let transport = if rng.happens(1, 2) { "classic" } else { "auto" };
    let options = format!("{},transport={transport}", rng.pick(&OPTIONS));
    let context = || {
        let damages = damaged.damages.iter().map(ToString::to_string);
        let damages: Vec<String> = damages.collect();
        format!("seed {seed}, {options}: {}", damages.join("; "))
    };
    tally.lock().rounds += 1;
    let visitor = Visitor { tally };
    let Some(server) = Server::start(&damaged.image, &options).with_context(context)? else {
        tally.lock().refused += 1;
        return Ok(());
    };
    let visit = |point: &Path| {
        if let Some(reach) = &damaged.reach {
            visitor.compare(point, sound, reach)?;
        }
        thread::scope(|scope| {
            scope.spawn(|| visitor.walk(point));
            visitor.change(point, sound, &mut rng);
        });
        Ok(())
    };
    server.visited(visit).with_context(context)?;
    let memory_kib = server.memory_kib().with_context(context)?;
    ensure!(
        memory_kib < MOST_MEMORY_KIB,
        "{memory_kib} KiB: {}",
        context()
    );
    let mut noted = tally.lock();
    noted.most_memory_kib = noted.most_memory_kib.max(memory_kib);
    let never = NEVER.iter().find(|errno| noted.errors(**errno) > 0);
    ensure!(never.is_none(), "{never:?}: {}", context());
    drop(noted);
    if seed.is_multiple_of(2) {
        return server.unmount().with_context(context);
    }
    server.kill();
    tally.lock().killed += 1;
    if let Some(server) = Server::start(&damaged.image, &options).with_context(context)? {
        let walk = |point: &Path| {
            visitor.walk(point);
            Ok(())
        };
        server.visited(walk).with_context(context)?;
        server.unmount().with_context(context)?;
    }
    Ok(())
}

/// Runs the round of a seed, and keeps its image if the round fails.
fn tried(seed: u64, sounds: &[Sound], tally: &Mutex<Tally>) {
    let tried = catch_unwind(AssertUnwindSafe(|| round(seed, sounds, tally)));
    if let Ok(Ok(())) = tried {
        return;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mount-findings");
    fs::create_dir_all(&folder).expect("space");
    let kept = folder.join(seed.to_string());
    let mut rng = Rng::new(mix(seed));
    let again = Damaged::new(rng.pick(sounds), &mut rng).expect("as before");
    fs::copy(again.image.path(), &kept).expect("space");
    match tried {
        Ok(failed) => failed.unwrap_or_else(|why| panic!("{why:#} (kept: {})", text(&kept))),
        Err(panicked) => {
            eprintln!("seed {seed} (kept: {})", text(&kept));
            std::panic::resume_unwind(panicked)
        }
    }
}

fn number(variable: &str, default: u64) -> u64 {
    let given = std::env::var(variable).map_or(Ok(default), |text| text.parse());
    given.unwrap_or_else(|why| panic!("{variable}: {why}"))
}

/// Runs rounds from the first seed on while `goes_on` returns true for their number.
fn rounds(goes_on: impl Fn(u64) -> bool) -> Tally {
    let first = number("FOURSCORE_MOUNT_SEED", 1);
    let sounds = Sound::all();
    let tally = Mutex::new(Tally::default());
    for nr in 0.. {
        if !goes_on(nr) {
            break;
        }
        tried(first + nr, &sounds, &tally);
        if nr % 100 == 99 {
            eprintln!("up to seed {}: {:?}", first + nr, tally.lock());
        }
    }
    let tally = tally.into_inner();
    eprintln!("from seed {first} on: {tally:?}");
    tally
}

#[test]
fn undamaged_files_of_damaged_images_are_served() {
    require!(
        Need::KernelMount,
        Need::Fuse,
        Need::Program("mke2fs"),
        Need::Program("e2fsck")
    );
    let tally = rounds(|nr| nr < ROUNDS);
    assert_eq!(tally.rounds, ROUNDS);
    assert!(tally.refused < ROUNDS / 2, "{tally:?}");
    assert!(tally.killed > ROUNDS / 8, "{tally:?}");
    // Some damage was found, and some files were not affected.
    assert!(tally.errors(Errno::UCLEAN) > 0, "{tally:?}");
    assert!(tally.compared > ROUNDS * 50, "{tally:?}");
}

#[test]
#[ignore = "an hour, or FOURSCORE_MOUNT_SECONDS"]
fn undamaged_files_of_damaged_images_are_served_for_long() {
    require!(
        Need::KernelMount,
        Need::Fuse,
        Need::Program("mke2fs"),
        Need::Program("e2fsck")
    );
    let whole = Duration::from_secs(number("FOURSCORE_MOUNT_SECONDS", 3600));
    let start = Instant::now();
    let tally = rounds(|_| start.elapsed() < whole);
    assert!(tally.compared > tally.rounds, "{tally:?}");
}
