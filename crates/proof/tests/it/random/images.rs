//! Opening and mounting images.

use std::time::Duration;

use fourscore::{Fs, MountOptions, NewAttributes, OpenOptions};
use fourscore_block::{DeviceOptions, open_path};
use fourscore_journal::{Background, JournalOptions};
use fourscore_sync::Arc;
use fourscore_testkit::image::Image;

/// The owner of objects that no history creates.
pub(crate) const OWNER: NewAttributes = NewAttributes::owned_by(0, 0).permissions(0o755);

/// Mounts with commits so often that the operations of a history spread over several commits.
pub(crate) fn mount(image: &Image) -> fourscore::Result<Arc<Fs>> {
    mount_as(image, "")
}

/// Does the same with mount options.
pub(crate) fn mount_as(image: &Image, words: &str) -> fourscore::Result<Arc<Fs>> {
    let interval = Duration::from_millis(20);
    let options = MountOptions::new().parse(words)?;
    mount_with(image, Background::Threads { interval }, options)
}

/// Does the same with a cache of the given number of bytes.
pub(crate) fn mount_with_cache(image: &Image, bytes: usize) -> fourscore::Result<Arc<Fs>> {
    let interval = Duration::from_millis(20);
    let options = MountOptions::new().open(OpenOptions::new().cache_bytes(bytes));
    mount_with(image, Background::Threads { interval }, options)
}

/// Mounts with commits only on request.
pub(crate) fn mount_quietly(image: &Image, words: &str) -> fourscore::Result<Arc<Fs>> {
    let options = MountOptions::new().parse(words)?;
    mount_with(image, Background::None, options)
}

fn mount_with(
    image: &Image,
    background: Background,
    options: MountOptions,
) -> fourscore::Result<Arc<Fs>> {
    let device = open_path(image.path(), DeviceOptions::read_write()).unwrap();
    let journal = JournalOptions {
        background,
        ..JournalOptions::default()
    };
    Fs::mount(Arc::new(device), &options.journal(journal))
}
