//! `muster run --hosts` over a real ssh (run-2): the test's own server on addresses of loopback, each of
//! which is a host.

use muster_tests::compile::compile;
use muster_tests::job::{Job, await_nothing_left, job, processes_on};
use muster_tests::launchers::{muster_run, venv};
use muster_tests::process::{Process, signal_all};
use muster_tests::{DEADLINE, skipped, workspace};
use rustix::process::{Pid, Signal};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

const HOSTS: u8 = 4;

/// An sshd for four hosts; it is ended when dropped. Its files are in a folder of the test.
struct Sshd {
    _process: Process,
    folder: PathBuf,
    network: String,
    port: u16,
}

impl Sshd {
    /// Returns `None`, after printing the reason, if there is no sshd or login is not possible.
    fn start(folder: &Path, network: u8) -> Option<Self> {
        let Some(program) = find_sshd() else {
            skipped("sshd", "not in /usr/sbin, and not by make setup");
            return None;
        };
        let network = format!("127.{network}.3");
        let port = TcpListener::bind((format!("{network}.1"), 0))
            .and_then(|listener| listener.local_addr())
            .expect("an address of loopback")
            .port();
        for name in ["host-key", "key", "unknown-key"] {
            let path = folder.join(name);
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(path)
                .status();
            if !made.is_ok_and(|status| status.success()) {
                skipped("sshd", "no ssh-keygen");
                return None;
            }
        }
        write_server(folder, &network, port);
        write_client(folder, &network, port);
        let process = Process::start(&mut serve(folder, &program));
        let end = Instant::now() + DEADLINE;
        let mut output_lines = Vec::new();
        let listens = |output_lines: &[String]| {
            let count = |line: &&String| line.starts_with("Server listening");
            output_lines.iter().filter(count).count() == usize::from(HOSTS)
        };
        while !listens(&output_lines) {
            let Ok(line) = process.line_until(end) else {
                skipped(
                    "ssh-login",
                    &format!("{} does not run: {output_lines:?}", program.display()),
                );
                return None;
            };
            output_lines.push(line);
        }
        let sshd = Self {
            _process: process,
            folder: folder.to_owned(),
            network,
            port,
        };
        let tried = sshd.ssh().arg(sshd.host(1)).arg("true").output();
        let tried = tried.expect("ssh-keygen is there, so ssh is");
        if !tried.status.success() {
            let why = String::from_utf8_lossy(&tried.stderr).into_owned();
            skipped(
                "ssh-login",
                &format!("no login is possible by {}: {why}", program.display()),
            );
            return None;
        }
        Some(sshd)
    }

    fn host(&self, number: u8) -> String {
        format!("{}.{number}", self.network)
    }

    fn words(&self) -> String {
        format!(
            "ssh -F {} -o BatchMode=yes",
            self.folder.join("config").display()
        )
    }

    fn ssh(&self) -> Command {
        let words = self.words();
        let mut words = words.split(' ');
        let mut ssh = Command::new(words.next().expect("a word"));
        ssh.args(words).stdin(Stdio::null());
        ssh
    }

    /// `muster run` on these hosts, with its files in the folder.
    fn run(&self, hosts: &str) -> Command {
        let mut run = muster_run();
        run.args(["--hosts", hosts, "--ssh", &self.words()])
            .env("TMPDIR", &self.folder)
            .env("MUSTER_DIR", self.folder.join("m"));
        run
    }

    fn all(&self) -> String {
        format!("{}.[1-{HOSTS}]", self.network)
    }

    /// Processes of this host: launcher, agent, ranks.
    fn processes_of(&self, host: &str) -> Vec<Pid> {
        processes_on(host, &self.folder)
    }
}

fn find_sshd() -> Option<PathBuf> {
    let own = workspace().join("target/sshd/usr/sbin/sshd");
    [PathBuf::from("/usr/sbin/sshd"), own]
        .into_iter()
        .find(|path| path.is_file())
}

/// The configuration sets the host's variables for each address.
fn write_server(folder: &Path, network: &str, port: u16) {
    let place = folder.display();
    let mut text = format!(
        "Port {port}\nHostKey {place}/host-key\nPidFile none\nAuthorizedKeysFile {place}/key.pub\nUsePAM no\n\
         PasswordAuthentication no\nKbdInteractiveAuthentication no\nStrictModes no\nMaxStartups 100\n\
         PermitRootLogin prohibit-password\n"
    );
    for host in 1..=HOSTS {
        text += &format!("ListenAddress {network}.{host}\n");
    }
    for host in 1..=HOSTS {
        text += &format!(
            "Match LocalAddress {network}.{host}\n  SetEnv MUSTER_RAILS={network}.{host}@udp0 TMPDIR={place}\n"
        );
    }
    std::fs::write(folder.join("sshd_config"), text).expect("a file");
}

/// The last address of the network is the first host, with a key that the client does not know.
fn write_client(folder: &Path, network: &str, port: u16) {
    let place = folder.display();
    let text = format!(
        "Match originalhost {network}.250\n  HostName {network}.1\n  IdentityFile {place}/unknown-key\n\
         Match originalhost !{network}.250,*\n  IdentityFile {place}/key\n\
         Host *\n  Port {port}\n  IdentitiesOnly yes\n  IdentityAgent none\n  UserKnownHostsFile {place}/known\n\
         \x20 GlobalKnownHostsFile none\n  StrictHostKeyChecking yes\n  LogLevel ERROR\n"
    );
    std::fs::write(folder.join("config"), text).expect("a file");
    let key = std::fs::read_to_string(folder.join("host-key.pub")).expect("a key");
    let known: String = (1..=HOSTS)
        .map(|host| format!("[{network}.{host}]:{port} {key}"))
        .collect();
    std::fs::write(folder.join("known"), known).expect("a file");
}

/// As root sshd requires a user and a directory that only an installed one has: they exist only in its mount
/// namespace.
fn serve(folder: &Path, program: &Path) -> Command {
    let root = program
        .parent()
        .and_then(|sbin| sbin.parent())
        .expect("usr/sbin");
    let libraries = root
        .join("lib")
        .join(format!("{}-linux-gnu", std::env::consts::ARCH));
    let mut users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    if !users.lines().any(|line| line.starts_with("sshd:")) {
        users += "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n";
    }
    std::fs::write(folder.join("passwd"), users).expect("a file");
    let exec = "exec \"$0\" -D -e -f sshd_config";
    let script = if rustix::process::geteuid().is_root() {
        format!(
            "mount -t tmpfs none /run && mkdir /run/sshd && mount --bind passwd /etc/passwd && {exec}"
        )
    } else {
        exec.to_owned()
    };
    let mut command = if rustix::process::geteuid().is_root() {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--propagation", "private", "sh"]);
        unshare
    } else {
        Command::new("sh")
    };
    command
        .args(["-c", &script])
        .arg(program)
        .current_dir(folder)
        .env("LD_LIBRARY_PATH", libraries)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// run-2.
#[test]
fn a_job_runs_and_survives_a_host() {
    job(|folder| {
        let Some(sshd) = Sshd::start(folder, 100) else {
            return;
        };
        let binary = compile(&venv("venv").join("mpicc"), "sum", &[], folder);
        let mut run = sshd.run(&sshd.all());
        run.args(["-n", "8", "--"]).arg(&binary);
        let mut run = Job::start(&mut run);
        let status = run.expect_end();
        let text = run.text();
        assert!(status.success(), "{status}: {text}");
        assert_eq!(run.count("SUM 28 of 8"), 8, "{text}");
        await_nothing_left(folder);

        let binary = compile(&venv("venv").join("mpicc"), "survive", &[], folder);
        let mut run = sshd.run(&sshd.all());
        run.args(["-n", "8", "--"]).arg(&binary).arg("2");
        let mut run = Job::start(&mut run);
        run.await_ready();
        let host = sshd.host(3);
        let victims = sshd.processes_of(&host);
        assert!(victims.len() >= 4, "launcher, agent, ranks: {victims:?}");
        signal_all(&victims, Signal::KILL);
        run.expect_survivors(2);
        let lost = format!("muster run: {host}: its launcher was lost");
        assert_eq!(run.count(&lost), 1, "{}", run.text());
        clear_memory(folder, &host);
    });
}

/// A killed process cannot remove its own shared memory.
fn clear_memory(folder: &Path, host: &str) {
    let entries = std::fs::read_dir(folder).expect("a folder").flatten();
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let job = name.strip_prefix("muster-run-");
        if let Some((job, _)) = job.and_then(|rest| rest.rsplit_once('-')) {
            let _ = std::fs::remove_dir_all(format!("/dev/shm/muster-{job}-{host}"));
        }
    }
}

/// The session of one host ends under its launcher, as if its network were gone: the others continue without
/// it (run-2).
#[test]
fn a_session_that_breaks_is_a_lost_host() {
    job(|folder| {
        let Some(sshd) = Sshd::start(folder, 101) else {
            return;
        };
        let binary = compile(&venv("venv").join("mpicc"), "survive", &[], folder);
        let mut run = sshd.run(&sshd.all());
        run.args(["-n", "8", "--"]).arg(&binary).arg("2");
        let mut run = Job::start(&mut run);
        run.await_ready();
        let sessions: Vec<Pid> = sshd
            .processes_of(&sshd.host(3))
            .into_iter()
            .filter_map(parent_that_is_sshd)
            .collect();
        assert_eq!(sessions.len(), 1, "of the launcher");
        signal_all(&sessions, Signal::KILL);
        run.expect_survivors(2);
    });
}

fn parent_that_is_sshd(pid: Pid) -> Option<Pid> {
    let status =
        |pid: Pid| std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).ok();
    let line = status(pid)?;
    let parent = line.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    let parent = Pid::from_raw(parent.trim().parse().ok()?)?;
    status(parent)?.starts_with("Name:\tsshd").then_some(parent)
}

/// ssh reports the reason, no password is requested, and no process waits for the time-out (run-2).
#[test]
fn hosts_that_ssh_does_not_reach_are_named_at_once() {
    job(|folder| {
        let Some(sshd) = Sshd::start(folder, 102) else {
            return;
        };
        for (other, words) in [
            (250, "Permission denied"),
            (249, "Connection refused"),
            (248, "Host key verification failed"),
        ] {
            let other = sshd.host(other);
            if words == "Host key verification failed" {
                let config = folder.join("config");
                let text = std::fs::read_to_string(&config).expect("a file");
                let alias = format!("Match originalhost {other}\n  HostName {}\n", sshd.host(1));
                let alias = format!("{alias}  UserKnownHostsFile none\n");
                std::fs::write(&config, alias + &text).expect("a file");
            }
            let mut run = sshd.run(&format!("{},{other}", sshd.host(1)));
            run.args(["--start-timeout", "3600", "--", "true"]);
            let mut run = Job::start(&mut run);
            let status = run.expect_end();
            let text = run.text();
            assert_eq!(status.code(), Some(5), "{text}");
            let lost = format!("muster run: {other}: its launcher could not be started");
            assert!(text.contains(words) && run.count(&lost) == 1, "{text}");
            let missing = format!("no launcher has come on {other}");
            assert!(text.contains(&missing), "{text}");
            await_nothing_left(folder);
        }
    });
}

/// A server that accepts the connection and sends nothing: the time-out ends that (run-2).
#[test]
fn a_host_that_is_slow_to_answer_is_given_up() {
    job(|folder| {
        let Some(sshd) = Sshd::start(folder, 103) else {
            return;
        };
        let slow = sshd.host(251);
        let _listener = TcpListener::bind((slow.as_str(), sshd.port)).expect("an address");
        let mut run = sshd.run(&format!("{},{slow}", sshd.host(1)));
        run.args(["--start-timeout", "20", "--", "true"]);
        let mut run = Job::start(&mut run);
        let status = run.expect_end();
        let text = run.text();
        assert_eq!(status.code(), Some(5), "{text}");
        let given_up = format!("muster run: {slow}: its launcher did not start within 20 s");
        assert_eq!(run.count(&given_up), 1, "{text}");
        let missing = format!("no launcher has come on {slow}");
        assert!(text.contains(&missing), "{text}");
    });
}
