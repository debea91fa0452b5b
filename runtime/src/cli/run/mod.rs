//! `muster run`: the command line of the launcher.

mod asked;
mod child;
mod ears;
pub(crate) mod emulate;
mod players;
mod reader;
mod remote;
mod step;
mod words;

pub(crate) use words::{foreign, with_mpirun};

use super::{CliError, complain, print_error, warn_of_strange_settings};
use crate::config::parse_rails;
use crate::launch::{
    Bind, Error, ExitPolicy, Hosts, Layout, OnLoss, Output, Plan, SlurmHabits, Step, node, programs,
};
use clap::Args;
use muster_fabric::Address;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// What ranks that are asked to end have where nobody says how long.
const GRACE: Duration = Duration::from_secs(2);

/// Options of `muster run`.
#[derive(Args)]
#[command(after_long_help = AFTER, allow_negative_numbers = true)]
pub(crate) struct RunArgs {
    /// How many ranks the job has [default: one a node]; -np, as of mpirun, is the same.
    #[arg(short = 'n', long = "np", value_name = "RANKS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    ranks: Option<u32>,
    /// How many ranks each node has.
    #[arg(long = "ppn", value_name = "RANKS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    per_node: Option<u32>,
    /// How many nodes are emulated on this machine, each with a launcher and an agent of its own
    /// [default: the nodes of the step that srun started this in, else one].
    #[arg(long, value_name = "NODES")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(emulate::NODES_MOST)))]
    nodes: Option<u32>,
    /// How many rails (addresses of its own) each emulated node has.
    #[arg(long, value_name = "RAILS", default_value_t = 1, requires = "nodes")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(emulate::RAILS_MOST)))]
    rails: u32,
    /// The hosts that are the nodes, as in n[1-4],x7; a launcher is started on each over ssh, or see --here.
    #[arg(long, value_name = "LIST", conflicts_with = "nodes")]
    hosts: Option<String>,
    /// The same from a file: a name or a list on each line; # begins a remark.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["nodes", "hosts"])]
    hostfile: Option<PathBuf>,
    /// This is the launcher of one of the hosts: whoever started it has started one on each of the others.
    /// The job's key is in MUSTER_KEY_FILE, its name in MUSTER_JOB: the same on every host, the name new with each run.
    #[arg(long)]
    here: bool,
    /// How a command is run on a host: these words, the host, the command. Standard input, output and error are the
    /// command's, each for itself.
    #[arg(long, value_name = "COMMAND", default_value = "ssh -o BatchMode=yes")]
    ssh: String,
    /// How many launchers are on their way over ssh at a time.
    #[arg(long, value_name = "HOSTS", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=4096))]
    fanout: u32,
    /// A variable for the ranks. Without =VALUE it is as it is here: ranks on other hosts get no others than these and
    /// PATH, LD_LIBRARY_PATH, PYTHONPATH, OPAL_PREFIX, OMPI_MCA_* and MUSTER_*. May be given several times.
    /// All users of a host see command lines (ps): that of muster run has VALUE, which -x NAME keeps out of it; that of
    /// ssh has the values of both, so with --hosts give a secret in a file, and its path here.
    #[arg(short = 'x', value_name = "NAME[=VALUE]")]
    export: Vec<String>,
    /// Bind each rank to its share of the cores that the launcher may use.
    #[arg(long, value_name = "none|core", default_value = "none", value_parser = parse_bind)]
    bind: Bind,
    /// Whose exit status is the job's.
    #[arg(long, value_name = "first|worst|survivors", default_value = "survivors", value_parser = parse_policy)]
    exit_policy: ExitPolicy,
    /// What the loss of a rank or node does: end the job with the rank's status (137 for a node), or nothing
    /// [default: continue where the ranks' MPI has fault tolerance or they use no PMIx, else abort].
    #[arg(long, value_name = "abort|continue", value_parser = parse_on_loss)]
    on_loss: Option<OnLoss>,
    /// How many seconds the launchers of all nodes, and then their ranks, may take to come; and how long a rank waits
    /// for what another has not put and no fence brings (PMIx_Get), if it sets no limit itself.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86400))]
    patience: u64,
    /// How many seconds ranks have to end when the job is ended by a signal or an abort; then they are killed
    /// [default: 2; in a step of Slurm its KillWait, after which Slurm kills them].
    #[arg(long, value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u64).range(..=86400))]
    grace: Option<u64>,
    /// Write each line of a rank with the rank before it; see below for slow readers and those who leave.
    #[arg(long)]
    label: bool,
    /// Write what a rank says into a file, at its end if it is there; %r is the rank, %h the node, %j the job.
    #[arg(long, value_name = "PATTERN", conflicts_with = "label")]
    output: Option<String>,
    /// Make the standard output of each rank a terminal: its lines then come as soon as they end, and those of a killed
    /// rank are not lost in its buffer.
    #[arg(long, conflicts_with = "output")]
    pty: bool,
    /// Say what is done: the job's name, libpmix, variables, fences, deaths.
    #[arg(short, long)]
    verbose: bool,
    /// The program and its arguments; of several, each with its ranks: -n 2 ./a : -n 6 ./b.
    #[arg(required = true, trailing_var_arg = true)]
    program: Vec<OsString>,
}

fn parse_bind(word: &str) -> Result<Bind, String> {
    word.parse()
}

fn parse_policy(word: &str) -> Result<ExitPolicy, String> {
    word.parse()
}

fn parse_on_loss(word: &str) -> Result<OnLoss, String> {
    word.parse()
}

/// What a page has to say besides the options.
const AFTER: &str = "\
Each node has a launcher, which starts the node's ranks, is their PMIx server and tells their MPI of \
every rank and node that Muster knows to be dead. The program needs nothing of Muster: with Open MPI 5 \
and ULFM it can revoke, shrink and go on to MPI_Finalize.

Defaults for the ranks, each kept as it is if it is set already: OMPI_MCA_coll=^han (coll/han crashes \
when a rank dies), OMPI_MCA_mpi_ft_enable=1, OMPI_MCA_mpi_yield_when_idle=1 where a node has more ranks \
than cores, OMPI_MCA_btl_sm_backing_directory and _vader_ (removed at the end), OPAL_PREFIX where Open \
MPI was moved. What ~/.openmpi/mca-params.conf sets counts as set. SIGPIPE is ignored. libpmix is that of the MPI \
which the first program links that links one, or one of its first arguments (timeout 20 ./app); of scripts that of an \
Open MPI beside the program, under OPAL_PREFIX or in PATH; else the system's, or what MUSTER_LIBPMIX names. Ranks \
find OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE and _NODE_RANK, as under mpirun.

A rank that is lost before the end of MPI_Init is a failed launch. A rank that ends \
without MPI_Finalize is dead to the others, whatever its status: ranks that call exit(1) are survived, too, which \
mpirun of Open MPI 5 does not do. MPI_Abort ends the job on every node, with the \
status that was asked for, or 1 where that was 0. Under MPI_ERRORS_ARE_FATAL, which is MPI's default, the first rank \
whose call meets the death of another aborts the job, with the number of the error: 75 (MPI_ERR_PROC_FAILED) in Open \
MPI 5.

The loss of a rank or node ends the job where MPI has no fault tolerance, since the other ranks would wait \
for it for ever: with the rank's status (137 after SIGKILL, 1 where it was 0), or 137 for a node. MPI is taken \
to have it if a rank has loaded Open MPI 5 or later (libopen-pal.so.80, as /proc shows it when the rank comes \
to PMIx_Init) and OMPI_MCA_mpi_ft_enable is on in its environment or in ~/.openmpi/mca-params.conf. With any \
other MPI (Open MPI 4, MPICH), and with one that is not seen (linked statically, or under another name), the default \
is abort, also for programs of PMIx alone; of ranks that never come to PMIx it is continue. -v says which it is. \
--on-loss=continue or --on-loss=abort says it for any program; abort then \
counts ranks that never came to MPI_Init and end with another status than 0, too. Where a loss ends the job an abort \
of a rank takes effect 0.3 seconds later: it may be MPI that aborts since it has lost the connection to a lost rank, \
and the status is then that of the lost one.

A rank that a signal killed is named with its pid and the signal, unless it is how the job was ended; of one \
that is dead before the end of MPI_Init the failed launch tells. What MPI has to say of an error through PMIx \
(PMIx_Log, as Open MPI 5 does) goes where the standard error of the rank does, 65536 bytes of it at most; what many \
ranks of a node say alike libpmix may say once. SIGUSR1 and SIGUSR2 go to the ranks and what these have started; \
SIGINT, SIGTERM and SIGHUP end the job, at the latest after the seconds of --grace; asked once more, a second later \
or more, it kills the ranks at once. The exit status is then 128 and the number of the first signal (130 after \
Ctrl-C), however many were needed and wherever the ranks ran. A node that the others have given up kills its ranks, \
and so does one whose agent is lost. Of standard input the first rank reads.

Of more than eight emulated nodes a core the agents have MUSTER_PROFILE=quiet, if it is not set: standard's deadlines \
are too short there.

What a rank writes to a pipe or a file stays in a buffer of its C library until that is full or flushed, and is lost \
if the rank is killed. With --pty the rank has a terminal as standard output and writes each line when it ends; some \
programs then write colours. The launcher passes the lines on as with --label, which may be given, too.

With --label the launcher reads what the ranks say and passes it on in whole lines; what comes without an end of line \
gets one, and a line of more than 65536 bytes comes in parts, each with the rank before it. Lines of more than 4096 \
bytes, which a pipe does not take at once, may mix with those of other nodes. A slow reader makes the \
ranks wait, as any pipe does. When the ranks have ended, all that they have said is still passed on, and of processes \
that they have left what these say within a second. If the reader then takes nothing at all for the seconds of \
--patience (of a job that was aborted or asked to end, those of --grace, and at least 2), or a signal comes that is to \
end the job, the rest is lost, and a line says how much of it. If the reader of standard output leaves (muster run \
--label ... | head -1), the job is ended with status 141, as by SIGPIPE; without --label the ranks have the same \
standard output as muster run, and write to it at their own risk: SIGPIPE is ignored, they get EPIPE. What cannot be \
written, on a full disk say, is lost and does not stop the ranks; the first failure is told at once with file and \
reason, the number of lost lines at the end. With --output ranks write into their files themselves, and it is they \
whom the system tells of a failure; if a file or its file system takes nothing more when they have ended, a line says \
so.

The exit status is 127 if the program cannot be started, 5 if a node does not come, 71 of a launcher in a step of \
Slurm whose node the others have given up or whose agent was lost; else the policy's: \
survivors (of ranks that were not lost in MPI, or of the lost ones if nobody survived), worst, or first. With --hosts \
a status of 255, which is ssh's own for its failures, becomes 254. Where it would be 0 it is 1 if something of what \
the ranks said was lost (see above), 128 and the number of the signal if one has ended the wait for its reader, and \
141 if this one has left.

With OMPI_MCA_pmix_base_async_modex=1 ranks of a node that use shared memory hang in Open MPI 5.0.11, under its own \
mpirun as well; leave it out, or add OMPI_MCA_btl=tcp,self.

A revoke while another rank is in MPI_Comm_dup can end ranks with a segmentation fault in Open MPI 5.0.11 with fault \
tolerance on (in ompi_comm_revoke_local, under mpirun --with-ft ulfm as well). mpi4py's test_ulfm does that: it \
crashes on one node and hangs on two. It is a fault of Open MPI, which Muster cannot avoid: do not revoke a \
communicator that a rank may be duplicating.

Other MPIs: Debian's Open MPI 4.1 starts and runs, without fault tolerance: a lost rank ends its job. It needs \
JSM_JSRUN_PORT, which every rank gets. \
A program \
that links MPICH without PMIx (from PyPI, Debian's) is not started, with status 127; one that another program starts \
(timeout 20 ./app) gets a warning. Build MPICH with --with-pmix, or use its own mpiexec.

In a step of Slurm the nodes are the step's: srun -N4 --mpi=none --no-kill --kill-on-bad-exit=0 muster run \
-n 8 -- ./app starts one launcher a node. The job's key is a file of mode 0600 in HOME until all launchers have it; \
where HOME is not shared, name a key on every node with MUSTER_KEY_FILE. Where the site binds tasks, add -c with the \
cores that the ranks of a node need: a launcher's ranks share what srun gives to it. Lost ranks and nodes are \
survived there, too; without --no-kill and --kill-on-bad-exit=0 Slurm ends the step instead. \
The job is called JOB.STEP, or MUSTER_JOB, which is to be new with each run: two in one interactive step need names \
of their own. \
A signal to the step (scancel --signal=USR1 JOB.STEP, or one that srun hands on) reaches each rank, \
SIGUSR1 and SIGUSR2 once. With \
ProctrackType=proctrack/linuxproc or pgid Slurm sends it to all processes of the step itself, and the launchers hand \
on none: there signal the step, not a launcher. scancel asks the ranks to end by SIGTERM and gives them KillWait \
(30 seconds, if the site says nothing else), time for a checkpoint; --grace can only shorten that. \
After the loss of a node srun stays until Slurm has missed it (SlurmdTimeout), whatever the ranks have done.

Anywhere else --hosts or --hostfile name the nodes. muster run --hosts n[1-4] -n 8 -- ./app starts a launcher on each \
over ssh (which must not ask for anything) in this working directory, hands the job's key over by standard input and \
passes signals on; the launchers end if it does, and the ranks have no standard input. At most --fanout of them are on \
their way at a time. A host whose connection breaks \
is lost, like one that dies; one that is not reached ends the start. ssh's own words say why. With --here it starts \
nothing: whoever started it (parallel, pdsh, another scheduler) has started the same command on each host. muster \
and the program are at the same path everywhere.

Of several programs each has its ranks: muster run --nodes 2 -n 2 -- ./a : -n 6 ./b. A word : of its own always \
separates programs.

The PMIx server of a node listens on the loopback interface and believes what libpmix's own security says of who \
connects. Without munge that is the word of the other side: on a node that users share, somebody who is set on it can \
end the job or keep its ranks from starting, but joins no agent and learns no key.

Not there: MPI_Comm_spawn and MPI_Comm_spawn_multiple, and anything for PMIx tools (debuggers, PMIx_tool_init). \
What these ask for is refused with PMIX_ERR_NOT_SUPPORTED, a line says so, and the job goes on.

Limits: if a launcher itself is killed by SIGKILL its ranks are, too, but not what these have started (a rank may be a \
shell around the program); where Slurm ends the step it takes them along. A program that a rank starts in its own \
environment and that comes to PMIx (PMIx_Init) passes for the rank there: while it is leaving, libpmix may take the \
rank out of a fence that others wait in, under mpirun as well; start it with PMIX_RANK and PMIX_NAMESPACE unset.";

/// Runs the job; the exit status is the job's.
pub(crate) fn run(args: &RunArgs) -> ExitCode {
    match play(args) {
        Ok(status) => ExitCode::from(status),
        Err(error) => complain(&error),
    }
}

/// Where this process stands.
enum Place {
    /// It starts the launchers of emulated nodes.
    Starter(usize),
    /// It is the launcher of an emulated node: which, of how many, with files where.
    Emulated(usize, usize, PathBuf),
    /// It starts launchers on other hosts.
    Remote(Hosts),
    /// It is the launcher of a host that the process which started it speaks to.
    Host(Step),
    /// It is the launcher of a node of a Slurm step, or of a host.
    Step(Step),
}

impl Place {
    /// Whether of all processes of the job this one says what is to be said once, and says it now.
    fn speaks_first(&self) -> bool {
        match self {
            Self::Starter(_) | Self::Remote(_) => true,
            Self::Step(step) => step.own == 0 && std::env::var_os(step::VARIABLE).is_none(),
            Self::Emulated(..) | Self::Host(_) => false,
        }
    }
}

fn play(args: &RunArgs) -> Result<u8, CliError> {
    step::forget_the_plugin(&words())?;
    let place = place(args)?;
    let numbered = |count: usize| (1..=count).map(|node| format!("n{node}")).collect();
    let nodes: Vec<String> = match &place {
        Place::Starter(count) | Place::Emulated(_, count, _) => numbered(*count),
        Place::Remote(hosts) => hosts.names.clone(),
        Place::Step(step) | Place::Host(step) => step.nodes.clone(),
    };
    let job = match &place {
        Place::Starter(_) => format!("run-{}", std::process::id()),
        Place::Emulated(..) => std::env::var("MUSTER_JOB").unwrap_or_default(),
        Place::Remote(_) => remote::new_job(),
        Place::Step(step) | Place::Host(step) => step.job.clone(),
    };
    let neighbours = match &place {
        Place::Starter(count) | Place::Emulated(_, count, _) => *count,
        Place::Remote(_) | Place::Step(_) | Place::Host(_) => 1,
    };
    let usage = |why: String| CliError::usage("run", why);
    let mut programs = programs(&args.program, args.ranks).map_err(usage)?;
    let ranks = match programs[..] {
        [_] => args.ranks,
        _ => Some(programs.iter().map(|program| program.ranks).sum()),
    };
    let layout =
        Layout::new(nodes, ranks, args.per_node).map_err(|error| CliError::usage("run", error))?;
    if let [program] = &mut programs[..] {
        program.ranks = layout.ranks();
    }
    let is_emulated = matches!(place, Place::Starter(_) | Place::Emulated(..));
    if is_emulated && layout.nodes().len() as u32 * args.rails > emulate::ADDRESSES_MOST {
        let (nodes, rails, most) = (layout.nodes().len(), args.rails, emulate::ADDRESSES_MOST);
        let why = format!("{nodes} nodes of {rails} rails; there are {most} addresses for rails");
        return Err(CliError::usage("run", why));
    }
    let output = Output {
        label: args.label,
        pty: args.pty,
        file: args.output.clone(),
    };
    output.check().map_err(usage)?;
    let export = exported(&args.export).map_err(usage)?;
    if place.speaks_first() {
        warn_of_strange_settings();
        if is_emulated {
            warn_of_rails();
        }
        warn_of_unset(&args.export);
        if args.verbose {
            name_the_job(&job, &place);
        }
    }
    let slurm = match &place {
        Place::Step(_) if !args.here => SlurmHabits::here(),
        _ => None,
    };
    let plan = Plan {
        job,
        layout,
        programs,
        policy: args.exit_policy,
        on_loss: args.on_loss,
        export,
        output,
        patience: Duration::from_secs(args.patience),
        grace: match (args.grace, slurm) {
            (Some(seconds), _) => Duration::from_secs(seconds),
            (None, Some(slurm)) => slurm.kill_wait,
            (None, None) => GRACE,
        },
        slurm,
        bind: args.bind,
        neighbours,
        stdin: !matches!(place, Place::Host(_)),
        verbose: args.verbose,
    };
    let outcome = match place {
        Place::Starter(_) => emulate::run(&plan, args.rails, &words()),
        Place::Emulated(own, _, files) => {
            return child::survey(|| {
                let outcome = node::run(&plan, own, &files, &mut || {});
                outcome.map(node::watched).map_err(failed)
            });
        }
        Place::Remote(hosts) => {
            let how = (args.ssh.as_str(), args.fanout as usize);
            return remote::run(&plan, &hosts, how, &args.export, &words());
        }
        Place::Host(step) => return remote::serve(&plan, &step, &words()),
        Place::Step(step) => return step::run(&plan, &step, &words()),
    };
    outcome.map_err(failed)
}

fn place(args: &RunArgs) -> Result<Place, CliError> {
    if let Some((own, count, files)) = emulate::told()? {
        return Ok(Place::Emulated(own, count, files));
    }
    if let Some(step) = remote::told()? {
        return Ok(Place::Host(step));
    }
    if let Some(hosts) = hosts(args)? {
        return if args.here {
            here(&hosts)
        } else {
            Ok(Place::Remote(hosts))
        };
    }
    if args.here {
        let why = "--here needs the names of all hosts; give them by --hosts or --hostfile";
        return Err(CliError::usage("run", why));
    }
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let several =
        |name: &str| variable(name).filter(|count| count.parse().is_ok_and(|n: u32| n > 1));
    if let Some(count) = args.nodes {
        if let Some(tasks) = several("SLURM_STEP_NUM_TASKS") {
            print_error(format_args!(
                "muster run: this step of Slurm has {tasks} tasks, and each starts a job with {count} emulated nodes \
                 of its own; for one job on the step's nodes leave out --nodes"
            ));
        }
        return Ok(Place::Starter(count as usize));
    }
    let step = Step::read(variable).map_err(|why| CliError::usage("run", why))?;
    if let (None, Some(nodes)) = (&step, several("SLURM_JOB_NUM_NODES")) {
        print_error(format_args!(
            "muster run: Slurm's job has {nodes} nodes, and this is one of them; for all: srun -N{nodes} --mpi=none \
             --no-kill --kill-on-bad-exit=0 muster run ..."
        ));
    }
    Ok(step.map_or(Place::Starter(1), Place::Step))
}

fn hosts(args: &RunArgs) -> Result<Option<Hosts>, CliError> {
    let hosts = match (&args.hosts, &args.hostfile) {
        (Some(list), _) => Hosts::parse(list),
        (None, Some(path)) => Hosts::read(path),
        (None, None) => return Ok(None),
    };
    hosts.map(Some).map_err(|why| CliError::usage("run", why))
}

/// The place of this host among them.
fn here(hosts: &Hosts) -> Result<Place, CliError> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if variable("MUSTER_KEY_FILE").is_none() {
        let why = "--here needs a key that all hosts have: openssl rand -hex 32 into a file of mode 0600, and \
                   MUSTER_KEY_FILE to name it";
        return Err(CliError::usage("run", why));
    }
    let Some(job) = variable("MUSTER_JOB") else {
        let why = "--here needs a name for the job, the same on all hosts and new with each run; give it by MUSTER_JOB";
        return Err(CliError::usage("run", why));
    };
    let own = match variable("MUSTER_NODE") {
        Some(name) => name,
        None => crate::sys::process::host_name()
            .map_err(|cause| CliError::new("run: this host's name", cause))?,
    };
    let place = hosts
        .place(&own)
        .map_err(|why| CliError::usage("run", why))?;
    Ok(Place::Step(hosts.step(place, &job)))
}

/// Variables that have their value in the command line. Others a launcher has itself, or gets over ssh.
fn exported(words: &[String]) -> Result<Vec<(OsString, OsString)>, String> {
    let mut given = Vec::new();
    for word in words {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word.as_str(), None),
        };
        if name.is_empty() {
            return Err(format!(
                "-x {word} names no variable; write -x NAME or -x NAME=VALUE"
            ));
        }
        given.extend(value.map(|value| (name.into(), value.into())));
    }
    Ok(given)
}

/// By that name its agents are asked.
fn name_the_job(job: &str, place: &Place) {
    let how = match place {
        Place::Starter(_) => {
            let directory = emulate::directory_of(std::process::id());
            format!("; muster members --agent {}", directory.display())
        }
        _ => String::new(),
    };
    let line = format!("muster run: the job is {job}{how}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Emulated nodes have addresses of their own: what is set is not used, and may be wrong where it is.
fn warn_of_rails() {
    let Some(value) = std::env::var_os("MUSTER_RAILS").filter(|value| !value.is_empty()) else {
        return;
    };
    let text = value.to_string_lossy();
    let wrong = match parse_rails(&[text.clone().into_owned()]) {
        Err(error) => Some(error.to_string()),
        Ok(rails) => rails.iter().find_map(|rail| match &rail.address {
            Address::Interface(name) if !Path::new("/sys/class/net").join(name).exists() => {
                Some(format!("rail {rail}: this node has no interface {name:?}"))
            }
            _ => None,
        }),
    };
    let wrong = wrong.map_or(String::new(), |wrong| format!("{wrong}; "));
    print_error(format_args!(
        "muster run: MUSTER_RAILS={text}: {wrong}it has no effect on emulated nodes, which have addresses \
         of their own on loopback (--rails COUNT)"
    ));
}

/// Ranks do not get what is not there, and a misspelt name is soon overlooked.
fn warn_of_unset(words: &[String]) {
    let is_unset = |word: &&String| !word.contains('=') && std::env::var_os(word).is_none();
    for name in words.iter().filter(is_unset) {
        let line = format!(
            "muster run: -x {name}: it is not set here, so the ranks do not get it; set it, or write -x {name}=VALUE\n"
        );
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

/// This command line, for a launcher that is this program once more.
fn words() -> Vec<OsString> {
    std::env::args_os().skip(1).collect()
}

fn failed(error: Error) -> CliError {
    let status = error.status();
    CliError::new("run", error).exit_code(status)
}
