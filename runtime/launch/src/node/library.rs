//! Finds the libpmix that the ranks' MPI will load, so that the server and its clients have one release.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// The name of the system's libpmix.
const SYSTEM: &str = "libpmix.so.2";
/// Path of Open MPI's own libpmix, relative to its libraries.
const BESIDE: &str = "openmpi/libpmix.so.2";
/// Open MPI's own launcher.
const MPIRUN: &str = "mpirun";
/// How long the dynamic linker may take, and most bytes that are read of its output.
const LDD_TIMEOUT: Duration = Duration::from_secs(20);
const LIST_MAX: u64 = 1 << 20;

/// Returns `MUSTER_LIBPMIX`; else the libpmix of the MPI that one of these programs links, the first that does, or
/// one of their arguments (`timeout 20 ./app`). A program that loads MPI later, such as a script, does not show
/// which it will load. Then returns the libpmix under `OPAL_PREFIX`, beside a program, or beside an mpirun in PATH,
/// whose MPI the user has chosen; else the system's.
pub(super) fn find(linker: &Linker, programs: &[&Path], arguments: &[&OsStr]) -> PathBuf {
    if let Some(given) = variable("MUSTER_LIBPMIX") {
        return given;
    }
    let mut words = arguments.iter().filter_map(|word| program(word).ok());
    let by_programs = programs.iter().find_map(|program| linker.libpmix(program));
    if let Some(linked) = by_programs.or_else(|| words.find_map(|path| linker.libpmix(&path))) {
        return linked;
    }
    let above = |program: &Path| Some(program.parent()?.parent()?.to_owned());
    let prefixes = variable("OPAL_PREFIX")
        .into_iter()
        .chain(programs.iter().filter_map(|program| above(program)))
        .chain(
            program(OsStr::new(MPIRUN))
                .ok()
                .and_then(|path| above(&path)),
        );
    let mut beside = prefixes.map(|prefix| prefix.join("lib").join(BESIDE));
    beside
        .find(|path| path.is_file())
        .unwrap_or_else(|| SYSTEM.into())
}

/// The directory in which the Open MPI of this libpmix is installed, if the libpmix has the path that a relocated
/// Open MPI gives it. That Open MPI's own record of its directory may be out of date.
pub(super) fn prefix(library: &Path) -> Option<PathBuf> {
    let prefix = library
        .to_str()?
        .strip_suffix("/lib/openmpi/libpmix.so.2")?;
    Some(prefix.into())
}

fn variable(name: &str) -> Option<PathBuf> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
    Some(value.into())
}

/// The libraries of programs as the dynamic linker finds them. Each program is examined once.
#[derive(Debug, Default)]
pub(super) struct Linker(RefCell<BTreeMap<PathBuf, Option<String>>>);

impl Linker {
    /// Returns the libraries that the dynamic linker would load for the program. This runs the linker that the
    /// program names, which may be any file.
    pub(super) fn list(&self, program: &Path) -> Option<String> {
        let mut known = self.0.borrow_mut();
        if let Some(list) = known.get(program) {
            return list.clone();
        }
        let list = output_of(Command::new("ldd").arg(program), LDD_TIMEOUT);
        known.insert(program.to_owned(), list.clone());
        list
    }

    fn libpmix(&self, program: &Path) -> Option<PathBuf> {
        read(&self.list(program)?, &|path| path.is_file())
    }
}

/// Returns the output of a command; `None` if it does not end within `timeout`.
fn output_of(command: &mut Command, timeout: Duration) -> Option<String> {
    let command = command.stdin(Stdio::null()).stderr(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).spawn().ok()?;
    let output = child.stdout.take()?;
    let (sender, receiver) = channel();
    let reading = move || {
        let mut bytes = Vec::new();
        let read = output.take(LIST_MAX).read_to_end(&mut bytes);
        // The receiver may have timed out.
        let _ = sender.send(read.map(|_| bytes));
    };
    let reader = std::thread::Builder::new().spawn(reading);
    let bytes = reader
        .ok()
        .and_then(|_| receiver.recv_timeout(timeout).ok());
    // The output is complete or given up: the process is not needed any more.
    let _ = child.kill();
    let _ = child.wait();
    Some(String::from_utf8_lossy(&bytes?.ok()?).into_owned())
}

fn read(list: &str, exists: &dyn Fn(&Path) -> bool) -> Option<PathBuf> {
    let path_of = |library: &str| {
        let line = list
            .lines()
            .find(|line| line.trim_start().starts_with(library))?;
        let (_, path) = line.split_once("=> ")?;
        Some(PathBuf::from(path.split(" (").next()?.trim()))
    };
    if let Some(direct) = path_of("libpmix.so") {
        return Some(direct);
    }
    let mpi = path_of("libmpi.so")?;
    let beside = mpi.parent().unwrap_or(Path::new("/")).join(BESIDE);
    Some(if exists(&beside) {
        beside
    } else {
        SYSTEM.into()
    })
}

/// Returns the file of a program that is to be started: by its path, or found in PATH.
pub(super) fn program(name: &OsStr) -> Result<PathBuf, String> {
    let given = Path::new(name);
    let check = |path: &Path| match path.metadata() {
        Err(cause) => Err(format!("{cause}; it has to be at this path on every node")),
        Ok(data) if data.is_dir() => Err("it is a directory".to_owned()),
        Ok(data) => {
            use std::os::unix::fs::PermissionsExt;
            match data.permissions().mode() & 0o111 {
                0 => Err("it is not executable; use chmod +x".to_owned()),
                _ => Ok(path.to_owned()),
            }
        }
    };
    if name.as_encoded_bytes().contains(&b'/') {
        return check(given);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join(given))
        .find_map(|path| check(&path).ok())
        .ok_or_else(|| {
            "no such program in PATH; name a file of this directory as ./NAME".to_owned()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command that never ends is not waited for.
    #[test]
    fn a_command_is_read_until_its_time_out() {
        let long = Duration::from_secs(60);
        assert_eq!(
            output_of(Command::new("echo").arg("a b"), long),
            Some("a b\n".into())
        );
        let endless = output_of(
            Command::new("tail").args(["-f", "/dev/null"]),
            Duration::from_millis(50),
        );
        assert_eq!(endless, None);
        let much = output_of(Command::new("cat").arg("/dev/zero"), long).unwrap();
        assert_eq!(much.len() as u64, LIST_MAX);
        assert_eq!(output_of(&mut Command::new("/nonexistent"), long), None);
    }

    #[test]
    fn libpmix_is_found_in_the_linkers_list() {
        let list = "\tlinux-vdso.so.1 (0x1)\n\tlibpmix.so.2 => /v/lib/openmpi/libpmix.so.2 (0x2)\n";
        let found = read(list, &|_| true);
        assert_eq!(found, Some("/v/lib/openmpi/libpmix.so.2".into()));
        let list = "\tlibmpi.so.40 => /v/lib/libmpi.so.40 (0x2)\n";
        let found = read(list, &|_| true);
        assert_eq!(found, Some("/v/lib/openmpi/libpmix.so.2".into()));
        assert_eq!(read(list, &|_| false), Some(SYSTEM.into()));
        assert_eq!(
            read("\tlibc.so.6 => /lib/libc.so.6 (0x2)\n", &|_| true),
            None
        );
    }

    #[test]
    fn the_prefix_of_open_mpi_is_found() {
        let found = prefix(Path::new("/v/lib/openmpi/libpmix.so.2"));
        assert_eq!(found, Some("/v".into()));
        assert_eq!(prefix(Path::new("libpmix.so.2")), None);
    }

    #[test]
    fn a_program_that_cannot_be_started_is_refused_with_the_reason() {
        assert!(program(OsStr::new("sh")).is_ok());
        for (name, why) in [
            ("/nonexistent/app", "No such file"),
            ("/tmp", "no such program"),
            ("/etc/passwd", "executable"),
            ("no-such-program-anywhere", "PATH"),
        ] {
            let refused = program(OsStr::new(name));
            let why = if name == "/tmp" { "directory" } else { why };
            assert!(
                refused.as_ref().is_err_and(|text| text.contains(why)),
                "{refused:?}"
            );
        }
    }
}
