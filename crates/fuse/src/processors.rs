//! **Purpose.** Which processors the machine has: the kernel's queues are counted by them.

use std::io;

use rustix::thread::CpuSet;

/// The processors by their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Processors {
    /// How many there can be: `0..possible`.
    possible: usize,
    /// Those that are there, in order.
    pub(crate) present: Vec<usize>,
}

/// No machine has as many, and sets of processors have no room for more.
const MOST: usize = CpuSet::MAX_CPU;

impl Processors {
    /// Those of this machine, whichever of them this process may use: requests come from others.
    ///
    /// # Errors
    /// Those of reading what the kernel tells of them; `InvalidData` for what is no list.
    pub(crate) fn of_host() -> io::Result<Self> {
        let list = |name| std::fs::read_to_string(format!("/sys/devices/system/cpu/{name}"));
        Self::parse(&list("possible")?, &list("online")?)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn parse(possible: &str, present: &str) -> Option<Self> {
        let possible = numbers(possible)?.len();
        let mut present = numbers(present)?;
        present.retain(|&processor| processor < possible);
        Some(Self { possible, present })
    }

    /// Those that are not there, but could be some time.
    pub(crate) fn absent(&self) -> impl Iterator<Item = usize> {
        (0..self.possible).filter(|processor| self.present.binary_search(processor).is_err())
    }
}

/// The numbers of a list as `0-3,8`.
fn numbers(list: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MOST {
            return None;
        }
        numbers.extend(first..=last);
    }
    numbers.is_sorted().then_some(numbers)
}

/// Keeps the calling thread on one processor.
///
/// # Errors
/// `InvalidInput` where this process may not use it.
pub(crate) fn stay_on(processor: usize) -> io::Result<()> {
    let mut only = CpuSet::new();
    only.set(processor);
    Ok(rustix::thread::sched_setaffinity(None, &only)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(numbers("0-2,5,7-8\n"), Some(vec![0, 1, 2, 5, 7, 8]));
        assert_eq!(numbers("0\n"), Some(vec![0]));
        for bad in ["", "a", "1-", "0-99999999", "3,1"] {
            assert_eq!(numbers(bad), None, "{bad}");
        }
        let some = Processors::parse("0-3", "0,2").expect("lists");
        assert_eq!(some.present, [0, 2]);
        assert_eq!(some.absent().collect::<Vec<_>>(), [1, 3]);
    }

    #[test]
    fn this_machine_has_processors() {
        let host = Processors::of_host().expect("told");
        assert!(!host.present.is_empty() && host.present.len() <= host.possible);
    }
}
