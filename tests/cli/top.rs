//! `muster top` on a terminal: what it draws, its keys, the size of the terminal, and the terminal after its end.

use muster_tests::admin::Admin;
use muster_tests::{DEADLINE, Member, program};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;
use std::fs::File;
use std::io::Read;
use std::num::NonZeroU16;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use vt100::{Parser, Screen};

/// Rows and columns of a terminal.
type Size = (NonZeroU16, NonZeroU16);

fn size(rows: u16, columns: u16) -> Size {
    let number = |number| NonZeroU16::new(number).expect("a terminal is not empty");
    (number(rows), number(columns))
}

/// The size of the terminal at its start.
fn usual() -> Size {
    size(24, 100)
}

/// Starts members that know each other, each with more arguments.
fn start_with(directory: &Path, net: u8, count: usize, more: &[&str]) -> Vec<Member> {
    // Nodes of other zones are found by their name.
    let seeds: Vec<String> = (1..=count)
        .map(|index| format!("n{index}=127.76.{net}.{index}@udp0"))
        .collect();
    let seeds: Vec<&str> = seeds.iter().flat_map(|seed| ["--seed", seed]).collect();
    let members: Vec<Member> = (1..=count)
        .map(|index| {
            let rail = format!("127.76.{net}.{index}@udp0");
            let arguments = [&["--rail", &rail], &seeds[..], more].concat();
            Member::start(directory, &format!("n{index}"), &arguments)
        })
        .collect();
    Member::await_all_up(&members);
    members
}

fn start(directory: &Path, net: u8, count: usize) -> Vec<Member> {
    start_with(directory, net, count, &[])
}

/// A terminal on which `muster top` runs, and what it shows.
struct Terminal {
    /// None after the terminal was closed.
    master: Option<File>,
    /// The end of `muster top`, kept open so that the settings can be read after its end.
    slave: OwnedFd,
    child: Child,
    shown: Parser,
    /// The settings before the start.
    settings: String,
}

fn settings(slave: &OwnedFd) -> String {
    format!("{:?}", tcgetattr(slave).expect("a terminal"))
}

impl Terminal {
    /// Starts `muster top` for an agent, as the leader of the terminal's session, so that a change of the size and
    /// the end of the terminal reach it as signals. Its errors go to a pipe.
    fn start(admin: &Admin) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).expect("a pseudo terminal");
        grantpt(&master).expect("its mode");
        unlockpt(&master).expect("its lock");
        let slave = ioctl_tiocgptpeer(&master, flags).expect("its other end");
        resize(master.as_fd(), usual());
        let before = settings(&slave);
        let stdio = || Stdio::from(slave.try_clone().expect("a descriptor"));
        let child = Command::new("setsid")
            .arg("--ctty")
            .arg(program("muster"))
            .args(["top", "--delay", "0.2", "--agent"])
            .arg(&admin.0)
            .env("TERM", "xterm-256color")
            .stdin(stdio())
            .stdout(stdio())
            .stderr(Stdio::piped())
            .spawn()
            .expect("setsid can be started");
        Self {
            master: Some(master.into()),
            slave,
            child,
            shown: Parser::new(usual().0, usual().1, 0),
            settings: before,
        }
    }

    fn screen(&self) -> &Screen {
        self.shown.screen()
    }

    /// Reads what was written to the terminal, if anything is there.
    fn read(&mut self) {
        let mut bytes = [0; 4096];
        if let Some(master) = &mut self.master
            && let Ok(length) = master.read(&mut bytes)
        {
            self.shown.process(&bytes[..length]);
        }
    }

    /// Waits until the screen is as wanted.
    fn await_screen(&mut self, what: &str, is_wanted: impl Fn(&Screen) -> bool) {
        let end = Instant::now() + DEADLINE;
        while !is_wanted(self.screen()) {
            let left = end.saturating_duration_since(Instant::now());
            let master = self.master.as_ref().expect("an open terminal");
            let mut fds = [PollFd::from_borrowed_fd(master.as_fd(), PollFlags::IN)];
            let ready = poll(&mut fds, Some(&left.try_into().expect("a minute"))).expect("poll");
            assert!(ready > 0, "{what}:\n{}", self.screen().contents());
            self.read();
        }
    }

    fn await_text(&mut self, text: &str) {
        self.await_screen(text, |screen| screen.contents().contains(text));
    }

    fn await_no_text(&mut self, text: &str) {
        let what = format!("no {text}");
        self.await_screen(&what, |screen| !screen.contents().contains(text));
    }

    fn press(&self, keys: &str) {
        let master = self.master.as_ref().expect("an open terminal");
        rustix::io::write(master, keys.as_bytes()).expect("keys are accepted");
    }

    /// Changes the size. The kernel sends SIGWINCH.
    fn resize(&mut self, (rows, columns): Size) {
        let master = self.master.as_ref().expect("an open terminal");
        self.shown.screen_mut().set_size(rows, columns);
        resize(master.as_fd(), (rows, columns));
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a child has a pid");
        kill_process(pid, signal).expect("a signal can be sent");
    }

    /// Waits for the end. Returns its exit status and its errors.
    fn await_end(&mut self) -> (Option<i32>, String) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a child has a pid");
        let ended = pidfd_open(pid, PidfdFlags::empty()).expect("a pidfd of a child");
        let end = Instant::now() + DEADLINE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let mut fds = vec![PollFd::from_borrowed_fd(ended.as_fd(), PollFlags::IN)];
            if let Some(master) = &self.master {
                fds.push(PollFd::from_borrowed_fd(master.as_fd(), PollFlags::IN));
            }
            let ready = poll(&mut fds, Some(&left.try_into().expect("a minute"))).expect("poll");
            assert!(
                ready > 0,
                "muster top did not end:\n{}",
                self.screen().contents()
            );
            let [is_over, is_readable] = [0, 1].map(|at| {
                fds.get(at)
                    .is_some_and(|fd| fd.revents().contains(PollFlags::IN))
            });
            match (is_readable, is_over) {
                (true, _) => self.read(),
                (false, true) => break,
                (false, false) => {}
            }
        }
        let status = self.child.wait().expect("a child");
        let mut errors = String::new();
        let stderr = self.child.stderr.as_mut().expect("a pipe");
        stderr.read_to_string(&mut errors).expect("a text");
        assert!(!errors.contains("panicked"), "{errors}");
        (status.code(), errors)
    }

    /// The terminal is as it was before the start.
    fn assert_restored(&self) {
        let screen = self.screen();
        assert!(!screen.alternate_screen(), "{}", screen.contents());
        assert!(!screen.hide_cursor(), "the cursor is hidden");
        assert_eq!(settings(&self.slave), self.settings);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn resize(master: BorrowedFd<'_>, (rows, columns): Size) {
    let size = Winsize {
        ws_row: rows.get(),
        ws_col: columns.get(),
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(master, size).expect("a terminal");
}

/// The name in the selected row, which is drawn inverse.
fn selected(screen: &Screen) -> Option<String> {
    let (rows, columns) = screen.size();
    let is_inverse = |row: &u16| screen.cell(*row, 0).is_some_and(vt100::Cell::inverse);
    let row = (0..rows.get()).find(is_inverse)?;
    let text = screen.rows(0, columns.get()).nth(usize::from(row))?;
    text.split_whitespace().next().map(str::to_owned)
}

#[test]
fn top_follows_keys_and_the_size_of_the_terminal_and_restores_it() {
    let directory = tempfile::tempdir().unwrap();
    let _members = start(directory.path(), 1, 3);
    let mut terminal = Terminal::start(&Admin::of(directory.path(), "n1"));
    // The cursor is hidden after all else is drawn.
    terminal.await_screen("the whole screen", |screen| {
        screen.contents().contains("q: end") && screen.hide_cursor()
    });
    let screen = terminal.screen();
    for part in ["n1 *", "n3", "HOW KNOWN", "3 alive", "127.76.1.1@udp0"] {
        assert!(
            screen.contents().contains(part),
            "{part}:\n{}",
            screen.contents()
        );
    }
    assert!(screen.alternate_screen() && screen.hide_cursor());
    assert_ne!(
        settings(&terminal.slave),
        terminal.settings,
        "keys are read one by one"
    );
    assert_eq!(selected(screen).as_deref(), Some("n1"));

    terminal.press("\x1b[B");
    terminal.await_screen("n2 is selected", |screen| {
        selected(screen).as_deref() == Some("n2")
    });
    terminal.press("s");
    terminal.await_text("by name");
    terminal.press("?");
    terminal.await_text("Page Up, Page Down");
    terminal.press("?");
    terminal.await_no_text("Page Up, Page Down");

    terminal.resize(size(8, 40));
    terminal.await_screen("a small screen", |screen| {
        let text = screen.contents();
        let is_narrow = text.contains("RANKS") && !text.contains("HOW KNOWN");
        let is_low = text.contains("n3") && !text.contains("127.76.1.1@udp0");
        is_narrow && is_low && text.contains("by name")
    });
    let text = terminal.screen().contents();
    assert!(text.lines().count() <= 8, "{text}");
    terminal.resize(usual());
    terminal.await_text("HOW KNOWN");
    terminal.await_text("127.76.1.1@udp0");
    assert_eq!(selected(terminal.screen()).as_deref(), Some("n2"));

    terminal.press("q");
    assert_eq!(terminal.await_end(), (Some(0), String::new()));
    terminal.assert_restored();
}

/// Two zones of two nodes, one of which is lost.
#[test]
fn top_opens_the_zones_of_a_job() {
    let directory = tempfile::tempdir().unwrap();
    let zones = ["--zones", "2", "--nodes", "n[1-4]"];
    let mut members = start_with(directory.path(), 5, 4, &zones);
    members.pop().expect("a member").kill();
    members[0].wait_for(&["DOWN n4".to_owned()]);
    let admin = Admin::of(directory.path(), "n1");
    let answer = admin.json(&["top"]);
    let second = &answer["zones"][1];
    assert_eq!(
        [&answer["zone"], &second["zone"], &second["failed"]],
        [&"z1".into(), &"z2".into(), &Value::from(1)]
    );
    let table = admin.ask(&["top"]);
    for part in ["4 nodes in 2 zones: 3 alive", "members of zone z1: 2 alive"] {
        assert!(table.contains(part), "{part}:\n{table}");
    }

    let mut terminal = Terminal::start(&admin);
    terminal.await_text("Enter: nodes");
    // The zone that lost a node is the first one.
    terminal.await_screen("z2 is selected", |screen| {
        selected(screen).as_deref() == Some("z2")
    });
    terminal.await_text("1 failed");
    terminal.press("\r");
    terminal.await_text("zone z2: 1 alive");
    let text = terminal.screen().contents();
    assert!(text.contains("n3") && !text.contains("n1 *"), "{text}");
    assert_eq!(selected(terminal.screen()).as_deref(), Some("n4"));
    terminal.press("\r");
    terminal.await_text("n4 is failed");
    terminal.press("b");
    terminal.await_text("Enter: nodes");
    terminal.press("\x1b[B\r");
    terminal.await_text("zone z1: 2 alive");
    let text = terminal.screen().contents();
    assert!(text.contains("n1 *") && text.contains("b: zones"), "{text}");
    terminal.press("q");
    assert_eq!(terminal.await_end(), (Some(0), String::new()));
    terminal.assert_restored();
}

#[test]
fn top_restores_the_terminal_when_a_signal_ends_it() {
    let directory = tempfile::tempdir().unwrap();
    let _members = start(directory.path(), 2, 2);
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let mut terminal = Terminal::start(&Admin::of(directory.path(), "n1"));
        terminal.await_text("q: end");
        terminal.signal(signal);
        assert_eq!(
            terminal.await_end(),
            (Some(130), String::new()),
            "{signal:?}"
        );
        terminal.assert_restored();
    }
}

#[test]
fn top_ends_when_its_terminal_is_closed() {
    let directory = tempfile::tempdir().unwrap();
    let _members = start(directory.path(), 3, 2);
    let mut terminal = Terminal::start(&Admin::of(directory.path(), "n1"));
    terminal.await_text("q: end");
    terminal.master = None;
    let (status, errors) = terminal.await_end();
    assert!(matches!(status, Some(1 | 130)), "{status:?}: {errors}");
}

#[test]
fn top_ends_with_its_agent_and_restores_the_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let mut members = start(directory.path(), 4, 2);
    let mut terminal = Terminal::start(&Admin::of(directory.path(), "n1"));
    terminal.await_text("2 alive");
    members.remove(0).kill();
    let (status, errors) = terminal.await_end();
    assert_eq!(status, Some(3), "{errors}");
    assert!(
        errors.starts_with("muster top: no agent: ") && errors.contains(" has ended\nhint: "),
        "{errors}"
    );
    terminal.assert_restored();
}
