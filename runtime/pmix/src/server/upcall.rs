//! The upcall: a request of libpmix to its host.

use super::answer::Done;
use super::collective::Contribution;
use super::control::Signalling;
use super::log_message::LogMessage;
use super::modex::{Found, Want};
use super::name_service::{Lookup, Publishing, Query};

/// An action or a request of a rank of this node.
#[derive(Debug)]
pub enum Upcall {
    /// It called `PMIx_Init`.
    Connected(u32),
    /// It called `PMIx_Finalize`.
    Finalized(u32),
    /// It called `PMIx_Abort`.
    Aborted {
        /// The rank.
        rank: u32,
        /// The exit code that it requests.
        status: i32,
        /// Its message.
        message: String,
        /// The answer, which the rank waits for: the job ends.
        answer: Done,
    },
    /// All local ranks of a collective have arrived.
    Collective(Contribution),
    /// It publishes values.
    Publish(Publishing),
    /// It looks up published values.
    Lookup(Lookup),
    /// It deletes its published values.
    Unpublish {
        /// The rank.
        rank: u32,
        /// The keys; empty for all.
        keys: Vec<String>,
        /// The answer, when it is done.
        answer: Done,
    },
    /// It queries data about the job.
    Query(Query),
    /// It requests the data that a rank of another node has put.
    Want(Want),
    /// The data that a rank of this node has put, in answer to a request.
    Found(Found),
    /// It requests a signal to other ranks.
    Signal(Signalling),
    /// It requests that a message is written to its output.
    LogMessage(LogMessage),
    /// It requested an operation that is not supported, and was refused.
    Refused {
        /// The rank.
        rank: u32,
        /// The operation.
        what: &'static str,
    },
    /// A tool has connected; all of its requests are refused.
    Tool,
}
