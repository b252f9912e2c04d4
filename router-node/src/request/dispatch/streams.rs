//! What the failure of a stream means.

use shared_proto::classify::{self, BadAnswer, TransportFailure};
use shared_proto::clock::Millis;
use shared_proto::failure::Failure;
use shared_proto::stream::{StreamFailure, StreamFailureKind};

use super::{Call, unusable};
use crate::request::live::{Live, LiveEnd};
use crate::request::pick::Candidate;
use crate::upstream::answer::Answer;

impl Call<'_> {
    /// What a stream's failure means; also used after the commit point.
    pub(crate) fn live_failure(
        &self,
        candidate: &Candidate,
        live: &Live,
        end: &LiveEnd,
        now: Millis,
    ) -> Failure {
        match end {
            LiveEnd::Transport(kind) => classify::transport_failure(*kind),
            LiveEnd::Stream(failure) => self.stream_failure(candidate, live.answer(), failure, now),
        }
    }

    pub(super) fn stream_failure(
        &self,
        candidate: &Candidate,
        answer: &Answer,
        failure: &StreamFailure,
        now: Millis,
    ) -> Failure {
        let kind = match failure.kind {
            StreamFailureKind::ErrorEvent => match &failure.error_body {
                Some(body) => return self.classify(candidate, answer, body, now),
                None => BadAnswer::FinishError,
            },
            StreamFailureKind::Truncated => BadAnswer::Truncated,
            StreamFailureKind::TruncatedToolCall => BadAnswer::CutToolCall,
            StreamFailureKind::Empty => BadAnswer::Empty,
            StreamFailureKind::EventTooLarge => BadAnswer::TooLarge,
            StreamFailureKind::Garbage => BadAnswer::Garbage,
            StreamFailureKind::Cut => {
                return classify::transport_failure(TransportFailure::Reset);
            }
        };
        unusable(candidate, kind)
    }
}
