//! Programs of an MPICH without PMIx: under a PMIx server their ranks abort, or each rank takes itself for the
//! whole job and ends with 0. They are refused before they start.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::library::{Linker, program};

/// Names of the library of MPICH and its derivatives: MPICH's own, Debian's, that of the MPI ABI.
const LIBRARIES: [&str; 3] = ["libmpi.so.12", "libmpich.so", "libmpi_abi.so"];
/// A string that the library contains if it is MPICH.
const IDENTITY: &[u8] = b"MPICH";
/// Strings of which it contains one if it has its own PMIx, or loads one itself, as Intel's does.
const ABILITIES: [&[u8]; 2] = [b"\0PMIx_Init\0", b"PMIX_SERVER_URI"];
/// Most bytes of a library that are searched.
const LIBRARY_MAX: u64 = 1 << 28;

/// Returns the file of a program that ranks are to run.
///
/// # Errors
/// Why it cannot be started, or cannot run under a PMIx server.
pub(super) fn startable(linker: &Linker, name: &OsStr) -> Result<PathBuf, String> {
    let file = program(name)?;
    match without_pmix(linker, &file) {
        Some(library) => Err(refusal(&library)),
        None => Ok(file),
    }
}

/// Returns a warning if one of these arguments is such a program: `timeout 20 ./app`. It is not refused: an MPICH
/// launcher may be what starts it.
pub(super) fn warning(linker: &Linker, arguments: &[&OsStr]) -> Option<String> {
    let paths = arguments
        .iter()
        .filter(|argument| argument.as_encoded_bytes().contains(&b'/'));
    paths
        .filter_map(|argument| program(argument).ok())
        .find_map(|file| {
            let library = without_pmix(linker, &file)?;
            Some(format!("{}: {}", file.display(), refusal(&library)))
        })
}

fn refusal(library: &Path) -> String {
    format!(
        "it links MPICH without PMIx ({}), which speaks only PMI: its ranks would not connect to each other; build \
         MPICH with --with-pmix, or the program with Open MPI, or start it with MPICH's own mpiexec, where \
         muster_mpi_init serves it",
        library.display()
    )
}

/// Returns the MPICH library that the program would load, if it cannot speak PMIx.
fn without_pmix(linker: &Linker, program: &Path) -> Option<PathBuf> {
    let list = linker.list(program)?;
    let library = read(&list)?;
    let mut bytes = Vec::new();
    let file = std::fs::File::open(&library).ok()?;
    file.take(LIBRARY_MAX).read_to_end(&mut bytes).ok()?;
    let has = |part: &[u8]| contains(&bytes, part);
    (has(IDENTITY) && !ABILITIES.iter().any(|part| has(part))).then_some(library)
}

/// Finds MPICH's library in the dynamic linker's list, unless libpmix is loaded as well.
fn read(list: &str) -> Option<PathBuf> {
    let named = |name: &str| {
        let mut lines = list.lines().map(str::trim_start);
        lines.find(|line| line.starts_with(name))
    };
    if named("libpmix.so").is_some() {
        return None;
    }
    let line = LIBRARIES.iter().find_map(|name| named(name))?;
    let (_, path) = line.split_once("=> ")?;
    Some(path.split(" (").next()?.trim().into())
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|byte| *byte == part[0]) {
        rest = &rest[at..];
        if rest.starts_with(part) {
            return true;
        }
        rest = &rest[1..];
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mpich_is_recognized_by_its_library_without_libpmix() {
        for (list, found) in [
            (
                "\tlibmpich.so.12 => /l/libmpich.so.12 (0x1)\n",
                Some("/l/libmpich.so.12"),
            ),
            (
                "\tlibc.so.6 => /l/libc.so.6 (0x1)\n\tlibmpi.so.12 => /m/libmpi.so.12 (0x2)\n",
                Some("/m/libmpi.so.12"),
            ),
            (
                "\tlibmpi.so.12 => /m/libmpi.so.12 (0x2)\n\tlibpmix.so.2 => /l/libpmix.so.2 (0x1)\n",
                None,
            ),
            ("\tlibmpi.so.40 => /l/libmpi.so.40 (0x1)\n", None),
            ("\tlibmpi.so.12 => not found\n", Some("not found")),
            ("\tnot a dynamic executable\n", None),
        ] {
            assert_eq!(read(list), found.map(PathBuf::from), "{list}");
        }
    }

    #[test]
    fn a_part_is_found_at_any_position() {
        assert!(contains(b"xxPMIPMIx", b"PMIx") && contains(b"PMIx", b"PMIx"));
        assert!(!contains(b"PMI", b"PMIx") && !contains(b"", b"PMIx"));
    }
}
