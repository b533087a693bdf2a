//! What the machine has: memory that is free to take, cores that this process may use.

use std::fs;

/// Bytes that can be taken without pushing others out, within the limits of this process' group.
/// `None` where the system does not say.
pub fn available() -> Option<u64> {
    let machine = meminfo(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let read = |name: &str| fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    let group = group_left(read("memory.max").as_deref(), read("memory.current").as_deref());
    Some(group.map_or(machine, |it| it.min(machine)))
}

/// Cores that this process may run on; empty where the system does not say.
pub fn cores() -> Vec<usize> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    allowed(&status).unwrap_or_default()
}

fn meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|it| it.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// What a control group may still take; `None` without a limit.
fn group_left(max: Option<&str>, current: Option<&str>) -> Option<u64> {
    let max: u64 = max?.trim().parse().ok()?;
    let current: u64 = current?.trim().parse().ok()?;
    Some(max.saturating_sub(current))
}

fn allowed(status: &str) -> Option<Vec<usize>> {
    let line = status.lines().find_map(|it| it.strip_prefix("Cpus_allowed_list:"))?;
    let mut cores = Vec::new();
    for part in line.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cores.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(cores)
}

#[cfg(test)]
mod tests;
