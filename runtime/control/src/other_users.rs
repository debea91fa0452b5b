//! Tests of the socket for other users, with threads that run as other users: one took the name first, one opens
//! connections and sends nothing.

#[path = "../../../tests/lib/skipped.rs"]
mod skipped;

use super::*;
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::mpsc::{self, channel};

const NOBODY: u32 = 65_534;
const OTHER_USER: u32 = 65_533;
const THIRD: u32 = 65_532;
/// Connections that say nothing. One by one, each for as long as it may take, they would take minutes.
const SILENT: usize = 200;

/// Does it as another user; `None` where this process cannot become one.
fn as_user<T: Send>(user: u32, act: impl FnOnce() -> T + Send) -> Option<T> {
    let become_it = || {
        let uid = Uid::from_raw(user);
        // Of this thread alone.
        set_thread_res_uid(uid, uid, uid)
    };
    std::thread::scope(|scope| {
        let acting = scope.spawn(|| become_it().ok().map(|()| act()));
        acting.join().unwrap()
    })
}

/// A directory where all users may write; none where this process cannot become another user.
fn common() -> Option<tempfile::TempDir> {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o1777)).unwrap();
    if as_user(NOBODY, || ()).is_none() {
        skipped::skipped("root", "this user cannot become another one");
        return None;
    }
    Some(directory)
}

/// A socket at the name of another user's, bound by `nobody`, that answers each client that all is well.
fn squat(directory: &Path, user: u32) -> PathBuf {
    let path = directory.join(format!("muster-{user}-n1.control"));
    let listener = as_user(NOBODY, || {
        let listener = UnixListener::bind(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        listener
    });
    let listener = listener.unwrap();
    std::thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let _ = write(&client, json!({ "members": [] }));
        }
    });
    path
}

#[test]
fn what_another_user_says_under_an_agents_name_is_not_believed() {
    let Some(directory) = common() else { return };
    let path = squat(directory.path(), OTHER_USER);
    let asked = as_user(THIRD, || ask(&path, &Question::Members)).unwrap();
    let followed = as_user(THIRD, || Follower::open(&path, 0, false).err()).unwrap();
    // Root is not taken in either.
    for refused in [asked.err(), followed, ask(&path, &Question::Members).err()] {
        let why = refused.map(|error| error.to_string()).unwrap_or_default();
        for part in ["uid 65534", "its name to uid 65533", "MUSTER_READABLE_IN"] {
            assert!(why.contains(part), "{part}: {why:?}");
        }
    }
    // Under its own name it is itself.
    let own = squat(directory.path(), NOBODY);
    assert!(
        as_user(THIRD, || ask(&own, &Question::Members))
            .unwrap()
            .is_ok()
    );
}

#[test]
fn a_name_that_another_user_has_taken_is_reported_and_costs_the_second_socket_only() {
    let Some(directory) = common() else { return };
    let path = squat(directory.path(), OTHER_USER);
    let own = tempfile::tempdir().unwrap();
    fs::set_permissions(own.path(), Permissions::from_mode(0o777)).unwrap();
    as_user(OTHER_USER, || {
        let why = listen_for_all(&path).unwrap_err().to_string();
        let whole = "a file of uid 65534 is there and cannot be replaced";
        assert!(
            why.contains(whole) && why.contains("root remove it"),
            "{why}"
        );
        let left: Vec<_> = fs::read_dir(directory.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        let control = Control::open(&own.path().join("control"), Some(&path), None).unwrap();
        assert!(control._others.is_none());
    });
    assert_eq!(fs::metadata(&path).unwrap().uid(), NOBODY);
    // Root and the owner of the directory may replace it.
    let (_listener, _socket) = listen_for_all(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().uid(), 0);
}

/// Answers all requests until the asking thread is done.
fn answer_until(control: &Control, over: &mpsc::Receiver<Result<Value, AskError>>) -> Value {
    let end = Instant::now() + Duration::from_secs(120);
    while Instant::now() < end {
        match over.try_recv() {
            Ok(Ok(answer)) => return answer,
            Ok(Err(AskError::Refused { why, .. })) if why.contains("ask again") => {
                panic!("the loop answers at once, and yet: {why}")
            }
            Ok(Err(error)) => panic!("{error}"),
            Err(_) => {}
        }
        let soon = Some(Duration::from_millis(20));
        if muster_sys::poll::readable(&[control.descriptor()], soon).unwrap()[0] {
            while let Some(pending) = control.take() {
                pending.reply.send(json!({ "name": "n3" }));
            }
        }
    }
    panic!("no answer");
}

#[test]
fn silent_connections_of_one_user_are_not_in_the_way_of_others() {
    let Some(directory) = common() else { return };
    let path = directory.path().join(name_for_all("n1"));
    let own = directory.path().join("control");
    let control = Control::open(&own, Some(&path), None).unwrap();
    let silent = as_user(NOBODY, || {
        let come = |_| UnixStream::connect(&path).unwrap();
        (0..SILENT).map(come).collect::<Vec<_>>()
    });
    let ask_as = |user: u32| {
        let (say, over) = channel();
        let path = path.clone();
        std::thread::spawn(move || {
            let answer = as_user(user, || ask(&path, &Question::Why("n3".into())));
            say.send(answer.unwrap()).unwrap();
        });
        answer_until(&control, &over)
    };
    assert_eq!(ask_as(OTHER_USER)["name"], "n3");
    assert!(control.unanswered() > 0, "most were told to ask again");
    // They are not served for long either: their user's next question has an answer, too.
    drop(silent);
    assert_eq!(ask_as(NOBODY)["name"], "n3");
}
