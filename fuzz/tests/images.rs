//! **Purpose.** The seed images hold what they are there for, and are read without an error.

use fourscore::{Follow, Fs, OpenOptions, Replay};
use fourscore_fuzz::device::Patched;
use fourscore_fuzz::seal::reseal;
use fourscore_fuzz::targets::{image, recovery};
use fourscore_fuzz::{images, walk};
use fourscore_ondisk::features::{Compat, Incompat, RoCompat};
use fourscore_sync::Arc;

#[test]
fn every_image_is_read_without_an_error() {
    for seed in images::all() {
        let found = image::read(seed.device(), Replay::InMemory).unwrap();
        println!("{:12} {found:?}, {} blocks", seed.name, seed.blocks.len());
        assert!(found.inodes > 10 && found.entries > 10, "{}: {found:?}", seed.name);
    }
}
