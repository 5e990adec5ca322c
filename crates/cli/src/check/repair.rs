//! **Purpose.** `fourscore check -p` and `-y`: repairs a file system and prints what was mended and
//! what is left; undo files.
//!
//! **Model.** If the log is dirty, the file system is mounted and unmounted first: that replays it
//! with its fast commits, and deletes orphans. If it is too damaged to be mounted, the repair
//! itself replays the transactions of the log, and a message says that fast commits were given up.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use fourscore::{Fs, MountOptions};
use fourscore_block::mmp::Claimed;
use fourscore_block::{Access, BlockDevice, DeviceOptions};
use fourscore_check::{Finding, Repaired, Scope, Severity, UndoDevice, apply_undo, repair};
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::superblock::{SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES};
use fourscore_ondisk::{RawSuperblock, Superblock};
use fourscore_sync::Arc;
use serde_json::json;

use super::superblock::Substituted;
use super::{Check, options, print, refusal, substituted, sum};
use crate::failure::{self, Failure, Result};
use crate::image::{device, device_to_read};
use crate::{signals, verbosity};

/// Repairs the image.
pub(super) fn run(args: &Check) -> Result<()> {
    let not_checked = |failure: Failure| Failure::NotChecked(Box::new(failure));
    let name = args.image.shown();
    let image = device(&args.image, DeviceOptions::read_write(), Access::ReadWrite);
    let image = image.map_err(not_checked)?;
    // A block without a superblock is refused before anything is written.
    substituted(args, &image)?;
    let journal = args.journal.as_ref().map(device_to_read);
    let journal = journal.transpose().map_err(not_checked)?;
    let undo = match &args.undo {
        Some(file) => {
            let offset = args.image.offset_bytes;
            let undo = UndoDevice::create(file, Arc::clone(&image), offset);
            let why = |why| not_checked(Failure::new(file.display().to_string(), why));
            Some(Arc::new(undo.map_err(why)?))
        }
        None => None,
    };
    let target: Arc<dyn BlockDevice> = match &undo {
        Some(undo) => Arc::<UndoDevice>::clone(undo),
        None => image,
    };
    signals::release_at_end()?;
    let is_replayed = match journal {
        None => recover(&target, &name).inspect_err(|_| abandon(undo.as_deref()))?,
        Some(_) => false,
    };
    let substituted = substituted(args, &target).inspect_err(|_| abandon(undo.as_deref()))?;
    let target = match &substituted {
        Some(substituted) => Arc::<Substituted>::clone(substituted),
        None => target,
    };
    let scope = if args.yes {
        Scope::Everything
    } else {
        Scope::Safe
    };
    let outcome = repair(target, &options(args, journal), scope);
    let mut outcome = match outcome {
        Ok(outcome) => outcome,
        Err(why) => {
            abandon(undo.as_deref());
            return Err(refusal(args, why));
        }
    };
    outcome.is_replayed |= is_replayed;
    if let Some(substituted) = substituted.filter(|_| outcome.is_changed || outcome.is_clean()) {
        let written = settle(&substituted);
        let why = |why| not_checked(Failure::new(name.as_str(), why));
        outcome.is_changed |= written.map_err(why)?;
    }
    if let Some(undo) = undo {
        let finished = undo.finish();
        finished.map_err(|why| not_checked(Failure::new(name.as_str(), why)))?;
    }
    let text = if args.json {
        format!("{:#}\n", as_json(&outcome))
    } else {
        as_text(&outcome, &name)
    };
    let found = match (outcome.is_clean(), outcome.is_changed) {
        (false, _) => Err(Failure::ErrorsLeft),
        (true, true) => Err(Failure::ErrorsMended),
        (true, false) => Ok(()),
    };
    print(&text, found)
}

/// Removes the undo file of a change that was refused before anything was written.
pub(crate) fn abandon(undo: Option<&UndoDevice>) {
    if let Some(Err(why)) = undo.map(UndoDevice::abandon) {
        failure::message(&format!("the undo file: {why}"));
    }
}

/// Writes the backup of the superblock that the repair has used, if it has not written it already.
/// Other hosts are kept away as during the repair.
fn settle(substituted: &Arc<Substituted>) -> io::Result<bool> {
    let device: Arc<dyn BlockDevice> = Arc::<Substituted>::clone(substituted);
    let Some(sb) = superblock(&*device) else {
        return substituted.settle();
    };
    let claimed = Claimed::take(device, &sb)?;
    let written = substituted.settle()?;
    claimed.release()?;
    Ok(written)
}

fn superblock(device: &dyn BlockDevice) -> Option<Superblock> {
    let mut bytes = [0; SUPERBLOCK_SIZE_BYTES];
    device.read_at(&mut bytes, SUPERBLOCK_OFFSET_BYTES).ok()?;
    let raw = RawSuperblock::from_bytes(&bytes).ok()?;
    Superblock::try_from(raw).ok()
}

/// Replays a dirty log by a mount; whether that was due and succeeded.
///
/// # Errors
/// Another host has the file system, or a check of it runs (feature `mmp`): a repair would be
/// refused as well.
fn recover(image: &Arc<dyn BlockDevice>, name: &str) -> Result<bool> {
    let is_dirty = |sb: Superblock| sb.features().incompat.contains(Incompat::RECOVER);
    if !superblock(&**image).is_some_and(is_dirty) {
        return Ok(false);
    }
    let mounted = Fs::mount(Arc::clone(image), &MountOptions::new());
    let unmounted = mounted.and_then(|fs| fs.unmount());
    if let Err(why @ fourscore::Error::InUse(_)) = unmounted {
        return Err(Failure::NotChecked(Box::new(Failure::new(name, why))));
    }
    if let Err(why) = &unmounted {
        let text = format!(
            "{name}: cannot be mounted to replay its log ({why}); transactions are replayed without \
             fast commits"
        );
        failure::message(&text);
    }
    Ok(unmounted.is_ok())
}

fn as_text(outcome: &Repaired, name: &str) -> String {
    // Lines have a hundred bytes.
    let mut text = String::with_capacity(outcome.mended.len() * 128);
    if outcome.is_replayed {
        let _ = writeln!(text, "{name}: the log was replayed");
    }
    // Writing into a String cannot fail.
    for finding in &outcome.mended {
        let row = finding.invariant();
        let _ = writeln!(text, "{finding} [{}] (repaired: {})", row.code, row.repair);
    }
    for (finding, why) in &outcome.left {
        let code = finding.invariant().code;
        let _ = writeln!(text, "{finding} [{code}] (not repaired: {why})");
    }
    if verbosity::is_quiet() {
        return text;
    }
    let verdict = match (outcome.is_clean(), outcome.is_changed) {
        (true, true) => "REPAIRED",
        (true, false) => "clean",
        (false, _) => "HAS ERRORS",
    };
    text.push_str(&sum(&outcome.report, name, verdict));
    text
}

fn as_json(outcome: &Repaired) -> serde_json::Value {
    let left = |(finding, why): &(Finding, String)| {
        let mut object = finding.to_json();
        object["not_repaired"] = why.as_str().into();
        object
    };
    let mended: Vec<_> = outcome.mended.iter().map(Finding::to_json).collect();
    let left: Vec<_> = outcome.left.iter().map(left).collect();
    let tally = outcome.report.tally();
    json!({
        "clean": outcome.is_clean(),
        "changed": outcome.is_changed,
        "replayed": outcome.is_replayed,
        "repaired": mended,
        "left": left,
        "worst_left": outcome.report.worst().map(Severity::name),
        "inodes": tally.inodes,
        "directories": tally.directories,
        "entries": tally.entries,
        "blocks": tally.blocks,
    })
}

/// Writes back what an undo file saved.
pub(super) fn undo(args: &Check, file: &Path) -> Result<()> {
    let not_checked = |failure: Failure| Failure::NotChecked(Box::new(failure));
    let image = device(&args.image, DeviceOptions::read_write(), Access::ReadWrite);
    let image = image.map_err(not_checked)?;
    let written = signals::release_at_end().map(|()| apply_undo(file, image))?;
    let name = file.display().to_string();
    let bytes = written.map_err(|why| not_checked(Failure::new(name, why)))?;
    if verbosity::is_quiet() {
        return Ok(());
    }
    let image = args.image.shown();
    print(
        &format!("{image}: {bytes} bytes are as they were\n"),
        Ok(()),
    )
}
