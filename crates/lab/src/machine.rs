//! **Purpose.** The machine and the code that figures were measured on. Without these facts a
//! figure can neither be judged nor repeated.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde::Serialize;

/// The machine, the moment, the code and the options of a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MachineFacts {
    /// The CPU's name in `/proc/cpuinfo`.
    pub cpu_model: String,
    /// Number of cores that this process may run on.
    pub cores: usize,
    /// Whether the kernel runs under a hypervisor, where clocks and neighbours add noise.
    pub virtual_machine: bool,
    /// System name, release and architecture.
    pub kernel: String,
    /// The size of the machine's memory.
    pub memory_bytes: u64,
    /// The frequency governor of the first core, where there is one.
    pub governor: Option<String>,
    /// The moment in UTC, RFC 3339.
    pub date: String,
    /// The commit of the working tree, with `-dirty` when it has changes; `None` outside of git.
    pub git_revision: Option<String>,
    /// The options of the run, by name.
    pub options: BTreeMap<String, String>,
}

impl MachineFacts {
    /// Collects the facts of this machine. A fact that cannot be read is left empty, so that the
    /// benchmark still runs.
    #[must_use]
    pub fn collect() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let governor = fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
        let uname = rustix::system::uname();
        Self {
            cpu_model: cpu_model(&cpuinfo).unwrap_or("unknown").to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            virtual_machine: has_cpu_flag(&cpuinfo, "hypervisor"),
            kernel: format!(
                "{} {} {}",
                uname.sysname().to_string_lossy(),
                uname.release().to_string_lossy(),
                uname.machine().to_string_lossy()
            ),
            memory_bytes: memory_bytes(&meminfo).unwrap_or(0),
            governor: governor.ok().map(|text| text.trim().to_owned()),
            date: jiff::Timestamp::now()
                .round(jiff::Unit::Second)
                .map_or_else(|_| String::new(), |now| now.to_string()),
            git_revision: git_revision(),
            options: BTreeMap::new(),
        }
    }

    /// Adds an option of the run.
    #[must_use]
    pub fn with_option(mut self, name: impl Into<String>, value: &impl ToString) -> Self {
        self.options.insert(name.into(), value.to_string());
        self
    }
}

fn cpu_model(cpuinfo: &str) -> Option<&str> {
    // The key is "model name" on x86, "Processor" on 32-bit ARM, "cpu" on s390 and others.
    ["model name", "Processor", "cpu"]
        .iter()
        .find_map(|key| value_of(cpuinfo, key))
}

fn has_cpu_flag(cpuinfo: &str, flag: &str) -> bool {
    value_of(cpuinfo, "flags")
        .is_some_and(|flags| flags.split_ascii_whitespace().any(|f| f == flag))
}

fn memory_bytes(meminfo: &str) -> Option<u64> {
    let kib = value_of(meminfo, "MemTotal")?.strip_suffix("kB")?;
    kib.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The value of the first `key: value` line of a `/proc` file.
fn value_of<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then_some(value.trim())
    })
}

fn git_revision() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        output.status.success().then_some(output.stdout)
    };
    let commit = String::from_utf8(git(&["rev-parse", "--short=12", "HEAD"])?).ok()?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
    let dirty = if changes.is_empty() { "" } else { "-dirty" };
    Some(format!("{}{dirty}", commit.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPUINFO: &str = "processor\t: 0\nmodel name\t: Some CPU @ 2.00GHz\n\
                           flags\t\t: fpu vme hypervisor lahf_lm\n\nprocessor\t: 1\n";

    #[test]
    fn parses_the_kernels_files() {
        assert_eq!(cpu_model(CPUINFO), Some("Some CPU @ 2.00GHz"));
        assert!(has_cpu_flag(CPUINFO, "hypervisor"));
        assert!(!has_cpu_flag(CPUINFO, "hyper"));
        assert_eq!(
            memory_bytes("MemTotal:       16 kB\nMemFree: 4 kB\n"),
            Some(16_384)
        );
        assert_eq!(memory_bytes("MemFree: 4 kB\n"), None);
    }

    #[test]
    fn this_machine_has_facts() {
        let facts = MachineFacts::collect().with_option("rounds", &5);
        assert!(facts.cores >= 1);
        assert!(facts.memory_bytes > 1 << 20);
        assert!(facts.kernel.starts_with("Linux "), "{}", facts.kernel);
        assert!(
            facts.date.ends_with('Z') && facts.date.len() == 20,
            "{}",
            facts.date
        );
        assert_eq!(facts.options.get("rounds").map(String::as_str), Some("5"));
    }
}
