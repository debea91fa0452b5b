//! Environment variables that a rank gets besides the user's own.
//!
//! A variable that the user has set replaces its default. The defaults are needed for a job that survives failures:
//! Open MPI's hierarchical collectives (coll/han) crash when a rank dies during the first of them, ULFM is off by
//! default, and ranks that share cores must yield them.

use std::ffi::OsString;
use std::io::Read;

use crate::layout::Layout;

/// Most bytes that are read of the user's parameter file.
const FILE_MAX: u64 = 64 * 1024;

/// The defaults for this node.
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

/// A variable that Open MPI 4 needs besides: it recognizes a launcher only by its name, and takes this one for one
/// that speaks PMIx. Without it each rank would be a job of its own. Every rank gets the variable, since the
/// program may be started by a script, or load MPI itself. Nothing else reads it.
pub(super) const OPEN_MPI_4: (&str, &str) = ("JSM_JSRUN_PORT", "0");

/// Returns those that the user has not set.
pub(super) fn unset(
    defaults: Vec<(&'static str, String)>,
    is_set: impl Fn(&str) -> bool,
) -> Vec<(OsString, OsString)> {
    let wanted = defaults.into_iter().filter(|(name, _)| !is_set(name));
    wanted
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

/// Whether a variable makes a process a part of another launcher's job, or a launcher. PMIx settings
/// (`PMIX_MCA_...`, `PMIX_PREFIX`) are the user's.
pub(super) fn is_foreign(name: &str) -> bool {
    ["PMIX_", "PMI_", "OMPI_COMM_WORLD_", "PRTE_", "MUSTER_RUN_"]
        .iter()
        .any(|beginning| name.starts_with(beginning))
        && !name.starts_with("PMIX_MCA_")
        && name != "PMIX_PREFIX"
}

/// Variables of Open MPI's own launcher, for programs that were written for it: for example scripts that choose a
/// device by the rank's number on its node.
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

/// Whether the user has set this Open MPI parameter (`OMPI_MCA_NAME`) in the parameter file in HOME. The
/// environment takes precedence over that file.
pub(super) fn is_in_file(variable: &str, text: &str) -> bool {
    variable.strip_prefix("OMPI_MCA_").is_some_and(|wanted| {
        let mut names = text
            .lines()
            .filter_map(|line| Some(line.split_once('=')?.0.trim()));
        names.any(|name| name == wanted)
    })
}

/// Returns the text of that file; empty if there is none.
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
    fn the_users_settings_replace_defaults() {
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
