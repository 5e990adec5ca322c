//! Opening and mounting images.

use std::time::Duration;

use fourscore::block::{DeviceOptions, open_path};
use fourscore::{Arc, Fs, MountOptions, NewAttributes};
use fourscore_journal::{Background, JournalOptions};
use fourscore_testkit::image::Image;

/// Who makes what no history makes.
pub(crate) const OWNER: NewAttributes = NewAttributes {
    permissions: 0o755,
    umask: 0,
    uid: 0,
    gid: 0,
};

/// With commits so often that what a history does is spread over several.
pub(crate) fn mount(image: &Image) -> fourscore::Result<Arc<Fs>> {
    mount_as(image, "")
}

/// The same with mount options.
pub(crate) fn mount_as(image: &Image, words: &str) -> fourscore::Result<Arc<Fs>> {
    let interval = Duration::from_millis(20);
    mount_with(image, Background::Threads { interval }, words)
}

/// With commits only where somebody asks for one.
pub(crate) fn mount_quietly(image: &Image, words: &str) -> fourscore::Result<Arc<Fs>> {
    mount_with(image, Background::None, words)
}

fn mount_with(image: &Image, background: Background, words: &str) -> fourscore::Result<Arc<Fs>> {
    let device = open_path(image.path(), DeviceOptions::read_write()).unwrap();
    let journal = JournalOptions {
        background,
        ..JournalOptions::default()
    };
    let options = MountOptions::new().journal(journal).parse(words)?;
    Fs::mount(Arc::new(device), &options)
}
