//! An agent as a service of systemd: the unit is one that systemd takes, it is told when the agent serves and when
//! it ends, and the log goes to the journal's socket. Without systemd as the first process: its own verifier, and
//! its sockets played by the test.

use muster_tests::{DEADLINE, can, program, skipped, workspace};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The unit, for the programs under test, with a line exchanged.
fn unit(directory: &Path, from: &str, to: &str) -> PathBuf {
    let text = fs::read_to_string(workspace().join("share/systemd/musterd.service")).unwrap();
    let musterd = program("musterd").display().to_string();
    assert!(text.contains("ExecStart=/usr/local/bin/musterd ") && text.contains(from));
    let path = directory.join("musterd.service");
    let text = text.replace("/usr/local/bin/musterd", &musterd);
    fs::write(&path, text.replace(from, to)).unwrap();
    path
}

/// What systemd's verifier says of our unit, if there is one.
fn verify(unit: &Path) -> Option<(bool, String)> {
    let mut command = Command::new("systemd-analyze");
    let output = command
        .args(["verify", "--man=no"])
        .arg(unit)
        .output()
        .ok()?;
    let said = String::from_utf8_lossy(&output.stderr);
    // Units of this machine that ours names may have faults of their own.
    let ours = said.lines().filter(|line| line.contains("musterd.service"));
    Some((output.status.success(), ours.collect::<Vec<_>>().join("\n")))
}

#[test]
fn systemd_takes_the_unit() {
    let directory = tempfile::tempdir().unwrap();
    let Some((is_right, said)) = verify(&unit(directory.path(), "Type=notify", "Type=notify"))
    else {
        skipped("systemd", "no systemd-analyze on this machine");
        return;
    };
    assert!(is_right && said.is_empty(), "{said}");
    // It would say what is wrong.
    let (_, said) = verify(&unit(directory.path(), "LimitRTPRIO", "LimitRTPRIX")).unwrap();
    assert!(said.contains("LimitRTPRIX"), "{said}");
}

/// A member that is killed when it is dropped.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A member that runs with these variables, and what before it.
fn start(directory: &Path, index: usize, before: &[&str], variables: &[(&str, &Path)]) -> Agent {
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
    Agent(command.spawn().unwrap())
}

/// A socket that takes what is told there, and gives up some time.
fn socket(path: &Path) -> UnixDatagram {
    let socket = UnixDatagram::bind(path).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket
}

fn next(socket: &UnixDatagram) -> Vec<u8> {
    let mut datagram = vec![0; 16 << 10];
    let length = socket.recv(&mut datagram).expect("a word");
    datagram.truncate(length);
    datagram
}

#[test]
fn systemd_is_told_when_it_serves_and_when_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let told = socket(&path);
    let mut agent = start(directory.path(), 1, &[], &[("NOTIFY_SOCKET", &path)]);
    assert_eq!(next(&told), b"READY=1");
    kill_process(Pid::from_child(&agent.0), Signal::TERM).unwrap();
    assert_eq!(next(&told), b"STOPPING=1");
    assert!(agent.0.wait().unwrap().success());
}

/// Its loop says that it goes round, where systemd waits for that, and of whom it waits for it.
#[test]
fn the_watchdog_is_told_by_the_loop() {
    let directory = tempfile::tempdir().unwrap();
    for (index, usec, pid, rounds) in [
        (3, "20000", None, 3),
        (4, "20000", Some("1"), 0),
        (5, "soon", None, 0),
    ] {
        let path = directory.path().join(format!("notify-{index}"));
        let told = socket(&path);
        let mut variables = vec![("NOTIFY_SOCKET", path.as_path())];
        variables.push(("WATCHDOG_USEC", Path::new(usec)));
        variables.extend(pid.map(|pid| ("WATCHDOG_PID", Path::new(pid))));
        let mut agent = start(directory.path(), index, &[], &variables);
        assert_eq!(next(&told), b"READY=1");
        for _ in 0..rounds {
            assert_eq!(next(&told), b"WATCHDOG=1");
        }
        kill_process(Pid::from_child(&agent.0), Signal::TERM).unwrap();
        let mut words = std::iter::repeat_with(|| next(&told));
        let last = words.find(|word| rounds == 0 || word != b"WATCHDOG=1");
        assert_eq!(last.as_deref(), Some(&b"STOPPING=1"[..]));
        assert!(agent.0.wait().unwrap().success());
    }
}

/// The journal's own socket, of a machine that the agent alone sees: the log goes there, and the level is obeyed.
#[test]
fn the_log_goes_to_the_journal() {
    if !can("namespaces", &["unshare", "--mount"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let journal = directory.path().join("journal");
    fs::create_dir(&journal).unwrap();
    let told = socket(&journal.join("socket"));
    let mount = "mount -t tmpfs none /run && mkdir -p /run/systemd/journal && \
                 mount --bind \"$JOURNAL\" /run/systemd/journal && exec \"$@\"";
    let before = ["unshare", "--mount", "sh", "-c", mount, "sh"];
    let variables = [
        ("JOURNAL", journal.as_path()),
        ("MUSTER_LOG_TO", Path::new("journald")),
        ("MUSTER_LOG", Path::new("info")),
    ];
    let _agent = start(directory.path(), 2, &before, &variables);
    // It knocks first, with nothing to say.
    let line = std::iter::repeat_with(|| next(&told)).find(|line| !line.is_empty());
    let line = String::from_utf8_lossy(&line.unwrap_or_default()).into_owned();
    for word in ["MESSAGE", "PRIORITY", "SYSLOG_IDENTIFIER", "musterd"] {
        assert!(line.contains(word), "{word}: {line:?}");
    }
}
