//! **Purpose.** The MMP block in the format of dumpe2fs.

use std::fmt::Write as _;

use fourscore_ondisk::mmp::MmpBlock;

use crate::facts::Time;
use crate::failure::Result;
use crate::image::Image;
use crate::text::printable;
use crate::time::{Zone, ctime};

/// The lines about the MMP block; empty if there is none.
pub(crate) fn text(image: &Image) -> Result<String> {
    let sb = image.fs.superblock();
    let Some(block) = sb.mmp_block() else {
        return Ok(String::new());
    };
    let block_size = sb.geometry().block_size();
    let mut bytes = vec![0; block_size.bytes()];
    let read = image
        .fs
        .device()
        .read_at(&mut bytes, block_size.offset(block));
    read.map_err(|why| image.failure(b"MMP block", why))?;
    let mmp = MmpBlock::parse(&bytes, sb).map_err(|why| image.failure(b"MMP block", why))?;
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
