//! **Purpose.** Measures how fast the mount is, side by side with the kernel's ext4 on a loop
//! device, fuse2fs, and a null FUSE file system, which does nothing and is the upper bound; and
//! compares the figures with their targets.
//!
//! **Model.** Images are sparse files on tmpfs. In a round every side is mounted once, on a new
//! image, and the loads of [`LOADS`] run on it one after the other. A ratio is taken within each
//! round, and its median is the figure. Needs root.
//!
//! A request wakes its client, and the scheduler likes to wake it on the other processor, since the
//! server still runs on this one. How often it does depends on the load of the machine, and decides
//! the speed of every FUSE server. So some loads are repeated with the client on one processor,
//! where the servers are what differs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fourscore_lab::mounted::{Direction, IoMode, Load, Order, Spread, Transfer};
use fourscore_lab::{MachineFacts, Ratio, ThreadCount};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::Options;
use super::folder::{Folder, run_quietly};
use crate::workspace::Workspace;

const GIB: u64 = 1 << 30;
const IMAGE_BYTES: u64 = 8 * GIB;
/// The kernel's switch for FUSE over io_uring. Its value is restored at the end.
const RING_SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// Time limit for a mount.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(60);
/// Rounds in which a tree is copied at most: each takes minutes.
const MAX_COPY_ROUNDS: u32 = 3;
/// Rounds of fuse2fs at most: it takes as long as all other sides together.
const MAX_FUSE2FS_ROUNDS: u32 = 3;

/// A load that is measured.
struct NamedLoad {
    name: &'static str,
    /// Threads that run it.
    clients: usize,
    processors: Processors,
    load: Load,
}

/// The processors on which a client may run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Processors {
    All,
    One,
}

const fn load(name: &'static str, clients: usize, load: Load) -> NamedLoad {
    NamedLoad {
        name,
        clients,
        processors: Processors::All,
        load,
    }
}

const fn load_on_one_processor(name: &'static str, load: Load) -> NamedLoad {
    NamedLoad {
        name,
        clients: 1,
        processors: Processors::One,
        load,
    }
}

const fn transfer(direction: Direction, order: Order, mode: IoMode, times: u32) -> Load {
    Load::Transfer(Transfer {
        direction,
        order,
        mode,
        times,
    })
}

const MANY_DIRECTORIES: Spread = Spread {
    directories: 100,
    files: 20_000,
};
const ONE_DIRECTORY: Spread = Spread {
    directories: 1,
    files: 10_000,
};

const CREATE_2: &str = "create in 100 directories, 2 clients";
const CREATE_PINNED: &str = "create in 100 directories, on one processor";
const READ_2: &str = "4 KiB random read, direct, 2 clients";
const APPEND: &str = "append 4 KiB and fsync (median)";

/// The loads in the order in which they run. Transfers read and write a file of 256 MiB.
const LOADS: &[NamedLoad] = &[
    load(
        "create in 100 directories",
        1,
        Load::Create(MANY_DIRECTORIES),
    ),
    load(
        "remove in 100 directories",
        1,
        Load::Remove(MANY_DIRECTORIES),
    ),
    load(CREATE_2, 2, Load::Create(MANY_DIRECTORIES)),
    load(
        "remove in 100 directories, 2 clients",
        2,
        Load::Remove(MANY_DIRECTORIES),
    ),
    load_on_one_processor(CREATE_PINNED, Load::Create(MANY_DIRECTORIES)),
    load_on_one_processor(
        "remove in 100 directories, on one processor",
        Load::Remove(MANY_DIRECTORIES),
    ),
    load("create in one directory", 1, Load::Create(ONE_DIRECTORY)),
    load("remove in one directory", 1, Load::Remove(ONE_DIRECTORY)),
    load(
        "1 MiB write, cached",
        1,
        transfer(Direction::Write, Order::Sequential, IoMode::Buffered, 256),
    ),
    load(
        "1 MiB write, direct",
        1,
        transfer(Direction::Write, Order::Sequential, IoMode::Direct, 256),
    ),
    load(
        "4 KiB random write, direct",
        1,
        transfer(Direction::Write, Order::Random, IoMode::Direct, 15_000),
    ),
    load(
        "4 KiB random write, cached",
        1,
        transfer(Direction::Write, Order::Random, IoMode::Buffered, 30_000),
    ),
    load(
        "1 MiB read, direct",
        1,
        transfer(Direction::Read, Order::Sequential, IoMode::Direct, 512),
    ),
    load(
        "4 KiB random read, direct",
        1,
        transfer(Direction::Read, Order::Random, IoMode::Direct, 25_000),
    ),
    load(
        READ_2,
        2,
        transfer(Direction::Read, Order::Random, IoMode::Direct, 25_000),
    ),
    load(
        "1 MiB read, cached",
        1,
        transfer(Direction::Read, Order::Sequential, IoMode::Buffered, 1024),
    ),
    load(
        "4 KiB random read, cached",
        1,
        transfer(Direction::Read, Order::Random, IoMode::Buffered, 200_000),
    ),
    load(APPEND, 1, Load::AppendDurable { times: 1000 }),
    load(
        "file of 4 KiB and fsync",
        1,
        Load::CreateDurable { files: 2000 },
    ),
    load(
        "file of 4 KiB and fsync, 2 clients",
        2,
        Load::CreateDurable { files: 2000 },
    ),
];

const COPY: &str = "cp -a of a tree (files and directories)";
const COPY_PINNED: &str = "cp -a of a tree, on one processor";
const COPIES: [(&str, Processors); 2] = [(COPY, Processors::All), (COPY_PINNED, Processors::One)];

/// The file systems that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Ours,
    OursClassic,
    Null,
    /// The null file system that keeps the data of its files, in a new file on tmpfs: the upper
    /// bound of transfers and copies of a file system that stores data.
    NullOnFile,
    Kernel,
    Fuse2fs,
}

impl Side {
    const ALL: [Self; 6] = [
        Self::Ours,
        Self::OursClassic,
        Self::Null,
        Self::NullOnFile,
        Self::Kernel,
        Self::Fuse2fs,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Ours => "fourscore",
            Self::OursClassic => "... through /dev/fuse",
            Self::Null => "null file system",
            Self::NullOnFile => "... with its data in a file",
            Self::Kernel => "kernel ext4 on loop",
            Self::Fuse2fs => "fuse2fs",
        }
    }
}

/// Operations per second of each load on each side, round by round.
#[derive(Default)]
struct Figures(BTreeMap<(Side, &'static str), Vec<f64>>);

/// Measures everything and returns the section.
pub(super) fn run(workspace: &Workspace, options: &Options) -> Result<String> {
    let switch = RingSwitch::on()?;
    let bench = Bench::new(workspace)?;
    let mut figures = Figures::default();
    for round in 0..options.rounds {
        println!("round {}", round + 1);
        for side in Side::ALL {
            if side == Side::Fuse2fs && (round >= MAX_FUSE2FS_ROUNDS || !bench.has_fuse2fs) {
                continue;
            }
            bench.round(side, round, &options.tree, &mut figures)?;
        }
    }
    let mounts = bench.mounts(options.rounds)?;
    drop(switch);
    let mut text = format!(
        "{}\n\nOperations per second, medians; the spread is (max - min) / median.\n\n",
        MachineFacts::collect()
            .with_option("rounds", &options.rounds)
            .with_option("image", &"8 GiB, of mke2fs's defaults, sparse on tmpfs")
            .with_option("tree", &options.tree.display())
    );
    if !bench.has_fuse2fs {
        text.push_str("fuse2fs is not installed (`cargo xtask setup`).\n\n");
    }
    text.push_str(&figures.table());
    text.push_str("\n| target | figure | met |\n|---|---|---|\n");
    for row in figures.rows().into_iter().chain(mounts) {
        let met = if row.is_met { "yes" } else { "**no**" };
        // Writing into a String cannot fail.
        let _ = writeln!(text, "| {} | {} | {met} |", row.target, row.figure);
    }
    Ok(text)
}

/// FUSE over io_uring is on in the kernel until this is dropped, which restores the value before.
struct RingSwitch(Option<String>);

impl RingSwitch {
    fn on() -> Result<Self> {
        let before = fs::read_to_string(RING_SWITCH).ok();
        if before.is_some() {
            fs::write(RING_SWITCH, "Y").context("switching FUSE over io_uring on needs root")?;
        }
        Ok(Self(before))
    }
}

impl Drop for RingSwitch {
    fn drop(&mut self) {
        if let Some(before) = &self.0
            && let Err(error) = fs::write(RING_SWITCH, before.trim())
        {
            eprintln!("bench: {RING_SWITCH} stays on: {error}");
        }
    }
}

/// The programs, and the folder on tmpfs with images and mount point.
struct Bench {
    fourscore: PathBuf,
    null: PathBuf,
    folder: Folder,
    has_fuse2fs: bool,
}

impl Bench {
    fn new(workspace: &Workspace) -> Result<Self> {
        let bench = Self {
            fourscore: super::build_command(workspace)?,
            null: super::build_program(workspace, "null_fuse")?,
            has_fuse2fs: crate::run::find_program("fuse2fs").is_some(),
            folder: Folder::on_tmpfs()?,
        };
        fs::create_dir_all(bench.path("mount"))?;
        bench.image("model", IMAGE_BYTES)?;
        Ok(bench)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Makes an image with an empty file system.
    fn image(&self, name: &str, bytes: u64) -> Result<PathBuf> {
        let image = self.path(name);
        File::create(&image)?.set_len(bytes)?;
        run_quietly(
            Command::new("mke2fs")
                .args(["-q", "-F", "-t", "ext4"])
                .arg(&image),
        )?;
        Ok(image)
    }

    /// Mounts a side and runs every load on it.
    fn round(&self, side: Side, round: u32, tree: &Path, figures: &mut Figures) -> Result<()> {
        let mut note = |name, rate| figures.0.entry((side, name)).or_default().push(rate);
        {
            let mounted = self.mounted(side)?;
            for NamedLoad {
                name,
                clients,
                processors,
                load,
            } in LOADS
            {
                let _place = Pinned::to(*processors)?;
                if side == Side::NullOnFile && !matches!(load, Load::Transfer(_)) {
                    continue;
                }
                let rate = load.run(&mounted.point, ThreadCount::new(*clients));
                note(name, rate.with_context(|| format!("{name} of {side:?}"))?);
            }
            mounted.unmount()?;
        }
        let copies = [Side::Ours, Side::Null, Side::NullOnFile, Side::Kernel];
        if !copies.contains(&side) || round >= MAX_COPY_ROUNDS {
            return Ok(());
        }
        for (name, processors) in COPIES {
            let mounted = self.mounted(side)?;
            let place = Pinned::to(processors)?;
            let (copied, began) = (objects_in(tree)?, Instant::now());
            run_quietly(
                Command::new("cp")
                    .args(["-a", "--no-preserve=xattr"])
                    .args([tree, &mounted.point]),
            )?;
            note(name, copied as f64 / began.elapsed().as_secs_f64());
            drop(place);
            mounted.unmount()?;
        }
        Ok(())
    }

    /// Mounts a copy of the model.
    fn mounted(&self, side: Side) -> Result<Mounted> {
        let image = self.path("image");
        run_quietly(
            Command::new("cp")
                .arg("--sparse=always")
                .args([&self.path("model"), &image]),
        )?;
        self.mount(side, &image)
    }

    /// Mounts an image.
    fn mount(&self, side: Side, image: &Path) -> Result<Mounted> {
        let point = self.path("mount");
        let mut command = match side {
            Side::Kernel => {
                let mut mount = Command::new("mount");
                mount.args(["-t", "ext4", "-o", "loop,noinit_itable"]);
                run_quietly(mount.arg(image).arg(&point))
                    .context("the comparison with the kernel needs root and loop devices")?;
                return Ok(Mounted {
                    server: None,
                    point,
                });
            }
            Side::Ours | Side::OursClassic => {
                let mut server = Command::new(&self.fourscore);
                server.args(["mount", "-f", "-o", transport(side)]);
                server.arg(image).arg(&point);
                server
            }
            Side::Null | Side::NullOnFile => {
                let mut server = Command::new(&self.null);
                server.arg(&point).arg(transport(side));
                if side == Side::NullOnFile {
                    server.arg(self.content()?);
                }
                server
            }
            Side::Fuse2fs => {
                let mut server = Command::new("fuse2fs");
                server.arg(image).arg(&point).args(["-f", "-o", "rw"]);
                server
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let server = command.stderr(Stdio::null()).spawn()?;
        let mut mounted = Mounted {
            server: Some(server),
            point,
        };
        mounted.wait_until_mounted()?;
        if side == Side::NullOnFile {
            // The server has it open: its memory is free when the server has ended.
            fs::remove_file(self.path("content"))?;
        }
        Ok(mounted)
    }

    /// A new, empty file for the data of [`Side::NullOnFile`]. As with the images of other sides,
    /// the memory of its pages is found when they are written.
    fn content(&self) -> Result<PathBuf> {
        let path = self.path("content");
        File::create(&path)?;
        Ok(path)
    }

    /// Measures the time until a mounted image has answered a first request.
    fn mounts(&self, rounds: u32) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for (size, bytes) in [("34 GB", 34_000_000_000), ("15 TiB", 15 * 1024 * GIB)] {
            let image = self.image("large", bytes)?;
            let mut times = Vec::new();
            for _ in 0..rounds {
                let began = Instant::now();
                let mounted = self.mount(Side::Ours, &image)?;
                // The server answers its first request.
                fs::metadata(mounted.point.join("lost+found"))?;
                times.push(began.elapsed().as_secs_f64() * 1e3);
                mounted.unmount()?;
            }
            let unit = vec![1.0; times.len()];
            let time = Ratio::pairwise(&times, &unit).context("no round was run")?;
            rows.push(Row {
                target: format!("an image of {size} is mounted in less than 100 ms"),
                figure: format!("{:.0} ms ({:.0} to {:.0})", time.median, time.min, time.max),
                is_met: time.median < 100.0,
            });
            fs::remove_file(&image)?;
        }
        Ok(rows)
    }
}

/// The mount option of a side that chooses the transport: rings if the kernel has them, except for
/// [`Side::OursClassic`].
fn transport(side: Side) -> &'static str {
    match side {
        Side::OursClassic => "transport=classic",
        _ => "transport=auto",
    }
}

/// Where this thread and the children that it starts may run, until this is dropped.
struct Pinned(CpuSet);

impl Pinned {
    fn to(processors: Processors) -> Result<Self> {
        let before = sched_getaffinity(None)?;
        if processors == Processors::One {
            let first = (0..CpuSet::MAX_CPU).find(|&nr| before.is_set(nr));
            let mut one = CpuSet::new();
            one.set(first.context("no processor")?);
            sched_setaffinity(None, &one)?;
        }
        Ok(Self(before))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Err(error) = sched_setaffinity(None, &self.0) {
            eprintln!("bench: this thread stays on one processor: {error}");
        }
    }
}

/// A mount, and its server if it has one. Dropping this unmounts lazily and kills the server.
struct Mounted {
    server: Option<Child>,
    point: PathBuf,
}

impl Mounted {
    fn wait_until_mounted(&mut self) -> Result<()> {
        let (server, point) = (&mut self.server, &self.point);
        let mut ended = false;
        wait_until("mounted", || {
            ended = server
                .as_mut()
                .is_some_and(|server| server.try_wait().is_ok_and(|status| status.is_some()));
            ended || is_mounted(point)
        })?;
        if ended {
            bail!(
                "{}: the server ended before it was mounted",
                point.display()
            );
        }
        Ok(())
    }

    /// Unmounts, and waits until the server has ended.
    fn unmount(mut self) -> Result<()> {
        run_quietly(Command::new("umount").arg(&self.point))?;
        if let Some(mut server) = self.server.take() {
            server.wait()?;
        }
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if is_mounted(&self.point) {
            let _ = Command::new("umount").arg("-l").arg(&self.point).output();
        }
        if let Some(server) = &mut self.server {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

fn is_mounted(point: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    points.any(|mounted| Path::new(mounted) == point)
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) -> Result<()> {
    let began = Instant::now();
    while !holds() {
        if began.elapsed() > MOUNT_TIMEOUT {
            bail!("not {what} after {} s", MOUNT_TIMEOUT.as_secs());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The number of files and directories below a directory.
fn objects_in(tree: &Path) -> Result<u64> {
    let mut objects = 0;
    let mut left = vec![tree.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            objects += 1;
            if entry.file_type()?.is_dir() {
                left.push(entry.path());
            }
        }
    }
    Ok(objects)
}

/// A target, the figure measured, and whether the figure meets the target.
struct Row {
    target: String,
    figure: String,
    is_met: bool,
}

impl Figures {
    /// The speed of a load on `side` divided by that on `other`.
    fn ratio(&self, side: Side, other: Side, load: &'static str) -> Option<Ratio> {
        let (side, other) = (self.0.get(&(side, load))?, self.0.get(&(other, load))?);
        let rounds = side.len().min(other.len());
        Ratio::pairwise(&side[..rounds], &other[..rounds])
    }

    fn row(&self, load: &'static str, other: Side, least: f64) -> Option<Row> {
        let ratio = self.ratio(Side::Ours, other, load)?;
        Some(Row {
            target: format!("{load}: at least {least} times {}", other.name()),
            figure: format!("{:.2} ({:.2} to {:.2})", ratio.median, ratio.min, ratio.max),
            is_met: ratio.median >= least,
        })
    }

    /// A row for each target of a load that was measured.
    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for load in ["create in 100 directories", "remove in 100 directories"] {
            rows.push(self.row(load, Side::Null, 0.85));
            rows.push(self.row(load, Side::Fuse2fs, 3.0));
        }
        for load in ["create in one directory", "remove in one directory"] {
            rows.push(self.row(load, Side::Fuse2fs, 12.0));
        }
        for load in [READ_2, CREATE_2] {
            rows.push(self.row(load, Side::OursClassic, 1.2));
        }
        for NamedLoad {
            name,
            clients,
            load,
            ..
        } in LOADS
        {
            if let (1, Load::Transfer(transfer)) = (*clients, load) {
                let is_a_hit =
                    transfer.mode == IoMode::Buffered && transfer.direction == Direction::Read;
                let least = if is_a_hit { 0.95 } else { 0.85 };
                rows.push(self.row(name, Side::Null, least));
            }
        }
        rows.push(self.row(APPEND, Side::Kernel, 1.0));
        // 1 / 0.83: at most 1.2 times the time.
        rows.push(self.row(COPY, Side::NullOnFile, 0.83));
        rows.push(self.row(CREATE_PINNED, Side::Null, 0.85));
        rows.push(self.row(COPY_PINNED, Side::NullOnFile, 0.83));
        rows.into_iter().flatten().collect()
    }

    fn table(&self) -> String {
        let mut text = "| load |".to_owned();
        for side in Side::ALL {
            let _ = write!(text, " {} |", side.name());
        }
        text.push_str("\n|---|");
        text.push_str(&"---:|".repeat(Side::ALL.len()));
        text.push('\n');
        let names = LOADS
            .iter()
            .map(|load| load.name)
            .chain(COPIES.map(|(name, _)| name));
        for name in names {
            let _ = write!(text, "| {name} |");
            for side in Side::ALL {
                let cell = self.0.get(&(side, name)).and_then(|rates| cell(rates));
                let _ = write!(text, " {} |", cell.as_deref().unwrap_or("-"));
            }
            text.push('\n');
        }
        text
    }
}

/// A table cell: the median and the spread, (max - min) / median.
fn cell(rates: &[f64]) -> Option<String> {
    let all = Ratio::pairwise(rates, &vec![1.0; rates.len()])?;
    let spread = (all.max - all.min) / all.median * 100.0;
    Some(format!("{:.0} ({spread:.0} %)", all.median))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_compared_with_targets() {
        let mut figures = Figures::default();
        for (side, rate) in [
            (Side::Ours, 90.0),
            (Side::Null, 100.0),
            (Side::Fuse2fs, 50.0),
        ] {
            let rates = vec![rate, rate, rate * 2.0];
            figures.0.insert((side, "create in 100 directories"), rates);
        }
        let rows = figures.rows();
        let met: Vec<bool> = rows.iter().map(|row| row.is_met).collect();
        // The loads that were not measured have no row.
        assert_eq!(met, [true, false]);
        assert_eq!(rows[0].figure, "0.90 (0.90 to 0.90)");
        let table = figures.table();
        let row = "| create in 100 directories | 90 (100 %) | - | 100 (100 %) | - |";
        assert!(table.contains(row));
    }
}
