//! Histories of one thread: short ones, of which the shortest failing one is reported, and long
//! ones.

use fourscore::InodeNr;
use fourscore_testkit::explore::Rng;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::mount::{Access, KernelMount};
use proptest::prelude::any;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::images::mount_as;
use fourscore_proof::{Model, Pair, Rules};

use crate::common::{open, require_e2fsprogs, require_kernel, unmount_clean};

const ROOT: InodeNr = InodeNr::ROOT;
/// The number of calls between two full comparisons.
const CALLS_PER_LOOK: usize = 250;

fn image(block_size: u32) -> Image {
    let image = Image::builder(MiB(256)).kind("ext4");
    image.block_size_bytes(block_size).make().unwrap()
}

/// Mounts, continues with the model, and unmounts; e2fsck and a read-only mount check the image.
pub(crate) fn one_mount(image: &Image, model: Option<Model>, history: &[u64]) -> Model {
    one_mount_as(image, "", model, history)
}

/// Does the same with mount options.
pub(crate) fn one_mount_as(
    image: &Image,
    words: &str,
    model: Option<Model>,
    history: &[u64],
) -> Model {
    let fs = mount_as(image, words).unwrap();
    let links = u32::from(fs.stat(ROOT).unwrap().links);
    let model = model.unwrap_or_else(|| Model::new(Rules::of(&fs), links));
    let mut pair = Pair::resume(fs.clone(), ROOT, model);
    for calls in history.chunks(CALLS_PER_LOOK) {
        for &number in calls {
            pair.step(number);
        }
        pair.compare(ROOT);
    }
    let model = pair.finish();
    unmount_clean(fs, image);
    model.compare(&open(image), ROOT);
    model
}

/// Random numbers from a seed.
pub(crate) fn history(seed: u64, calls: usize) -> Vec<u64> {
    let mut random = Rng::new(seed);
    (0..calls).map(|_| random.bits()).collect()
}

/// Several mounts by us, and one by the kernel.
fn run(image: &Image, seed: u64, mounts: u64, calls: usize) {
    let mut model = None;
    for mount in 0..mounts {
        let history = history(seed * 1_000 + mount, calls);
        model = Some(one_mount(image, model, &history));
    }
    let kernel = KernelMount::new(image.path(), Access::ReadWrite, "noatime").unwrap();
    model.unwrap().compare_with_host(kernel.path());
}

/// proptest shrinks a failing history as far as it can.
#[test]
fn short_histories_end_as_the_model_says() {
    require_e2fsprogs!();
    let empty = image(1024);
    let config = Config {
        cases: 24,
        max_shrink_iters: 300,
        failure_persistence: None,
        ..Config::default()
    };
    let histories = proptest::collection::vec(any::<u64>(), 1..120);
    let numbers = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let result = TestRunner::new_with_rng(config, numbers).run(&histories, |history| {
        one_mount(&empty.copy().unwrap(), None, &history);
        Ok(())
    });
    assert!(result.is_ok(), "{}", result.unwrap_err());
}

#[test]
fn histories_of_several_mounts_end_as_the_model_says() {
    require_kernel!();
    for (block_size, seed) in [(4096, 1), (1024, 2)] {
        run(&image(block_size), seed, 3, 1_500);
    }
}

/// Takes minutes instead of seconds; `FOURSCORE_SEED` sets the first seed.
#[test]
#[ignore = "takes ten minutes"]
fn long_histories_end_as_the_model_says() {
    require_kernel!();
    let seed = std::env::var("FOURSCORE_SEED").map_or(Ok(1_000), |seed| seed.parse::<u64>());
    let first = seed.expect("FOURSCORE_SEED is a number");
    for seed in first..first + 8 {
        eprintln!("seed {seed}");
        let block_size = [4096, 1024, 2048][usize::try_from(seed % 3).unwrap()];
        run(&image(block_size), seed, 6, 5_000);
    }
}
