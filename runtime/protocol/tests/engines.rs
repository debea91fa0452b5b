//! Both engines in one job.

use muster_protocol::age::Participant;
use muster_protocol::{
    Age, AgeConfig, Config, Engine, EventKind, Input, Instant, Overlay, Parameter, Profile, Reject,
};

const KEY: [u8; 32] = [5; 32];

/// The first frame that an engine sends, and its time.
fn first_frame(engine: &mut Engine) -> (Instant, Vec<u8>) {
    let mut buffer = [0; 1500];
    for _ in 0..100 {
        let now = engine.poll_timeout();
        engine.handle(now, Input::Wake).unwrap();
        if let Some(transmit) = engine.poll_transmit(now, &mut buffer) {
            return (now, buffer[..transmit.size].to_vec());
        }
    }
    panic!("no frame after 100 timers");
}

/// Members with different engines find out.
#[test]
fn the_overlay_and_the_age_engine_refuse_each_other() {
    let nids = ["10.0.0.1@tcp0", "10.0.0.2@tcp0"];
    let age = Age::new(AgeConfig {
        key: Some(KEY),
        ..AgeConfig::new(nids[0], nids.map(Participant::new).to_vec())
    });
    let mut config = Config::new("other", b"x", Profile::Standard);
    config.key = Some(KEY);
    config.seeds = vec![b"y".to_vec()];
    let overlay = Overlay::new(config);
    let mut engines = [Engine::from(age.unwrap()), Engine::from(overlay.unwrap())];
    let sent = engines.each_mut().map(first_frame);
    let now = sent[0].0.max(sent[1].0);
    for (engine, (_, bytes)) in engines.iter_mut().zip(sent.iter().rev()) {
        let taken = engine.handle(now, Input::Datagram { bytes });
        assert_eq!(taken, Err(Reject::Parameters));
        let mut events = core::iter::from_fn(|| engine.poll_event());
        let difference = events.find_map(|event| match event.kind {
            EventKind::Refused(difference) => Some(difference),
            _ => None,
        });
        let difference = difference.expect("a refusal");
        assert_eq!(difference.parameter, Parameter::Protocol);
        assert_eq!(difference.own + difference.other, 1);
    }
}
