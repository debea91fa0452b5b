//! What a rank finds in its environment besides the user's own.
//!
//! Each default gives way to what the user has set. Why they are needed for a job that survives:
//! Open MPI's hierarchical collectives (coll/han) crash when a rank dies during the first of them, ULFM is off
//! unless asked for, and ranks that share cores must yield them.

use std::ffi::OsString;

use super::layout::Layout;

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
/// one that speaks PMIx.
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

/// Whether a variable makes a process part of another launcher's job, or a launcher.
pub(super) fn is_foreign(name: &str) -> bool {
    ["PMIX_", "PMI_", "OMPI_COMM_WORLD_", "PRTE_", "MUSTER_RUN_"]
        .iter()
        .any(|beginning| name.starts_with(beginning))
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
    }
}
