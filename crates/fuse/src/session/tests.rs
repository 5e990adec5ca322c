//! Tests of rings that the kernel refuses after INIT has enabled them.

use fourscore::MountOptions;
use fourscore_block::{DeviceOptions, open_path};
use fourscore_sync::Arc;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::oracle::assert_clean;
use fourscore_testkit::require;
use fourscore_testkit::scratch;
use fourscore_testkit::tools::Need;
use std::fs;

use super::*;

/// Fewer payload bytes than an entry must have.
const TOO_FEW_BYTES: usize = 4096;

/// Mounts, changes the opened workers, and uses the mount.
fn used_with(change: impl FnOnce(&Session, &mut Opened)) {
    let image = Image::builder(MiB(32)).kind("ext4").make().unwrap();
    let device = open_path(image.path(), DeviceOptions::read_write()).unwrap();
    let fs = Fs::mount(Arc::new(device), &MountOptions::new()).unwrap();
    let point = scratch::folder().unwrap();
    let options = SessionOptions {
        transport: Transport::Ring,
        ..SessionOptions::default()
    };
    let session = Session::mount(point.path(), &options).unwrap();
    let mut opened = session
        .open(Granularity::Nanoseconds)
        .unwrap()
        .expect("it is mounted");
    change(&session, &mut opened);
    thread::scope(|scope| {
        let served = scope.spawn(|| {
            let server = Server::new(&fs, None, opened.agreed, &options, &session.latencies);
            session.run(opened, &server, &|ended| ended.unwrap())
        });
        let used = use_it(point.path());
        session.unmounter().unmount().unwrap();
        served.join().unwrap().unwrap();
        used.unwrap();
    });
    // DESTROY has frozen it, if the kernel sent that.
    let _ = fs.thaw();
    fs.unmount().unwrap();
    assert_clean(image.path());
}

fn use_it(point: &Path) -> io::Result<()> {
    for number in 0..100 {
        let content = vec![number; 50_000];
        fs::write(point.join(number.to_string()), &content)?;
        assert_eq!(fs::read(point.join(number.to_string()))?, content);
    }
    assert_eq!(fs::read_dir(point)?.count(), 101);
    fs::remove_file(point.join("7"))
}

#[test]
fn refused_rings_serve_through_the_device() {
    require!(
        Need::Root,
        Need::Fuse,
        Need::FuseRings,
        Need::Program("e2fsck")
    );
    // All entries are refused, then those of one queue: the others are registered but not used.
    used_with(|session, opened| {
        opened.rings = ring::workers(&session.device, TOO_FEW_BYTES).unwrap();
    });
    used_with(|session, opened| {
        let refused = ring::workers(&session.device, TOO_FEW_BYTES).unwrap();
        let of_first = |worker: &RingWorker| worker.serves(0);
        opened.rings.retain(|worker| !of_first(worker));
        opened.rings.extend(refused.into_iter().filter(of_first));
    });
    // One worker of a queue is refused: the others serve it.
    used_with(|session, opened| {
        let refused = ring::workers(&session.device, TOO_FEW_BYTES).unwrap();
        opened.rings[0] = refused.into_iter().next().expect("there are some");
    });
}
