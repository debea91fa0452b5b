//! Opening: a rail more, while the others carry.
//!
//! Providers take their time with a device that is just coming back, and a host's loop has none: so a rail may
//! be opened by another thread, and taken in when it is open.

use super::Fabric;
use crate::config::FabricConfig;
use crate::error::OpenError;
use crate::link::Links;
use crate::nid::{NIDS_MAX, Nid};
use crate::rail::{self, Rail};

/// What opens a rail, in any thread.
#[derive(Debug)]
pub struct RailOpener {
    config: FabricConfig,
    nid: Nid,
    bulk: bool,
}

/// A rail that is open and belongs to no fabric yet; it is closed when dropped.
#[derive(Debug)]
pub struct OpenedRail(Rail);

impl RailOpener {
    /// Opens it, however long that takes.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(&self) -> Result<OpenedRail, OpenError> {
        let mut rail = Rail::open(&self.config, &self.nid)?;
        if self.bulk {
            rail.bulk = Some(rail::open_bulk(&self.config, &rail.nid)?);
        }
        Ok(OpenedRail(rail))
    }
}

impl Fabric {
    /// Opens one rail more, with a bulk lane if others have one, and pairs it with all peers; returns its
    /// index. The descriptors to wait for are others from then on.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing has changed then.
    pub fn add_rail(&mut self, nid: &Nid) -> Result<usize, OpenError> {
        self.check_rail(nid)?;
        let opened = self.opener(nid).open()?;
        self.take_rail(opened)
    }

    /// What opens a rail as [`Fabric::add_rail`] does, in a thread that may wait: providers take their time
    /// with devices, and the host's loop may not.
    #[must_use]
    pub fn opener(&self, nid: &Nid) -> RailOpener {
        RailOpener {
            config: self.config.clone(),
            nid: nid.clone(),
            bulk: self.open_rails().any(|(_, rail)| rail.bulk.is_some()),
        }
    }

    /// Whether a rail may stand beside those that are open: not whether it can be opened.
    ///
    /// # Errors
    /// Why not.
    pub fn may_add(&self, nid: &Nid) -> Result<(), OpenError> {
        self.check_rail(nid)
    }

    /// The same, once these rails are closed.
    ///
    /// # Errors
    /// Why not.
    pub fn may_add_after(&self, nid: &Nid, closed: &[Nid]) -> Result<(), OpenError> {
        self.check_beside(nid, |open| !closed.contains(open))
    }

    /// Takes in a rail that was opened elsewhere.
    ///
    /// # Errors
    /// See [`OpenError`]; it is closed then, and nothing has changed.
    pub fn take_rail(&mut self, opened: OpenedRail) -> Result<usize, OpenError> {
        let mut rail = opened.0;
        self.check_rail(&rail.nid)?;
        if rail.bulk.is_none() && self.open_rails().any(|(_, rail)| rail.bulk.is_some()) {
            rail.bulk = Some(rail::open_bulk(&self.config, &rail.nid)?);
        }
        let rail = Some(rail);
        let free = self.rails.iter().position(Option::is_none);
        let index = free.unwrap_or(self.rails.len());
        match free {
            Some(index) => self.rails[index] = rail,
            None => self.rails.push(rail),
        }
        self.offer_lifeline(index);
        // What the kernel said before was of the rails before.
        self.links.iter_mut().for_each(Links::ask_again);
        self.measure();
        self.pair_all();
        Ok(index)
    }

    /// Whether a rail may stand beside those that are open.
    pub(super) fn check_rail(&self, nid: &Nid) -> Result<(), OpenError> {
        self.check_beside(nid, |_| true)
    }

    fn check_beside(&self, nid: &Nid, stays: impl Fn(&Nid) -> bool) -> Result<(), OpenError> {
        let open = self.open_rails().map(|(_, rail)| rail.nid.clone());
        let open = open.filter(|nid| stays(nid));
        let nids: Vec<Nid> = open.chain([nid.clone()]).collect();
        if nids.len() > NIDS_MAX {
            return Err(OpenError::ManyRails { given: nids.len() });
        }
        rail::check_distinct(&self.config.library, &nids)
    }
}
