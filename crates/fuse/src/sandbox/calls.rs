//! **Purpose.** The filter for system calls: allows those that serving a mount needs, which are I/O
//! on open descriptors, memory that is not executable, threads, and clocks.
//!
//! **Invariants.** *No call takes a path, makes a socket, a ring or a process, or concerns another
//! process.* Calls for which the arguments decide that are allowed with safe arguments only.

use std::collections::BTreeMap;

use libc::{
    CLONE_NEWCGROUP, CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER,
    CLONE_NEWUTS, CLONE_THREAD, ENOSYS, EPERM, F_DUPFD_CLOEXEC, F_GETFD, F_GETFL, PROT_EXEC, c_int,
    c_long,
};
use seccompiler::{
    BackendError, BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp,
    SeccompCondition, SeccompFilter, SeccompRule,
};

/// Allowed with any arguments.
const ALLOWED: &[c_long] = &[
    // I/O on open descriptors.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_readahead,
    libc::SYS_fstat,
    // Only to unlock the image: it is locked before the sandbox begins.
    libc::SYS_flock,
    libc::SYS_close,
    libc::SYS_ppoll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_io_uring_enter,
    // Statistics are served on a socket that is listening already.
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_getsockopt,
    libc::SYS_shutdown,
    // Memory.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    // Threads.
    libc::SYS_futex,
    libc::SYS_membarrier,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getcpu,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    // Clocks and statistics of this process.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
];

const BLKDISCARD: u64 = 0x1277;
const BLKZEROOUT: u64 = 0x127f;
const PR_SET_NAME: u64 = 15;
const PR_SET_VMA: u64 = 0x5356_4d41;

const NAMESPACES: c_int = CLONE_NEWCGROUP
    | CLONE_NEWIPC
    | CLONE_NEWNET
    | CLONE_NEWNS
    | CLONE_NEWPID
    | CLONE_NEWUSER
    | CLONE_NEWUTS;

type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

/// Refuses all other system calls in all threads of the process, irrevocably.
pub(super) fn filter() -> Result<(), Error> {
    // The arguments of clone3 are in memory, where a filter cannot see them. After ENOSYS callers
    // use the older clone.
    let missing = Rules::from([(libc::SYS_clone3, Vec::new())]);
    let missing = program(missing, SeccompAction::Allow, errno(ENOSYS))?;
    let mut allowed = rules()?;
    allowed.insert(libc::SYS_clone3, Vec::new());
    let allowed = program(allowed, errno(EPERM), SeccompAction::Allow)?;
    seccompiler::apply_filter_all_threads(&missing)?;
    seccompiler::apply_filter_all_threads(&allowed)
}

fn errno(number: c_int) -> SeccompAction {
    SeccompAction::Errno(number.unsigned_abs())
}

fn program(
    rules: Rules,
    otherwise: SeccompAction,
    then: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    let machine = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, otherwise, then, machine)?.try_into()
}

fn rules() -> Result<Rules, BackendError> {
    let own = u64::from(std::process::id());
    let is = |argument, value| condition(argument, SeccompCmpOp::Eq, value);
    let has_not = |argument, bits: c_int| {
        let bits = u64::from(bits.unsigned_abs());
        condition(argument, SeccompCmpOp::MaskedEq(bits), 0)
    };
    let no_address = SeccompCondition::new(4, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?;
    let thread = u64::from(CLONE_THREAD.unsigned_abs());
    let no_process = thread | u64::from(NAMESPACES.unsigned_abs());
    let conditional = [
        (
            libc::SYS_clone,
            vec![condition(0, SeccompCmpOp::MaskedEq(no_process), thread)?],
        ),
        (libc::SYS_mmap, vec![has_not(2, PROT_EXEC)?]),
        (libc::SYS_mprotect, vec![has_not(2, PROT_EXEC)?]),
        (libc::SYS_tgkill, vec![is(0, own)?]),
        // For the calling thread only; workers of rings pin themselves.
        (libc::SYS_sched_setaffinity, vec![is(0, 0)?]),
        // On connected sockets only.
        (libc::SYS_sendto, vec![no_address]),
        (libc::SYS_prctl, vec![is(0, PR_SET_NAME)?]),
        (libc::SYS_prctl, vec![is(0, PR_SET_VMA)?]),
        (libc::SYS_ioctl, vec![is(1, BLKDISCARD)?]),
        (libc::SYS_ioctl, vec![is(1, BLKZEROOUT)?]),
        (libc::SYS_fcntl, vec![is(1, F_DUPFD_CLOEXEC as u64)?]),
        (libc::SYS_fcntl, vec![is(1, F_GETFD as u64)?]),
        (libc::SYS_fcntl, vec![is(1, F_GETFL as u64)?]),
    ];
    let mut rules: Rules = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    for (call, conditions) in conditional {
        let rule = SeccompRule::new(conditions)?;
        rules.entry(call).or_default().push(rule);
    }
    Ok(rules)
}

fn condition(
    argument: u8,
    compare: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, compare, value)
}
