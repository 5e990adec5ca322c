//! Tests of the counting rules, each with an operation whose cost is known.

use super::*;
use crate::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use crate::epoch::{EpochCell, pin};
use crate::{CachePadded, Condvar, Counter, Mutex, OnceLock, PerCore, RwLock, clone_arc, thread};

/// The numbers of cores at which hot paths are tested.
const SIZES: [usize; 3] = [2, 80, 192];

/// Transfers of each operation once warm.
fn steady(cores: &Cores, mut operation: impl FnMut()) -> Report {
    cores.run(2, |_, _| operation());
    cores.run(10, |_, _| operation())
}

#[test]
fn lines_move_as_in_mesi() {
    with_cores(3, |cores| {
        let at = |core| CoreNr::new(core).expect("three cores");
        let value = CachePadded::new(AtomicU64::new(0));
        let read = |core| cores.on(at(core), || _ = value.load(Ordering::Relaxed));
        let write = |core| cores.on(at(core), || value.store(1, Ordering::Relaxed));
        let transfers = |act: &dyn Fn()| {
            cores.restart();
            act();
            cores.report(1).transfers()
        };
        assert_eq!(
            transfers(&|| read(2)),
            0,
            "no core wrote it yet: it comes from memory"
        );
        assert_eq!(transfers(&|| write(0)), 1, "core 2 has a copy");
        assert_eq!(transfers(&|| write(0)), 0, "it is the only holder");
        assert_eq!(transfers(&|| (1..3).for_each(read)), 2);
        assert_eq!(transfers(&|| (0..3).for_each(read)), 0, "all have copies");
        assert_eq!(transfers(&|| write(0)), 1, "one invalidation");
        assert_eq!(transfers(&|| write(1)), 1);
        assert_eq!(transfers(&|| read(1)), 0);
    });
}

#[test]
fn a_shared_counter_costs_one_transfer_and_a_counter_per_core_none() {
    for size in SIZES {
        with_cores(size, |cores| {
            let shared = AtomicU64::new(0);
            let report = steady(cores, || _ = shared.fetch_add(1, Ordering::Relaxed));
            assert!((report.transfers_per_op() - 1.0).abs() < 1e-9, "{report}");
            assert_eq!(report.operations(), 10 * size);
            let counter = Counter::default();
            let report = steady(cores, || counter.add(1));
            assert_eq!(report.transfers(), 0, "{report}");
            assert!(
                (report.per_operation().writes - 1.0).abs() < 1e-9,
                "{report}"
            );
            assert_eq!(counter.sum(), 12 * size as u64);
        });
    }
}

#[test]
fn fields_on_one_line_count_against_each_other() {
    #[derive(Default)]
    #[repr(C, align(64))]
    struct Tight {
        hot: AtomicBool,
        setting: AtomicU64,
    }
    #[derive(Default)]
    struct Padded {
        hot: CachePadded<AtomicBool>,
        setting: CachePadded<AtomicU64>,
    }
    with_cores(80, |cores| {
        // One core writes the one field, the others only read the other.
        let run = |hot: &AtomicBool, setting: &AtomicU64| {
            let mut operation = || {
                if CoreNr::current().index() == 0 {
                    hot.store(true, Ordering::Relaxed);
                } else {
                    setting.load(Ordering::Relaxed);
                }
            };
            steady(cores, &mut operation).transfers()
        };
        let (tight, padded) = (Tight::default(), Padded::default());
        assert_eq!(run(&tight.hot, &tight.setting), 10 * 80);
        assert_eq!(run(&padded.hot, &padded.setting), 0);
    });
}

#[test]
fn taking_a_lock_shared_is_a_write() {
    with_cores(80, |cores| {
        let mutex = Mutex::new(0);
        assert_eq!(steady(cores, || *mutex.lock() += 1).transfers(), 800);
        let lock = RwLock::new(0);
        assert_eq!(steady(cores, || drop(lock.read())).transfers(), 800);
        let held = mutex.lock();
        let report = steady(cores, || {
            assert!(mutex.try_lock().is_none() && mutex.is_locked());
        });
        assert_eq!(
            report.transfers(),
            0,
            "an attempt on a taken lock is a read\n{report}"
        );
        drop(held);
        let condvar = Condvar::new();
        assert_eq!(steady(cores, || condvar.notify_all()).transfers(), 0);
        let once = OnceLock::new();
        assert_eq!(
            steady(cores, || assert_eq!(once.get_or_init(|| 1), &1)).transfers(),
            0
        );
    });
}

#[test]
fn loading_a_cell_is_free_until_it_changes() {
    with_cores(80, |cores| {
        let cell = EpochCell::new(Some(Box::new(1_u64)));
        let load = || assert!(cell.load(&pin()).is_some());
        assert_eq!(steady(cores, load).transfers(), 0);
        cell.store(Some(Box::new(2)));
        let report = cores.run(1, |_, _| load());
        assert_eq!(
            report.transfers(),
            2 * 79,
            "the cell and its value, for all cores but the writer's"
        );
    });
}

#[test]
fn a_clone_of_a_shared_arc_is_a_write() {
    with_cores(80, |cores| {
        let shared: Arc<CachePadded<u64>> = Arc::new(CachePadded::new(1));
        let report = steady(cores, || drop(clone_arc(&shared)));
        assert!((report.transfers_per_op() - 1.0).abs() < 1e-9, "{report}");
    });
}

#[test]
fn values_local_to_an_operation_cost_no_transfer() {
    with_cores(80, |cores| {
        let report = steady(cores, || {
            let own = Box::new(Mutex::new(0));
            *own.lock() += 1;
        });
        assert_eq!(
            report.transfers(),
            0,
            "reused memory is not shared memory\n{report}"
        );
        assert_eq!(report.rows()[0].writes, 800);
    });
}

#[test]
fn core_numbers_are_virtual_only_inside_with_cores() {
    let real = CoreNr::count();
    with_cores(192, |cores| {
        assert_eq!((CoreNr::count(), CoreNr::current().index()), (192, 0));
        assert_eq!(PerCore::new(|_| ()).iter().count(), 192);
        let mut seen = Vec::new();
        cores.run(1, |core, _| {
            assert_eq!(core, CoreNr::current());
            seen.push(core.index());
        });
        assert!(seen.into_iter().eq(0..192));
        with_cores(3, |_| assert_eq!(CoreNr::count(), 3));
        assert_eq!(CoreNr::count(), 192, "the outer machine again");
    });
    assert_eq!(CoreNr::count(), real);
}

#[test]
fn a_report_names_locations_and_labels() {
    let table = || {
        with_cores(4, |cores| {
            let (shared, read_only) = (
                Box::new(CachePadded::new(AtomicU64::new(0))),
                AtomicU64::new(0),
            );
            cores.name(&*shared, "free blocks");
            let report = steady(cores, || {
                shared.fetch_add(read_only.load(Ordering::Relaxed), Ordering::Relaxed);
            });
            let [first, second] = report.rows() else {
                panic!("{report}")
            };
            assert!(first.name.starts_with("free blocks @ "), "{}", first.name);
            assert!(first.name.contains("count/tests.rs:"), "{}", first.name);
            assert_eq!((first.reads, first.writes, first.transfers), (0, 40, 40));
            assert!(
                first
                    .after
                    .as_deref()
                    .is_some_and(|place| first.name.ends_with(place))
            );
            assert_eq!((second.reads, second.writes, second.transfers), (40, 0, 0));
            report.to_string()
        })
    };
    let first = table();
    assert!(
        first.starts_with("4 virtual cores, 40 operations"),
        "{first}"
    );
    assert_eq!(first, table(), "a run is deterministic");
}

/// 192 threads with 10^5 operations in all finish quickly.
#[test]
fn threads_may_run_on_virtual_cores() {
    with_cores(192, |cores| {
        let (shared, own) = (AtomicU64::new(0), Counter::default());
        cores.restart();
        thread::scope(|scope| {
            for core in CoreNr::all() {
                let (shared, own) = (&shared, &own);
                scope.spawn(move || {
                    cores.on(core, || {
                        for _ in 0..520 {
                            shared.fetch_add(1, Ordering::Relaxed);
                            own.add(1);
                        }
                    });
                });
            }
        });
        let report = cores.report(192 * 520);
        assert_eq!(shared.load(Ordering::Relaxed), 192 * 520);
        assert!(report.rows().iter().map(|row| row.writes).sum::<u64>() == 2 * 192 * 520);
        assert!(
            report.transfers() >= 191,
            "each core had to fetch the shared line"
        );
        let own_row = report.rows().iter().find(|row| row.transfers == 0);
        assert!(
            own_row.is_some_and(|row| row.writes == 192 * 520),
            "{report}"
        );
    });
}

#[test]
fn wrappers_have_the_size_of_the_types_they_replace() {
    assert_eq!(size_of::<AtomicU64>(), 8);
    assert_eq!(size_of::<AtomicBool>(), 1);
    assert_eq!(size_of::<AtomicPtr<u8>>(), size_of::<*mut u8>());
    assert_eq!(
        size_of::<Mutex<u64>>(),
        size_of::<parking_lot::Mutex<u64>>()
    );
    assert_eq!(
        size_of::<RwLock<u8>>(),
        size_of::<parking_lot::RwLock<u8>>()
    );
    assert_eq!(
        size_of::<OnceLock<u8>>(),
        size_of::<std::sync::OnceLock<u8>>()
    );
    assert_eq!(align_of::<AtomicU64>(), 8);
}
