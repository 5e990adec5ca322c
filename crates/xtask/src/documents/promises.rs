//! **Purpose.** What is promised of speed, held against the records: the tables of
//! docs/PERFORMANCE.md.

use std::fmt::Write;

use anyhow::{Context, Result};

use super::records::{Records, Table, number};

/// A program beside which fourscore was measured, and how many times as fast fourscore is.
pub(super) struct Comparison {
    pub(super) task: &'static str,
    pub(super) beside: &'static str,
    /// How many times as fast, with the range over the rounds where it was recorded.
    pub(super) figure: String,
    pub(super) times: f64,
    pub(super) record: &'static str,
}

/// Where a figure stands in a record.
#[derive(Clone, Copy)]
enum Figure {
    /// Column `speed` of a side, in the comparison below a heading; with this many threads.
    Speed(&'static str, &'static str, &'static str),
    /// The median of a side.
    Median(&'static str, &'static str),
    /// How many times as long as the first side's median the second one's is.
    Ratio(&'static str, &'static str, &'static str),
    /// The figure beside a promise that begins with these words.
    Promise(&'static str),
    /// In the table of loads: the first column over the second one.
    Loads(&'static str, &'static str, &'static str),
}

/// What a figure must be; times in seconds.
#[derive(Clone, Copy)]
enum Limit {
    AtLeast(f64),
    AtMost(f64),
}

struct Promise(&'static str, Figure, Limit);

/// The comparisons of the README.
const COMPARISONS: &[(&str, &str, &str, Figure)] = &[
    (
        "build an image of /usr",
        "mke2fs -d",
        "build",
        Figure::Speed("a real tree", "fourscore", "2"),
    ),
    (
        "list directories",
        "kernel's ext4",
        "fs",
        Figure::Speed("readdir", "fourscore in process", "2"),
    ),
    (
        "check a million files",
        "e2fsck -fn",
        "check",
        Figure::Speed("check", "fourscore check -n --threads 2", "2"),
    ),
    (
        "append and fsync on a mount",
        "kernel's ext4",
        "fuse",
        Figure::Promise("append 4 KiB and fsync"),
    ),
    (
        "extract an image to a pipe",
        "tar over the kernel's mount",
        "read",
        Figure::Speed("extract", "fourscore extract IMAGE -", "2"),
    ),
    (
        "walk an image",
        "find over the kernel's mount",
        "read",
        Figure::Speed("walk", "fourscore walk IMAGE", "2"),
    ),
    (
        "make a file system of 15 TiB",
        "mke2fs",
        "mkfs",
        Figure::Speed("15 TiB (-t ext4;", "fourscore mkfs", "2"),
    ),
    (
        "create files in process",
        "kernel's ext4",
        "fs",
        Figure::Speed("create", "fourscore in process", "2"),
    ),
    (
        "write files in process",
        "kernel's ext4",
        "fs",
        Figure::Speed("write", "fourscore in process", "2"),
    ),
    (
        "create files on a mount",
        "kernel's ext4",
        "fuse",
        Figure::Loads(
            "create in 100 directories",
            "fourscore",
            "kernel ext4 on loop",
        ),
    ),
    (
        "create files on a mount",
        "fuse2fs",
        "fuse",
        Figure::Promise("create in 100 directories: at least 3 times fuse2fs"),
    ),
];

const READ: &[Promise] = &[
    Promise(
        "`extract IMAGE -`: at least 1.5 times as fast as tar over the kernel's mount",
        Figure::Speed("extract", "fourscore extract IMAGE -", "2"),
        Limit::AtLeast(1.5),
    ),
    Promise(
        "`walk`: at least 2 times as fast as `find -printf` over the kernel's mount",
        Figure::Speed("walk", "fourscore walk IMAGE", "2"),
        Limit::AtLeast(2.0),
    ),
    Promise(
        "two threads on one file system: at least 0.95 of two processes on two",
        Figure::Speed("two threads", "two threads", "2"),
        Limit::AtLeast(0.95),
    ),
    Promise(
        "`info` of 15 TiB: in less than 50 ms",
        Figure::Median("info of 15 TiB", "fourscore info IMAGE"),
        Limit::AtMost(50e-3),
    ),
];

const MKFS: &[Promise] = &[Promise(
    "a sparse image of 15 TiB: at least 3 times as fast as mke2fs",
    Figure::Speed("15 TiB (-t ext4;", "fourscore mkfs", "2"),
    Limit::AtLeast(3.0),
)];

const BUILD: &[Promise] = &[
    Promise(
        "a real tree: at least 15 times as fast as `mke2fs -d`",
        Figure::Speed("a real tree", "fourscore", "2"),
        Limit::AtLeast(15.0),
    ),
    Promise(
        "... 1.5 times as fast as mke2fs, loop mount and `cp -a`",
        Figure::Ratio("a real tree", "fourscore", "the kernel"),
        Limit::AtLeast(1.5),
    ),
    Promise(
        "... no slower than `cp -a`",
        Figure::Ratio("a real tree", "fourscore", "cp -a"),
        Limit::AtLeast(1.0),
    ),
    Promise(
        "... no slower than mkext4 0.0.3",
        Figure::Ratio("a real tree", "fourscore", "mkext4"),
        Limit::AtLeast(1.0),
    ),
    Promise(
        "... at most 1.15 times the time of reading and writing the bytes (0.87 of the speed)",
        Figure::Ratio("a real tree", "fourscore", "the limit"),
        Limit::AtLeast(0.87),
    ),
    Promise(
        "120 000 empty files in one directory: at least 200 times as fast as `mke2fs -d`",
        Figure::Speed("120 000", "fourscore", "2"),
        Limit::AtLeast(200.0),
    ),
    Promise(
        "... no slower than mkext4 0.0.3",
        Figure::Ratio("120 000", "fourscore", "mkext4"),
        Limit::AtLeast(1.0),
    ),
    Promise(
        "a million files of 1 KiB: at least 10 times as fast as `mke2fs -d`",
        Figure::Speed("1 000 000", "fourscore", "2"),
        Limit::AtLeast(10.0),
    ),
    Promise(
        "... no slower than mkext4 0.0.3",
        Figure::Ratio("1 000 000", "fourscore", "mkext4"),
        Limit::AtLeast(1.0),
    ),
];

const JOURNAL: &[Promise] = &[
    Promise(
        "a handle that dirties a joined buffer, one thread: at most 120 ns",
        Figure::Promise("handle start"),
        Limit::AtMost(120e-9),
    ),
    Promise(
        "two threads: at least 0.95 of two processes with a journal each",
        Figure::Promise("2 threads:"),
        Limit::AtLeast(0.95),
    ),
    Promise(
        "a seal every 20 ms: at least 0.95 of the speed without",
        Figure::Promise("a seal every"),
        Limit::AtLeast(0.95),
    ),
    Promise(
        "commit of 10 000 blocks: at least 0.6 of memcpy + crc32c",
        Figure::Promise("commit of 10 000"),
        Limit::AtLeast(0.6),
    ),
    Promise(
        "gate closed, 2 threads, 10 and 100 000 dirty buffers: 99 of 100 for at most 20 us",
        Figure::Promise("gate closed, 2 threads"),
        Limit::AtMost(20e-6),
    ),
    Promise(
        "gate closed, 64 threads on 2 cores, 10 and 100 000: 99 of 100 for at most 500 us",
        Figure::Promise("gate closed, 64 threads"),
        Limit::AtMost(500e-6),
    ),
];

/// Each measurement with promises: its title, its record, and the promises if the record itself
/// does not list them.
const SECTIONS: &[(&str, &str, &[Promise])] = &[
    ("Reading", "read", READ),
    ("Making file systems", "mkfs", MKFS),
    ("Building images", "build", BUILD),
    ("Allocating", "alloc", &[]),
    ("The journal", "journal", JOURNAL),
    ("Fsync", "fsync", &[]),
    ("Extended attributes", "xattr", &[]),
    ("The mount", "fuse", &[]),
];

/// The comparisons with other programs, the most favourable first.
pub(super) fn comparisons(records: &Records) -> Result<Vec<Comparison>> {
    let one = |&(task, beside, record, figure): &(&'static str, _, &'static str, Figure)| {
        let figure = look_up(records.of(record)?, figure).with_context(|| task)?;
        let times = number(&figure).with_context(|| task)?;
        Ok(Comparison {
            task,
            beside,
            figure,
            times,
            record,
        })
    };
    let mut comparisons: Vec<Comparison> = COMPARISONS.iter().map(one).collect::<Result<_>>()?;
    comparisons.sort_by(|a, b| b.times.total_cmp(&a.times));
    Ok(comparisons)
}

/// The comparisons as a table.
pub(super) fn comparison_table(comparisons: &[Comparison]) -> String {
    let mut text = String::from("| task | beside | times as fast | record |\n|---|---|---:|---|\n");
    for one in comparisons {
        let (task, beside, figure, record) = (one.task, one.beside, &one.figure, one.record);
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "| {task} | {beside} | {figure} | [{record}](results/{record}.md) |"
        );
    }
    text
}

/// A table of promises for each measurement whose record has some.
pub(super) fn promise_tables(records: &Records) -> Result<String> {
    let mut text = String::new();
    for (title, name, promises) in SECTIONS {
        let tables = records.of(name)?;
        if tables.is_empty() {
            continue;
        }
        let command = format!("`cargo xtask bench {name}`, [record](results/{name}.md)");
        // Writing into a String cannot fail.
        let _ = write!(
            text,
            "### {title}\n\n{command}\n\n| promise | figure | met |\n|---|---|---|\n"
        );
        for Promise(what, figure, limit) in *promises {
            let figure = look_up(tables, *figure).with_context(|| *what)?;
            let met = if limit.is_met_by(&figure) {
                "yes"
            } else {
                "**no**"
            };
            let _ = writeln!(text, "| {what} | {figure} | {met} |");
        }
        let listed = tables
            .iter()
            .filter(|table| table.column("met").is_some() && promises.is_empty());
        for row in listed.flat_map(Table::rows) {
            let _ = writeln!(text, "| {} |", row.join(" | "));
        }
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    Ok(text)
}

impl Limit {
    /// Whether every figure of a row, separated by semicolons, keeps the limit.
    fn is_met_by(self, figures: &str) -> bool {
        figures.split("; ").all(|figure| {
            number(figure).is_some_and(|number| match self {
                Self::AtLeast(least) => number >= least,
                Self::AtMost(most) => number <= most,
            })
        })
    }
}

/// The text of a figure.
fn look_up(tables: &[Table], figure: Figure) -> Result<String> {
    match figure {
        Figure::Speed(heading, side, threads) => cell(tables, heading, "speed", |row| {
            row.first().is_some_and(|cell| cell == side)
                && row.get(1).is_some_and(|cell| cell == threads)
        }),
        Figure::Median(heading, side) => cell(tables, heading, "median", |row| {
            row.first().is_some_and(|cell| cell.starts_with(side))
        }),
        Figure::Ratio(heading, side, beside) => {
            let median = |side| look_up(tables, Figure::Median(heading, side));
            ratio(&median(beside)?, &median(side)?)
        }
        Figure::Promise(promise) => cell(tables, "", "figure", |row| {
            row.first().is_some_and(|cell| cell.starts_with(promise))
        }),
        Figure::Loads(load, ours, theirs) => {
            let rate = |side| {
                cell(tables, "", side, |row| {
                    row.first().is_some_and(|cell| cell == load)
                })
            };
            ratio(&rate(ours)?, &rate(theirs)?)
        }
    }
}

fn ratio(above: &str, below: &str) -> Result<String> {
    let number = |figure| number(figure).with_context(|| format!("{figure:?} is no number"));
    Ok(format!("{:.2}", number(above)? / number(below)?))
}

/// The cell of a column in the first row that is looked for, in a table below a heading.
fn cell(
    tables: &[Table],
    heading: &str,
    column: &str,
    is_looked_for: impl Fn(&[String]) -> bool,
) -> Result<String> {
    let below = tables.iter().filter(|table| table.is_below(heading));
    let found = below
        .filter_map(|table| Some((table, table.column(column)?)))
        .find_map(|(table, column)| {
            let row = table.rows().iter().find(|row| is_looked_for(row))?;
            row.get(column)
        });
    found
        .cloned()
        .with_context(|| format!("no such row below {heading:?}, with {column:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_holds_for_all_figures_of_a_row() {
        let figures = "2.7 us (p50 0.8 us); 36.9 us (p50 2.4 us)";
        assert!(Limit::AtMost(40e-6).is_met_by(figures));
        assert!(!Limit::AtMost(20e-6).is_met_by(figures));
        assert!(Limit::AtLeast(0.6).is_met_by("0.65 (sparse RAM device: 0.56)"));
        assert!(!Limit::AtLeast(0.6).is_met_by("nothing"));
    }
}
