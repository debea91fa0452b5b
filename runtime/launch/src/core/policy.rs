//! The exit status of a job whose ranks ended differently (run-4).

use super::node_status::Ended;

/// Which status counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExitPolicy {
    /// The first status that is not zero.
    First,
    /// The highest status.
    Worst,
    /// The highest of the ranks that were not lost in MPI; a lost rank counts only if none survived.
    #[default]
    Survivors,
}

impl std::str::FromStr for ExitPolicy {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "first" => Ok(Self::First),
            "worst" => Ok(Self::Worst),
            "survivors" => Ok(Self::Survivors),
            _ => Err("unknown policy; write first, worst or survivors".into()),
        }
    }
}

impl ExitPolicy {
    /// The status of this node's part of the job; `first` is the first status of the whole job that is not
    /// zero.
    pub(crate) fn status(self, ended: &[Ended], others_survive: bool, first: Option<u8>) -> u8 {
        let all = || ended.iter().map(|one| one.status);
        match self {
            Self::First => first.unwrap_or(0),
            Self::Worst => all().max().unwrap_or(0),
            Self::Survivors => {
                let survived = |one: &&Ended| !one.is_lost() || one.status == 0;
                let survivors: Vec<u8> = ended
                    .iter()
                    .filter(survived)
                    .map(|one| one.status)
                    .collect();
                match survivors.iter().max() {
                    Some(status) => *status,
                    None if others_survive => 0,
                    None => all().max().unwrap_or(0),
                }
            }
        }
    }

    /// The status of a job whose nodes have these statuses; `None` for a lost node. All nodes have the same
    /// status for the first failure.
    pub fn of_nodes(self, statuses: &[Option<u8>]) -> u8 {
        let known = || statuses.iter().flatten().copied();
        match self {
            Self::First if known().next().is_none() => 137,
            Self::First => known().find(|status| *status != 0).unwrap_or(0),
            Self::Worst if statuses.contains(&None) => known().max().unwrap_or(0).max(137),
            Self::Worst => known().max().unwrap_or(0),
            Self::Survivors => known().max().unwrap_or(137),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(status: u8, lost: bool) -> Ended {
        Ended {
            rank: 0,
            status,
            connected: lost,
            finalized: false,
        }
    }

    /// run-4.
    #[test]
    fn the_status_of_a_lost_rank_counts_by_policy() {
        let ended = [end(137, true), end(3, false), end(4, false)];
        let status = |policy: ExitPolicy| policy.status(&ended, true, Some(9));
        assert_eq!(status(ExitPolicy::First), 9);
        assert_eq!(status(ExitPolicy::Worst), 137);
        assert_eq!(status(ExitPolicy::Survivors), 4);
        let all_lost = [end(137, true)];
        assert_eq!(ExitPolicy::Survivors.status(&all_lost, true, None), 0);
        assert_eq!(ExitPolicy::Survivors.status(&all_lost, false, None), 137);
    }

    #[test]
    fn the_status_of_a_lost_node_counts_by_policy() {
        let statuses = [Some(0), None, Some(2)];
        assert_eq!(ExitPolicy::First.of_nodes(&statuses), 2);
        assert_eq!(ExitPolicy::Worst.of_nodes(&statuses), 137);
        assert_eq!(ExitPolicy::Survivors.of_nodes(&statuses), 2);
        for policy in [ExitPolicy::First, ExitPolicy::Worst, ExitPolicy::Survivors] {
            assert_eq!(policy.of_nodes(&[None]), 137, "no node reports success");
        }
    }
}
