//! Checks of the machine: libfabric and its providers, limits, priority, directories.

use super::{Finding, Level};
use crate::sockets;
use muster_fabric::{DefaultRails, Libfabric, NetKind};
use muster_hostlist::fold;
use muster_ipc::base_directory;
use muster_sys::limits::{self, Limit};
use muster_sys::lock::try_lock;
use muster_sys::procfs;
use std::fs;
use std::path::{Path, PathBuf};

/// Locked memory that RDMA devices usually require, in bytes.
const LOCKED_WISHED: u64 = 64 << 20;
/// Number of the capability CAP_SYS_NICE, which permits real-time scheduling.
const CAP_SYS_NICE: u32 = 23;
/// Directory of RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";

/// Runs all checks.
pub(super) fn look() -> Vec<Finding> {
    let devices = names_in(Path::new(DEVICES));
    let mut findings = Vec::new();
    match muster_fabric::load() {
        Ok(library) => findings.extend(providers(&library, &devices)),
        Err(error) => findings.push(Finding::bad(
            "libfabric",
            Level::Error,
            error.to_string(),
            "install libfabric (libfabric1, libfabric), or name one with MUSTER_LIBFABRIC",
        )),
    }
    findings.push(files(limits::hard(Limit::Files)));
    findings.push(locked(limits::hard(Limit::LockedMemory), &devices));
    let capabilities = fs::read_to_string("/proc/self/status").unwrap_or_default();
    findings.push(priority(
        has_capability(&capabilities),
        limits::hard(Limit::RealTime),
    ));
    findings.push(match procfs::is_ours() {
        true => Finding::ok("/proc", "of this pid namespace"),
        false => Finding::bad(
            "/proc",
            Level::Error,
            "missing, or of another pid namespace: an agent cannot watch its ranks",
            "mount /proc for this namespace (unshare --mount-proc), or start agents outside the container",
        ),
    });
    findings.push(match base_directory() {
        Ok(base) => leftovers(&base),
        Err(error) => Finding::bad(
            "directory",
            Level::Error,
            error.to_string(),
            "make it a directory of this user with mode 0700, or set MUSTER_DIR to another one",
        ),
    });
    findings
}

fn providers(library: &Libfabric, devices: &[String]) -> Vec<Finding> {
    let (major, minor) = library.version();
    let mut findings = vec![Finding::ok("libfabric", format!("version {major}.{minor}"))];
    // Agents have no psm rails.
    let kinds = NetKind::ALL
        .into_iter()
        .filter(|kind| *kind != NetKind::Psm);
    let served = kinds.filter(|kind| library.serves(*kind));
    let served: Vec<&str> = served.map(NetKind::word).collect();
    let uses_devices = served
        .iter()
        .any(|name| ["o2ib", "efa", "opx"].contains(name));
    let found = format!("for {}", served.join(", "));
    let missing_ip = ["udp", "tcp"]
        .into_iter()
        .find(|name| !served.contains(name));
    findings.push(match missing_ip {
        Some(name) => Finding::bad(
            "providers",
            Level::Error,
            format!("none for {name}"),
            "install a libfabric with the providers udp and tcp; fi_info lists them, FI_PROVIDER may hide some",
        ),
        None if !devices.is_empty() && !uses_devices => Finding::bad(
            "providers",
            Level::Warning,
            format!("{found}, and none for the devices {}", fold(devices.iter().map(String::as_str))),
            "install a libfabric with verbs, and check that a device is up (ibv_devinfo)",
        ),
        None => Finding::ok("providers", found),
    });
    let choice = DefaultRails::choose(library);
    // The interfaces are those of the providers: without a provider they are not known.
    let is_known = !choice.chosen.is_empty() || missing_ip.is_none();
    let of_interfaces = is_known.then(|| interfaces(&choice));
    findings.extend(of_interfaces);
    findings
}

/// Which interfaces are rails by default, which are not, and why.
fn interfaces(choice: &DefaultRails) -> Finding {
    if choice.chosen.iter().all(|one| one.address.is_loopback()) {
        return Finding::bad(
            "interfaces",
            Level::Warning,
            "only the loopback is up: agents of other nodes cannot be reached",
            "bring up an interface with an IPv4 address (ip link, ip address)",
        );
    }
    let chosen: Vec<String> = choice.chosen.iter().map(ToString::to_string).collect();
    let left_out = choice
        .left_out
        .iter()
        .map(|(one, why)| format!("not {one}: {why}"));
    let parts: Vec<String> = [chosen.join(", ")].into_iter().chain(left_out).collect();
    let found = format!("rails by default: {}", parts.join("; "));
    match &choice.makeshift {
        None => Finding::ok("interfaces", found),
        Some(why) => Finding::bad(
            "interfaces",
            Level::Warning,
            format!("{found}; {why}"),
            "set MUSTER_RAILS to the interfaces that reach the other nodes",
        ),
    }
}

fn files(hard: Option<u64>) -> Finding {
    let found = shown(hard, 1, "");
    let level = match hard {
        Some(count) if count < limits::OPEN_FILES_MIN => Level::Error,
        Some(count) if count < limits::open_files_wished() => Level::Warning,
        _ => return Finding::ok("open files", found),
    };
    Finding::bad(
        "open files",
        level,
        format!(
            "{found}; an agent requires 64 and four for each client, so {} clients are possible",
            limits::clients_served(hard.unwrap_or_default())
        ),
        "raise nofile in /etc/security/limits.conf, LimitNOFILE= of the service, or ulimit -Hn",
    )
}

fn locked(hard: Option<u64>, devices: &[String]) -> Finding {
    let found = shown(hard, 1024, " KiB");
    match hard {
        Some(bytes) if bytes < LOCKED_WISHED && !devices.is_empty() => Finding::bad(
            "memlock",
            Level::Warning,
            format!("{found}, but the node has devices that lock registered memory"),
            "set memlock to unlimited in /etc/security/limits.conf, and PropagateResourceLimitsExcept=MEMLOCK in \
             slurm.conf",
        ),
        _ => Finding::ok("memlock", found),
    }
}

fn priority(is_capable: bool, hard: Option<u64>) -> Finding {
    match (is_capable, hard) {
        (true, _) => Finding::ok("real time", "permitted (CAP_SYS_NICE)"),
        (false, Some(0)) => Finding::bad(
            "real time",
            Level::Warning,
            "not permitted: deadlines are up to three times as long, and a busy machine delays them more",
            "set an rtprio limit of 1 in /etc/security/limits.conf, LimitRTPRIO=1 of the service, or CAP_SYS_NICE",
        ),
        (false, limit) => Finding::ok(
            "real time",
            format!("permitted (rtprio {})", shown(limit, 1, "")),
        ),
    }
}

fn shown(limit: Option<u64>, unit: u64, name: &str) -> String {
    limit.map_or("unlimited".into(), |limit| {
        format!("{}{name}", limit / unit)
    })
}

fn has_capability(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    set.is_some_and(|set| set & (1 << CAP_SYS_NICE) != 0)
}

/// Finds directories and sockets of agents that have ended. Their state tables are no files and ended with them.
fn leftovers(base: &Path) -> Finding {
    let mut stale: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let path = entry.path();
        let lock = path.join("lock");
        let left = |name: &str| path.join(name).exists();
        let is_agent_directory = path.is_dir() && ["lock", "key", "sock"].into_iter().any(left);
        // A lock that can be taken has no holder. It is released at once.
        if is_agent_directory
            && (!lock.exists() || try_lock(&lock).is_ok_and(|lock| lock.is_some()))
        {
            stale.push(path);
        }
    }
    let is_socket = |path: &PathBuf| {
        !path
            .parent()
            .is_some_and(|parent| stale.contains(&parent.to_owned()))
    };
    let dead = sockets::candidates(base)
        .into_iter()
        .filter(|path| path.exists() && !sockets::answers(path));
    let dead: Vec<PathBuf> = dead.filter(is_socket).collect();
    stale.extend(dead);
    stale.sort();
    let base = base.display();
    if stale.is_empty() {
        return Finding::ok("leftovers", format!("none in {base}"));
    }
    let paths: Vec<String> = stale
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    Finding::bad(
        "leftovers",
        Level::Warning,
        format!("{} of agents that were killed, in {base}", stale.len()),
        format!(
            "the next agent there replaces them; or rm -r {}",
            paths.join(" ")
        ),
    )
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn limits_are_judged_by_the_requirements_of_an_agent() {
        for (hard, level) in [
            (Some(32), Level::Error),
            (Some(256), Level::Warning),
            (Some(4096), Level::Ok),
            (None, Level::Ok),
        ] {
            assert_eq!(files(hard).level, level, "{hard:?}");
        }
        let device = ["mlx5_0".to_owned()];
        for (hard, devices, level) in [
            (Some(64 << 10), &device[..], Level::Warning),
            (Some(64 << 10), &[], Level::Ok),
            (None, &device, Level::Ok),
        ] {
            assert_eq!(locked(hard, devices).level, level, "{hard:?} {devices:?}");
        }
        let finding = priority(false, Some(0));
        assert!(finding.level == Level::Warning && finding.remedy.unwrap().contains("rtprio"));
        assert_eq!(priority(false, Some(1)).level, Level::Ok);
        assert_eq!(priority(true, Some(0)).level, Level::Ok);
        assert!(has_capability("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(!has_capability("CapEff:\t0000000000000000\n") && !has_capability(""));
    }

    #[test]
    fn leftovers_of_a_killed_agent_are_found_and_a_running_agent_is_not() {
        let base = tempfile::tempdir().unwrap();
        assert_eq!(leftovers(base.path()).level, Level::Ok);
        for name in ["dead", "alive"] {
            let directory = base.path().join(name);
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join("lock"), "").unwrap();
        }
        let _held = try_lock(&base.path().join("alive/lock")).unwrap().unwrap();
        drop(UnixListener::bind(base.path().join("gone.control")).unwrap());
        let _listener = UnixListener::bind(base.path().join("n1.control")).unwrap();
        let finding = leftovers(base.path());
        assert!(finding.found.starts_with("2 of agents"), "{finding:?}");
        let remedy = finding.remedy.unwrap();
        assert!(
            remedy.contains("/dead") && remedy.contains("/gone.control"),
            "{remedy}"
        );
        assert!(
            !remedy.contains("alive") && !remedy.contains("n1"),
            "{remedy}"
        );
    }
}
