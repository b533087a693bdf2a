//! What this machine has to compute with: cores in their order of kinship, memory.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;

use rustix::thread::{CpuSet, sched_getaffinity};

/// Physical cores that this program may use, near ones together; each with its logical CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores(Vec<Vec<usize>>);

/// Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub total: u64,
    pub available: u64,
}

impl Cores {
    pub fn new(cores: Vec<Vec<usize>>) -> Self {
        Self(cores)
    }

    /// As the system tells: the CPUs of the affinity mask, and no more of them than a CPU quota
    /// pays for.
    pub fn of_machine() -> Self {
        let paid = thread::available_parallelism().map_or(1, Into::into);
        Self::read(&allowed(), paid, Path::new("/sys/devices/system/cpu"))
    }

    fn read(allowed: &[usize], paid: usize, system: &Path) -> Self {
        let number = |cpu: usize, file: &str| -> Option<u64> {
            let path = system.join(format!("cpu{cpu}/topology/{file}"));
            fs::read_to_string(path).ok()?.trim().parse().ok()
        };
        let mut cores = BTreeMap::<_, Vec<usize>>::new();
        for &cpu in allowed {
            let package = number(cpu, "physical_package_id").unwrap_or(0);
            let core = number(cpu, "core_id").unwrap_or(cpu as u64);
            cores.entry((package, core)).or_default().push(cpu);
        }
        let mut left = paid;
        let mut kept = Vec::new();
        for core in cores.into_values() {
            if left == 0 {
                break;
            }
            let taken = core.len().min(left);
            left -= taken;
            kept.push(core[..taken].to_vec());
        }
        Self(kept)
    }

    pub fn cores(&self) -> usize {
        self.0.len()
    }

    pub fn cpus(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    /// Two devices that share no core; with one core there is only one to name.
    pub fn halves(&self) -> [String; 2] {
        let (first, second) = self.0.split_at(self.0.len().div_ceil(2));
        let device = |cores: &[Vec<usize>]| {
            let mut cpus = cores.concat();
            cpus.sort_unstable();
            format!("cpu:{}", ranges(&cpus))
        };
        [device(first), device(if second.is_empty() { first } else { second })]
    }
}

impl Memory {
    /// As the system tells, within the limit of a control group where there is one.
    pub fn of_machine() -> Option<Self> {
        let text = fs::read_to_string("/proc/meminfo").ok()?;
        let group = |file| {
            let text = fs::read_to_string(Path::new("/sys/fs/cgroup").join(file)).ok()?;
            text.trim().parse().ok()
        };
        let used = || {
            // Files that were read, the model among them, are given back when memory is asked for.
            let stat = fs::read_to_string("/sys/fs/cgroup/memory.stat").ok()?;
            let files = stat.lines().find_map(|it| it.strip_prefix("inactive_file "));
            let files = files.and_then(|it| it.trim().parse().ok()).unwrap_or(0);
            group("memory.current").map(|it: u64| it.saturating_sub(files))
        };
        Self::read(&text, group("memory.max"), used())
    }

    fn read(meminfo: &str, limit: Option<u64>, used: Option<u64>) -> Option<Self> {
        let bytes = |name: &str| -> Option<u64> {
            let line = meminfo.lines().find_map(|it| it.strip_prefix(name))?;
            let number: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
            number.checked_mul(1024)
        };
        let (total, available) = (bytes("MemTotal:")?, bytes("MemAvailable:")?);
        let Some(limit) = limit.filter(|&it| it < total) else {
            return Some(Self { total, available });
        };
        let left = limit.saturating_sub(used.unwrap_or(0));
        Some(Self { total: limit, available: available.min(left) })
    }
}

/// Sorted numbers as `0-3,8`.
fn ranges(sorted: &[usize]) -> String {
    let mut runs = Vec::<(usize, usize)>::new();
    for &it in sorted {
        match runs.last_mut() {
            Some((_, end)) if *end + 1 == it => *end = it,
            _ => runs.push((it, it)),
        }
    }
    let shown = runs.iter().map(|&(start, end)| match start == end {
        true => start.to_string(),
        false => format!("{start}-{end}"),
    });
    shown.collect::<Vec<_>>().join(",")
}

fn allowed() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(mask) => (0..CpuSet::MAX_CPU).filter(|&it| mask.is_set(it)).collect(),
        Err(_) => (0..thread::available_parallelism().map_or(1, Into::into)).collect(),
    }
}

#[cfg(test)]
mod tests;
