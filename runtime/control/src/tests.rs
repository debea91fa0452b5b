//! Tests of the control socket: clients that ask, follow, are slow, go away or never ask.

use super::*;
use std::fs;
use std::net::Shutdown;

fn open_control() -> (tempfile::TempDir, PathBuf, Control) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control");
    let control = Control::open(&path, None, None).unwrap();
    (directory, path, control)
}

/// Asks until the loop answers in time: on a busy machine the server thread may have withdrawn the question before.
fn insist(path: &Path, wanted: &Request) -> Result<Value, AskError> {
    loop {
        match request(path, wanted) {
            Err(AskError::Refused { why, .. }) if why.contains("ask again") => {}
            answered => return answered,
        }
    }
}

/// The next request that has not been withdrawn.
fn take_one(control: &Control) -> Pending {
    let deadline = Duration::from_secs(30);
    loop {
        let is_there = muster_sys::poll::readable(&[control.descriptor()], Some(deadline));
        assert!(is_there.unwrap()[0], "no request came");
        if let Some(pending) = control.take() {
            return pending;
        }
    }
}

fn answer_one(control: &Control, value: &Value) -> Request {
    let pending = take_one(control);
    pending.reply.send(value.clone());
    pending.request
}

#[test]
fn a_question_is_answered_by_the_loop() {
    let (_directory, path, control) = open_control();
    let why = Request::Ask(Question::Why("n3".into()));
    let asked = why.clone();
    let asking = std::thread::spawn(move || insist(&path, &asked));
    assert_eq!(answer_one(&control, &json!({"name": "n3"})), why);
    assert_eq!(asking.join().unwrap().unwrap()["name"], "n3");
}

/// A document is taken whole; a wrong one is refused with line and column.
#[test]
fn a_document_is_taken_whole() {
    let (_directory, path, control) = open_control();
    let text = "version: 1\nnets:\n  - net: udp0\n    rails:\n      - nid: 10.0.0.1@udp0\n";
    let document = RailsDocument::import(text).unwrap();
    let change = Request::Change(Change::Replace(Box::new(document)));
    let asked = change.clone();
    let asking = std::thread::spawn(move || insist(&path, &asked));
    publish_config(&control);
    assert_eq!(answer_one(&control, &json!({})), change);
    assert!(asking.join().unwrap().is_ok());
    let (_directory, path, control) = open_control();
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"import\nversion: 1\nnest: []\n").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("line 2, column 1: the key"), "{text}");
    assert!(control.take().is_none());
}

/// On one rail, with age gossip.
fn publish_config(control: &Control) {
    let text = "version: 1\nnets:\n  - net: udp0\n    rails:\n      - nid: 10.0.0.1@udp0\n";
    let own: NidList = "10.0.0.1@udp0".parse().unwrap();
    let document = RailsDocument::import(text).unwrap();
    control.publish_config(&document, own.as_slice(), Some(own.clone()));
}

/// What cannot be done is refused by the server thread alone, whatever it stands for: the loop never hears of it. A
/// file that has no end is not even opened.
#[test]
fn what_is_wrong_with_a_change_is_found_before_the_loop_has_it() {
    let (directory, path, control) = open_control();
    publish_config(&control);
    let fifo = directory.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
    let gossip = format!("gossip init 200 1 safe - file:{}", fifo.display());
    let many: Vec<String> = (0..12)
        .map(|one| format!("10.{one}.[0-3].[0-255]@udp0"))
        .collect();
    for (line, why) in [
        (
            &*format!("peers add {}", many.join(" ")),
            "more than 1024 peers",
        ),
        (
            "peers add 10.9.[0-15].[0-255]@udp0",
            "4096 names; at most 1024",
        ),
        (
            "peers add 10.9.0.[0-255]@o2ib0",
            "10.9.0.0@o2ib0 is on none of the nets",
        ),
        (
            "peers del 10.9.0.1@udp0",
            "10.9.0.1@udp0 is not of a configured peer",
        ),
        ("rails del 10.0.0.1@udp0", "last rail"),
        (
            "gossip init 200 1 safe - 10.[1-3].[0-255].[0-255]@udp0",
            "0 of the participants are rails of this",
        ),
        (&*gossip, "opens no files"),
    ] {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(format!("{line}\n").as_bytes()).unwrap();
        let mut text = String::new();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.contains(why), "{line}: {text}");
        assert!(control.take().is_none(), "{line}");
    }
}

/// Of two changes of the same state the second is validated anew.
#[test]
fn what_was_judged_holds_until_something_changes() {
    let (_directory, path, control) = open_control();
    let change = Request::Change("peers add 10.0.0.[2-3]@udp0".parse().unwrap());
    let asking = std::thread::spawn(move || insist(&path, &change));
    publish_config(&control);
    let pending = take_one(&control);
    let validated = pending.validated.expect("the document after it");
    assert!(control.is_current(&validated));
    assert!(matches!(&validated.made, Made::Document(next) if next.peers.len() == 2));
    publish_config(&control);
    assert!(!control.is_current(&validated));
    pending.reply.send(json!({}));
    assert!(asking.join().unwrap().is_ok());
}

#[test]
fn only_the_agents_user_and_root_are_served() {
    assert!(may_ask(1000, 1000) && may_ask(0, 1000) && may_ask(0, 0));
    assert!(!may_ask(1001, 1000) && !may_ask(1000, 0));
}

#[test]
fn nonsense_is_refused_and_does_not_reach_the_loop() {
    let (_directory, path, control) = open_control();
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"dance\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("dance") && text.contains("members"), "{text}");
    assert!(control.take().is_none());
}

/// Any bytes of any length are refused, or the connection is closed; the thread continues.
#[test]
fn random_requests_do_not_end_the_service() {
    let (_directory, path, control) = open_control();
    let mut state: u64 = 0x5eed;
    for round in 0..300_usize {
        let bytes: Vec<u8> = (0..round * 7)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        let mut stream = UnixStream::connect(&path).unwrap();
        // It may hang up before it has taken all of a long one.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        if stream.read_to_end(&mut answer).is_ok() && !answer.is_empty() {
            let answer: Value = serde_json::from_slice(&answer).unwrap();
            assert!(answer["error"].is_string(), "{answer}");
        }
        assert!(control.take().is_none());
    }
    let asking = std::thread::spawn(move || insist(&path, &Request::Ask(Question::Stats)));
    answer_one(&control, &json!({}));
    assert!(asking.join().unwrap().is_ok());
}

#[test]
fn without_an_agent_the_socket_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control");
    let error = ask(&path, &Question::Members).unwrap_err();
    assert!(matches!(error, AskError::NoAgent { .. }));
    assert!(error.to_string().contains("control"));
}

/// "Nothing was changed" stays true.
#[test]
fn what_was_refused_for_want_of_time_is_not_done_later() {
    let (_directory, path, control) = open_control();
    let refused = request(&path, &Request::Zero).unwrap_err();
    assert!(
        matches!(&refused, AskError::Refused { why, .. } if why.contains("has done nothing")),
        "{refused}"
    );
    assert!(control.take().is_none());
}

/// What the loop has begun is not called undone: of its end nothing is known.
#[test]
fn what_was_begun_and_does_not_end_has_no_answer() {
    let (_directory, path, control) = open_control();
    let asked = path.clone();
    let asking = std::thread::spawn(move || insist(&asked, &Request::Zero));
    let begun = take_one(&control);
    let unanswered = asking.join().unwrap().unwrap_err();
    assert!(
        matches!(unanswered, AskError::NoAnswer { .. }),
        "{unanswered}"
    );
    drop(begun);
    // The next one is served when that is over.
    let asking = std::thread::spawn(move || insist(&path, &Request::Ask(Question::Stats)));
    answer_one(&control, &json!({}));
    assert!(asking.join().unwrap().is_ok());
    // The thread of the first request counts it when its own time is over, which may be after its client's.
    let deadline = Instant::now() + Duration::from_secs(30);
    while control.unanswered() == 0 {
        assert!(Instant::now() < deadline, "never counted");
        std::thread::yield_now();
    }
    assert_eq!(control.unanswered(), 1);
}

#[test]
fn the_socket_of_a_dead_agent_is_replaced_and_the_own_one_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control");
    // As if its agent had been killed: its socket is still there.
    drop(UnixListener::bind(&path).unwrap());
    let control = Control::open(&path, None, None).unwrap();
    let asked_path = path.clone();
    let rails = Request::Ask(Question::Rails);
    let asking = std::thread::spawn(move || insist(&asked_path, &rails));
    answer_one(&control, &json!({}));
    assert!(asking.join().unwrap().is_ok());
    drop(control);
    assert!(!path.exists());
}

#[test]
fn the_socket_of_a_living_agent_is_not_touched() {
    let (_directory, path, control) = open_control();
    let refused = Control::open(&path, None, None)
        .err()
        .map(|cause| cause.kind());
    assert_eq!(refused, Some(io::ErrorKind::AddrInUse));
    // Another process has taken the path meanwhile.
    fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    drop(control);
    assert!(path.exists());
}
