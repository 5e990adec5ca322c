//! **Purpose.** `fourscore stats`: `mb_groups` and `mb_structs_summary` as `/proc/fs/ext4` would
//! show them for a file system that has just been mounted and whose groups have all been loaded.
//!
//! **Model.** The bitmaps are read one group after another. A buddy is made of each, and only its
//! figures are kept, so an image of any size takes little memory. As in ext4, the order sets are
//! used from 16 groups on and stay empty below that. Blocks larger than 4 KiB have orders above
//! 2^13, which are printed after those in the heading.

use clap::{Args, ValueEnum};
use fourscore::Error;
use fourscore_mballoc::ClusterCount;
use fourscore_mballoc::buddy::Buddy;
use fourscore_mballoc::order_index::{Listing, OrderIndex, Settle};
use fourscore_mballoc::report::{GROUPS_HEAD, GroupReport, StructsSummary};
use fourscore_ondisk::GroupNr;
use serde_json::{Value, json};

use crate::failure::{Failure, Problems, Result};
use crate::image::{Image, ImageSpec};
use crate::output::Stdout;
use crate::progress::Progress;

/// ext4 sets `mb_optimize_scan` by default on file systems of at least this number of groups.
const OPTIMIZE_SCAN_GROUPS_MIN: u32 = 16;

/// `stats`
#[derive(Debug, Args)]
pub(crate) struct Stats {
    /// Image file or block device, with @OFFSET for a partition; or a mount point of fourscore
    image: ImageSpec,
    /// Files to show [default: all, each with a heading]
    files: Vec<StatsFile>,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// A file in `/proc/fs/ext4/DEVICE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StatsFile {
    /// Free clusters, free extents and buddies of each group
    #[value(name = "mb_groups")]
    Groups,
    /// Groups by the order of their largest buddy and of their average free extent
    #[value(name = "mb_structs_summary")]
    StructsSummary,
}

impl StatsFile {
    fn name(self) -> &'static str {
        match self {
            Self::Groups => "mb_groups",
            Self::StructsSummary => "mb_structs_summary",
        }
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Stats) -> Result<()> {
    if args.image.path.is_dir() {
        return match args.files.as_slice() {
            [] => crate::live::stats(&args.image.path, args.json),
            _ => Err(Failure::usage(
                "stats",
                "a mount point is shown as a whole; give no file names",
            )),
        };
    }
    let image = Image::open(&args.image)?;
    let problems = Problems::default();
    let scan = Scan::new(&image);
    let files = match args.files.as_slice() {
        [] => StatsFile::value_variants(),
        files => files,
    };
    let mut out = Stdout::open()?;
    if args.json {
        out.write(format!("{:#}\n", scan.as_json(files, &problems)).as_bytes())?;
    } else {
        scan.print(files, &problems, &mut out)?;
    }
    out.flush()?;
    problems.result()
}

/// A walk over all groups.
struct Scan<'a> {
    image: &'a Image,
    index: OrderIndex,
    optimize_scan: u32,
}

impl<'a> Scan<'a> {
    fn new(image: &'a Image) -> Self {
        let geometry = image.fs.geometry();
        let orders = geometry.block_size().bits() + 2;
        Self {
            image,
            index: OrderIndex::new(geometry.groups(), orders),
            optimize_scan: u32::from(geometry.groups() >= OPTIMIZE_SCAN_GROUPS_MIN),
        }
    }

    /// Calls `each` with the figures of every group, or the error of reading its bitmap.
    fn groups(
        &self,
        problems: &Problems,
        mut each: impl FnMut(GroupNr, std::result::Result<GroupReport, Error>) -> Result<()>,
    ) -> Result<()> {
        let geometry = self.image.fs.geometry();
        let orders = geometry.block_size().bits() + 2;
        let per_group = ClusterCount(geometry.clusters_per_group());
        let progress = Progress::of_objects(geometry.groups().into());
        for group in (0..geometry.groups()).map(GroupNr) {
            let report = self.image.fs.block_bitmap(group).map(|bitmap| {
                let mut buddy = Buddy::new(bitmap.len(), orders, bitmap.as_bytes());
                let fitness = buddy.fitness();
                if self.optimize_scan == 1 {
                    let mut listing = Listing::default();
                    self.index
                        .update(group, &mut listing, &fitness, Settle::AtOnce);
                }
                GroupReport::of(group, &mut buddy, &fitness, per_group)
            });
            if let Err(why) = &report {
                problems.report(&self.image.failure(format!("group {group}").as_bytes(), why));
            }
            each(group, report)?;
            progress.add(1);
        }
        Ok(())
    }

    fn summary(&self) -> StructsSummary {
        StructsSummary::of(&self.index, self.optimize_scan, 0)
    }

    fn print(&self, files: &[StatsFile], problems: &Problems, out: &mut Stdout) -> Result<()> {
        let with_names = files.len() > 1;
        let head = |file: StatsFile, out: &mut Stdout| match with_names {
            true => out.write(format!("==> {} <==\n", file.name()).as_bytes()),
            false => Ok(()),
        };
        let prints = |file: StatsFile| files.contains(&file);
        if prints(StatsFile::Groups) {
            head(StatsFile::Groups, out)?;
            out.write(format!("{GROUPS_HEAD}\n").as_bytes())?;
        }
        self.groups(problems, |group, report| {
            if !prints(StatsFile::Groups) {
                return Ok(());
            }
            let line = match report {
                Ok(report) => format!("{report}\n"),
                Err(why) => format!("#{:<5}: {}\n", group.0, in_kernel_words(&why)),
            };
            out.write(line.as_bytes())
        })?;
        if prints(StatsFile::StructsSummary) {
            head(StatsFile::StructsSummary, out)?;
            out.write(self.summary().of_ext4().as_bytes())?;
        }
        Ok(())
    }

    fn as_json(&self, files: &[StatsFile], problems: &Problems) -> Value {
        let mut groups = Vec::new();
        // Only writing can fail, and the closure does not write.
        let _ = self.groups(problems, |group, report| {
            groups.push(match report {
                Ok(report) => json!({
                    "group": group.0,
                    "free": report.free,
                    "frags": report.fragments,
                    "first": report.first,
                    "largest": report.largest,
                    "buddies": report.counters,
                }),
                Err(why) => json!({ "group": group.0, "error": why.to_string() }),
            });
            Ok(())
        });
        let mut all = json!({});
        for file in files {
            all[file.name()] = match file {
                StatsFile::Groups => std::mem::take(&mut groups).into(),
                StatsFile::StructsSummary => {
                    let summary = self.summary();
                    json!({
                        "optimize_scan": summary.optimize_scan,
                        "max_free_order_lists": summary.max_free_order_lists,
                        "avg_fragment_size_lists": summary.avg_fragment_size_lists,
                        "largest_extent_lists": summary.largest_extent_lists,
                    })
                }
            };
        }
        all
    }
}

/// The text that ext4 prints for a group that it cannot load.
fn in_kernel_words(why: &Error) -> &'static str {
    match why {
        Error::Io(_) => "IO failure",
        _ => "Corrupt filesystem",
    }
}
