//! `Material` is the input of a report: the lines of all journals.

use super::apart::Apart;
use super::entry::{close_us, entries};
use super::incident::merge;
use super::page::Content;
use super::summary::summary;
use super::zones::Zones;
use crate::agents::{self, AgentArgs};
use crate::show::request_error;
use muster_control::{Followed, Follower};
use muster_terminal::CliError;
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// Maximum number of lines of all journals together. A browser cannot show a larger page.
const LINES_MAX: usize = 1 << 20;
/// Maximum length of a line.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// The events that were read.
#[derive(Debug, Default)]
pub(super) struct Material {
    pub(super) events: Vec<Value>,
    /// Number of lines that are no events, such as in a truncated file.
    pub(super) unread: usize,
    /// Number of events beyond the limit of a page.
    pub(super) left_out: usize,
}

impl Material {
    /// The content of the page.
    pub(super) fn content(&self) -> Content<'_> {
        let entries = entries(&self.events);
        let close_us = close_us(&entries);
        let apart = Apart::find(&entries, close_us);
        let explanation = merge(&entries, &apart, close_us);
        Content {
            summary: summary(&explanation.incidents, &entries, &apart),
            zones: Zones::of(&entries, &explanation.incidents),
            explanation,
            events: &self.events,
            unread: self.unread,
            left_out: self.left_out,
        }
    }

    pub(super) fn ask(&mut self, agent: &AgentArgs) -> Result<(), CliError> {
        let path = agents::find(agent)?;
        let mut follower = Follower::open(&path, 0, false).map_err(request_error)?;
        while let Followed::Event(event) = follower.next(None).map_err(request_error)? {
            self.take(event);
        }
        Ok(())
    }

    pub(super) fn read(&mut self, path: &Path) -> std::io::Result<()> {
        let mut file = BufReader::new(File::open(path)?);
        let mut line = Vec::new();
        while file
            .by_ref()
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut line)?
            > 0
        {
            match serde_json::from_slice::<Value>(&line) {
                Ok(event) if event["event"].is_string() => self.take(event),
                _ if line.trim_ascii().is_empty() => {}
                _ => self.unread += 1,
            }
            line.clear();
        }
        Ok(())
    }

    fn take(&mut self, event: Value) {
        match self.events.len() < LINES_MAX {
            true => self.events.push(event),
            false => self.left_out += 1,
        }
    }
}
