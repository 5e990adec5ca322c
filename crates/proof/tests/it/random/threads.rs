//! 64 threads, each with a tree of its own that must be equal to its model, and all of them in the
//! same directories.

use fourscore::{Follow, Fs, InodeNr};
use fourscore_sync::{Arc, thread};
use fourscore_testkit::explore::Rng;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::mount::{Access, KernelMount};

use super::images::{OWNER, mount, mount_with_cache};
use super::shared::{Seen, Shared};
use fourscore_proof::{Model, Pair, Rules};

use crate::common::{open, require_kernel, unmount_clean};
use crate::tree::{host_tree, our_tree};

const ROOT: InodeNr = InodeNr::ROOT;
const THREADS: usize = 64;
/// The number of calls in the shared directories for each call in the thread's own tree.
const SHARED_CALLS: usize = 2;

fn own_name(thread: usize) -> String {
    format!("own {thread}")
}

/// The work of one thread.
fn work(fs: &Arc<Fs>, shared: &Shared, thread: usize, history: &[u64]) -> (Model, Seen) {
    let own = own_name(thread).into_bytes();
    let own = fs.mkdir(ROOT, &own, &OWNER).unwrap();
    let rules = Rules {
        // Written data can be read in one piece.
        far_bytes: 3_000_000,
        ..Rules::of(fs)
    };
    let mut pair = Pair::resume(Arc::clone(fs), own, Model::new(rules, 2));
    let mut seen = shared.enter(ROOT, thread);
    for &number in history {
        pair.step(number);
        let random = &mut Rng::new(number ^ 1);
        for _ in 0..SHARED_CALLS {
            shared.step(&mut seen, random);
        }
    }
    pair.compare(own);
    (pair.finish(), seen)
}

/// Runs all threads, and checks the resulting image in every available way. Returns the number of
/// plans that were restarted.
fn run(image: &Image, fs: Arc<Fs>, seed: u64, threads: usize, calls: usize) -> u64 {
    let shared = Shared::new(&fs, ROOT);
    let done: Vec<(Model, Seen)> = thread::scope(|scope| {
        let spawn = |thread: usize| {
            let (fs, shared) = (&fs, &shared);
            scope.spawn(move || {
                let history = super::histories::history(seed * 1_000 + thread as u64, calls);
                work(fs, shared, thread, &history)
            })
        };
        let threads: Vec<_> = (0..threads).map(spawn).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().unwrap();
        threads.into_iter().map(join).collect()
    });
    let (models, seen): (Vec<Model>, Vec<Seen>) = done.into_iter().unzip();
    shared.check(&seen);
    let restarts = fs.stats().mount.unwrap().plan_restarts;
    unmount_clean(fs, image);
    let fs = open(image);
    for (thread, model) in models.iter().enumerate() {
        let own = fs.resolve(own_name(thread).as_bytes(), Follow::No);
        model.compare(&fs, own.unwrap());
    }
    let kernel = KernelMount::new(image.path(), Access::ReadOnly, "").unwrap();
    for (thread, model) in models.iter().enumerate() {
        model.compare_with_host(&kernel.path().join(own_name(thread)));
    }
    let (ours, theirs) = (our_tree(&fs), host_tree(kernel.path()));
    crate::tree::assert_same(&ours, &theirs, "our walk and the kernel's");
    restarts
}

fn image(block_size: u32) -> Image {
    let image = Image::builder(MiB(1024)).kind("ext4");
    image.block_size_bytes(block_size).make().unwrap()
}

#[test]
fn sixty_four_threads_leave_what_some_order_of_their_calls_allows() {
    require_kernel!();
    let image = image(4096);
    run(&image, mount(&image).unwrap(), 1, THREADS, 150);
}

/// With a cache of a few blocks for each thread, blocks that a plan has read may be evicted before
/// it is applied.
#[test]
fn a_tiny_cache_sends_plans_back_less_than_once_per_call() {
    const SOME: usize = 12;
    const CALLS: usize = 250;
    require_kernel!();
    let image = image(1024);
    let fs = mount_with_cache(&image, 1 << 17).unwrap();
    let restarts = run(&image, fs, 9, SOME, CALLS);
    let calls = SOME * CALLS * (1 + SHARED_CALLS);
    eprintln!("{restarts} plan restarts in {calls} calls");
    assert!(restarts > 0, "the cache is not tiny");
    assert!(restarts < calls as u64, "{restarts} in {calls} calls");
}

#[test]
#[ignore = "takes ten minutes"]
fn sixty_four_threads_work_for_long() {
    require_kernel!();
    for seed in 2..8 {
        let image = image([1024, 4096][usize::try_from(seed % 2).unwrap()]);
        run(&image, mount(&image).unwrap(), seed, THREADS, 1_500);
    }
}
