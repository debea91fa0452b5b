//! Carries out the actions of the core.

use super::{Launcher, Progress};
use crate::Error;
use crate::core::messages::{Action, Input};
use muster_pmix::server::Server;

impl Launcher<'_> {
    /// Carries out all actions that the core has. Without a server there are no ranks that could be told anything.
    pub(super) fn perform(&mut self, server: Option<&Server>) -> Result<Progress, Error> {
        let mut progress = Progress::Continue;
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::StartRanks => progress = Progress::Start,
                Action::End(status) => progress = Progress::End(status),
                Action::FailStart(error) => return Err(error.into()),
                action => self.perform_one(action, server)?,
            }
        }
        Ok(progress)
    }

    /// Carries out all actions that do not need the agent, which is lost.
    pub(super) fn perform_as_possible(&mut self) {
        // Each call takes an action at least.
        while self.perform(None).is_err() {}
    }

    fn perform_one(&mut self, action: Action, server: Option<&Server>) -> Result<(), Error> {
        match action {
            Action::Publish(node_status) => self.peers.publish_status(&node_status)?,
            Action::Put { chunk, data } => {
                let is_stored = self.peers.put_if_room(chunk, &data)?;
                self.tell(Input::Stored(is_stored));
            }
            Action::Clear { chunk, size } => self.peers.clear(chunk, size)?,
            Action::Fetch { chunk, node, size } => {
                let data = self.peers.fetch(chunk, node, size)?;
                self.tell(Input::Fetched { chunk, node, data });
            }
            Action::Serve { chunk, owner, data } => self.data_server()?.serve(chunk, owner, data),
            Action::StopServing { chunk, owner } => self.data_server()?.stop_serving(chunk, owner),
            Action::Request {
                chunk,
                owner,
                size,
                from,
            } => {
                let names = from.iter().map(|node| self.plan.layout.name(*node));
                let names = names.collect::<Vec<_>>().join(", ");
                if self.data_server()?.request(chunk, owner, size, from) && self.plan.verbose {
                    self.print(&format!("requests {size} bytes from {names}"));
                }
            }
            Action::Answer(request, answer) => self.requests.answer(request, answer),
            Action::Forget(request) => self.requests.forget(request),
            Action::AskServer(rank) => {
                if let Some(server) = server {
                    server.ask_for(rank)?;
                }
            }
            Action::TellDeath(rank) => {
                if let Some(server) = server {
                    server.tell_death(rank)?;
                }
            }
            Action::ReportLost { rank, how } => {
                if let Ok(link) = self.client.link() {
                    link.send_aborted(rank, how, self.plan.layout.ranks());
                }
            }
            Action::SignalRanks { ranks, signal } => self.ranks.signal_some(&ranks, signal),
            Action::EndRanks(signal) => self.ranks.end(signal),
            Action::NoteSent(signal) => self.ranks.note_sent(signal),
            Action::Print(text) => self.print(&text),
            Action::StartRanks | Action::End(_) | Action::FailStart(_) => {}
        }
        Ok(())
    }
}
