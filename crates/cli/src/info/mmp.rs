//! **Purpose.** The MMP block in the format of dumpe2fs, and the check of `dumpe2fs -m`: whether a
//! host uses the file system.
//!
//! **References.** dumpe2fs(8), `-m`; `ext2fs_mmp_start` of e2fsprogs for how long a host that does
//! not change the block is waited for.

use std::fmt::Write as _;
use std::time::Duration;

use fourscore_ondisk::mmp::{MmpBlock, MmpError, MmpSequence};
use fourscore_sync::thread;

use crate::facts::Time;
use crate::failure::{self, Failure, Result};
use crate::image::Image;
use crate::output::Stdout;
use crate::text::printable;
use crate::time::{Zone, ctime};

/// The least time within which a host changes the block, in seconds.
const LEAST_SECONDS: u64 = 5;

/// The MMP block; `None` without the feature.
fn block(image: &Image) -> Result<Option<std::result::Result<MmpBlock, MmpError>>> {
    let sb = image.fs.superblock();
    let Some(block) = sb.mmp_block() else {
        return Ok(None);
    };
    let block_size = sb.geometry().block_size();
    let mut bytes = vec![0; block_size.bytes()];
    let read = image
        .fs
        .device()
        .read_at(&mut bytes, block_size.offset(block));
    read.map_err(|why| image.failure(b"MMP block", why))?;
    Ok(Some(MmpBlock::parse(&bytes, sb)))
}

/// Prints that no host uses the file system, which `name` names. Waits for some ten seconds if a
/// host did and has not released it.
///
/// # Errors
/// `AlreadyReported` if a host or a check may use it; others if that is unknown.
pub(super) fn check(image: &Image, name: &str, out: &mut Stdout) -> Result<()> {
    let failed = |why: MmpError| image.failure(b"MMP block", why);
    let off = || image.problem("the feature mmp is off, so it is not known who uses it");
    let before = match block(image)?.ok_or_else(off)? {
        Err(MmpError::Sequence { .. }) => {
            return Err(in_use(image, "an operation that is not known runs on it"));
        }
        found => found.map_err(failed)?,
    };
    match before.sequence() {
        MmpSequence::Clean => {}
        MmpSequence::Fsck => return Err(in_use(image, "a check of it runs, or was cut short")),
        MmpSequence::InUse(_) => {
            let sb = image.fs.superblock().raw().s_mmp_update_interval.get();
            let seconds = match sb {
                0 => LEAST_SECONDS,
                seconds => seconds.into(),
            };
            let seconds = seconds.max(before.check_interval_seconds().into());
            thread::sleep(Duration::from_secs((seconds * 2 + 1).min(seconds + 60)));
            let after = block(image)?.ok_or_else(off)?.map_err(failed)?;
            if after.sequence() != before.sequence() {
                return Err(in_use(image, "a host uses it"));
            }
        }
    }
    // The words of dumpe2fs.
    let text = format!("dumpe2fs: it is safe to mount '{name}', MMP is clean\n");
    out.write(text.as_bytes())
}

/// Reports a file system that is in use, with what the block says of the host.
fn in_use(image: &Image, why: &str) -> Failure {
    let host = match block(image) {
        Ok(Some(Ok(found))) => {
            let name = |bytes| printable(bytes);
            let time = found.time().map(Time::from).unwrap_or_default();
            format!(
                " (host '{}', device '{}', at {})",
                name(found.node_name()),
                name(found.device_name()),
                ctime(time, Zone::Local)
            )
        }
        _ => String::new(),
    };
    failure::message(&image.problem(format!("{why}{host}")).to_string());
    Failure::AlreadyReported
}

/// The lines about the MMP block; empty if there is none.
pub(crate) fn text(image: &Image) -> Result<String> {
    let Some(mmp) = block(image)? else {
        return Ok(String::new());
    };
    let mmp = mmp.map_err(|why| image.failure(b"MMP block", why))?;
    let seconds = mmp.raw().mmp_time.get();
    let time = mmp.time().map(Time::from).unwrap_or_default();
    let mut text = String::from("MMP_block:\n");
    // Writing into a String cannot fail.
    let _ = writeln!(text, "    mmp_magic: 0x{:x}", mmp.raw().mmp_magic.get());
    let _ = writeln!(
        text,
        "    mmp_check_interval: {}",
        mmp.check_interval_seconds()
    );
    let _ = writeln!(text, "    mmp_sequence: {:#08x}", mmp.raw().mmp_seq.get());
    let _ = writeln!(text, "    mmp_update_date: {}", ctime(time, Zone::Local));
    let _ = writeln!(text, "    mmp_update_time: {seconds}");
    let _ = writeln!(text, "    mmp_node_name: {}", printable(mmp.node_name()));
    let _ = writeln!(
        text,
        "    mmp_device_name: {}",
        printable(mmp.device_name())
    );
    Ok(text)
}
