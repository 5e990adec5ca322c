//! **Purpose.** `fourscore info`: the superblock in the format of dumpe2fs, line for line.
//!
//! | module | responsibility |
//! |---|---|
//! | [`superblock`] | the lines about the superblock |
//! | [`journal`] | the lines about the journal |
//! | [`mmp`] | the MMP block, and whether it is of a host that is active |
//! | [`backup`] | `--superblock`: the device as a backup describes it |
//! | [`bad_blocks`] | the blocks that are marked as bad |
//! | [`groups`] | `--groups`: the list of block groups |
//! | [`quota`] | `--quota`: usage and limits |
//! | [`features`] | `--features`: the features that can be read and written |
//!
//! **Model.** The superblock is a list of labels and values, printed as text or as JSON. Only
//! `--groups` reads descriptors and bitmaps, so that a file system of any size is shown quickly. A
//! structure that is corrupt is reported and left out, and the rest is shown.

mod backup;
mod bad_blocks;
mod features;
mod groups;
mod journal;
mod mmp;
mod quota;
mod superblock;

use std::io;

use fourscore_ondisk::{PhysBlock, Superblock};
use fourscore_sync::Arc;
use serde_json::{Map, Value};

use crate::args::Info;
use crate::check::superblock::find;
use crate::failure::{self, Failure, Result};
use crate::image::{Image, ImageSpec, device_to_read};
use crate::output::Stdout;
use backup::Backup;
use groups::BitmapCheck;

/// The column at which values begin.
const VALUE_COLUMN: usize = 26;

/// Advice for a journal whose last transaction is damaged.
const DAMAGE_ADVICE: &str =
    "the changes of the damaged transaction are left out; run e2fsck to decide about it";

/// Advice for a wrong field of the superblock.
const FAULT_ADVICE: &str = "the field is ignored; e2fsck repairs it";

/// Labels and values in the order of dumpe2fs.
#[derive(Debug, Default)]
pub(crate) struct Lines(Vec<(&'static str, Value)>);

impl Lines {
    fn text(&mut self, label: &'static str, value: impl Into<String>) {
        self.0.push((label, Value::String(value.into())));
    }

    fn number(&mut self, label: &'static str, value: impl Into<u64>) {
        self.0.push((label, value.into().into()));
    }

    /// A number that is shown only if it is not 0.
    fn nonzero(&mut self, label: &'static str, value: impl Into<u64>) {
        let value = value.into();
        if value != 0 {
            self.number(label, value);
        }
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        for (label, value) in &self.0 {
            let value = match value {
                Value::String(value) => value.clone(),
                other => other.to_string(),
            };
            text.push_str(label);
            text.push(':');
            // The only line of dumpe2fs with a tab after its label.
            let width = if *label == "Inode size" {
                10
            } else {
                VALUE_COLUMN - label.len() - 1
            };
            if *label == "Inode size" {
                text.push('\t');
            }
            text.extend(std::iter::repeat_n(' ', width));
            text.push_str(&value);
            text.push('\n');
        }
        text
    }

    /// Keys are the labels in lower case with underscores.
    fn to_json(&self) -> Map<String, Value> {
        let key = |label: &str| {
            label
                .to_lowercase()
                .replace(" #", "_number")
                .replace([' ', '/'], "_")
        };
        self.0
            .iter()
            .map(|(label, value)| (key(label), value.clone()))
            .collect()
    }
}

/// The line of bad blocks, if there are any.
fn as_line(bad_blocks: &[u32]) -> String {
    let numbers: Vec<String> = bad_blocks.iter().map(u32::to_string).collect();
    match numbers[..] {
        [] => String::new(),
        _ => format!("Bad blocks: {}\n", numbers.join(", ")),
    }
}

/// Whether something else than the superblock is asked for.
fn is_alone(args: &Info) -> bool {
    args.quota || args.bad_blocks || args.table || args.mmp_status
}

/// Prints the quota, who uses the file system, the bad blocks, or the table of groups.
fn print_alone(image: &Image, name: &str, args: &Info, out: &mut Stdout) -> Result<()> {
    if args.mmp_status {
        return mmp::check(image, name, out);
    }
    if args.quota {
        return match args.json {
            true => out.write(format!("{:#}\n", quota::as_json(image)?).as_bytes()),
            false => quota::print(image, out),
        };
    }
    if !args.bad_blocks {
        return groups::print_table(image, args.hex, out);
    }
    for block in bad_blocks::list(image)? {
        out.write(format!("{block}\n").as_bytes())?;
    }
    Ok(())
}

/// Opens the image, with the superblock and the descriptors of a backup if one is given.
fn open(spec: &ImageSpec, args: &Info) -> Result<(Image, BitmapCheck)> {
    let by_primary = || Ok((Image::open(spec)?, BitmapCheck::Refused));
    if args.superblock.is_none() && args.block_size.is_none() {
        return by_primary();
    }
    let block = PhysBlock(args.superblock.unwrap_or(0));
    let device = device_to_read(spec)?;
    let failed = |why: io::Error| Failure::new(spec.shown(), why);
    let found = find(&*device, block, args.block_size).map_err(failed)?;
    match Superblock::try_from(&found).is_ok_and(|sb| block <= sb.geometry().super_block()) {
        true => by_primary(),
        false => {
            let device = Backup::new(device, &found, block).map_err(failed)?;
            let image = Image::open_device(spec, Arc::new(device))?;
            Ok((image, BitmapCheck::Shown))
        }
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Info) -> Result<()> {
    let mut out = Stdout::open()?;
    let Some(spec) = &args.image else {
        features::print(args.json, &mut out)?;
        return out.flush();
    };
    let (image, check) = open(spec, args)?;
    if is_alone(args) {
        print_alone(&image, &spec.shown(), args, &mut out)?;
        return out.flush();
    }
    let mut lines = Lines::default();
    superblock::describe(image.fs.superblock(), &mut lines);
    let journal = journal::describe(&image, &mut lines);
    let mmp = mmp::text(&image);
    let bad_blocks = bad_blocks::list(&image);
    let unread = [
        journal.as_ref().err(),
        mmp.as_ref().err(),
        bad_blocks.as_ref().err(),
    ];
    let unread: Vec<String> = unread
        .into_iter()
        .flatten()
        .map(Failure::to_string)
        .collect();
    let faults = image.fs.superblock().faults().iter();
    let faults = faults.map(|fault| image.problem(fault).advise(FAULT_ADVICE).to_string());
    let problems: Vec<String> = faults.chain(unread.iter().cloned()).collect();
    for problem in &problems {
        failure::message(problem);
    }
    let damage = image.fs.journal_damage();
    if let Some(damage) = &damage {
        failure::message(
            &image
                .failure(b"journal", damage)
                .advise(DAMAGE_ADVICE)
                .to_string(),
        );
    }
    if args.json {
        let mut json = lines.to_json();
        let damage = damage.map(|damage| damage.to_string().into());
        json.insert("problems".into(), problems.into());
        json.insert("journal_damage".into(), damage.unwrap_or(Value::Null));
        if args.groups {
            json.insert("groups".into(), groups::as_json(&image, check)?);
        }
        out.write(format!("{:#}\n", Value::Object(json)).as_bytes())?;
    } else {
        let mut text = lines.to_text();
        text.push_str(&mmp.unwrap_or_default());
        text.push_str(&as_line(&bad_blocks.unwrap_or_default()));
        text.push('\n');
        out.write(text.as_bytes())?;
        if args.groups {
            groups::print(&image, args.hex, check, &mut out)?;
        }
    }
    out.flush()?;
    match unread.is_empty() {
        true => Ok(()),
        false => Err(Failure::AlreadyReported),
    }
}
