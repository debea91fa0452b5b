//! What a rank finds in its environment besides the user's own.
//!
//! Each default gives way to what the user has set. Why they are needed for a job that survives:
//! Open MPI's hierarchical collectives (coll/han) crash when a rank dies during the first of them, ULFM is off
//! unless asked for, and ranks that share cores must yield them.

use std::ffi::OsString;
use std::io::Read;

use super::layout::Layout;

/// How much of the user's file of parameters is read.
const FILE_MAX: u64 = 64 * 1024;

/// The defaults for this node, and why.
pub(super) fn defaults(
    layout: &Layout,
    own: usize,
    cores: usize,
) -> Vec<(&'static str, &'static str)> {
    let mut all = vec![("OMPI_MCA_coll", "^han"), ("OMPI_MCA_mpi_ft_enable", "1")];
    if layout.ranks_of(own).len() > cores {
        all.push(("OMPI_MCA_mpi_yield_when_idle", "1"));
    }
    all
}

/// What Open MPI 4 needs besides: it believes in a launcher only if it knows its name, and takes this one's for
/// one that speaks PMIx; each rank would be a job of its own otherwise. Every rank gets it, since the program may be
/// started by a script, or load MPI itself; nothing else reads it.
pub(super) const OPEN_MPI_4: (&str, &str) = ("JSM_JSRUN_PORT", "0");

/// Those that the user has not set.
pub(super) fn unset(
    defaults: Vec<(&'static str, String)>,
    is_set: impl Fn(&str) -> bool,
) -> Vec<(OsString, OsString)> {
    let wanted = defaults.into_iter().filter(|(name, _)| !is_set(name));
    wanted
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

/// Whether a variable makes a process part of another launcher's job, or a launcher. Settings of PMIx
/// (`PMIX_MCA_...`, `PMIX_PREFIX`) are the user's.
pub(super) fn is_foreign(name: &str) -> bool {
    ["PMIX_", "PMI_", "OMPI_COMM_WORLD_", "PRTE_", "MUSTER_RUN_"]
        .iter()
        .any(|beginning| name.starts_with(beginning))
        && !name.starts_with("PMIX_MCA_")
        && name != "PMIX_PREFIX"
}

/// What programs look for that were written for Open MPI's own launcher: scripts that choose a device by the rank's
/// place on its node, say.
pub(super) fn of_mpirun(layout: &Layout, own: usize, rank: u32) -> Vec<(OsString, OsString)> {
    let ranks = layout.ranks_of(own);
    let place = rank - ranks.start;
    let numbers = [
        ("OMPI_COMM_WORLD_RANK", rank),
        ("OMPI_COMM_WORLD_SIZE", layout.ranks()),
        ("OMPI_COMM_WORLD_LOCAL_RANK", place),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", ranks.len() as u32),
        ("OMPI_COMM_WORLD_NODE_RANK", place),
    ];
    let text = |(name, number): (&str, u32)| (name.into(), number.to_string().into());
    numbers.into_iter().map(text).collect()
}

/// Whether the user has set this parameter of Open MPI (`OMPI_MCA_NAME`) in a file in HOME, which gives way to the
/// environment.
pub(super) fn is_in_file(variable: &str, text: &str) -> bool {
    variable.strip_prefix("OMPI_MCA_").is_some_and(|wanted| {
        let mut names = text
            .lines()
            .filter_map(|line| Some(line.split_once('=')?.0.trim()));
        names.any(|name| name == wanted)
    })
}

/// The text of that file, if there is one.
pub(super) fn users_file() -> String {
    let home = std::env::var_os("HOME").map(std::path::PathBuf::from);
    let file = home.map(|home| home.join(".openmpi/mca-params.conf"));
    let read = |path| {
        let mut text = String::new();
        std::fs::File::open(path)?
            .take(FILE_MAX)
            .read_to_string(&mut text)?;
        Ok::<_, std::io::Error>(text)
    };
    file.and_then(|path| read(path).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_has_set_stays() {
        let names = (1..=2).map(|node| format!("n{node}")).collect();
        let layout = Layout::new(names, Some(8), None).unwrap();
        let roomy = defaults(&layout, 0, 4);
        assert_eq!(roomy.len(), 2);
        let crowded = defaults(&layout, 0, 3);
        assert_eq!(crowded[2].0, "OMPI_MCA_mpi_yield_when_idle");
        let texts = crowded
            .into_iter()
            .map(|(n, v)| (n, v.to_owned()))
            .collect();
        let left = unset(texts, |name| name == "OMPI_MCA_coll");
        assert!(left.iter().all(|(name, _)| name != "OMPI_MCA_coll"));
        assert_eq!(left.len(), 2);
        assert!(is_foreign("PMIX_RANK") && !is_foreign("PATH"));
        assert!(!is_foreign("PMIX_MCA_gds") && !is_foreign("PMIX_PREFIX"));
        let file = "# coll = x\n  coll = ^hcoll\nbtl_base_verbose=1\n";
        assert!(is_in_file("OMPI_MCA_coll", file) && is_in_file("OMPI_MCA_btl_base_verbose", file));
        assert!(!is_in_file("OMPI_MCA_mpi_ft_enable", file) && !is_in_file("coll", file));
    }
}
