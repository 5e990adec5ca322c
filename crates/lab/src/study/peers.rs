//! **Purpose.** `peers` and `scale`: the everyday work of a file system on the kernel's ext4, XFS
//! and Btrfs, on fuse2fs, on our mount and on our library in this process, side by side; with few
//! threads, and with more and more of them.
//!
//! **Model.** A case is a workload of `bench files`. Every run is on a new file system on a sparse
//! image, and the measured time includes a sync of it. All kinds of ext4 get the same image.

use std::io;

use crate::comparison::ThreadCount;
use crate::files::FileWorkload;
use crate::scratch::FsKind;
use crate::study::{
    Case, Facts, Measure, Sample, ScratchSize, Side, Study, Surroundings, ThreadList,
};

/// Size of a file system. `fallocate3` allocates 70 MiB for each thread.
const IMAGE_BYTES: u64 = 4 << 30;
/// What the images take at most at a time.
const HOST_BYTES: u64 = 1 << 30;

const SIDES: &[Side] = &[
    side(FsKind::Ext4),
    side(FsKind::Xfs),
    side(FsKind::Btrfs),
    side(FsKind::Fuse2fs),
    side(FsKind::Mount),
    side(FsKind::InProcess),
];

/// The experiment with few threads.
pub(super) const PEERS: Study = Study {
    name: "peers",
    about: "file systems side by side",
    source: "",
    load: "does the work of the case in a directory of its own; a sync ends the time",
    cases: &[
        case("create", "creates empty files"),
        case("fallocate2", "allocates 8 KiB at a time"),
        case("stat", "looks files up and reads their attributes"),
        case("unlink", "removes files"),
        case("readdir", "reads the names of 1000 files"),
        case("write", "writes 1 MiB at a time"),
        case("append", "appends 4 KiB at a time"),
        case("fallocate3", "allocates 70 MiB at a time"),
        case("random-5g", "writes 4 KiB anywhere in a file of 5 GiB"),
        case("mixed-5g", "reads and writes 64 KiB, in order and anywhere"),
        case("fsmark-s1", "creates files of 16 KiB, each durable"),
        case(
            "fsmark-s5",
            "creates files of 16 KiB, durable by the hundred",
        ),
        case("fserver", "replaces, reads, extends and lists files"),
    ],
    smallest_cases: 2,
    smallest_steps: 50,
    sides: SIDES,
    published: &[],
    threads: ThreadList::OneAndTwo,
    scratch: Some(SCRATCH),
    measure: &FileWork,
};

/// The experiment with more and more threads.
pub(super) const SCALE: Study = Study {
    name: "scale",
    about: "how speed grows with threads",
    cases: &[
        case("create", "creates empty files"),
        case("fallocate2", "allocates 8 KiB at a time"),
        case("stat", "looks files up and reads their attributes"),
        case("unlink", "removes files"),
        case("append", "appends 4 KiB at a time"),
    ],
    smallest_cases: 1,
    threads: ThreadList::Doubling,
    ..PEERS
};

const SCRATCH: ScratchSize = ScratchSize {
    image_bytes: IMAGE_BYTES,
    host_bytes: HOST_BYTES,
};

const fn case(name: &'static str, about: &'static str) -> Case {
    Case { name, about }
}

/// A side by its kind.
pub(super) const fn side(kind: FsKind) -> Side {
    Side {
        name: kind.name(),
        about: kind.about(),
    }
}

/// Steps of all threads together.
fn steps_of(case: &Case) -> u64 {
    match case.name {
        "readdir" => 2000,
        "write" => 512,
        "fallocate3" | "fsmark-s1" | "fsmark-s5" => 2000,
        "fserver" | "mixed-5g" => 5000,
        _ => 20_000,
    }
}

struct FileWork;

impl Measure for FileWork {
    fn steps(&self, case: &Case, threads: ThreadCount) -> u64 {
        (steps_of(case) / threads.get() as u64).max(1)
    }

    fn memory_bytes(&self, _: &Case) -> u64 {
        256 << 20
    }

    fn missing(&self, side: &Side) -> Option<String> {
        FsKind::by_name(side.name).and_then(FsKind::missing)
    }

    fn has_sections(&self, side: &Side) -> bool {
        side.name == FsKind::InProcess.name()
    }

    fn run(
        &self,
        case: &Case,
        side: &Side,
        threads: ThreadCount,
        steps: u64,
        around: &Surroundings<'_>,
    ) -> io::Result<Sample> {
        let kind = FsKind::by_name(side.name).ok_or(io::ErrorKind::InvalidInput)?;
        let workload = FileWorkload::by_name(case.name).ok_or(io::ErrorKind::InvalidInput)?;
        let scratch = around.scratch()?;
        let mounted = scratch.mount(scratch.image(kind, IMAGE_BYTES)?)?;
        let driven = workload.run(&*mounted.target(), threads, steps, around.clock)?;
        mounted.unmount()?;
        let (total, fairness) = (driven.total(), driven.fairness());
        let seconds = total.wall.unwrap_or_default().as_secs_f64().max(1e-9);
        let mut facts = Facts::from([
            (
                "sync, % of the time",
                driven.sync.as_secs_f64() * 100.0 / seconds,
            ),
            (
                "slowest thread by fastest",
                fairness.min / fairness.max.max(1e-9),
            ),
        ]);
        if total.bytes > 0 {
            facts.insert("MiB/s", total.bytes as f64 / seconds / f64::from(1 << 20));
        }
        Ok(Sample {
            operations_per_second: driven.operations_per_second(),
            facts,
            profile: driven.profile.filter(|_| self.has_sections(side)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_a_workload_and_every_side_a_kind() {
        for study in [PEERS, SCALE] {
            for case in study.cases {
                assert!(FileWorkload::by_name(case.name).is_some(), "{case:?}");
                assert!(FileWork.steps(case, ThreadCount::new(64)) > 0);
            }
            let kinds: Vec<_> = study
                .sides
                .iter()
                .filter_map(|side| FsKind::by_name(side.name))
                .collect();
            assert_eq!(kinds, FsKind::ALL);
        }
    }
}
