//! **Purpose.** A program of the user on a scratch file system: how long it takes, and the figures
//! of the file system before and after.
//!
//! **Model.** The program runs in an empty directory of the file system. Its time ends with its own
//! process, and the time of a sync of the whole file system is measured after it. What it started
//! and left running is ended then, so that nothing keeps the file system in use.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::clock::Clock;
use crate::scratch::{FreeSpace, FsKind, Mounted, Scratch, Used, cleanup};

/// The environment variable in which a command finds the kind of the file system.
pub const KIND_VARIABLE: &str = "LAB_KIND";

/// A program, and the file systems that it runs on.
#[derive(Clone, Debug)]
pub struct OnScratch {
    /// The program.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// The size of a file system in bytes. The image is sparse.
    pub image_bytes: u64,
}

/// One run of a program.
#[derive(Clone, Debug)]
pub struct CommandRun {
    /// The time of the program itself.
    pub wall: Duration,
    /// The time of the sync after it.
    pub sync: Duration,
    /// CPU time of its processes in user mode.
    pub user: Duration,
    /// CPU time of its processes in the kernel.
    pub system: Duration,
    /// The file system before.
    pub before: Figures,
    /// The file system after it.
    pub after: Figures,
}

/// Figures of a file system.
#[derive(Clone, Debug)]
pub struct Figures {
    /// How full it is.
    pub used: Used,
    /// The free extents; `None` if it is not ext4.
    pub free_space: Option<FreeSpace>,
    /// Counters of the file system and of its device, by name. `mb_stats` is text as of the kernel.
    pub counters: Map<String, Value>,
}

impl OnScratch {
    /// Runs the program once on a new file system.
    ///
    /// # Errors
    /// The file system cannot be made, or the program does not start or ends with a failure.
    pub fn run(
        &self,
        scratch: &Scratch,
        kind: FsKind,
        clock: &dyn Clock,
    ) -> io::Result<CommandRun> {
        let image = scratch.image(kind, self.image_bytes)?;
        let fresh = image.free_space()?;
        let mounted = scratch.mount(image)?;
        mounted.count_allocations(kind);
        let directory = mounted.point.join("work");
        fs::create_dir(&directory)?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).current_dir(&directory);
        command.env(KIND_VARIABLE, kind.name());
        // Standard output has the report.
        command.stdin(Stdio::null()).stdout(io::stderr());
        let before = mounted.figures(kind, fresh)?;
        let began = clock.now();
        let child = scratch.cleanup.start(&mut command);
        let child = child.map_err(|why| self.failed(&why))?;
        let used = scratch.cleanup.reap(child)?;
        let wall = clock.now().saturating_sub(began);
        if !used.status.success() {
            return Err(self.failed(&used.status));
        }
        let opened = File::open(&directory)?;
        rustix::fs::syncfs(&opened)?;
        // Linux does not tell every FUSE server of the call before.
        opened.sync_all()?;
        drop(opened);
        let sync = clock.now().saturating_sub(began).saturating_sub(wall);
        let mut after = mounted.figures(kind, None)?;
        after.free_space = mounted.unmount()?.free_space()?;
        Ok(CommandRun {
            wall,
            sync,
            user: used.rusage.utime,
            system: used.rusage.stime,
            before,
            after,
        })
    }

    fn failed(&self, why: &dyn std::fmt::Display) -> io::Error {
        io::Error::other(format!("{}: {why}", self.program.display()))
    }
}

impl Mounted<'_> {
    /// Turns the counters of the allocator on. A kernel without them has none.
    fn count_allocations(&self, kind: FsKind) {
        match kind {
            FsKind::Ext4 => {
                let device = self.device().unwrap_or_default();
                let _ = fs::write(format!("/sys/fs/ext4/{device}/mb_stats"), "1");
            }
            FsKind::Mount => {
                let _ = self.fourscore(&["tune"], &["mb_stats=1"]);
            }
            FsKind::Xfs | FsKind::Btrfs | FsKind::Fuse2fs | FsKind::InProcess => {}
        }
    }

    fn figures(&self, kind: FsKind, free_space: Option<FreeSpace>) -> io::Result<Figures> {
        let mut counters = Map::new();
        if let Some(device) = self.device() {
            counters.extend(device_counters(&device));
        }
        if kind == FsKind::Mount
            && let Ok(text) = self.fourscore(&["stats", "--json"], &[])
            && let Ok(Value::Object(stats)) = serde_json::from_str(&text)
        {
            counters.extend(stats);
        }
        Ok(Figures {
            used: self.used()?,
            free_space,
            counters,
        })
    }

    /// The name of the block device below `/dev`; `None` if the kernel has none.
    fn device(&self) -> Option<String> {
        let source = cleanup::source_of(&self.point)?;
        source.strip_prefix("/dev/").map(str::to_owned)
    }

    /// What `fourscore VERB MOUNT-POINT MORE` prints.
    fn fourscore(&self, verb: &[&str], more: &[&str]) -> io::Result<String> {
        let mut command = Command::new(&self.scratch.fourscore);
        command.args(verb).arg(&self.point).args(more);
        let output = command.stdin(Stdio::null()).output()?;
        String::from_utf8(output.stdout).map_err(io::Error::other)
    }
}

/// The counters that the kernel has of a device, and of the ext4 on it.
fn device_counters(device: &str) -> Map<String, Value> {
    let mut counters = Map::new();
    let read = |path: String| fs::read_to_string(path).ok();
    if let Some(stat) = read(format!("/sys/block/{device}/stat")) {
        counters.extend(transfers(&stat));
    }
    if let Some(text) = read(format!("/proc/fs/ext4/{device}/mb_stats")) {
        counters.insert("mb_stats".to_owned(), json!(text));
    }
    for name in ["session_write_kbytes", "delayed_allocation_blocks"] {
        let text = read(format!("/sys/fs/ext4/{device}/{name}"));
        if let Some(value) = text.and_then(|text| text.trim().parse::<u64>().ok()) {
            counters.insert(name.to_owned(), json!(value));
        }
    }
    counters
}

/// Requests and bytes of a device, from the fields of its `stat`.
fn transfers(stat: &str) -> Map<String, Value> {
    const SECTOR_BYTES: u64 = 512;
    let fields: Vec<u64> = stat
        .split_whitespace()
        .map_while(|field| field.parse().ok())
        .collect();
    let named = [
        ("device_reads", 0, 1),
        ("device_read_bytes", 2, SECTOR_BYTES),
        ("device_writes", 4, 1),
        ("device_written_bytes", 6, SECTOR_BYTES),
    ];
    let values = named.into_iter().filter_map(|(name, field, unit)| {
        let value = fields.get(field)?.saturating_mul(unit);
        Some((name.to_owned(), json!(value)))
    });
    values.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_counts_in_sectors_of_512_bytes() {
        let found = transfers("  7 0 16 1 9 2 48 3 0 4 5\n");
        assert_eq!(found["device_reads"], 7);
        assert_eq!(found["device_read_bytes"], 16 * 512);
        assert_eq!(found["device_writes"], 9);
        assert_eq!(found["device_written_bytes"], 48 * 512);
        assert_eq!(transfers("7").len(), 1);
    }
}
