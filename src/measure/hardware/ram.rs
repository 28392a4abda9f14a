//! RAM, and the limits that cgroups put on it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::{Memory, number, text};

/// A limit on the memory of a group of processes (bytes).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// The limit.
    pub max: u64,
    /// What may still be taken; file cache that the kernel gives back counts as free.
    pub room: u64,
    /// The file it stands in.
    pub source: String,
}

/// The lines of `/proc/meminfo`, in bytes.
pub(super) type Meminfo = HashMap<String, u64>;

pub(super) fn meminfo(root: &Path) -> Option<Meminfo> {
    text(&root.join("proc/meminfo")).map(|all| lines(&all))
}

/// `Key: 123 kB` lines; a key may be preceded by `Node 0`. Lines that do not read so are left out.
pub(super) fn lines(all: &str) -> Meminfo {
    let line = |line: &str| {
        let (key, value) = line.split_once(':')?;
        let key = key.split_whitespace().last()?.to_owned();
        let mut words = value.split_whitespace();
        let number: u64 = words.next()?.parse().ok()?;
        let unit = if words.next() == Some("kB") { 1024 } else { 1 };
        Some((key, number.checked_mul(unit)?))
    };
    all.lines().filter_map(line).collect()
}

/// RAM by `MemAvailable`, which counts what the kernel can give back and keeps what it needs itself.
pub(super) fn of_meminfo(read: &Meminfo, notes: &mut Vec<String>) -> Option<Memory> {
    let get = |key: &str| read.get(key).copied();
    let total = get("MemTotal").filter(|total| *total > 0)?;
    if let Some(available) = get("MemAvailable") {
        return Some(Memory { total, free: available.min(total), source: "/proc/meminfo MemAvailable".into() });
    }
    let free = get("MemFree")?;
    let cache = ["Buffers", "Cached", "SReclaimable"].iter().filter_map(|key| get(key)).fold(0u64, u64::saturating_add);
    let free = free.saturating_add(cache.saturating_sub(get("Shmem").unwrap_or(0)));
    notes.push("/proc/meminfo has no MemAvailable: free memory and page cache were added up instead".into());
    Some(Memory { total, free: free.min(total), source: "/proc/meminfo MemFree and page cache".into() })
}

/// RAM where there is no `/proc/meminfo`.
pub(super) fn of_system() -> Option<Memory> {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let (total, free) = (system.total_memory(), system.available_memory());
    (total > 0).then(|| Memory { total, free: free.min(total), source: "the system".into() })
}

/// The tightest limit of a process's groups, theirs and all above them, version 1 or 2.
pub(super) fn limit(root: &Path, process: Option<u32>) -> Option<Limit> {
    let who = process.map_or_else(|| "self".to_owned(), |id| id.to_string());
    let groups = text(&root.join("proc").join(who).join("cgroup")).unwrap_or_default();
    let mut found: Vec<Limit> = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        if controllers.is_empty() {
            found.extend(folders(root, "sys/fs/cgroup", group).iter().filter_map(|folder| version_2(root, folder)));
        } else if controllers.split(',').any(|name| name == "memory") {
            let all = folders(root, "sys/fs/cgroup/memory", group);
            found.extend(all.iter().filter_map(|folder| version_1(root, folder)));
        }
    }
    found.into_iter().min_by_key(|limit| limit.room)
}

/// A group's folder and those above it, up to the mount. In a container the group's own path may not be there: its
/// mount is then the group.
fn folders(root: &Path, mount: &str, group: &str) -> Vec<PathBuf> {
    let mount = root.join(mount);
    let inside = group.trim_start_matches('/');
    let climbs = Path::new(inside).components().any(|part| matches!(part, std::path::Component::ParentDir));
    let own = if climbs { mount.clone() } else { mount.join(inside) };
    own.ancestors().take_while(|folder| folder.starts_with(&mount)).map(Path::to_owned).collect()
}

fn version_2(root: &Path, folder: &Path) -> Option<Limit> {
    // `memory.high` throttles before `memory.max` kills: both end the fun.
    let limits = ["memory.max", "memory.high"].map(|file| number(&folder.join(file)).map(|max| (max, file)));
    let (max, file) = limits.into_iter().flatten().min()?;
    let used = number(&folder.join("memory.current"))?;
    let stat = stat(&folder.join("memory.stat"));
    Some(limit_of(root, &folder.join(file), max, used, cache(&stat, "inactive_file", "active_file")))
}

fn version_1(root: &Path, folder: &Path) -> Option<Limit> {
    /// Version 1 says "no limit" as the largest number of pages.
    const NONE: u64 = 1 << 60;
    let file = folder.join("memory.limit_in_bytes");
    let max = number(&file).filter(|max| *max < NONE)?;
    let used = number(&folder.join("memory.usage_in_bytes"))?;
    let stat = stat(&folder.join("memory.stat"));
    Some(limit_of(root, &file, max, used, cache(&stat, "total_inactive_file", "total_active_file")))
}

fn limit_of(root: &Path, file: &Path, max: u64, used: u64, cache: u64) -> Limit {
    let shown = file.strip_prefix(root).unwrap_or(file);
    Limit { max, room: max.saturating_sub(used.saturating_sub(cache)), source: format!("/{}", shown.display()) }
}

/// File cache, mapped weights included: it is charged to the group, and given back when memory gets tight.
fn cache(stat: &HashMap<String, u64>, inactive: &str, active: &str) -> u64 {
    let get = |key: &str| stat.get(key).copied().unwrap_or(0);
    get(inactive).saturating_add(get(active))
}

fn stat(path: &Path) -> HashMap<String, u64> {
    let all = text(path).unwrap_or_default();
    let line = |line: &str| {
        let (key, value) = line.split_once(' ')?;
        Some((key.to_owned(), value.trim().parse().ok()?))
    };
    all.lines().filter_map(line).collect()
}
