//! Recognizes the MPI of a rank when it connects to the PMIx server: by then its process has loaded MPI, whatever has
//! started it (a script, `timeout 20 ./app`).

use std::io::Read;

use crate::core::mpi::Mpi;
use muster_sys::process::descendants;

/// Most bytes that are read of a process's memory maps, and of its environment.
const READ_MAX: u64 = 1 << 20;
/// Most descendants of a rank that are examined.
const DESCENDANTS_MAX: usize = 64;
/// The first libopen-pal with fault tolerance: that of Open MPI 5.
const OPEN_PAL_MIN: u32 = 80;
/// The variable that turns fault tolerance on or off.
const SWITCH: &str = "OMPI_MCA_mpi_ft_enable";

/// Returns the MPI of the process or of one of its descendants.
pub(super) fn detect(pid: u32, file: &str) -> Mpi {
    let below = descendants(pid).into_iter().take(DESCENDANTS_MAX);
    let mut all = std::iter::once(pid).chain(below);
    let found = all.find_map(|pid| {
        let maps = read(pid, "maps")?;
        recognize(&maps, &read(pid, "environ").unwrap_or_default(), file)
    });
    found.unwrap_or(Mpi::NotFound)
}

/// Recognizes the MPI from the memory maps, the environment, and the user's parameter file.
fn recognize(maps: &str, environment: &str, file: &str) -> Option<Mpi> {
    let libraries = || {
        let paths = maps.lines().filter_map(|line| line.rsplit('/').next());
        paths.filter(|name| name.contains(".so"))
    };
    let release = |name: &str| {
        let rest = name.strip_prefix("libopen-pal.so.")?;
        rest.split('.').next()?.parse::<u32>().ok()
    };
    if libraries()
        .filter_map(release)
        .any(|number| number >= OPEN_PAL_MIN)
    {
        return Some(match is_on(environment, file) {
            true => Mpi::Tolerant,
            false => Mpi::SwitchedOff,
        });
    }
    if libraries().any(|name| name.starts_with("libopen-rte.")) {
        return Some(Mpi::OpenMpi4);
    }
    let is_mpi = |name: &str| {
        ["libmpi.", "libmpich", "libmpi_cray"]
            .iter()
            .any(|beginning| name.starts_with(beginning))
    };
    libraries().any(is_mpi).then_some(Mpi::Intolerant)
}

/// Whether Open MPI's fault tolerance is turned on: by the environment, else by the user's file.
fn is_on(environment: &str, file: &str) -> bool {
    let given = environment
        .split('\0')
        .filter_map(|one| one.split_once('='))
        .find(|(name, _)| *name == SWITCH);
    let lines = file.lines().filter_map(|line| line.split_once('='));
    let in_file = || {
        let mut lines = lines.map(|(name, value)| (name.trim(), value.trim()));
        lines.find(|(name, _)| SWITCH.strip_prefix("OMPI_MCA_") == Some(name))
    };
    given.or_else(in_file).is_some_and(|(_, value)| {
        let value = value.trim().to_ascii_lowercase();
        match value.parse::<i64>() {
            Ok(number) => number != 0,
            Err(_) => ["true", "t", "yes", "y", "enabled", "on"].contains(&value.as_str()),
        }
    })
}

fn read(pid: u32, what: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(format!("/proc/{pid}/{what}")).ok()?;
    file.take(READ_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// run-4.
    #[test]
    fn an_mpi_is_recognized_by_its_libraries_and_settings() {
        let maps = |names: &[&str]| {
            let line = |name: &&str| format!("7f00-7f01 r-xp 0 08:01 12   /usr/lib/{name}\n");
            names.iter().map(line).collect::<String>()
        };
        let five = maps(&["libc.so.6", "libmpi.so.40.40.8", "libopen-pal.so.80.0.6"]);
        let four = maps(&[
            "libmpi.so.40.30.4",
            "libopen-rte.so.40",
            "libopen-pal.so.40.30.2",
        ]);
        let on = "A=1\0OMPI_MCA_mpi_ft_enable=1\0";
        let off = "OMPI_MCA_mpi_ft_enable=0\0B=2\0";
        for (maps, environment, file, found) in [
            (&five, on, "", Some(Mpi::Tolerant)),
            (&five, off, "mpi_ft_enable = 1", Some(Mpi::SwitchedOff)),
            (
                &five,
                "",
                "# x\n mpi_ft_enable = true\n",
                Some(Mpi::Tolerant),
            ),
            (&five, "", "mpi_ft_enable = false", Some(Mpi::SwitchedOff)),
            (&five, "", "", Some(Mpi::SwitchedOff)),
            (&four, on, "", Some(Mpi::OpenMpi4)),
            (&maps(&["libmpich.so.12"]), on, "", Some(Mpi::Intolerant)),
            (&maps(&["libpmix.so.2", "libmpirical.txt"]), on, "", None),
        ] {
            assert_eq!(recognize(maps, environment, file), found, "{maps}");
        }
    }
}
