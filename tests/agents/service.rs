//! An agent as a systemd service: systemd accepts the unit, is notified when the agent serves and when it
//! ends, and the log goes to the journal's socket. systemd does not run as the first process here: the tests
//! use its verifier, and provide its sockets.

use muster_tests::process::Process;
use muster_tests::{DEADLINE, can, program, skipped, workspace};
use rustix::process::Signal;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Writes the unit for the programs under test, with one text replaced.
fn unit(directory: &Path, from: &str, to: &str) -> PathBuf {
    let text = fs::read_to_string(workspace().join("share/systemd/musterd.service")).unwrap();
    let musterd = program("musterd").display().to_string();
    assert!(text.contains("ExecStart=/usr/local/bin/musterd ") && text.contains(from));
    let path = directory.join("musterd.service");
    let text = text.replace("/usr/local/bin/musterd", &musterd);
    fs::write(&path, text.replace(from, to)).unwrap();
    path
}

/// Returns the result of systemd's verifier for the unit, if the verifier exists.
fn verify(unit: &Path) -> Option<(bool, String)> {
    let mut command = Command::new("systemd-analyze");
    let output = command
        .args(["verify", "--man=no"])
        .arg(unit)
        .output()
        .ok()?;
    let printed = String::from_utf8_lossy(&output.stderr);
    // Units of this machine that the unit refers to may have errors of their own.
    let ours = printed
        .lines()
        .filter(|line| line.contains("musterd.service"));
    Some((output.status.success(), ours.collect::<Vec<_>>().join("\n")))
}

#[test]
fn systemd_accepts_the_unit() {
    let directory = tempfile::tempdir().unwrap();
    let Some((is_right, printed)) = verify(&unit(directory.path(), "Type=notify", "Type=notify"))
    else {
        skipped("systemd", "no systemd-analyze on this machine");
        return;
    };
    assert!(is_right && printed.is_empty(), "{printed}");
    // The verifier reports an error if there is one.
    let (_, printed) = verify(&unit(directory.path(), "LimitRTPRIO", "LimitRTPRIX")).unwrap();
    assert!(printed.contains("LimitRTPRIX"), "{printed}");
}

/// Starts a member with these variables, through the command `before`.
fn start(directory: &Path, index: usize, before: &[&str], variables: &[(&str, &Path)]) -> Process {
    let musterd = program("musterd").display().to_string();
    let rail = format!("127.73.20.{index}@udp0");
    let own = [
        &musterd[..],
        "--name",
        "n1",
        "--rail",
        &rail,
        "--print-events",
        "plain",
    ];
    let words = [before, &own].concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env("MUSTER_DIR", directory);
    command
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    Process::start(&mut command)
}

/// A socket that receives notifications, with a time-out.
fn socket(path: &Path) -> UnixDatagram {
    let socket = UnixDatagram::bind(path).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket
}

fn next(socket: &UnixDatagram) -> Vec<u8> {
    let mut datagram = vec![0; 16 << 10];
    let length = socket.recv(&mut datagram).expect("a notification");
    datagram.truncate(length);
    datagram
}

#[test]
fn systemd_is_notified_when_the_agent_serves_and_ends() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let notifications = socket(&path);
    let mut agent = start(directory.path(), 1, &[], &[("NOTIFY_SOCKET", &path)]);
    assert_eq!(next(&notifications), b"READY=1");
    agent.signal(Signal::TERM);
    assert_eq!(next(&notifications), b"STOPPING=1");
    assert!(agent.end().success());
}

/// The agent's loop sends watchdog notifications, if systemd waits for them from this process.
#[test]
fn the_loop_notifies_the_watchdog() {
    let directory = tempfile::tempdir().unwrap();
    for (index, usec, pid, rounds) in [
        (3, "20000", None, 3),
        (4, "20000", Some("1"), 0),
        (5, "soon", None, 0),
    ] {
        let path = directory.path().join(format!("notify-{index}"));
        let notifications = socket(&path);
        let mut variables = vec![("NOTIFY_SOCKET", path.as_path())];
        variables.push(("WATCHDOG_USEC", Path::new(usec)));
        variables.extend(pid.map(|pid| ("WATCHDOG_PID", Path::new(pid))));
        let mut agent = start(directory.path(), index, &[], &variables);
        assert_eq!(next(&notifications), b"READY=1");
        for _ in 0..rounds {
            assert_eq!(next(&notifications), b"WATCHDOG=1");
        }
        agent.signal(Signal::TERM);
        let mut words = std::iter::repeat_with(|| next(&notifications));
        let last = words.find(|word| rounds == 0 || word != b"WATCHDOG=1");
        assert_eq!(last.as_deref(), Some(&b"STOPPING=1"[..]));
        assert!(agent.end().success());
    }
}

/// The journal's socket, in a mount namespace of the agent: the log goes there, and the level is respected.
#[test]
fn the_log_goes_to_the_journal() {
    if !can("namespaces", &["unshare", "--mount"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let journal = directory.path().join("journal");
    fs::create_dir(&journal).unwrap();
    let notifications = socket(&journal.join("socket"));
    let mount = "mount -t tmpfs none /run && mkdir -p /run/systemd/journal && \
                 mount --bind \"$JOURNAL\" /run/systemd/journal && exec \"$@\"";
    let before = ["unshare", "--mount", "sh", "-c", mount, "sh"];
    let variables = [
        ("JOURNAL", journal.as_path()),
        ("MUSTER_LOG_TO", Path::new("journald")),
        ("MUSTER_LOG", Path::new("info")),
    ];
    let _agent = start(directory.path(), 2, &before, &variables);
    // The agent first sends an empty datagram.
    let line = std::iter::repeat_with(|| next(&notifications)).find(|line| !line.is_empty());
    let line = String::from_utf8_lossy(&line.unwrap_or_default()).into_owned();
    for word in ["MESSAGE", "PRIORITY", "SYSLOG_IDENTIFIER", "musterd"] {
        assert!(line.contains(word), "{word}: {line:?}");
    }
}
