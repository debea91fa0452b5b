//! What Slurm calls. Each hook is inside a `catch_unwind`, and all say that all is well.

#![allow(unsafe_code)]
// Slurm looks for these names in the library; no Rust code does.
#![allow(unreachable_pub, non_upper_case_globals)]

use crate::options::{Site, Wish, has_own_agents, is_of_the_user, job_name};
use crate::spank::{Handle, Item, OPTIONAL, Spank, SpankOption, error, host, tell};
use crate::start::{Agent, Order, ended};
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

/// Where the key travels; no task ever has it. What begins so srun sends whatever `--export` says.
const KEY: &CStr = c"SLURM_MUSTER_KEY";
/// Steps from here on are no steps of tasks: batch scripts, external ones.
const SPECIAL_STEPS: u32 = 0xffff_fff0;

/// The plugin's name.
#[unsafe(no_mangle)]
pub static plugin_name: [u8; 7] = *b"muster\0";
/// What kind of plugin.
#[unsafe(no_mangle)]
pub static plugin_type: [u8; 6] = *b"spank\0";
/// Of the Slurm that it was built for.
#[unsafe(no_mangle)]
pub static plugin_version: u32 = number(env!("MUSTER_SLURM_VERSION"));
/// Its own.
#[unsafe(no_mangle)]
pub static spank_plugin_version: u32 = 1;

struct State {
    /// The site's line, or why it cannot be understood.
    site: Result<Option<Site>, String>,
    wish: Option<Wish>,
    agent: Option<Agent>,
    /// What the user is told as soon as that can be heard.
    word: Option<String>,
}

static STATE: Mutex<State> = Mutex::new(State {
    site: Ok(None),
    wish: None,
    agent: None,
    word: None,
});

const fn number(digits: &str) -> u32 {
    match u32::from_str_radix(digits, 10) {
        Ok(number) => number,
        Err(_) => panic!("build.rs writes a number"),
    }
}

/// One hook: whatever happens inside, the job goes on.
fn hook(name: &str, body: impl FnOnce(&mut State)) -> c_int {
    let guarded =
        AssertUnwindSafe(|| body(&mut STATE.lock().unwrap_or_else(PoisonError::into_inner)));
    if catch_unwind(guarded).is_err() {
        error(&format!(
            "the plugin has a bug in {name}; the job runs without it"
        ));
    }
    0
}

/// Everywhere: the site's line, and the option.
#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_init(
    spank: Handle,
    count: c_int,
    words: *const *const c_char,
) -> c_int {
    hook("init", |state| {
        let word = |at: usize| {
            // SAFETY: Slurm gives so many terminated texts, which live as long as the plugin.
            let text = unsafe { CStr::from_ptr(*words.add(at)) };
            text.to_str().unwrap_or("?")
        };
        let count = usize::try_from(count).unwrap_or(0);
        match Site::parse((0..count).map(word)) {
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
            error("srun does not take the option --muster");
        }
    })
}

/// The option was given; a wrong one ends srun before there is a step.
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
        match Wish::parse(&text).map(|wish| site.limited(wish)) {
            Ok((wish, word)) => {
                state.wish = Some(wish);
                // Nodes would say it again.
                if let (Some(word), 0) = (word, remote) {
                    tell(&format!("--muster: {word}"));
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

/// In srun, before the step is launched: draws the key, which says to the nodes that agents are wanted.
#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_local_user_init(
    spank: Handle,
    _: c_int,
    _: *const *const c_char,
) -> c_int {
    hook("local_user_init", |state| {
        // SAFETY: a terminated text; srun has one thread that writes variables here, this one.
        unsafe { libc::unsetenv(KEY.as_ptr()) };
        let Ok(Some(site)) = &state.site else {
            return;
        };
        let wish = state.wish.clone().or(site.on.then(Wish::default));
        let Some(wish) = wish.filter(|wish| !wish.off) else {
            return;
        };
        if has_own_agents(&Spank(spank).arguments()) {
            return;
        }
        let variable = |name: &str| std::env::var(name).ok();
        if let (_, Some(word)) = site.limited(wish.or_else(variable)) {
            tell(&word);
        }
        let mut bytes = [0u8; 32];
        // SAFETY: the kernel fills at most as many bytes as there are.
        let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if got != bytes.len() as isize {
            return error("no key could be drawn; the step runs without Muster");
        }
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        // The environment that srun sends, not the one that /proc shows of it.
        if let Ok(value) = std::ffi::CString::new(digits) {
            // SAFETY: as above.
            unsafe { libc::setenv(KEY.as_ptr(), value.as_ptr(), 1) };
        }
    })
}

/// In slurmstepd, as root, before there are tasks: starts the agent.
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
            Ok((agent, lacks)) => {
                state.agent = Some(agent);
                state.word = lacks.map(|lacks| format!("node {node}: {lacks}"));
            }
            Err(why) => state.word = Some(format!("node {node} runs without Muster: {why}")),
        }
    })
}

/// Whether this step has no agent of ours, and nobody misses it.
fn is_left_alone(state: &State, spank: Spank, has_key: bool) -> bool {
    let wish = state.wish.as_ref();
    let is_wanted = wish.map_or(has_key, |wish| !wish.off);
    let is_named = || {
        let job = spank.variable(c"MUSTER_JOB");
        wish.is_none() && job.is_some_and(|job| is_of_the_user(&job))
    };
    !is_wanted || has_own_agents(&spank.arguments()) || is_named()
}

/// Starts the node's agent; what it goes without comes with it.
fn start(
    state: &State,
    spank: Spank,
    key: Option<String>,
    step: (u32, u32),
    node: &str,
) -> Result<(Agent, Option<String>), String> {
    let site = state.site.clone()?.unwrap_or_default();
    let key = key.ok_or("srun has sent no key; is the plugin there, too, where it was called?")?;
    let (Some(uid), Some(gid)) = (spank.number(Item::Uid), spank.number(Item::Gid)) else {
        return Err("Slurm does not say whose step this is".into());
    };
    let variable = |name: &str| spank.variable(&std::ffi::CString::new(name).ok()?);
    let wish = state.wish.clone().unwrap_or_default();
    let (wish, _) = site.limited(wish.or_else(variable));
    let variables = tell_tasks(spank, &site, &wish, step, node);
    let mut groups = spank.groups();
    if groups.is_empty() {
        groups.push(gid);
    }
    Agent::start(&Order {
        program: site.agent,
        variables,
        key,
        uid,
        gid,
        groups,
        realtime: site.realtime,
    })
}

/// In slurmstepd, as soon as the user hears us.
#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_user_init(_: Handle, _: c_int, _: *const *const c_char) -> c_int {
    hook("user_init", |state| {
        if let Some(word) = state.word.take() {
            tell(&word);
        }
    })
}

/// In slurmstepd, when a task has ended: the agent is told, which knows nothing of those that never came to it.
#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_task_exit(spank: Handle, _: c_int, _: *const *const c_char) -> c_int {
    let spank = Spank(spank);
    hook("task_exit", |state| {
        let Some(agent) = &state.agent else {
            return;
        };
        // Each component of such a job counts its tasks from 0, and their ranks go through.
        if spank.variable(c"SLURM_HET_SIZE").is_some() {
            return;
        }
        let number = |item| spank.number(item);
        let (task, pid) = (number(Item::Task), number(Item::Pid));
        if let (Some(task), Some(pid), Some(status)) = (task, pid, number(Item::Status)) {
            agent.tell(&ended(task, pid, status.cast_signed()));
        }
    })
}

/// In slurmstepd, after the last task: the agent ends.
#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_exit(_: Handle, _: c_int, _: *const *const c_char) -> c_int {
    hook("exit", |state| {
        if let Some(agent) = state.agent.take()
            && !agent.end()
        {
            error("the agent stays, as processes of the step are still attached");
        }
    })
}

/// This node's name, as Slurm has it: its place in the step's list. What a variable says may be of another
/// node: a batch script's `SLURMD_NODENAME` comes along to all the steps that it starts.
fn node(spank: Spank) -> String {
    let mut name = [0u8; 256];
    let by_host = || {
        // SAFETY: the kernel writes at most as many bytes as there are; the last one stays 0.
        unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        let name = name.to_string_lossy();
        name.split('.').next().unwrap_or_default().to_owned()
    };
    let hosts = spank.variable(c"SLURM_STEP_NODELIST");
    let name = hosts.and_then(|hosts| host(&hosts, spank.number(Item::Node)?));
    name.unwrap_or_else(by_host)
}

/// Gives tasks their variables; those of the agent are the same, and no others of the user's: a library
/// that a user names must not run with what root gives.
fn tell_tasks(
    spank: Spank,
    site: &Site,
    wish: &Wish,
    (job, step): (u32, u32),
    node: &str,
) -> Vec<String> {
    let nodes = [
        c"SLURM_STEP_NODELIST",
        c"SLURM_NODELIST",
        c"SLURM_JOB_NODELIST",
    ];
    let hosts = nodes.iter().find_map(|name| spank.variable(name));
    let rails = wish.rails.clone().or_else(|| site.rails.clone());
    // What is empty counts as not given.
    let user = |name: &CStr| spank.variable(name).filter(|value| !value.is_empty());
    let rails = rails.or_else(|| user(c"MUSTER_RAILS"));
    let readable = site.readable.clone();
    let readable = readable.or_else(|| user(c"MUSTER_READABLE_IN"));
    let profile = site.profile_of(wish);
    let protocol = wish.protocol.as_ref().or(site.protocol.as_ref());
    let port = site.port(job, step).to_string();
    let settings = [
        (c"MUSTER_JOB", Some(job_name(job, step))),
        (c"MUSTER_NODE", Some(node.to_owned())),
        (c"MUSTER_PORT", Some(port)),
        (c"MUSTER_HOSTS", hosts),
        (c"MUSTER_RAILS", rails),
        (c"MUSTER_PROFILE", profile),
        (c"MUSTER_MINORITY", wish.minority.clone()),
        (c"MUSTER_PROTOCOL", protocol.cloned()),
        (c"MUSTER_AGENT", Some(site.agent.clone())),
        (c"MUSTER_JOURNAL", site.journal.clone()),
        (c"MUSTER_READABLE_IN", readable),
        (c"MUSTER_ULFM", wish.ulfm.then(|| "1".to_owned())),
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
        c"MUSTER_LOCAL",
    ];
    let kept = kept.map(|name| (name, user(name)));
    // The user's journal goes before the site's.
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
