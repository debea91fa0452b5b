//! The options that users write after `--muster=` and administrators in `plugstack.conf`. Pure: from arguments to
//! settings, or to an error message (slurm-1).

/// Profiles, the fastest first.
const PROFILES: [&str; 3] = ["fast", "standard", "quiet"];
/// The profile of agents without a setting.
const DEFAULT_PROFILE: &str = PROFILES[1];
/// The agents' engines.
const PROTOCOLS: [&str; 2] = ["overlay", "age"];
/// The prefix of the names of the plugin's jobs.
const JOBS: &str = "slurm-";
/// Programs that start ranks on other nodes and agents for them: the daemons of mpirun (Open MPI 5 and 4; MPICH and
/// its derivatives), and `musterd`. A launcher may have forked the ranks of its own node, which Slurm does not see;
/// the ranks of the other nodes must then belong to the same job.
const LAUNCHERS: [&str; 5] = [
    "prted",
    "orted",
    "hydra_pmi_proxy",
    "hydra_bstrap_proxy",
    "musterd",
];
/// Ports for the rails of one agent, with a reserve.
const PORTS_EACH: u32 = 4;

/// The user's options.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct UserOptions {
    pub(crate) profile: Option<String>,
    pub(crate) rails: Option<String>,
    pub(crate) minority: Option<String>,
    pub(crate) protocol: Option<String>,
    pub(crate) ulfm: bool,
    /// `--muster=off`: no agent, though the site has it as default.
    pub(crate) off: bool,
}

/// The site's options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Site {
    /// The program `musterd`.
    pub(crate) agent: String,
    pub(crate) rails: Option<String>,
    pub(crate) profile: Option<String>,
    pub(crate) protocol: Option<String>,
    /// The directory of the agents' journals.
    pub(crate) journal: Option<String>,
    /// The directory of a second socket, for requests of other users.
    pub(crate) readable: Option<String>,
    /// The fastest profile that users may choose.
    fastest: String,
    /// First and last port of rails without a port.
    ports: (u32, u32),
    /// Whether jobs have agents by default.
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
    /// Parses the arguments after the plugin's path in `plugstack.conf`.
    pub(crate) fn parse<'a>(arguments: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let mut site = Self::default();
        for argument in arguments {
            match argument.split_once('=').unwrap_or((argument, "")) {
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
                        "{argument:?} in plugstack.conf is not valid; use agent=/PATH, rails=RAIL+RAIL, \
                         profile=NAME, protocol=overlay|age, journal=/DIRECTORY, readable=/DIRECTORY, \
                         fastest=NAME, ports=LOW-HIGH, default=on|off, realtime=on|off"
                    ));
                }
            }
        }
        Ok(site)
    }

    /// The user's options within the site's limits, and a message if they were reduced.
    pub(crate) fn limited(&self, mut options: UserOptions) -> (UserOptions, Option<String>) {
        let fastest = &self.fastest;
        let message = match &options.profile {
            Some(name) if self.is_too_fast(name) => Some(format!(
                "profile={name} is faster than this site allows; the step has {fastest}"
            )),
            _ => None,
        };
        if message.is_some() {
            options.profile = Some(fastest.clone());
        }
        (options, message)
    }

    /// The profile of a step: the user's, or the site's, or the default, and no faster than the site allows. None if
    /// neither has one and there is no limit: the user's environment decides then.
    pub(crate) fn profile_of(&self, options: &UserOptions) -> Option<String> {
        let wanted = options.profile.as_ref().or(self.profile.as_ref());
        if self.fastest == PROFILES[0] {
            return wanted.cloned();
        }
        let wanted = wanted.map_or(DEFAULT_PROFILE, String::as_str);
        let is_too_fast = self.is_too_fast(wanted);
        Some(if is_too_fast { &self.fastest } else { wanted }.to_owned())
    }

    /// False for an invalid profile, which the agent refuses.
    fn is_too_fast(&self, profile: &str) -> bool {
        let rank = |name: &str| PROFILES.iter().position(|one| *one == name);
        rank(profile).is_some_and(|wanted| Some(wanted) < rank(&self.fastest))
    }

    /// The first port of a step's rails. Steps have different ports, as long as there are enough.
    pub(crate) fn port(&self, job: u32, step: u32) -> u32 {
        let slots = ((self.ports.1 - self.ports.0 + 1) / PORTS_EACH).max(1);
        let number = job.wrapping_mul(31).wrapping_add(step);
        self.ports.0 + number % slots * PORTS_EACH
    }
}

impl UserOptions {
    /// Parses the text after `--muster=`; an empty text is the default.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut options = Self::default();
        for option in text.split(',').filter(|option| !option.is_empty()) {
            match option.split_once('=').unwrap_or((option, "")) {
                ("profile", name) => options.profile = Some(profile(name)?),
                ("rails", rails) if rails.contains('@') => {
                    options.rails = Some(rails.replace('+', ","));
                }
                ("minority", name @ ("continue" | "hold")) => options.minority = Some(name.into()),
                ("protocol", name) => options.protocol = Some(protocol(name)?),
                ("ulfm", "") => options.ulfm = true,
                ("off", "") => options.off = true,
                _ => {
                    return Err(format!(
                        "{option:?} is not valid; use profile=fast|standard|quiet, \
                         rails=ADDRESS@NET+ADDRESS@NET, minority=continue|hold, protocol=overlay|age, ulfm, off"
                    ));
                }
            }
        }
        Ok(options)
    }

    /// Takes options that are not set from the user's environment.
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

/// The job name of a step, for its agents and its tasks.
pub(crate) fn job_name(job: u32, step: u32) -> String {
    format!("{JOBS}{job}.{step}")
}

/// Whether the user chose this job name, and not the plugin in an enclosing step.
pub(crate) fn is_of_the_user(job: &str) -> bool {
    !job.is_empty() && !job.starts_with(JOBS)
}

/// Whether the program of a step starts its own agents, or ranks that are not tasks of the step.
pub(crate) fn has_own_agents(arguments: &[String]) -> bool {
    let name = |argument: &String| argument.rsplit('/').next().map(str::to_owned);
    let Some(program) = arguments.first().and_then(name) else {
        return false;
    };
    let is_muster_run =
        program == "muster" && arguments.get(1).is_some_and(|argument| argument == "run");
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
        format!("ports={text}: use LOW-HIGH, within 1024 to 65535, at least four ports")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_at_most_as_fast_as_the_site_allows() {
        let profile = |site: &str, options: &str| {
            let site = Site::parse(site.split(" ")).unwrap();
            site.profile_of(&UserOptions::parse(options).unwrap())
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
    fn the_option_overrides_the_environment_and_both_override_the_site() {
        let user = |name: &str| (name == "MUSTER_PROFILE").then(|| "fast".to_owned());
        let site = Site::parse("profile=quiet".split(' ')).unwrap();
        let of = |text: &str| site.profile_of(&UserOptions::parse(text).unwrap().or_else(user));
        assert_eq!(of(""), Some("fast".to_owned()));
        assert_eq!(of("profile=standard"), Some("standard".to_owned()));
        let nothing = |_: &str| Some(String::new());
        assert_eq!(
            UserOptions::default().or_else(nothing),
            UserOptions::default()
        );
        // The limit applies to both. An invalid profile is left for the agent to refuse.
        let limit = Site::parse("fastest=standard".split(' ')).unwrap();
        let (options, message) = limit.limited(UserOptions::default().or_else(user));
        assert_eq!(options.profile.as_deref(), Some("standard"));
        assert!(message.is_some());
        let wrong = UserOptions::default().or_else(|_| Some("hasty".to_owned()));
        assert_eq!(limit.profile_of(&wrong), Some("hasty".to_owned()));
    }

    #[test]
    fn launchers_and_jobs_of_the_user_are_recognised() {
        let step = |line: &str| {
            let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
            has_own_agents(&arguments)
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
    fn options_are_parsed_and_invalid_ones_are_named() {
        let options =
            UserOptions::parse("profile=fast,rails=a@udp0+b@udp1,ulfm,minority=hold,protocol=age")
                .unwrap();
        assert_eq!(options.rails.as_deref(), Some("a@udp0,b@udp1"));
        assert!(options.ulfm && options.profile.as_deref() == Some("fast"));
        assert_eq!(options.protocol.as_deref(), Some("age"));
        assert_eq!(UserOptions::parse("").unwrap(), UserOptions::default());
        for text in [
            "nonsense",
            "profile=hasty",
            "rails=x",
            "ulfm=1",
            "minority=stop",
            "protocol=gossip",
            "off=no",
        ] {
            let why = UserOptions::parse(text).unwrap_err();
            assert!(why.contains(text.rsplit('=').next().unwrap()), "{why}");
        }
    }

    /// slurm-1.
    #[test]
    fn a_site_has_defaults_and_limits() {
        let parse = |line: &str| Site::parse(line.split(' '));
        let site = parse("agent=/opt/musterd fastest=standard ports=5000-5011 default=on").unwrap();
        assert!(site.on && site.limited(UserOptions::default()) == (UserOptions::default(), None));
        let (options, message) = site.limited(UserOptions::parse("profile=fast").unwrap());
        assert_eq!(options.profile.as_deref(), Some("standard"));
        let message = message.unwrap();
        assert!(
            message.contains("fast") && message.contains("has standard"),
            "{message}"
        );
        let (options, message) = site.limited(UserOptions::parse("profile=quiet").unwrap());
        assert_eq!((options.profile.as_deref(), message), (Some("quiet"), None));
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
