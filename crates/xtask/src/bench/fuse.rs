//! **Purpose.** How fast the mount is, against what was promised of it: beside the kernel's ext4 on
//! a loop device, fuse2fs, and a FUSE file system of ours that does nothing, which is the ceiling.
//!
//! **Model.** Images are sparse files on tmpfs. In a round every side is mounted once, on a new
//! image, and every load of [`LOADS`] runs on it, one behind the other; a ratio is taken round by
//! round, and its median is the figure. Needs root.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fourscore_lab::mounted::{Cache, Direction, Load, Order, Transfer};
use fourscore_lab::{MachineFacts, Ratio, ThreadCount};

use super::Options;
use crate::run::{cargo, run as run_command};
use crate::workspace::Workspace;

const GIB: u64 = 1 << 30;
const IMAGE_BYTES: u64 = 8 * GIB;
/// What lets the kernel offer rings. It is put back.
const RING_SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// So long a server may take to mount, or to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// Rounds of copying a tree: more would take minutes.
const MOST_COPIES: u32 = 3;
/// Rounds of fuse2fs, which takes as long as all others together.
const MOST_OF_FUSE2FS: u32 = 3;

/// A load with its name, and in how many threads it runs.
type Named = (&'static str, usize, Load);

const fn transfer(direction: Direction, order: Order, cache: Cache, times: u32) -> Load {
    Load::Transfer(Transfer {
        direction,
        order,
        cache,
        times,
    })
}

const MANY: (u32, u32) = (100, 20_000);
const ONE: (u32, u32) = (1, 10_000);

const fn create((directories, files): (u32, u32)) -> Load {
    Load::Create { directories, files }
}

const fn remove((directories, files): (u32, u32)) -> Load {
    Load::Remove { directories, files }
}

const CREATE_2: &str = "create in 100 directories, 2 clients";
const READ_2: &str = "4 KiB random read, direct, 2 clients";
const APPEND: &str = "append 4 KiB and fsync (median)";

/// In the order in which they run. Content is that of a file of 256 MiB.
const LOADS: &[Named] = &[
    ("create in 100 directories", 1, create(MANY)),
    ("remove in 100 directories", 1, remove(MANY)),
    (CREATE_2, 2, create(MANY)),
    ("remove in 100 directories, 2 clients", 2, remove(MANY)),
    ("create in one directory", 1, create(ONE)),
    ("remove in one directory", 1, remove(ONE)),
    (
        "1 MiB write, cached",
        1,
        transfer(Direction::Write, Order::Sequential, Cache::Through, 256),
    ),
    (
        "1 MiB write, direct",
        1,
        transfer(Direction::Write, Order::Sequential, Cache::Around, 256),
    ),
    (
        "4 KiB random write, direct",
        1,
        transfer(Direction::Write, Order::Random, Cache::Around, 15_000),
    ),
    (
        "4 KiB random write, cached",
        1,
        transfer(Direction::Write, Order::Random, Cache::Through, 30_000),
    ),
    (
        "1 MiB read, direct",
        1,
        transfer(Direction::Read, Order::Sequential, Cache::Around, 512),
    ),
    (
        "4 KiB random read, direct",
        1,
        transfer(Direction::Read, Order::Random, Cache::Around, 25_000),
    ),
    (
        READ_2,
        2,
        transfer(Direction::Read, Order::Random, Cache::Around, 25_000),
    ),
    (
        "1 MiB read, cached",
        1,
        transfer(Direction::Read, Order::Sequential, Cache::Through, 1024),
    ),
    (
        "4 KiB random read, cached",
        1,
        transfer(Direction::Read, Order::Random, Cache::Through, 200_000),
    ),
    (APPEND, 1, Load::AppendDurable { times: 1000 }),
    (
        "file of 4 KiB and fsync",
        1,
        Load::CreateDurable { files: 2000 },
    ),
    (
        "file of 4 KiB and fsync, 2 clients",
        2,
        Load::CreateDurable { files: 2000 },
    ),
];

const COPY: &str = "cp -a of a tree (files and directories)";

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Ours,
    OursClassic,
    Null,
    /// The same with its content in a file, as large as the image: what direct transfers can come
    /// to where content is kept.
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
            Self::NullOnFile => "... with its content in a file",
            Self::Kernel => "kernel ext4 on loop",
            Self::Fuse2fs => "fuse2fs",
        }
    }
}

/// What each load of each side gave, round by round, in operations per second.
#[derive(Default)]
struct Figures(BTreeMap<(Side, &'static str), Vec<f64>>);

/// Measures everything; the section.
pub(super) fn run(workspace: &Workspace, options: &Options) -> Result<String> {
    let switch = Switch::on()?;
    let bench = Bench::new(workspace)?;
    let mut figures = Figures::default();
    for round in 0..options.rounds {
        println!("round {}", round + 1);
        for side in Side::ALL {
            if side == Side::Fuse2fs && (round >= MOST_OF_FUSE2FS || !bench.has_fuse2fs) {
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
    text.push_str("\n| promise | figure | met |\n|---|---|---|\n");
    for (promise, figure, is_met) in figures.rows().into_iter().chain(mounts) {
        let met = if is_met { "yes" } else { "**no**" };
        // Writing into a String cannot fail.
        let _ = writeln!(text, "| {promise} | {figure} | {met} |");
    }
    Ok(text)
}

/// Lets the kernel offer rings as long as this lives.
struct Switch(Option<String>);

impl Switch {
    fn on() -> Result<Self> {
        let before = fs::read_to_string(RING_SWITCH).ok();
        if before.is_some() {
            fs::write(RING_SWITCH, "Y").context("switching FUSE over io_uring on needs root")?;
        }
        Ok(Self(before))
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if let Some(before) = &self.0
            && let Err(error) = fs::write(RING_SWITCH, before.trim())
        {
            eprintln!("bench: {RING_SWITCH} is left on: {error}");
        }
    }
}

/// The folder on tmpfs with image and mount point, and the programs.
struct Bench {
    fourscore: PathBuf,
    null: PathBuf,
    folder: PathBuf,
    has_fuse2fs: bool,
}

impl Bench {
    fn new(workspace: &Workspace) -> Result<Self> {
        let build = |arguments: &[&str]| {
            run_command(
                cargo(workspace)
                    .args(["build", "--release"])
                    .args(arguments),
            )
        };
        build(&["--package", "fourscore-cli"])?;
        build(&[
            "--package",
            "fourscore-fuse",
            "--features",
            "null",
            "--example",
            "null",
        ])?;
        let folder = PathBuf::from(format!("/dev/shm/fourscore-fuse-{}", std::process::id()));
        let bench = Self {
            fourscore: workspace.target().join("release/fourscore"),
            null: workspace.target().join("release/examples/null"),
            has_fuse2fs: crate::run::find_program("fuse2fs").is_some(),
            folder,
        };
        fs::create_dir_all(bench.path("mount"))?;
        bench.image("model", IMAGE_BYTES)?;
        Ok(bench)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Makes an empty file system.
    fn image(&self, name: &str, bytes: u64) -> Result<PathBuf> {
        let image = self.path(name);
        File::create(&image)?.set_len(bytes)?;
        quietly(
            Command::new("mke2fs")
                .args(["-q", "-F", "-t", "ext4"])
                .arg(&image),
        )?;
        Ok(image)
    }

    /// Every load on one side, which is mounted for it.
    fn round(&self, side: Side, round: u32, tree: &Path, figures: &mut Figures) -> Result<()> {
        let mut note = |name, rate| figures.0.entry((side, name)).or_default().push(rate);
        {
            let mounted = self.mounted(side)?;
            for &(name, threads, load) in LOADS {
                if side == Side::NullOnFile && !matches!(load, Load::Transfer(_)) {
                    continue;
                }
                let rate = load.run(&mounted.point, ThreadCount::new(threads));
                note(name, rate.with_context(|| format!("{name} of {side:?}"))?);
            }
            mounted.unmount()?;
        }
        let copies = [Side::Ours, Side::Null, Side::NullOnFile, Side::Kernel];
        if copies.contains(&side) && round < MOST_COPIES {
            let mounted = self.mounted(side)?;
            let (copied, began) = (objects_in(tree)?, Instant::now());
            quietly(
                Command::new("cp")
                    .args(["-a", "--no-preserve=xattr"])
                    .args([tree, &mounted.point]),
            )?;
            note(COPY, copied as f64 / began.elapsed().as_secs_f64());
            mounted.unmount()?;
        }
        Ok(())
    }

    /// Mounts a new image.
    fn mounted(&self, side: Side) -> Result<Mounted> {
        let image = self.path("image");
        quietly(
            Command::new("cp")
                .arg("--sparse=always")
                .args([&self.path("model"), &image]),
        )?;
        self.served(side, &image)
    }

    fn served(&self, side: Side, image: &Path) -> Result<Mounted> {
        let point = self.path("mount");
        let mut command = match side {
            Side::Kernel => {
                let mut mount = Command::new("mount");
                mount.args(["-t", "ext4", "-o", "loop,noinit_itable"]);
                quietly(mount.arg(image).arg(&point))
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
                    server.arg(image);
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
        Ok(mounted)
    }

    /// How long it takes until an image of some size can be used.
    fn mounts(&self, rounds: u32) -> Result<Vec<(String, String, bool)>> {
        let mut rows = Vec::new();
        for (size, bytes) in [("34 GB", 34_000_000_000), ("15 TiB", 15 * 1024 * GIB)] {
            let image = self.image("large", bytes)?;
            let mut times = Vec::new();
            for _ in 0..rounds {
                let began = Instant::now();
                let mounted = self.served(Side::Ours, &image)?;
                // The first answer of the server.
                fs::metadata(mounted.point.join("lost+found"))?;
                times.push(began.elapsed().as_secs_f64() * 1e3);
                mounted.unmount()?;
            }
            let unit = vec![1.0; times.len()];
            let time = Ratio::pairwise(&times, &unit).context("no rounds")?;
            rows.push((
                format!("an image of {size} is mounted in less than 100 ms"),
                format!("{:.0} ms ({:.0} to {:.0})", time.median, time.min, time.max),
                time.median < 100.0,
            ));
            fs::remove_file(&image)?;
        }
        Ok(rows)
    }
}

/// The option of a side: rings where the kernel has them.
fn transport(side: Side) -> &'static str {
    match side {
        Side::OursClassic => "transport=classic",
        _ => "transport=auto",
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            eprintln!("bench: {} is left behind: {error}", self.folder.display());
        }
    }
}

/// A mount, and its server if it has one. What is left of it goes when this does.
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
            bail!("the server of {} ended", point.display());
        }
        Ok(())
    }

    /// Unmounts, and waits for the server's end.
    fn unmount(mut self) -> Result<()> {
        quietly(Command::new("umount").arg(&self.point))?;
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
        if began.elapsed() > PATIENCE {
            bail!("waited too long until {what}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Runs a command that belongs to every round.
fn quietly(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
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

type Row = (String, String, bool);

impl Figures {
    /// How much faster one side is than another.
    fn ratio(&self, side: Side, other: Side, load: &'static str) -> Option<Ratio> {
        let (side, other) = (self.0.get(&(side, load))?, self.0.get(&(other, load))?);
        let rounds = side.len().min(other.len());
        Ratio::pairwise(&side[..rounds], &other[..rounds])
    }

    fn row(&self, load: &'static str, other: Side, least: f64) -> Option<Row> {
        let ratio = self.ratio(Side::Ours, other, load)?;
        Some((
            format!("{load}: at least {least} times {}", other.name()),
            format!("{:.2} ({:.2} to {:.2})", ratio.median, ratio.min, ratio.max),
            ratio.median >= least,
        ))
    }

    /// A row for each promise about loads.
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
        for &(name, threads, load) in LOADS {
            if let (1, Load::Transfer(transfer)) = (threads, load) {
                let is_a_hit =
                    transfer.cache == Cache::Through && transfer.direction == Direction::Read;
                let least = if is_a_hit { 0.95 } else { 0.85 };
                rows.push(self.row(name, Side::Null, least));
            }
        }
        rows.push(self.row(APPEND, Side::Kernel, 1.0));
        // At most 1.2 times the time.
        rows.push(self.row(COPY, Side::Null, 0.83));
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
        let names = LOADS.iter().map(|(name, ..)| *name).chain([COPY]);
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

/// Median and spread.
fn cell(rates: &[f64]) -> Option<String> {
    let all = Ratio::pairwise(rates, &vec![1.0; rates.len()])?;
    let spread = (all.max - all.min) / all.median * 100.0;
    Some(format!("{:.0} ({spread:.0} %)", all.median))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_are_compared_with_figures() {
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
        let met: Vec<bool> = rows.iter().map(|(.., is_met)| *is_met).collect();
        // What was not measured has no row.
        assert_eq!(met, [true, false]);
        assert_eq!(rows[0].1, "0.90 (0.90 to 0.90)");
        let table = figures.table();
        let row = "| create in 100 directories | 90 (100 %) | - | 100 (100 %) | - |";
        assert!(table.contains(row));
    }
}
