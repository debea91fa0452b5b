//! foca (SWIM with suspicion) with its LAN timers made ten times faster.

use foca::{
    AccumulatingRuntime, Config, Foca, Identity, OwnedNotification, PeriodicParams, PostcardCodec,
    Timer,
};
use muster_bench_peers::{Lives, Options, members, options, say};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{SocketAddr, UdpSocket};
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::{Duration, Instant, SystemTime};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Id {
    address: SocketAddr,
    name: String,
    life: u64,
}

impl Identity for Id {
    type Addr = SocketAddr;

    fn renew(&self) -> Option<Self> {
        Some(Self { life: self.life + 1, ..self.clone() })
    }

    fn addr(&self) -> SocketAddr {
        self.address
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        self.life > adversary.life
    }
}

/// A timer of foca with the time at which it is due; ordered by that.
struct Due(Instant, u64, Timer<Id>);

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

fn config() -> Config {
    // foca scales its suspicion by the number of members.
    let mut config = Config::new_lan(NonZeroU32::new(members()).unwrap_or(NonZeroU32::MIN));
    config.probe_period = Duration::from_millis(100);
    config.probe_rtt = Duration::from_millis(50);
    config.suspect_to_down_after /= 10;
    config.notify_down_members = true;
    config.periodic_gossip = Some(PeriodicParams {
        frequency: Duration::from_millis(20),
        num_members: NonZeroUsize::new(3).unwrap(),
    });
    config
}

fn main() {
    let Options { name, address, seed } = options();
    let life = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis() as u64);
    let identity = Id { address, name, life };
    let own_name = identity.name.clone();
    let mut foca = Foca::new(identity, config(), StdRng::seed_from_u64(life), PostcardCodec);
    let socket = UdpSocket::bind(address).expect("the address can be bound");
    say("READY", &own_name);
    let mut runtime = AccumulatingRuntime::new();
    let mut timers: BinaryHeap<Reverse<Due>> = BinaryHeap::new();
    let mut lives = Lives::default();
    let mut buffer = vec![0; 2048];
    let mut count = 0;
    let mut announce_at = Instant::now();
    loop {
        let now = Instant::now();
        if foca.num_members() == 0 && address != seed && announce_at <= now {
            let dst = Id { address: seed, name: String::new(), life: 0 };
            let _ = foca.announce(dst, &mut runtime);
            announce_at = now + Duration::from_millis(100);
        }
        while timers.peek().is_some_and(|Reverse(due)| due.0 <= now) {
            let Some(Reverse(due)) = timers.pop() else { break };
            let _ = foca.handle_timer(due.2, &mut runtime);
        }
        while let Some((to, data)) = runtime.to_send() {
            let _ = socket.send_to(&data, to.address);
        }
        while let Some((after, timer)) = runtime.to_schedule() {
            count += 1;
            timers.push(Reverse(Due(now + after, count, timer)));
        }
        while let Some(notification) = runtime.to_notify() {
            match notification {
                OwnedNotification::MemberUp(id) => lives.up(&id.name, id.life),
                OwnedNotification::MemberDown(id) => lives.down(&id.name, id.life),
                _ => {}
            }
        }
        let next = timers.peek().map_or(now + Duration::from_millis(100), |Reverse(due)| due.0);
        let wait = next.saturating_duration_since(Instant::now()).max(Duration::from_micros(100));
        socket.set_read_timeout(Some(wait)).expect("a timeout above zero");
        if let Ok((length, _)) = socket.recv_from(&mut buffer) {
            let _ = foca.handle_data(&buffer[..length], &mut runtime);
        }
    }
}
