//! Properties of the codec: round trips, truncation, arbitrary bytes.

use proptest::prelude::*;

use super::*;

const KINDS: [Kind; 17] = [
    Kind::Beat,
    Kind::Link,
    Kind::LinkReply,
    Kind::Probe,
    Kind::ProbeReply,
    Kind::IndirectProbe,
    Kind::IndirectProbeReply,
    Kind::News,
    Kind::Ack,
    Kind::Join,
    Kind::View,
    Kind::FailureClaim,
    Kind::Refusal,
    Kind::Request,
    Kind::Reply,
    Kind::Hint,
    Kind::Verify,
];

fn version() -> impl Strategy<Value = Version> {
    (1..=INCARNATION_MAX, 1..=u32::MAX)
        .prop_map(|(incarnation, minor)| Version { incarnation, minor })
}

prop_compose! {
    fn node_fact()(
        id in any::<u64>(), version in version(), state in 0..4_usize, exit_code in any::<i32>(),
        cause in 1..=10_u8, silent_us in any::<u32>(), name in 1..=NAME_MAX,
        group in 0..=GROUP_MAX,
        address in 1..=ADDRESS_MAX, reporters in proptest::collection::vec(any::<u64>(), 0..=4),
    ) -> NodeFact<'static> {
        const STATES: [NodeState; 4] =
            [NodeState::Alive, NodeState::Suspect, NodeState::Failed, NodeState::Left];
        const NAME: &str = "a-name-of-sixty-three-bytes-a-name-of-sixty-three-bytes-a-name-";
        const ADDRESS: [u8; ADDRESS_MAX] = [0xa5; ADDRESS_MAX];
        NodeFact {
            id: MemberId(id),
            version,
            state: STATES[state],
            exit_code,
            cause: CauseKind::from_number(cause).unwrap(),
            silent_us,
            name: &NAME[..name],
            group: &NAME[..group],
            address: &ADDRESS[..address],
            reporters: reporters.into_iter().map(|id| (MemberId(id), id as u16)).collect(),
        }
    }
}

fn fact() -> impl Strategy<Value = Fact<'static>> {
    let rank = (
        any::<u64>(),
        1..u64::MAX,
        any::<[u32; 2]>(),
        0..5_u8,
        any::<[u8; 2]>(),
    );
    let rank = rank.prop_map(|(node, incarnation, [rank, sequence], state, detail)| {
        let state = RankState::from_number(state).unwrap();
        let detail = RankDetail {
            code: detail[0],
            argument: detail[1],
        };
        let fact = RankFact {
            rank,
            state,
            detail,
            sequence: sequence.max(u32::from(!state.is_end())),
        };
        Fact::Rank {
            node: MemberId(node),
            incarnation,
            fact,
        }
    });
    prop_oneof![node_fact().prop_map(Fact::Node), rank]
}

fn news(facts: &[Fact<'_>], acks: &[u64]) -> Vec<u8> {
    let mut buffer = vec![0; 20_000];
    let mut writer = Writer::new(&mut buffer);
    let mut list = Acks::default();
    acks.iter()
        .for_each(|sequence| assert!(list.push(*sequence)));
    writer.u8(1).unwrap();
    list.write(&mut writer).unwrap();
    writer.u16(facts.len() as u16).unwrap();
    facts
        .iter()
        .for_each(|fact| fact.write(&mut writer).unwrap());
    let used = writer.used();
    buffer.truncate(used);
    buffer
}

proptest! {
    /// ZM-08: a message that was written is read back.
    #[test]
    fn news_come_back_as_they_were(
        facts in proptest::collection::vec(fact(), 0..20),
        acks in proptest::collection::vec(any::<u64>(), 0..=ACKS_MAX),
    ) {
        let bytes = news(&facts, &acks);
        match Message::read(Kind::News, &bytes) {
            Ok(Message::News { want_ack: true, acks: read_acks, facts: read }) => {
                prop_assert_eq!(read, facts);
                prop_assert_eq!(read_acks.as_slice(), &acks[..]);
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn hints_come_back_as_they_were(
        id in any::<u64>(), rank in any::<u32>(), stamp in any::<u64>(), wanted in any::<bool>(),
    ) {
        let subjects = [Subject::Node(MemberId(id)), Subject::Map(MemberId(id))];
        let subjects = subjects.into_iter().chain([Subject::Rank(MemberId(id), rank)]);
        let hints: Vec<Hint> = subjects.map(|subject| Hint { subject, wanted, stamp }).collect();
        let mut buffer = [0; 2 + 3 * HINT_SIZE];
        let mut writer = Writer::new(&mut buffer);
        writer.u16(3).unwrap();
        hints.iter().for_each(|hint| hint.write(&mut writer).unwrap());
        prop_assert_eq!(writer.used(), 2 + 3 * HINT_SIZE);
        prop_assert_eq!(Message::read(Kind::Hint, &buffer), Ok(Message::Hint { hints }));
        prop_assert!(Message::read(Kind::Hint, &buffer[..buffer.len() - 1]).is_err());
    }

    #[test]
    fn what_is_cut_short_is_refused(
        facts in proptest::collection::vec(fact(), 1..6), cut in any::<prop::sample::Index>(),
    ) {
        let bytes = news(&facts, &[1, 2]);
        let length = cut.index(bytes.len());
        prop_assert!(Message::read(Kind::News, &bytes[..length]).is_err());
    }

    #[test]
    fn what_is_too_long_is_refused(facts in proptest::collection::vec(fact(), 0..6)) {
        let mut bytes = news(&facts, &[]);
        bytes.push(0);
        prop_assert!(Message::read(Kind::News, &bytes).is_err());
    }

    /// Arbitrary bytes, also after a valid beginning, are parsed or rejected. Nothing panics, and no count
    /// allocates for elements that are not there.
    #[test]
    fn any_bytes_are_read_or_refused(
        kind in 0..KINDS.len(), bytes in proptest::collection::vec(any::<u8>(), 0..1500),
        facts in proptest::collection::vec(fact(), 1..4),
        at in any::<prop::sample::Index>(), value in any::<u8>(),
    ) {
        let _ = Message::read(KINDS[kind], &bytes);
        let mut bytes = news(&facts, &[3]);
        let at = at.index(bytes.len());
        bytes[at] = value;
        let _ = Message::read(Kind::News, &bytes);
    }
}

/// The smallest datagram has room for the longest fact after all acknowledgements, for one record of a view
/// after the sender's own, and for a failure claim in a join request.
#[test]
fn the_longest_fact_fits_into_the_smallest_datagram() {
    const BODY_MIN: usize = crate::config::MTU_MIN - crate::frame::FRAME_OVERHEAD;
    let fact = NodeFact {
        id: MemberId(1),
        version: Version::first(1),
        state: NodeState::Suspect,
        exit_code: 0,
        cause: CauseKind::Silence,
        silent_us: 0,
        name: "a-name-of-sixty-three-bytes-a-name-of-sixty-three-bytes-a-name-",
        group: "a-group-of-thirty-one-bytes----",
        address: &[1; ADDRESS_MAX],
        reporters: (0..4).map(MemberId).collect(),
    };
    let bytes = news(&[Fact::Node(fact)], &[7; ACKS_MAX]);
    assert!(bytes.len() <= BODY_MIN, "{}", bytes.len());
    let mut buffer = [0; 2000];
    let mut writer = Writer::new(&mut buffer);
    fact.write(&mut writer).unwrap();
    // The longest head before two records: the strength of a failure claim, a boot flag, parameters.
    let head = 64;
    assert!(head + 2 * writer.used() <= BODY_MIN, "{}", writer.used());
}
