//! **Purpose.** What accesses cost on a machine.

/// A machine: how its cores are arranged, and what work and accesses cost. Times are in
/// picoseconds.
///
/// Cores are numbered cluster by cluster and socket by socket; a cluster is a group of cores with a
/// common cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Cores of a cluster.
    pub cluster_cores: usize,
    /// Cores of a socket.
    pub socket_cores: usize,
    /// A step of [`crate::work`].
    pub step_ps: u64,
    /// A read of a line that the core holds, and the work up to the next access.
    pub read_ps: u64,
    /// The same for a write, which may be a locked read-modify-write.
    pub write_ps: u64,
    /// The latency of a transfer within a cluster.
    pub cluster_ps: u64,
    /// The latency of a transfer between clusters of a socket.
    pub socket_ps: u64,
    /// The latency of a transfer between sockets.
    pub remote_ps: u64,
}

impl Machine {
    /// The latency of a transfer between two cores.
    #[must_use]
    pub fn latency_ps(&self, one: usize, other: usize) -> u64 {
        let share = |cores: usize| one / cores.max(1) == other / cores.max(1);
        if one == other {
            0
        } else if share(self.cluster_cores) {
            self.cluster_ps
        } else if share(self.socket_cores) {
            self.socket_ps
        } else {
            self.remote_ps
        }
    }

    /// The shortest transfer.
    pub(super) fn shortest_ps(&self) -> u64 {
        self.cluster_ps.min(self.socket_ps).min(self.remote_ps)
    }
}
