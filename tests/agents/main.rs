//! Real agents and real ranks on one machine: membership, failures, attributes, age gossip, the systemd
//! service.

mod attributes;
mod containers;
mod control;
mod descriptors;
mod discovery;
mod flood;
mod gossip;
mod job_size;
mod life;
mod members;
mod membership;
mod memory;
mod monitors;
mod outcast;
mod piggyback;
mod replay;
mod scribble;
mod service;
mod skew;
mod split;
mod zones;
