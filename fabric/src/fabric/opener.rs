//! Opening of rails of which some may be missing, and of a further rail while the others are in use.
//!
//! Providers may take long to open a device that has just come back, and the host's loop must not block. So another
//! thread may open a rail, and the fabric adds it when it is open.

use super::Fabric;
use super::closer::Closer;
use crate::config::FabricConfig;
use crate::error::OpenError;
use crate::rail::{self, Rail};
use muster_provider::{Links, NIDS_MAX, Nid};

/// Opens a rail, in any thread.
#[derive(Debug)]
pub struct RailOpener {
    config: FabricConfig,
    nid: Nid,
    bulk: bool,
    closer: Closer,
}

/// An open rail that belongs to no fabric yet. It is closed when dropped.
#[derive(Debug)]
pub struct OpenedRail(Rail);

impl RailOpener {
    /// Opens the rail. May block for long.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(&self) -> Result<OpenedRail, OpenError> {
        if self.nid.net.kind.has_device() {
            self.closer.wait();
        }
        let mut rail = Rail::open(&self.config, &self.nid)?;
        if self.bulk {
            rail.bulk = Some(rail::open_bulk(&self.config, &rail.nid)?);
        }
        Ok(OpenedRail(rail))
    }
}

impl Fabric {
    /// Opens all of these rails, or those that can be opened where `may_lack` accepts why another one cannot; returns
    /// those that are not open, with the reasons.
    ///
    /// # Errors
    /// A reason that is not accepted, or that of the first rail if none can be opened.
    pub fn open_some(
        config: &FabricConfig,
        may_lack: impl Fn(&OpenError) -> bool,
    ) -> Result<(Fabric, Vec<(Nid, OpenError)>), OpenError> {
        let why = match Fabric::open(config) {
            Ok(fabric) => return Ok((fabric, Vec::new())),
            Err(why) if !may_lack(&why) => return Err(why),
            Err(why) => why,
        };
        let mut opened: Option<Fabric> = None;
        let mut lost = Vec::new();
        for nid in &config.rails {
            let result = match &mut opened {
                Some(fabric) => fabric.add_rail(nid).map(drop),
                None => {
                    let rails = vec![nid.clone()];
                    let alone = FabricConfig {
                        rails,
                        ..config.clone()
                    };
                    Fabric::open(&alone).map(|fabric| opened = Some(fabric))
                }
            };
            match result {
                Ok(()) => {}
                Err(error) if may_lack(&error) => lost.push((nid.clone(), error)),
                Err(error) => return Err(error),
            }
        }
        Ok((opened.ok_or(why)?, lost))
    }

    /// Opens a further rail, with a bulk lane if the others have one, and pairs it with all peers; returns its index.
    /// The set of descriptors to wait on changes.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing has changed then.
    pub fn add_rail(&mut self, nid: &Nid) -> Result<usize, OpenError> {
        self.check_rail(nid)?;
        let opened = self.opener(nid).open()?;
        self.take_rail(opened)
    }

    /// Returns an opener that opens a rail as [`Fabric::add_rail`] does, in a thread that may block.
    #[must_use]
    pub fn opener(&self, nid: &Nid) -> RailOpener {
        RailOpener {
            config: self.config.clone(),
            nid: nid.clone(),
            bulk: self.open_rails().any(|(_, rail)| rail.bulk.is_some()),
            closer: self.closer.clone(),
        }
    }

    /// Checks whether a rail may be added to those that are open. Does not check whether it can be opened.
    ///
    /// # Errors
    /// Why it may not be added.
    pub fn may_add(&self, nid: &Nid) -> Result<(), OpenError> {
        self.check_rail(nid)
    }

    /// As [`may_add`](Fabric::may_add), once these rails are closed.
    ///
    /// # Errors
    /// Why it may not be added.
    pub fn may_add_after(&self, nid: &Nid, closed: &[Nid]) -> Result<(), OpenError> {
        self.check_beside(nid, |open| !closed.contains(open))
    }

    /// Adds a rail that was opened elsewhere.
    ///
    /// # Errors
    /// See [`OpenError`]; the rail is closed then, and nothing has changed.
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
        self.offer_liveness(index);
        // The link states that were read before applied to the old rails only.
        self.links.iter_mut().for_each(Links::request_again);
        self.measure();
        self.pair_all();
        Ok(index)
    }

    /// Checks whether a rail may be added to those that are open.
    pub(super) fn check_rail(&self, nid: &Nid) -> Result<(), OpenError> {
        self.check_beside(nid, |_| true)
    }

    fn check_beside(&self, nid: &Nid, remains: impl Fn(&Nid) -> bool) -> Result<(), OpenError> {
        let open = self.open_rails().map(|(_, rail)| rail.nid.clone());
        let open = open.filter(|nid| remains(nid));
        let nids: Vec<Nid> = open.chain([nid.clone()]).collect();
        if nids.len() > NIDS_MAX {
            return Err(OpenError::ManyRails { given: nids.len() });
        }
        rail::check_distinct(&self.config.library, &nids)
    }
}
