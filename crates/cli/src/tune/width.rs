//! **Purpose.** `tune -O 64bit` and `-O ^64bit`: descriptors of groups of 64 or of 32 bytes.
//!
//! **Model.** It is the only change of its call: it is one of the layout (`fourscore_resize`), and
//! durable by itself. It is made in memory first, and checked before and after, since all
//! descriptors are written again. Other hosts are kept away in the whole time (feature `mmp`).

use fourscore_block::{BlockDevice, mmp};
use fourscore_check::{CheckOptions, rehearse};
use fourscore_mkfs::{FeatureChange, Tuning};
use fourscore_ondisk::features::Incompat;
use fourscore_resize::{Resizer, Width};
use fourscore_sync::Arc;

use super::{TuneOptions, changes};
use crate::failure::{Failure, Result};

/// The width that is wished, if it is another one.
///
/// # Errors
/// A usage failure if something else is to be changed with it.
pub(super) fn wished(
    device: &dyn BlockDevice,
    tuning: &Tuning,
    options: &TuneOptions,
) -> Result<Option<Width>> {
    let features = changes::superblock(device).map(|sb| sb.features());
    let is_wide = features.map(|features| features.incompat.contains(Incompat::BIT64));
    let is_change = |change: &&FeatureChange| change.name() == "64bit";
    let last = tuning.features.iter().rfind(is_change);
    let Some(change) = last.filter(|change| is_wide == Some(!change.is_on())) else {
        return Ok(None);
    };
    let alone = Tuning {
        features: vec![*change],
        ..Tuning::default()
    };
    if *tuning != alone || options.has_changes() {
        let why = "is a change of the layout: give it alone, and other changes before or after it";
        return Err(Failure::usage("-O 64bit", why));
    }
    Ok(Some(match change.is_on() {
        true => Width::Wide,
        false => Width::Narrow,
    }))
}

/// Gives the file system on a device that width.
pub(super) fn set(
    device: Arc<dyn BlockDevice>,
    check: &CheckOptions,
    width: Width,
    name: &str,
) -> Result<()> {
    let failed = |why| Failure::new(name, why);
    // What is not at rest, or in use, is refused before it is checked.
    let mut resizer = Resizer::open(Arc::clone(&device)).map_err(failed)?;
    resizer.claim().map_err(failed)?;
    let mut change = |copy: Arc<dyn BlockDevice>| {
        // No other host has the copy. It says that a check runs, as the image does.
        if let Some(sb) = changes::superblock(&*copy) {
            mmp::clear(&*copy, &sb)?;
        }
        Resizer::open(copy)?.set_width(width)
    };
    rehearsed(device, check, name, &mut change)?;
    resizer.set_width(width).map_err(failed)?;
    resizer.release().map_err(failed)
}

/// Makes a change in memory, and refuses it if the result has errors.
fn rehearsed(
    device: Arc<dyn BlockDevice>,
    check: &CheckOptions,
    name: &str,
    change: &mut dyn FnMut(Arc<dyn BlockDevice>) -> fourscore_resize::Result<()>,
) -> Result<()> {
    let done = rehearse(device, check, change);
    done.map_err(|why| Failure::new(name, why))
}

#[cfg(test)]
mod tests {
    use fourscore_block::{DeviceOptions, RamDevice, open_path};
    use fourscore_testkit::tools::{self, Need};
    use fourscore_testkit::{require, scratch};

    use super::*;

    /// A change whose result has an error writes nothing.
    #[test]
    fn the_result_is_checked_before_it_is_written() {
        const BLOCK_BYTES: u64 = 1024;
        require!(Need::Program("mke2fs"));
        let folder = scratch::folder().expect("a folder");
        let image = folder.path().join("image");
        let mut mke2fs = tools::command("mke2fs").expect("found before");
        mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "1024", "-g", "1024"]);
        tools::stdout_of(mke2fs.arg(&image).arg("16M")).expect("space");
        let file = open_path(&image, DeviceOptions::default()).expect("an image");
        let mut bytes = vec![0; usize::try_from(file.len_bytes()).expect("16 MiB")];
        file.read_at(&mut bytes, 0).expect("readable");
        let device = Arc::new(RamDevice::from_bytes(&bytes));
        let same = || {
            let mut now = vec![0; bytes.len()];
            device.read_at(&mut now, 0).expect("readable");
            now == bytes
        };
        let rehearse = |spoiled: &[u64]| {
            let device: Arc<dyn BlockDevice> = Arc::<RamDevice>::clone(&device);
            let mut change = |device: Arc<dyn BlockDevice>| {
                Resizer::open(Arc::clone(&device))?.set_width(Width::Narrow)?;
                for block in spoiled {
                    device.write_at(&[0xff; 32], block * BLOCK_BYTES)?;
                }
                Ok(())
            };
            super::rehearsed(device, &CheckOptions::default(), "image", &mut change)
        };
        // The first descriptor, and its copy in the group 1.
        for (block, expected) in [(2, "(group 0: "), (1026, "(group 1: the backup ")] {
            let refused = rehearse(&[block])
                .expect_err("it would be damaged")
                .to_string();
            assert!(refused.contains("the result: has an error"), "{refused}");
            assert!(refused.contains(expected), "{refused}");
            assert!(same(), "block {block}: it was written");
        }
        rehearse(&[]).expect("it is possible");
        assert!(same(), "it was written by the rehearsal");
        let target: Arc<dyn BlockDevice> = Arc::<RamDevice>::clone(&device);
        let check = CheckOptions::default();
        super::set(target, &check, Width::Narrow, "image").expect("it is possible");
        assert!(!same(), "nothing was written");
    }
}
