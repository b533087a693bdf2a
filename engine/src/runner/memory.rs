//! What the machine has: memory that is free to take, cores that this process may use.

use std::path::Path;
use std::{fs, thread};

/// Where control groups are mounted.
const GROUPS: &str = "/sys/fs/cgroup";
/// A group's limit, what it has taken, and what `memory.stat` calls files that nobody uses now; and
/// the same of the first version, which has a hierarchy for memory alone.
const NEW_FILES: [&str; 3] = ["memory.max", "memory.current", "inactive_file "];
const OLD_FILES: [&str; 3] =
    ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "];

/// Bytes that can be taken without pushing others out, within the limits of this process' group
/// and of those around it. `None` where the system does not say.
pub fn available() -> Option<u64> {
    let machine = meminfo(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = groups_left(&own, |file| fs::read_to_string(Path::new(GROUPS).join(file)).ok());
    Some(group.map_or(machine, |it| it.min(machine)))
}

/// Cores that this thread may run on, and no more of them than a CPU quota pays for; empty where
/// the system does not say. To be asked before the thread is pinned.
pub fn cores() -> Vec<usize> {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let mut cores = allowed(&status).unwrap_or_default();
    cores.truncate(thread::available_parallelism().map_or(usize::MAX, Into::into));
    cores
}

fn meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|it| it.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The least that a process' control group and those around it may still take; `None` without a
/// limit. `own`: its groups, one hierarchy a line; `read` gives a file by its path from where they
/// are mounted. In a container the mount may begin at the group itself: what is not there is no
/// limit, and the outermost group is asked as well.
fn groups_left(own: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let of_line = |line: &str| {
        let (_, line) = line.split_once(':')?;
        let (controllers, path) = line.split_once(':')?;
        let (mount, files) = match controllers {
            "" => ("", NEW_FILES),
            _ if controllers.split(',').any(|it| it == "memory") => ("memory", OLD_FILES),
            _ => return None,
        };
        let groups = Path::new(path.trim_start_matches('/')).ancestors();
        groups.filter_map(|it| group_left(&Path::new(mount).join(it), files, &read)).min()
    };
    own.lines().filter_map(of_line).min()
}

/// What one group may still take. Files that were read, such as the model the last time, count as
/// taken but are given back when memory is asked for.
fn group_left(
    group: &Path,
    [max, current, cached]: [&str; 3],
    read: impl Fn(&Path) -> Option<String>,
) -> Option<u64> {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let max = number(&read(&group.join(max))?)?;
    let current = number(&read(&group.join(current))?)?;
    let stat = read(&group.join("memory.stat")).unwrap_or_default();
    let cached = stat.lines().find_map(|it| number(it.strip_prefix(cached)?));
    Some(max.saturating_sub(current.saturating_sub(cached.unwrap_or(0))))
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
