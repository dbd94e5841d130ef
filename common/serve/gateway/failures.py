"""What can go wrong between the gateway and an expert, and what the client is told if no other can
answer.

Sentences hold no address, no key and nothing that the expert said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ridgeway.common.experts.experts_file import FallbackReason
from ridgeway.common.http.http_errors import Problem


@dataclass(frozen=True, slots=True)
class FailureKind:
    """A way to fail.

    outcome: how it is counted.
    status:  what the client gets if there is no fallback, or it fails too.
    words:   what is said after the expert's name.
    reason:  why another expert may be asked instead; for a refusal only where the file says so: it
             hides a mistake.
    good:    what the breaker is told: whether the expert is there and well; None if that is not
             known.
    """

    outcome: str
    status: int
    words: str
    reason: FallbackReason
    good: bool | None = False


FULL = FailureKind(
    "full",
    429,
    "has as many requests as it may have at a time; try again soon",
    "busy",
    None,
)
BUSY = FailureKind("busy", 429, "has too many requests; try again later", "busy", True)
UNAVAILABLE = FailureKind(
    "unavailable", 503, "is not available now; try again later", "busy"
)
DOWN = FailureKind(
    "down",
    503,
    "has failed several times and is left alone for some seconds; try again then",
    "down",
    None,
)
UNREACHABLE = FailureKind(
    "unreachable", 503, "cannot be reached now; try again later", "down"
)
TIMEOUT = FailureKind(
    "timeout", 504, "did not answer in time; try again, or ask for less", "down"
)
FAILED = FailureKind("failed", 502, "failed; try again later", "down")
GARBAGE = FailureKind(
    "garbage",
    502,
    "gave an answer that cannot be understood; its operator must look at it",
    "down",
)
BROKEN_OFF = FailureKind(
    "broken_off", 502, "broke off in the middle of its answer; try again", "down"
)
SILENT = FailureKind(
    "silent", 504, "fell silent in the middle of its answer; try again", "down"
)
NO_ROOM = FailureKind(
    "no_room",
    503,
    "gave an answer that there is no memory for now; try again soon",
    "down",
    None,
)
REFUSED = FailureKind(
    "refused",
    502,
    "does not accept the gateway's requests; its operator must check its address, model"
    " and key",
    "refused",
    True,
)


@dataclass(frozen=True, slots=True)
class FailedExpert:
    """How an expert failed. It is kept while others are asked, and holds nothing of the request."""

    kind: FailureKind
    expert: str
    retry_after: str | None = None

    @property
    def sentence(self) -> str:
        return f"the expert {self.expert!r} {self.kind.words}"

    def problem(
        self, headers: Mapping[str, str], before: Sequence[FailedExpert] = ()
    ) -> Problem:
        """The error that a client gets; `before`: how the experts failed in whose place this one
        was asked.
        """
        with_wait = dict(headers)
        for wait in (
            self.retry_after,
            *(failed.retry_after for failed in reversed(before)),
        ):
            if wait is not None:
                with_wait["retry-after"] = wait
                break
        words = "; and in its place ".join(
            failed.sentence for failed in (*before, self)
        )
        return Problem(
            self.kind.status,
            words,
            code=f"expert_{self.kind.outcome}",
            headers=with_wait,
        )


class ExpertFailure(Exception):
    """An expert did not answer as it should. Keep `failed` and not the exception, whose traceback
    holds the request.
    """

    def __init__(self, failed: FailedExpert) -> None:
        super().__init__(failed.kind.outcome)
        self.failed = failed
