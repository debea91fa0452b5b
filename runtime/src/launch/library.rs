//! Finding the libpmix that the ranks' MPI will load, so that both ends are of one release.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The name under which the system has one.
const SYSTEM: &str = "libpmix.so.2";
/// Where Open MPI keeps its own, beside its libraries.
const BESIDE: &str = "openmpi/libpmix.so.2";

/// `MUSTER_LIBPMIX`; else the one of the MPI that the program links; else one beside the program or under
/// `OPAL_PREFIX` (programs that are scripts load MPI later); else the system's.
pub(super) fn find(program: &Path) -> PathBuf {
    if let Some(given) = variable("MUSTER_LIBPMIX") {
        return given;
    }
    if let Some(linked) = linked(program) {
        return linked;
    }
    let prefixes = [
        variable("OPAL_PREFIX"),
        program.parent().and_then(Path::parent).map(Path::to_owned),
    ];
    let beside = prefixes
        .into_iter()
        .flatten()
        .map(|prefix| prefix.join("lib").join(BESIDE));
    beside
        .into_iter()
        .find(|path| path.is_file())
        .unwrap_or_else(|| SYSTEM.into())
}

/// The directory under which the Open MPI of this libpmix was put, if it lies where a relocated Open MPI has it:
/// its own idea of where it is may be another.
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

/// Whether the program links Open MPI 4.
pub(super) fn is_open_mpi_4(program: &Path) -> bool {
    list(program).is_some_and(|list| list.contains("libopen-rte.so"))
}

fn linked(program: &Path) -> Option<PathBuf> {
    read(&list(program)?, &|path| path.is_file())
}

/// What the dynamic linker would load for the program; it runs none of it.
fn list(program: &Path) -> Option<String> {
    let output = Command::new("ldd")
        .arg(program)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
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

/// The file of a program that is to be started: as a path, or in PATH.
pub(super) fn program(name: &OsStr) -> Result<PathBuf, String> {
    let given = Path::new(name);
    let check = |path: &Path| match path.metadata() {
        Err(cause) => Err(format!("{cause}; it has to be at this path on every node")),
        Ok(data) if data.is_dir() => Err("it is a directory".to_owned()),
        Ok(data) => {
            use std::os::unix::fs::PermissionsExt;
            match data.permissions().mode() & 0o111 {
                0 => Err("it may not be executed; chmod +x helps".to_owned()),
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
        .ok_or_else(|| "no such program in PATH; a file here is called ./NAME".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_the_linker_says_which() {
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
    fn open_mpi_is_told_where_it_lies() {
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
            ("/etc/passwd", "executed"),
            ("no-such-program-anywhere", "PATH"),
        ] {
            let refused = program(OsStr::new(name));
            let why = if name == "/tmp" { "directory" } else { why };
            assert!(
                refused.as_ref().is_err_and(|said| said.contains(why)),
                "{refused:?}"
            );
        }
    }
}
