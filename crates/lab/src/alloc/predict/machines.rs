//! **Purpose.** Models of the machines on which changes of ext4's allocator were measured.
//!
//! **Model.** Three kinds of figures, from three places:
//!
//! - *Transfers* between cores are measured ones (references below). Where a machine itself was not
//!   measured, its predecessor or the same machine with one socket stands for it, and the model
//!   says so.
//! - *Accesses and work alone* were measured once for this allocator, on a Xeon of 2.8 GHz: the
//!   time of fallocate2 and fallocate3 on one core of the normal build, by the accesses that the
//!   counting build counts, is 4.5 ns for a read, with the work up to the next access, and twice as
//!   much for a write. Other machines take this by the ratio of clock rates.
//! - *The file system around the allocator* is fitted, one number for a machine and a workload on
//!   one figure of one row: the patched kernel with 8 threads for fallocate3, with one for
//!   fallocate2. For the EPYC that is the row of 15 TiB, where no walk is long. The Kunpeng 920,
//!   whose 8 threads wait for a timer (below), takes the number of its successor. Half of a step
//!   of fallocate3 is taken to be under one lock, with 64 words of transaction and metadata buffers
//!   written there; a step of fallocate2, which truncates once in 128 steps, is taken to need no
//!   lock. Each extent of fallocate3 has a handle of its own (`ext4_alloc_file_blocks` starts one
//!   for each mapping), which costs what a step of fallocate2 costs. Each handle writes two words
//!   that all handles of a transaction write.
//!
//! So the shares and counts of words in the last point are assumptions, the same for all machines.
//! The half is near to what was measured elsewhere for a truncation without a list of orphans: one
//! process took 0.89 s for a number of them, 64 processes 38 s for as many each, which is 0.67 of
//! the time of one process in series (16: 0.57; J. Kara, "ext4: Improve scalability of ext4 orphan
//! file handling", 2021, 80 cores).
//!
//! **References.** N. Viennot, <https://github.com/nviennot/core-to-core-latency> (README: Kunpeng
//! 920-6426, 72 ns; EPYC 7R13, 23 ns within a group of 8 cores, 107 ns between groups, 197 ns
//! between sockets; two sockets take 2.1 to 3.6 times as long as one).

use fourscore_sync::count::Machine;

use crate::alloc::predict::Rest;

/// The workloads for which the surroundings of the allocator were fitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// fallocate2.
    Fallocate2,
    /// fallocate3.
    Fallocate3,
}

/// A machine, with what was fitted for it.
#[derive(Clone, Copy, Debug)]
pub struct MachineModel {
    /// Its name in the publications.
    pub name: &'static str,
    /// What its cores, accesses and transfers cost.
    pub costs: Machine,
    /// Where the latencies are from.
    pub latencies: &'static str,
    /// The work of the handle of an extent of fallocate3, in steps: that of a step of fallocate2.
    pub extent: u64,
    /// The fitted number for fallocate2, in steps of work, and the row.
    pub fallocate2: Option<(u64, &'static str)>,
    /// The fitted number for fallocate3, in steps of work, and the row.
    pub fallocate3: Option<(u64, &'static str)>,
}

/// A read of a held line and the work up to the next access, on the machine where it was measured.
const READ_PS: u64 = 4500;
/// The same for a write.
const WRITE_PS: u64 = 9000;
/// The clock rate of that machine.
const MEASURED_MHZ: u64 = 2800;

/// Latencies in nanoseconds: within a cluster, within a socket, between sockets.
const fn machine(clusters: (usize, usize), mhz: u64, latencies: (u64, u64, u64)) -> Machine {
    Machine {
        cluster_cores: clusters.0,
        socket_cores: clusters.1,
        step_ps: 1000 * MEASURED_MHZ / mhz,
        read_ps: READ_PS * MEASURED_MHZ / mhz,
        write_ps: WRITE_PS * MEASURED_MHZ / mhz,
        cluster_ps: latencies.0 * 1000,
        socket_ps: latencies.1 * 1000,
        remote_ps: latencies.2 * 1000,
    }
}

const KUNPENG_LATENCIES: &str =
    "Kunpeng 920-6426, one socket; other sockets taken as 2.5 times as far";

/// Kunpeng 920.
pub const KUNPENG_920: MachineModel = MachineModel {
    name: "Kunpeng 920",
    costs: machine((4, 48), 2600, (72, 72, 180)),
    latencies: KUNPENG_LATENCIES,
    extent: FIT_920_2,
    fallocate2: Some((FIT_920_2, "mb_optimize_scan=0, P1")),
    // No row of its own: 8 threads on 842 GB use the space up once in 5 seconds, the interval of
    // commits, and so say little of what they do meanwhile.
    fallocate3: Some((FIT_920B_3, "none, as Kunpeng 920b")),
};

/// Kunpeng 920b.
pub const KUNPENG_920B: MachineModel = MachineModel {
    name: "Kunpeng 920b",
    costs: machine((4, 80), 2900, (72, 72, 180)),
    latencies: KUNPENG_LATENCIES,
    extent: FIT_920_2,
    fallocate2: None,
    fallocate3: Some((FIT_920B_3, "133 GB half full, 8 threads")),
};

/// AMD EPYC 9654, two sockets.
pub const EPYC_9654: MachineModel = MachineModel {
    name: "AMD EPYC 9654",
    costs: machine((8, 96), 3700, (23, 107, 197)),
    latencies: "EPYC 7R13, its predecessor, two sockets",
    extent: FIT_9654_2,
    fallocate2: Some((FIT_9654_2, "mb_optimize_scan=0, P1")),
    fallocate3: Some((FIT_9654_3, "15 TiB, 8 threads")),
};

const FIT_920_2: u64 = 2654;
const FIT_920B_3: u64 = 20_995;
const FIT_9654_2: u64 = 5920;
const FIT_9654_3: u64 = 37_109;

impl MachineModel {
    /// The surroundings of the allocator for a workload; `None` if they were not fitted.
    #[must_use]
    pub fn rest(&self, load: Load) -> Option<Rest> {
        let fitted = match load {
            Load::Fallocate2 => self.fallocate2,
            Load::Fallocate3 => self.fallocate3,
        };
        fitted.map(|(work, _)| self.rest_with(load, work))
    }

    /// The surroundings of the allocator for a workload, with so many steps of work.
    #[must_use]
    pub fn rest_with(&self, load: Load, work: u64) -> Rest {
        Rest::of(load, work, self.extent)
    }
}

impl Rest {
    /// The surroundings with a fitted number of steps of work.
    #[must_use]
    pub fn of(load: Load, work: u64, extent: u64) -> Self {
        match load {
            Load::Fallocate2 => Self {
                alone: work,
                shared_words: 2,
                extent: 0,
                handles_per_write: 1,
                locked: 0,
                locked_words: 0,
            },
            Load::Fallocate3 => Self {
                alone: work / 2,
                shared_words: 2,
                extent,
                handles_per_write: 1,
                locked: work / 2,
                locked_words: 64,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_a_truncating_step_is_locked_and_none_of_an_appending_one() {
        let rest = EPYC_9654.rest(Load::Fallocate3).expect("fitted");
        assert!(rest.alone == rest.locked && rest.locked > 0);
        let appending = EPYC_9654.fallocate2.expect("fitted").0;
        assert_eq!(rest.extent, appending);
        let rest = EPYC_9654.rest(Load::Fallocate2).expect("fitted");
        assert_eq!((rest.locked, rest.locked_words), (0, 0));
        assert!(KUNPENG_920B.rest(Load::Fallocate2).is_none());
    }

    #[test]
    fn a_faster_clock_makes_accesses_cheaper_and_leaves_transfers() {
        let (slow, fast) = (KUNPENG_920.costs, KUNPENG_920B.costs);
        assert!(slow.read_ps > fast.read_ps && slow.step_ps > fast.step_ps);
        assert_eq!(slow.socket_ps, fast.socket_ps);
    }
}
