//! The functions that Slurm calls. Each hook is inside a `catch_unwind` and always returns success.

#![allow(unsafe_code)]
// Slurm finds these symbols in the library by name; no Rust code uses them.
#![allow(unreachable_pub, non_upper_case_globals)]

use crate::options::{Site, UserOptions, has_own_agents, is_of_the_user, job_name};
use crate::spank::{Handle, Item, OPTIONAL, Spank, SpankOption, error, host, message_to_user};
use crate::start::{Agent, StartOptions, ended};
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

/// The variable that carries the key to the node. No task gets it. srun sends variables with this prefix for any
/// `--export`.
const KEY: &CStr = c"SLURM_MUSTER_KEY";
/// Steps from this number on have no tasks: batch scripts, external steps.
const SPECIAL_STEPS: u32 = 0xffff_fff0;

/// The plugin's name.
#[unsafe(no_mangle)]
pub static plugin_name: [u8; 7] = *b"muster\0";
/// The type of the plugin.
#[unsafe(no_mangle)]
pub static plugin_type: [u8; 6] = *b"spank\0";
/// The version of the Slurm that the plugin was built for.
#[unsafe(no_mangle)]
pub static plugin_version: u32 = number(env!("MUSTER_SLURM_VERSION"));
/// The version of the plugin.
#[unsafe(no_mangle)]
pub static spank_plugin_version: u32 = 1;

struct State {
    /// The options of `plugstack.conf`, or the reason why they are invalid.
    site: Result<Option<Site>, String>,
    options: Option<UserOptions>,
    agent: Option<Agent>,
    /// A message to the user, to be sent as soon as that is possible.
    message: Option<String>,
}

static STATE: Mutex<State> = Mutex::new(State {
    site: Ok(None),
    options: None,
    agent: None,
    message: None,
});

const fn number(digits: &str) -> u32 {
    match u32::from_str_radix(digits, 10) {
        Ok(number) => number,
        Err(_) => panic!("MUSTER_SLURM_VERSION of build.rs is no number"),
    }
}

/// Runs one hook. The job continues whatever happens in it.
fn hook(name: &str, body: impl FnOnce(&mut State)) -> c_int {
    let guarded =
        AssertUnwindSafe(|| body(&mut STATE.lock().unwrap_or_else(PoisonError::into_inner)));
    if catch_unwind(guarded).is_err() {
        error(&format!(
            "the plugin failed in {name} (a defect of Muster); the job runs without it"
        ));
    }
    0
}

/// In each context: parses the site's options and registers the user's option.
#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_init(
    spank: Handle,
    count: c_int,
    arguments: *const *const c_char,
) -> c_int {
    hook("init", |state| {
        let argument = |at: usize| {
            // SAFETY: Slurm gives `count` terminated texts, which are valid as long as the plugin.
            let text = unsafe { CStr::from_ptr(*arguments.add(at)) };
            text.to_str().unwrap_or("?")
        };
        let count = usize::try_from(count).unwrap_or(0);
        match Site::parse((0..count).map(argument)) {
            Ok(site) => state.site = Ok(Some(site)),
            Err(why) => {
                error(&why);
                state.site = Err(why);
            }
        }
        let option = SpankOption {
            name: c"muster".as_ptr(),
            argument: c"[OPTION,...]".as_ptr(),
            usage: c"watch nodes and tasks with Muster; see muster-slurm(7)".as_ptr(),
            has_argument: OPTIONAL,
            value: 0,
            callback: option,
        };
        if !Spank(spank).register(&option) {
            error("srun refused to register the option --muster");
        }
    })
}

/// Parses the user's option; an invalid one ends srun before it starts a step.
extern "C" fn option(_value: c_int, argument: *const c_char, remote: c_int) -> c_int {
    let mut is_wrong = false;
    hook("option", |state| {
        let text = match argument.is_null() {
            true => String::new(),
            // SAFETY: Slurm gives a terminated text.
            false => unsafe { CStr::from_ptr(argument) }
                .to_string_lossy()
                .into_owned(),
        };
        let text = if text == "(null)" {
            String::new()
        } else {
            text
        };
        let site = state.site.clone().ok().flatten().unwrap_or_default();
        match UserOptions::parse(&text).map(|options| site.limited(options)) {
            Ok((options, message)) => {
                state.options = Some(options);
                // srun has sent it; nodes would repeat it.
                if let (Some(message), 0) = (message, remote) {
                    message_to_user(&format!("--muster: {message}"));
                }
            }
            Err(why) => {
                error(&format!("--muster: {why}"));
                is_wrong = remote == 0;
            }
        }
    });
    if is_wrong { -1 } else { 0 }
}

/// In srun, before the step is launched: generates the key. Its presence tells the nodes to start agents.
#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_local_user_init(
    spank: Handle,
    _: c_int,
    _: *const *const c_char,
) -> c_int {
    hook("local_user_init", |state| {
        // SAFETY: a terminated text; only this thread of srun changes the environment at this time.
        unsafe { libc::unsetenv(KEY.as_ptr()) };
        let Ok(Some(site)) = &state.site else {
            return;
        };
        let options = state.options.clone().or(site.on.then(UserOptions::default));
        let Some(options) = options.filter(|options| !options.off) else {
            return;
        };
        if has_own_agents(&Spank(spank).arguments()) {
            return;
        }
        let variable = |name: &str| std::env::var(name).ok();
        if let (_, Some(message)) = site.limited(options.or_else(variable)) {
            message_to_user(&message);
        }
        let mut bytes = [0u8; 32];
        // SAFETY: the kernel writes at most `bytes.len()` bytes.
        let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if got != bytes.len() as isize {
            return error("getrandom returned no key; the step runs without Muster");
        }
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        // The environment that srun sends to the nodes, not its own, which /proc shows.
        if let Ok(value) = std::ffi::CString::new(digits) {
            // SAFETY: as above.
            unsafe { libc::setenv(KEY.as_ptr(), value.as_ptr(), 1) };
        }
    })
}

/// In slurmstepd, as root, before it creates tasks: starts the agent.
#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_init_post_opt(
    spank: Handle,
    _: c_int,
    _: *const *const c_char,
) -> c_int {
    let spank = Spank(spank);
    if !spank.is_remote() {
        return 0;
    }
    hook("init_post_opt", |state| {
        let key = spank.variable(KEY);
        spank.unset(KEY);
        let number = |item| spank.number(item);
        let (Some(job), Some(step)) = (number(Item::Job), number(Item::Step)) else {
            return;
        };
        if step >= SPECIAL_STEPS || is_left_alone(state, spank, key.is_some()) {
            return;
        }
        let node = node(spank);
        match start(state, spank, key, (job, step), &node) {
            Ok((agent, warning)) => {
                state.agent = Some(agent);
                state.message = warning.map(|warning| format!("node {node}: {warning}"));
            }
            Err(why) => state.message = Some(format!("node {node} runs without Muster: {why}")),
        }
    })
}

/// Whether the plugin starts no agent for this step, because it is not wanted or because the step has its own.
fn is_left_alone(state: &State, spank: Spank, has_key: bool) -> bool {
    let options = state.options.as_ref();
    let is_wanted = options.map_or(has_key, |options| !options.off);
    let is_named = || {
        let job = spank.variable(c"MUSTER_JOB");
        options.is_none() && job.is_some_and(|job| is_of_the_user(&job))
    };
    !is_wanted || has_own_agents(&spank.arguments()) || is_named()
}

/// Starts the node's agent; also returns a warning if the agent lacks something.
fn start(
    state: &State,
    spank: Spank,
    key: Option<String>,
    step: (u32, u32),
    node: &str,
) -> Result<(Agent, Option<String>), String> {
    let site = state.site.clone()?.unwrap_or_default();
    let key = key.ok_or(
        "srun has sent no key; the plugin must also be installed on the node where srun was called",
    )?;
    let (Some(uid), Some(gid)) = (spank.number(Item::Uid), spank.number(Item::Gid)) else {
        return Err("Slurm does not return the user of this step".into());
    };
    let variable = |name: &str| spank.variable(&std::ffi::CString::new(name).ok()?);
    let options = state.options.clone().unwrap_or_default();
    let (options, _) = site.limited(options.or_else(variable));
    let variables = set_task_variables(spank, &site, &options, step, node);
    let mut groups = spank.groups();
    if groups.is_empty() {
        groups.push(gid);
    }
    Agent::start(&StartOptions {
        program: site.agent,
        variables,
        key,
        uid,
        gid,
        groups,
        realtime: site.realtime,
    })
}

/// In slurmstepd, as soon as messages reach the user.
#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_user_init(_: Handle, _: c_int, _: *const *const c_char) -> c_int {
    hook("user_init", |state| {
        if let Some(message) = state.message.take() {
            message_to_user(&message);
        }
    })
}

/// In slurmstepd, when a task has ended: reports it to the agent, which does not watch tasks that never attached.
#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_task_exit(spank: Handle, _: c_int, _: *const *const c_char) -> c_int {
    let spank = Spank(spank);
    hook("task_exit", |state| {
        let Some(agent) = &state.agent else {
            return;
        };
        // Each component of a heterogeneous job counts its tasks from 0, but its ranks are numbered across all of them.
        if spank.variable(c"SLURM_HET_SIZE").is_some() {
            return;
        }
        let number = |item| spank.number(item);
        let (task, pid) = (number(Item::Task), number(Item::Pid));
        if let (Some(task), Some(pid), Some(status)) = (task, pid, number(Item::Status)) {
            agent.send_line(&ended(task, pid, status.cast_signed()));
        }
    })
}

/// In slurmstepd, after the last task: ends the agent.
#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_exit(_: Handle, _: c_int, _: *const *const c_char) -> c_int {
    hook("exit", |state| {
        if let Some(agent) = state.agent.take()
            && !agent.end()
        {
            error("the agent continues, since processes of the step are still attached");
        }
    })
}

/// This node's Slurm name, by its index in the step's node list. Variables may name another node: the
/// `SLURMD_NODENAME` of a batch script is inherited by all steps that it starts.
fn node(spank: Spank) -> String {
    let mut name = [0u8; 256];
    let by_host = || {
        // SAFETY: the kernel writes at most `name.len()` bytes; the last one stays 0.
        unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        let name = name.to_string_lossy();
        name.split('.').next().unwrap_or_default().to_owned()
    };
    let hosts = spank.variable(c"SLURM_STEP_NODELIST");
    let name = hosts.and_then(|hosts| host(&hosts, spank.number(Item::Node)?));
    name.unwrap_or_else(by_host)
}

/// Sets the tasks' variables, and returns those of the agent: the same, without other variables of the user, since
/// root starts the agent, and a variable of the user must not make it load a library.
fn set_task_variables(
    spank: Spank,
    site: &Site,
    options: &UserOptions,
    (job, step): (u32, u32),
    node: &str,
) -> Vec<String> {
    let nodes = [
        c"SLURM_STEP_NODELIST",
        c"SLURM_NODELIST",
        c"SLURM_JOB_NODELIST",
    ];
    let hosts = nodes.iter().find_map(|name| spank.variable(name));
    let rails = options.rails.clone().or_else(|| site.rails.clone());
    // An empty value counts as not set.
    let user = |name: &CStr| spank.variable(name).filter(|value| !value.is_empty());
    let rails = rails.or_else(|| user(c"MUSTER_RAILS"));
    let readable = site.readable.clone();
    let readable = readable.or_else(|| user(c"MUSTER_READABLE_IN"));
    let profile = site.profile_of(options);
    let protocol = options.protocol.as_ref().or(site.protocol.as_ref());
    let port = site.port(job, step).to_string();
    let settings = [
        (c"MUSTER_JOB", Some(job_name(job, step))),
        (c"MUSTER_NODE", Some(node.to_owned())),
        (c"MUSTER_PORT", Some(port)),
        (c"MUSTER_HOSTS", hosts),
        (c"MUSTER_RAILS", rails),
        (c"MUSTER_PROFILE", profile),
        (c"MUSTER_MINORITY", options.minority.clone()),
        (c"MUSTER_PROTOCOL", protocol.cloned()),
        (c"MUSTER_AGENT", Some(site.agent.clone())),
        (c"MUSTER_JOURNAL", site.journal.clone()),
        (c"MUSTER_READABLE_IN", readable),
        (c"MUSTER_ULFM", options.ulfm.then(|| "1".to_owned())),
    ];
    let kept = [
        c"MUSTER_DIR",
        c"MUSTER_LOG",
        c"MUSTER_LOG_TO",
        c"MUSTER_JOURNAL",
        c"MUSTER_JOURNAL_KB",
        c"MUSTER_LINGER_MS",
        c"MUSTER_PARTICIPANTS",
        c"MUSTER_INTERVAL_MS",
        c"MUSTER_ROUND_TRIP_MS",
        c"MUSTER_GROUP",
        c"MUSTER_ZONES",
        c"MUSTER_LOCAL",
    ];
    let kept = kept.map(|name| (name, user(name)));
    // The user's journal has precedence over the site's.
    let is_kept = |name: &CStr| {
        kept.iter()
            .any(|(kept, value)| *kept == name && value.is_some())
    };
    let mut lines = Vec::new();
    let settings = settings.iter().filter(|(name, _)| !is_kept(name));
    for (name, value) in settings.chain(&kept) {
        if let Some(value) = value {
            spank.set(name, value);
            lines.push(format!("{}={value}", name.to_string_lossy()));
        }
    }
    lines
}
