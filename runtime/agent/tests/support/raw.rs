//! System calls that only these tests make, each wrapped once.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Forks. The child runs `child` and exits with its result as exit code. The parent gets the child's pid.
pub fn fork(child: impl FnOnce() -> i32) -> u32 {
    // SAFETY: the child runs test code that takes no lock another thread may hold, then ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = child();
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(code) };
    }
    assert!(pid > 0, "fork failed");
    pid as u32
}

/// Sleeps until killed.
pub fn pause_forever() -> ! {
    loop {
        // SAFETY: takes nothing.
        unsafe { libc::pause() };
    }
}

/// Waits for a child. Returns its exit code, or its negated signal.
pub fn reap(pid: u32) -> i32 {
    let mut status = 0;
    // SAFETY: `status` is writable.
    let answer = unsafe { libc::waitpid(pid as i32, &raw mut status, 0) };
    assert_eq!(answer, pid as i32);
    if libc::WIFSIGNALED(status) {
        -libc::WTERMSIG(status)
    } else {
        libc::WEXITSTATUS(status)
    }
}

/// Raises the limit of core dumps as far as allowed. Returns whether core files can be written.
pub fn allow_core_dumps() -> bool {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is valid for both calls.
    let is_allowed = unsafe {
        libc::getrlimit(libc::RLIMIT_CORE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_CORE, &raw const limit) == 0 && limit.rlim_max >= 1 << 20
    };
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    is_allowed && !pattern.trim().is_empty() && !pattern.starts_with(['|', '@'])
}

/// Maps a terabyte that is almost entirely absent. Hardly anything is dumped, but the kernel examines all of
/// it, page by page, until this process is killed.
pub fn make_dump_last() -> bool {
    let (length, access) = (1 << 40, libc::PROT_READ | libc::PROT_WRITE);
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, of which the first byte is written.
    unsafe {
        let memory = libc::mmap(std::ptr::null_mut(), length, access, kind, -1, 0);
        let is_there = memory != libc::MAP_FAILED;
        if is_there {
            memory.cast::<u8>().write_volatile(1);
        }
        is_there
    }
}

/// Runs `body` while no thread of this process can open a descriptor: the soft limit is that of the standard
/// streams meanwhile. Open descriptors keep working.
pub fn without_descriptors<T>(body: impl FnOnce() -> T) -> T {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is valid for the calls.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        let least = libc::rlimit {
            rlim_cur: 3,
            ..limit
        };
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const least), 0);
    }
    let answer = body();
    // SAFETY: as above.
    let restored = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(restored, 0);
    answer
}

/// Causes a segmentation fault, as an application would.
pub fn segmentation_fault() -> ! {
    // SAFETY: restores the default action and raises the signal; the process ends here.
    unsafe {
        libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        libc::raise(libc::SIGSEGV);
    }
    pause_forever()
}

/// Stops a process under ptrace, as a debugger does.
pub fn trace_and_stop(pid: u32) {
    // SAFETY: no pointers are followed for these requests.
    unsafe {
        assert_eq!(
            libc::ptrace(libc::PTRACE_SEIZE, pid as i32, 0usize, 0usize),
            0
        );
        assert_eq!(
            libc::ptrace(libc::PTRACE_INTERRUPT, pid as i32, 0usize, 0usize),
            0
        );
    }
    let mut status = 0;
    // SAFETY: `status` is writable.
    let answer = unsafe { libc::waitpid(pid as i32, &raw mut status, libc::__WALL) };
    assert_eq!(answer, pid as i32);
}

/// A FIFO.
pub fn make_fifo(path: &Path) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a NUL-terminated path.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
}

/// Puts the calling thread into uninterruptible sleep until another process opens the FIFO for writing: the
/// parent of a vfork waits that way, and the child waits in `open` before it executes.
pub fn sleep_uninterruptibly(fifo: &Path) {
    let fifo = CString::new(fifo.as_os_str().as_bytes()).unwrap();
    let mut pid = 0;
    let arguments = [c"true".as_ptr().cast_mut(), std::ptr::null_mut()];
    // SAFETY: everything is initialised before use, lives through the call and is destroyed after.
    unsafe {
        let mut actions = std::mem::zeroed();
        libc::posix_spawn_file_actions_init(&raw mut actions);
        let (fd, flags) = (0, libc::O_RDONLY);
        libc::posix_spawn_file_actions_addopen(&raw mut actions, fd, fifo.as_ptr(), flags, 0);
        let code = libc::posix_spawn(
            &raw mut pid,
            c"/bin/true".as_ptr(),
            &raw const actions,
            std::ptr::null(),
            arguments.as_ptr(),
            arguments[1..].as_ptr(),
        );
        assert_eq!(code, 0);
        libc::posix_spawn_file_actions_destroy(&raw mut actions);
    }
    reap(pid as u32);
}

/// Ends the tracing of a process, which continues.
pub fn end_trace(pid: u32) {
    // SAFETY: no pointers are followed for this request.
    let answer = unsafe { libc::ptrace(libc::PTRACE_DETACH, pid as i32, 0usize, 0usize) };
    assert_eq!(answer, 0);
}

/// A robust mutex as in an application, in memory that is never freed.
pub struct RobustMutex(*mut libc::pthread_mutex_t);

// SAFETY: several threads may use a pthread mutex.
unsafe impl Send for RobustMutex {}
// SAFETY: as above.
unsafe impl Sync for RobustMutex {}

impl RobustMutex {
    pub fn new() -> Self {
        // SAFETY: all-zero is a valid state to initialise, and the memory is never freed.
        unsafe {
            let mutex = Box::leak(Box::new(std::mem::zeroed()));
            let mut attributes = std::mem::zeroed();
            libc::pthread_mutexattr_init(&raw mut attributes);
            libc::pthread_mutexattr_setrobust(&raw mut attributes, libc::PTHREAD_MUTEX_ROBUST);
            assert_eq!(libc::pthread_mutex_init(mutex, &raw const attributes), 0);
            Self(mutex)
        }
    }

    /// Locks it. Returns the C library's code: EOWNERDEAD if its owner has ended.
    pub fn lock(&self) -> i32 {
        // SAFETY: initialised in `new`.
        unsafe { libc::pthread_mutex_lock(self.0) }
    }
}
