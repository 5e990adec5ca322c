//! **Purpose.** The processors of the host: the kernel has a ring queue for each of them.

use std::io;

use rustix::thread::CpuSet;

/// The processors by their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Processors {
    /// The number of possible processors: `0..possible`.
    possible: usize,
    /// The processors that are online, in order.
    pub(crate) present: Vec<usize>,
}

/// The most processors: the limit of a set of processors.
const MAX_PROCESSORS: usize = CpuSet::MAX_CPU;

impl Processors {
    /// The processors of this host, also those that this process may not use: requests may come
    /// from any of them.
    ///
    /// # Errors
    /// Those of reading `/sys`; `InvalidData` for a malformed list.
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

    /// The processors that are possible, but not online.
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
        if last >= MAX_PROCESSORS {
            return None;
        }
        numbers.extend(first..=last);
    }
    numbers.is_sorted().then_some(numbers)
}

/// Pins the calling thread to one processor.
///
/// # Errors
/// `InvalidInput` if this process may not use it.
pub(crate) fn pin_to(processor: usize) -> io::Result<()> {
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
        let host = Processors::of_host().expect("lists");
        assert!(!host.present.is_empty() && host.present.len() <= host.possible);
    }
}
