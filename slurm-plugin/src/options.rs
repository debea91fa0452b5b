//! What users write behind `--muster=` and administrators in `plugstack.conf`. Pure: words in, settings
//! or a reason out (slurm-1).

/// Profiles, the fastest first.
const PROFILES: [&str; 3] = ["fast", "standard", "quiet"];
/// What agents have that are told none.
const DEFAULT_PROFILE: &str = PROFILES[1];
/// Engines of agents.
const PROTOCOLS: [&str; 2] = ["overlay", "age"];
/// What the names of the plugin's jobs begin with.
const JOBS: &str = "slurm-";
/// Programs that start ranks of their own on other nodes, and agents themselves: the daemons of mpirun (Open MPI 5
/// and 4; MPICH and its kin), and `musterd`. Where a launcher has forked its own node's ranks, which Slurm does not
/// see, those of the other nodes must not be of another job.
const LAUNCHERS: [&str; 5] = [
    "prted",
    "orted",
    "hydra_pmi_proxy",
    "hydra_bstrap_proxy",
    "musterd",
];
/// Ports that one agent's rails take, with some to spare.
const PORTS_EACH: u32 = 4;

/// What a user asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) profile: Option<String>,
    pub(crate) rails: Option<String>,
    pub(crate) minority: Option<String>,
    pub(crate) protocol: Option<String>,
    pub(crate) ulfm: bool,
    /// `--muster=off`, where the site has it on.
    pub(crate) off: bool,
}

/// What the site sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Site {
    /// The program `musterd`.
    pub(crate) agent: String,
    pub(crate) rails: Option<String>,
    pub(crate) profile: Option<String>,
    pub(crate) protocol: Option<String>,
    /// Where agents keep their journals.
    pub(crate) journal: Option<String>,
    /// Where agents have a second socket, at which others may ask.
    pub(crate) readable: Option<String>,
    /// The fastest profile that users may ask for.
    fastest: String,
    /// First and last port of rails that name none.
    ports: (u32, u32),
    /// Jobs have it without asking.
    pub(crate) on: bool,
    pub(crate) realtime: bool,
}

impl Default for Site {
    fn default() -> Self {
        Self {
            agent: "/usr/local/bin/musterd".into(),
            rails: None,
            profile: None,
            protocol: None,
            journal: None,
            readable: None,
            fastest: PROFILES[0].into(),
            ports: (20_000, 25_999),
            on: false,
            realtime: true,
        }
    }
}

impl Site {
    /// Reads the words behind the plugin's path in `plugstack.conf`.
    pub(crate) fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let mut site = Self::default();
        for word in words {
            match word.split_once('=').unwrap_or((word, "")) {
                ("agent", path) if path.starts_with('/') => site.agent = path.into(),
                ("rails", rails) if !rails.is_empty() => site.rails = Some(rails.replace('+', ",")),
                ("profile", name) => site.profile = Some(profile(name)?),
                ("protocol", name) => site.protocol = Some(protocol(name)?),
                ("journal", path) if path.starts_with('/') => site.journal = Some(path.into()),
                ("readable", path) if path.starts_with('/') => site.readable = Some(path.into()),
                ("fastest", name) => site.fastest = profile(name)?,
                ("ports", text) => site.ports = ports(text)?,
                ("default", "on") => site.on = true,
                ("default", "off") => site.on = false,
                ("realtime", "on") => site.realtime = true,
                ("realtime", "off") => site.realtime = false,
                _ => {
                    return Err(format!(
                        "{word:?} in plugstack.conf: known are agent=/PATH, rails=RAIL+RAIL, profile=NAME, \
                         protocol=overlay|age, journal=/DIRECTORY, readable=/DIRECTORY, \
                         fastest=NAME, ports=LOW-HIGH, default=on|off, realtime=on|off"
                    ));
                }
            }
        }
        Ok(site)
    }

    /// What a user may have of that, and what is said if it is less.
    pub(crate) fn limited(&self, mut wish: Wish) -> (Wish, Option<String>) {
        let fastest = &self.fastest;
        let word = match &wish.profile {
            Some(name) if self.is_too_fast(name) => Some(format!(
                "profile={name} is faster than this site allows; the step has {fastest}"
            )),
            _ => None,
        };
        if word.is_some() {
            wish.profile = Some(fastest.clone());
        }
        (wish, word)
    }

    /// The profile of a step: what was asked for, or the site's, or the agents' own, and no faster than the site
    /// allows. None: no limit and nobody asked, so the user's environment decides.
    pub(crate) fn profile_of(&self, wish: &Wish) -> Option<String> {
        let asked = wish.profile.as_ref().or(self.profile.as_ref());
        if self.fastest == PROFILES[0] {
            return asked.cloned();
        }
        let asked = asked.map_or(DEFAULT_PROFILE, String::as_str);
        let is_too_fast = self.is_too_fast(asked);
        Some(if is_too_fast { &self.fastest } else { asked }.to_owned())
    }

    /// One that does not exist is not: the agent says so.
    fn is_too_fast(&self, profile: &str) -> bool {
        let rank = |name: &str| PROFILES.iter().position(|one| *one == name);
        rank(profile).is_some_and(|asked| Some(asked) < rank(&self.fastest))
    }

    /// The port of a step's rails: of its own, as long as there are some.
    pub(crate) fn port(&self, job: u32, step: u32) -> u32 {
        let slots = ((self.ports.1 - self.ports.0 + 1) / PORTS_EACH).max(1);
        let number = job.wrapping_mul(31).wrapping_add(step);
        self.ports.0 + number % slots * PORTS_EACH
    }
}

impl Wish {
    /// Reads what is behind `--muster=`; nothing is the default.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut wish = Self::default();
        for word in text.split(',').filter(|word| !word.is_empty()) {
            match word.split_once('=').unwrap_or((word, "")) {
                ("profile", name) => wish.profile = Some(profile(name)?),
                ("rails", rails) if rails.contains('@') => {
                    wish.rails = Some(rails.replace('+', ","));
                }
                ("minority", name @ ("continue" | "hold")) => wish.minority = Some(name.into()),
                ("protocol", name) => wish.protocol = Some(protocol(name)?),
                ("ulfm", "") => wish.ulfm = true,
                ("off", "") => wish.off = true,
                _ => {
                    return Err(format!(
                        "{word:?}: known are profile=fast|standard|quiet, rails=ADDRESS@NET+ADDRESS@NET, \
                         minority=continue|hold, protocol=overlay|age, ulfm, off"
                    ));
                }
            }
        }
        Ok(wish)
    }

    /// What the option does not say the user's environment may.
    pub(crate) fn or_else(self, variable: impl Fn(&str) -> Option<String>) -> Self {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        Self {
            profile: self.profile.or_else(|| variable("MUSTER_PROFILE")),
            minority: self.minority.or_else(|| variable("MUSTER_MINORITY")),
            protocol: self.protocol.or_else(|| variable("MUSTER_PROTOCOL")),
            ..self
        }
    }
}

/// The job of a step, as its agents and its tasks know it.
pub(crate) fn job_name(job: u32, step: u32) -> String {
    format!("{JOBS}{job}.{step}")
}

/// Whether this job was named by the user, and not by the plugin in a step around this one.
pub(crate) fn is_of_the_user(job: &str) -> bool {
    !job.is_empty() && !job.starts_with(JOBS)
}

/// Whether what a step runs brings agents of its own, or ranks that are more than the step's.
pub(crate) fn has_own_agents(words: &[String]) -> bool {
    let name = |word: &String| word.rsplit('/').next().map(str::to_owned);
    let Some(program) = words.first().and_then(name) else {
        return false;
    };
    let is_muster_run = program == "muster" && words.get(1).is_some_and(|word| word == "run");
    is_muster_run || LAUNCHERS.contains(&program.as_str())
}

fn profile(name: &str) -> Result<String, String> {
    match PROFILES.contains(&name) {
        true => Ok(name.to_owned()),
        false => Err(format!(
            "profile {name:?} does not exist; choose fast, standard or quiet"
        )),
    }
}

fn protocol(name: &str) -> Result<String, String> {
    match PROTOCOLS.contains(&name) {
        true => Ok(name.to_owned()),
        false => Err(format!(
            "protocol {name:?} does not exist; choose overlay or age"
        )),
    }
}

fn ports(text: &str) -> Result<(u32, u32), String> {
    let number = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 1023);
    let pair = text
        .split_once('-')
        .and_then(|(low, high)| Some((number(low)?, number(high)?)));
    let pair = pair.map(|(low, high)| (u32::from(low), u32::from(high)));
    let fitting = pair.filter(|(low, high)| low + PORTS_EACH <= high + 1);
    fitting.ok_or_else(|| {
        format!("ports={text}: write LOW-HIGH, from 1024 to 65535 and four at least")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_faster_than_the_site_allows() {
        let profile = |site: &str, wish: &str| {
            let site = Site::parse(site.split(" ")).unwrap();
            site.profile_of(&Wish::parse(wish).unwrap())
        };
        let (quiet, standard) = (Some("quiet".to_owned()), Some("standard".to_owned()));
        assert_eq!(profile("default=on", ""), None);
        assert_eq!(profile("fastest=quiet", ""), quiet);
        assert_eq!(profile("fastest=quiet profile=fast", ""), quiet);
        assert_eq!(profile("fastest=standard", ""), standard);
        assert_eq!(profile("fastest=standard", "profile=fast"), standard);
        assert_eq!(profile("fastest=standard", "profile=quiet"), quiet);
    }

    #[test]
    fn the_option_goes_before_the_environment_and_both_before_the_site() {
        let user = |name: &str| (name == "MUSTER_PROFILE").then(|| "fast".to_owned());
        let site = Site::parse("profile=quiet".split(' ')).unwrap();
        let of = |text: &str| site.profile_of(&Wish::parse(text).unwrap().or_else(user));
        assert_eq!(of(""), Some("fast".to_owned()));
        assert_eq!(of("profile=standard"), Some("standard".to_owned()));
        let nothing = |_: &str| Some(String::new());
        assert_eq!(Wish::default().or_else(nothing), Wish::default());
        // A limit holds for either, and what is no profile is left for the agent to refuse.
        let limit = Site::parse("fastest=standard".split(' ')).unwrap();
        let (wish, word) = limit.limited(Wish::default().or_else(user));
        assert_eq!(wish.profile.as_deref(), Some("standard"));
        assert!(word.is_some());
        let wrong = Wish::default().or_else(|_| Some("hasty".to_owned()));
        assert_eq!(limit.profile_of(&wrong), Some("hasty".to_owned()));
    }

    #[test]
    fn launchers_and_jobs_of_the_user_are_known() {
        let step = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            has_own_agents(&words)
        };
        for line in ["/opt/bin/muster run -n 4 -- ./a", "prted --x", "musterd"] {
            assert!(step(line), "{line}");
        }
        for line in ["muster members", "./run", "sh -c prted", ""] {
            assert!(!step(line), "{line}");
        }
        assert!(!has_own_agents(&[]));
        assert!(is_of_the_user("4711") && !is_of_the_user("") && !is_of_the_user(&job_name(1, 0)));
    }

    #[test]
    fn wishes_are_read_and_wrong_ones_are_named() {
        let wish = Wish::parse("profile=fast,rails=a@udp0+b@udp1,ulfm,minority=hold,protocol=age")
            .unwrap();
        assert_eq!(wish.rails.as_deref(), Some("a@udp0,b@udp1"));
        assert!(wish.ulfm && wish.profile.as_deref() == Some("fast"));
        assert_eq!(wish.protocol.as_deref(), Some("age"));
        assert_eq!(Wish::parse("").unwrap(), Wish::default());
        for text in [
            "nonsense",
            "profile=hasty",
            "rails=x",
            "ulfm=1",
            "minority=stop",
            "protocol=gossip",
            "off=no",
        ] {
            let why = Wish::parse(text).unwrap_err();
            assert!(why.contains(text.rsplit('=').next().unwrap()), "{why}");
        }
    }

    /// slurm-1.
    #[test]
    fn a_site_has_defaults_and_limits() {
        let parse = |line: &str| Site::parse(line.split(' '));
        let site = parse("agent=/opt/musterd fastest=standard ports=5000-5011 default=on").unwrap();
        assert!(site.on && site.limited(Wish::default()) == (Wish::default(), None));
        let (wish, word) = site.limited(Wish::parse("profile=fast").unwrap());
        assert_eq!(wish.profile.as_deref(), Some("standard"));
        let word = word.unwrap();
        assert!(
            word.contains("fast") && word.contains("has standard"),
            "{word}"
        );
        let (wish, word) = site.limited(Wish::parse("profile=quiet").unwrap());
        assert_eq!((wish.profile.as_deref(), word), (Some("quiet"), None));
        let ports: Vec<u32> = (0..4).map(|step| site.port(0, step)).collect();
        assert_eq!(ports, [5000, 5004, 5008, 5000]);
        for line in [
            "agent=musterd",
            "ports=9-10",
            "ports=70000-70010",
            "colour=red",
            "profile=x",
            "protocol=x",
            "journal=here",
            "readable=run",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
