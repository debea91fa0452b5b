//! Nodes that the user names, without Slurm: a list or a file of hosts (run-2).
//!
//! All launchers get the same list, and its order is the order of the nodes.

use std::net::{ToSocketAddrs, UdpSocket};
use std::path::Path;

use super::slurm::{Step, port_of};
use muster_sys::file::read_text;

/// Most hosts in a list.
const HOSTS_MAX: usize = 4096;

/// Most bytes of a host file: names of the longest size in DNS, and comments.
const FILE_MAX: usize = 4 << 20;

/// The hosts of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    /// Their names, in order.
    pub names: Vec<String>,
}

impl Hosts {
    /// Parses a list as in `n[1-4],x7`.
    ///
    /// # Errors
    /// The list is malformed, too long or empty.
    pub fn parse(list: &str) -> Result<Self, String> {
        let names = muster_hostlist::expand(list, HOSTS_MAX)
            .map_err(|cause| format!("--hosts: {cause}"))?;
        Self::of(names, &format!("--hosts {list:?}"))
    }

    /// Reads a file with a name, or a list of names, on each line; `#` begins a comment.
    ///
    /// # Errors
    /// The file cannot be read, or the first line that cannot be parsed.
    pub fn read(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let text = read_text(path, FILE_MAX)
            .map_err(|cause| format!("--hostfile {shown}: {cause}; name a file of host names"))?;
        let mut names = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            let at = format!("--hostfile {shown}, line {}", number + 1);
            if line.contains(char::is_whitespace) {
                return Err(format!(
                    "{at}: {line:?} is more than a name; give the ranks of each host by -n or --ppn"
                ));
            }
            let some = match line {
                "" => Vec::new(),
                some => muster_hostlist::expand(some, HOSTS_MAX)
                    .map_err(|cause| format!("{at}: {cause}"))?,
            };
            names.extend(some);
        }
        Self::of(names, &format!("--hostfile {shown}"))
    }

    fn of(names: Vec<String>, what: &str) -> Result<Self, String> {
        // A name becomes part of a command line and of file names.
        let fits = |name: &&String| {
            let is_allowed = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
            !name.starts_with('-') && name.chars().all(is_allowed)
        };
        match names.iter().find(|name| !fits(name)) {
            Some(wrong) if wrong.contains('@') => Err(format!(
                "{what}: {wrong:?} has a user in it; write the host alone, and the user as in \
                 --ssh 'ssh -o BatchMode=yes -l USER', or into ~/.ssh/config"
            )),
            Some(wrong) => Err(format!(
                "{what}: {wrong:?} is not a host name; a name has only a-z, A-Z, 0-9, dots, dashes and underscores"
            )),
            None if names.is_empty() => Err(format!("{what} names no host")),
            None => Ok(Self { names }),
        }
    }

    /// The list as text for another command line.
    pub fn list(&self) -> String {
        self.names.join(",")
    }

    /// The step that the host at this place sees.
    pub fn step(&self, own: usize, job: &str) -> Step {
        Step {
            job: job.to_owned(),
            nodes: self.names.clone(),
            list: self.list(),
            own,
            port: port_of(job),
        }
    }

    /// Returns the place of this host, by its name or, if that is not in the list, by one of its addresses.
    ///
    /// # Errors
    /// It is none of the hosts, or several.
    pub fn place(&self, own: &str) -> Result<usize, String> {
        let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
        let ways: [&dyn Fn(&String) -> bool; 3] = [
            &|name| name == own,
            // An IP address has no short form.
            &|name| name.parse::<std::net::IpAddr>().is_err() && short(name) == short(own),
            &|name| is_here(name),
        ];
        for way in ways {
            let places: Vec<usize> = (0..self.names.len())
                .filter(|place| way(&self.names[*place]))
                .collect();
            match places[..] {
                [] => {}
                [place] => return Ok(place),
                _ => {
                    return Err(format!(
                        "this host ({own}) is {} of the hosts; set MUSTER_NODE to one of them",
                        places.len()
                    ));
                }
            }
        }
        Err(format!(
            "this host ({own}) is none of the hosts {}; name it there, or set MUSTER_NODE to one of them",
            self.list()
        ))
    }
}

/// Whether a name resolves to this machine: only its own addresses can be bound to.
fn is_here(name: &str) -> bool {
    let addresses = (name, 0).to_socket_addrs();
    addresses.is_ok_and(|mut all| all.any(|address| UdpSocket::bind(address).is_ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_list_and_a_file_name_the_same_hosts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts");
        fs::write(&path, "# ours\nn[1-2]\n\nx7 # the new one\n").unwrap();
        let hosts = Hosts::read(&path).unwrap();
        assert_eq!(hosts, Hosts::parse("n1,n2,x7").unwrap());
        assert_eq!(hosts.list(), "n1,n2,x7");
        let step = hosts.step(2, "j");
        assert_eq!((step.own, step.job.as_str()), (2, "j"));
        assert!(step.port == hosts.step(0, "j").port);
        fs::write(&path, "n1 slots=4\n").unwrap();
        let refused = Hosts::read(&path).unwrap_err();
        assert!(
            refused.contains("line 1") && refused.contains("--ppn"),
            "{refused}"
        );
        fs::write(&path, "# empty\n").unwrap();
        assert!(Hosts::read(&path).unwrap_err().contains("no host"));
        let missing = Hosts::read(&folder.path().join("none")).unwrap_err();
        assert!(missing.contains("none"), "{missing}");
    }

    #[test]
    fn invalid_host_names_are_refused() {
        for wrong in ["n[1-", "-oProxyCommand=x", "a/b", "a b", "a;b"] {
            assert!(Hosts::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_host_finds_its_place() {
        let hosts = Hosts::parse("n1,n2.site.example,127.0.0.1").unwrap();
        assert_eq!(hosts.place("n1"), Ok(0));
        assert_eq!(hosts.place("n2.other.example"), Ok(1));
        assert_eq!(hosts.place("unknown"), Ok(2));
        let hosts = Hosts::parse("198.51.100.1,198.51.100.2").unwrap();
        let refused = hosts.place("unknown").unwrap_err();
        assert!(
            refused.contains("unknown") && refused.contains("MUSTER_NODE"),
            "{refused}"
        );
        let hosts = Hosts::parse("127.0.0.1,127.0.0.2").unwrap();
        let refused = hosts.place("unknown").unwrap_err();
        assert!(refused.contains("is 2 of the hosts"), "{refused}");
    }
}
