//! A replica that gets lost, duplicated and reordered frames, against the map that they come from.

use proptest::prelude::*;

use super::*;
use crate::attributes::Store;
use crate::attributes::message::{read_asks, read_sections};
use crate::codec::{Reader, Writer};

const OWNER: MemberId = MemberId(1);
const READER: MemberId = MemberId(2);
const NOW: Instant = Instant(1);
const FRAME: usize = 700;

#[derive(Clone, Debug)]
enum Act {
    Write(u8, Option<usize>),
    /// An exchange: which of its frames arrive, and in which order.
    Exchange(Vec<u8>),
}

fn steps() -> impl Strategy<Value = Vec<Act>> {
    let length = prop_oneof![0..40_usize, 1000..5000_usize];
    let write = (0..6_u8, proptest::option::weighted(0.7, length));
    let step = prop_oneof![
        3 => write.prop_map(|(key, length)| Act::Write(key, length)),
        2 => proptest::collection::vec(any::<u8>(), 12).prop_map(Act::Exchange),
    ];
    proptest::collection::vec(step, 0..60)
}

fn write(store: &mut Store, key: u8, length: Option<usize>) {
    store.change(OWNER, |replica, _| {
        let version = replica.map.version + 1;
        let value = length.map(|length| vec![version as u8; length].into());
        replica.map.write(NOW, &[key], value, version);
        replica.map.advance(version);
        replica.known = version;
    });
}

/// The writer's reply to the reader's request, as frames.
fn frames(writer: &mut Store, reader: &mut Store) -> Vec<Vec<u8>> {
    let version = writer.version(OWNER);
    reader.request(OWNER, version, OWNER, NOW);
    reader.change(OWNER, |replica, _| replica.known = version);
    let mut buffer = [0; FRAME];
    let mut out = Writer::new(&mut buffer);
    assert_eq!(reader.write_asks(&mut out), Ok(Some(OWNER)));
    let used = out.used();
    let asks = read_asks(&mut Reader::new(&buffer[..used])).unwrap();
    assert!(writer.asked(READER, &asks));
    let mut frames = Vec::new();
    loop {
        let mut buffer = [0; FRAME];
        let mut out = Writer::new(&mut buffer);
        match writer.write_answers(&mut out).unwrap() {
            Some(to) => assert_eq!(to, READER),
            None => return frames,
        }
        let used = out.used();
        frames.push(buffer[..used].to_vec());
    }
}

fn deliver(reader: &mut Store, frame: &[u8], order: &mut Vec<u64>) {
    let mut bytes = Reader::new(frame);
    bytes.flag().unwrap();
    for section in read_sections(&mut bytes).unwrap() {
        let taken = reader.change(OWNER, |replica, limit| replica.take(NOW, section, limit));
        order.extend(
            taken
                .unwrap()
                .changes
                .into_iter()
                .map(|(_, version)| version),
        );
    }
}

fn same(writer: &Store, reader: &Store) -> bool {
    let (own, held) = (writer.map(OWNER).unwrap(), reader.map(OWNER).unwrap());
    own.version == held.version && own.iter().eq(held.iter())
}

proptest! {
    /// ZM-11: any writes, and any exchanges in between with frames lost, duplicated and reordered: reported
    /// versions increase, and complete exchanges make the maps equal.
    #[test]
    fn any_order_of_frames_gives_the_writers_map(steps in steps()) {
        let (mut writer, mut reader) = (Store::new(1 << 22), Store::new(1 << 22));
        writer.open(OWNER, 1);
        reader.open(OWNER, 1);
        let mut order = Vec::new();
        for step in steps {
            match step {
                Act::Write(key, length) => write(&mut writer, key, length),
                Act::Exchange(picks) => {
                    let frames = frames(&mut writer, &mut reader);
                    if frames.is_empty() {
                        continue;
                    }
                    for pick in picks {
                        deliver(&mut reader, &frames[usize::from(pick) % frames.len()], &mut order);
                    }
                }
            }
        }
        for _ in 0..20 {
            for frame in frames(&mut writer, &mut reader) {
                deliver(&mut reader, &frame, &mut order);
            }
        }
        prop_assert!(same(&writer, &reader));
        prop_assert!(order.is_sorted(), "{:?}", order);
        prop_assert_eq!(reader.bytes(), reader.map(OWNER).unwrap().bytes());
    }
}

/// A key that is written and deleted for ever leaves one entry in the list of certificates to drop, and
/// none when its map is gone.
#[test]
fn certificates_are_listed_once_for_each_map() {
    let mut store = Store::new(1 << 22);
    store.open(OWNER, 1);
    for time in 0..1000 {
        write(&mut store, 0, Some(1));
        write(&mut store, 0, None);
        assert_eq!(store.expiring(), 1, "{time}");
    }
    store.expire(NOW.after(crate::attributes::CERTIFICATE_LIFE_US));
    assert_eq!(store.expiring(), 0);
    write(&mut store, 1, Some(1));
    write(&mut store, 1, None);
    assert_eq!(store.expiring(), 1);
    store.forget(OWNER);
    assert_eq!(store.expiring(), 0);
}
