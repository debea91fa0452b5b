//! chitchat (heartbeats by anti-entropy, phi accrual) at a 50 ms gossip interval.

use chitchat::transport::UdpTransport;
use chitchat::{ChitchatConfig, ChitchatId, FailureDetectorConfig, ProtocolVersion, spawn_chitchat};
use muster_bench_peers::{Options, options, say};
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};
use tokio_stream::StreamExt;

const GOSSIP: Duration = Duration::from_millis(50);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let Options { name, address, seed } = options();
    let life = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis() as u64);
    let config = ChitchatConfig {
        chitchat_id: ChitchatId::new(name.clone(), life, address),
        cluster_id: "bench".into(),
        gossip_interval: GOSSIP,
        listen_addr: address,
        seed_nodes: vec![seed.to_string()],
        failure_detector_config: FailureDetectorConfig {
            initial_interval: GOSSIP * 5,
            max_interval: GOSSIP * 10,
            ..FailureDetectorConfig::default()
        },
        marked_for_deletion_grace_period: Duration::from_secs(3600),
        catchup_callback: None,
        extra_liveness_predicate: None,
        protocol_version: ProtocolVersion::V1,
    };
    let handle = spawn_chitchat(config, Vec::new(), &UdpTransport).await.expect("it can start");
    say("READY", &name);
    let chitchat = handle.chitchat();
    let mut views = chitchat.lock().await.live_nodes_watch_stream();
    let mut before: BTreeSet<String> = BTreeSet::from([name]);
    while let Some(view) = views.next().await {
        let now: BTreeSet<String> = view.keys().map(|id| id.node_id.to_string()).collect();
        now.difference(&before).for_each(|name| say("UP", name));
        before.difference(&now).for_each(|name| say("DOWN", name));
        before = now;
    }
}
