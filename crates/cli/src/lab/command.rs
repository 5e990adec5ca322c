//! **Purpose.** `lab run -- COMMAND`: a command of the user on a new file system of each kind, with
//! the figures of the file system before and after.
//!
//! **Model.** As in an experiment, kinds run in turns. The figure is how often the command could
//! run in a second, with a sync after it; its seconds are among the further figures. JSON has the
//! counters of the round with the median, before and after.

use std::io;
use std::path::Path;

use fourscore_lab::scratch::command::{CommandRun, Figures, OnScratch};
use fourscore_lab::scratch::{FsKind, Scratch};
use fourscore_lab::{Clock, CommandLine};
use serde_json::{Map, Value, json};

use crate::failure::{Failure, Result};
use crate::image::parse_size;
use crate::lab::Run;
use crate::lab::report::{Cell, MissingSide, Report, SideReport};
use crate::lab::study::nothing_left;
use crate::mb_stats::mb_stats_to_json;

/// The name in reports.
pub(super) const NAME: &str = "command";
/// The size of a file system by default. The image is sparse.
const DEFAULT_SIZE: &str = "8G";
/// What is to be free for the images. How much the command writes is not known.
pub(super) const HOST_BYTES: u64 = 1 << 30;

/// A command, and the kinds that it runs on.
pub(super) struct OnKinds {
    run: OnScratch,
    pub(super) kinds: Vec<FsKind>,
    pub(super) missing: Vec<MissingSide>,
    rounds: u32,
    size: String,
}

/// The command of a command line.
pub(super) fn choose(options: &Run) -> Result<OnKinds> {
    let size = options
        .size
        .clone()
        .unwrap_or_else(|| DEFAULT_SIZE.to_owned());
    let image_bytes = parse_size(&size)
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| {
            let why = format!("{size} is not a size, as 8G");
            Failure::usage("--size", why)
        })?;
    let mut words = options.command.iter();
    let program = words.next().cloned().unwrap_or_default();
    let asked = super::kinds(options)?;
    let is_by_default = asked.is_none();
    let mut kinds = asked.unwrap_or_else(|| FsKind::ALL.to_vec());
    let mut missing = Vec::new();
    kinds.retain(|kind| {
        let why = match kind.is_mounted() {
            true => kind.missing(),
            // It is left out in silence unless it was asked for.
            false if is_by_default => return false,
            false => Some("a command needs a mount".to_owned()),
        };
        missing.extend(why.clone().map(|why| MissingSide {
            side: kind.name().to_owned(),
            why,
        }));
        why.is_none()
    });
    if kinds.is_empty() {
        return Err(nothing_left(NAME, &missing));
    }
    Ok(OnKinds {
        run: OnScratch {
            program,
            arguments: words.cloned().collect(),
            image_bytes,
        },
        kinds,
        missing,
        rounds: options.rounds.max(1),
        size,
    })
}

impl OnKinds {
    /// The command line of the user.
    pub(super) fn line(&self) -> String {
        let (program, arguments) = (&self.run.program, &self.run.arguments);
        CommandLine::new(program.clone(), arguments.clone()).to_string()
    }

    /// The command that runs the same again.
    pub(super) fn command(&self) -> String {
        let kinds: Vec<_> = self.kinds.iter().map(|kind| kind.name()).collect();
        format!(
            "fourscore lab run --on {} --size {} --rounds {} -- {}",
            kinds.join(","),
            self.size,
            self.rounds,
            self.line()
        )
    }

    /// A report without runs.
    pub(super) fn report(&self) -> Report {
        let about = format!("how long {} takes", self.line());
        let load = "the command, and a sync of the file system after it";
        Report {
            missing: self.missing.clone(),
            ..Report::of(NAME, &about, "", load)
        }
    }

    /// Runs the command on each kind in turns.
    pub(super) fn run(&self, scratch: Option<&Scratch>, clock: &dyn Clock) -> io::Result<Cell> {
        let scratch = scratch.ok_or(io::ErrorKind::NotFound)?;
        let mut rounds: Vec<Vec<CommandRun>> = vec![Vec::new(); self.kinds.len()];
        for _ in 0..self.rounds {
            for (&kind, runs) in self.kinds.iter().zip(&mut rounds) {
                let run = self.run.run(scratch, kind, clock);
                let named = |why| io::Error::other(format!("{}: {why}", kind.name()));
                runs.push(run.map_err(named)?);
            }
        }
        let sides = self.kinds.iter().zip(rounds);
        let sides = sides.filter_map(|(&kind, runs)| side(kind, runs));
        let program = Path::new(&self.run.program).file_name();
        let program = program.map(|name| name.to_string_lossy().into_owned());
        Ok(Cell::new(program, 1, sides.collect()))
    }
}

fn rate(run: &CommandRun) -> f64 {
    1.0 / (run.wall + run.sync).as_secs_f64().max(1e-9)
}

/// The runs on a kind of file system.
fn side(kind: FsKind, mut runs: Vec<CommandRun>) -> Option<SideReport> {
    let samples: Vec<f64> = runs.iter().map(rate).collect();
    runs.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
    let middle = runs.len().saturating_sub(1) / 2;
    let median = runs.into_iter().nth(middle)?;
    let mut details = Map::new();
    details.insert("before".to_owned(), as_json(&median.before));
    details.insert("after".to_owned(), as_json(&median.after));
    Some(SideReport {
        side: kind.name().to_owned(),
        about: kind.about().to_owned(),
        operations_per_second: rate(&median),
        samples,
        ratio_to_first: 0.0,
        facts: facts(&median),
        profile: None,
        details,
    })
}

fn facts(run: &CommandRun) -> std::collections::BTreeMap<String, f64> {
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let kib = |bytes: u64| bytes as f64 / 1024.0;
    let (before, after) = (&run.before, &run.after);
    let mut facts = vec![
        ("command, ms", ms(run.wall)),
        ("sync, ms", ms(run.sync)),
        ("CPU of the command, user, ms", ms(run.user)),
        ("CPU of the command, system, ms", ms(run.system)),
        ("used before, KiB", kib(before.used.used_bytes)),
        ("used after, KiB", kib(after.used.used_bytes)),
        ("inodes before", before.used.files as f64),
        ("inodes after", after.used.files as f64),
    ];
    if let (Some(before), Some(after)) = (before.free_space, after.free_space) {
        facts.extend([
            ("free extents before", before.extents as f64),
            ("free extents after", after.extents as f64),
            ("mean free extent before, KiB", kib(before.mean_bytes())),
            ("mean free extent after, KiB", kib(after.mean_bytes())),
        ]);
    }
    let written = |figures: &Figures| figures.counters.get("device_written_bytes")?.as_u64();
    if let (Some(before), Some(after)) = (written(before), written(after)) {
        let grown = after.saturating_sub(before);
        facts.push(("written to the device, KiB", kib(grown)));
    }
    let named = facts.into_iter();
    named
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

fn as_json(figures: &Figures) -> Value {
    let mut counters = figures.counters.clone();
    // The kernel's are text; those of a mount of ours are an object already.
    if let Some(Value::String(text)) = counters.get("mb_stats") {
        let counted = mb_stats_to_json(text);
        counters.insert("mb_stats".to_owned(), counted);
    }
    let free = figures.free_space.map(|free| {
        json!({
            "extents": free.extents,
            "bytes": free.bytes,
            "longest_bytes": free.longest_bytes,
        })
    });
    json!({
        "total_bytes": figures.used.total_bytes,
        "used_bytes": figures.used.used_bytes,
        "inodes": figures.used.files,
        "free_space": free,
        "counters": counters,
    })
}
