"""The protocol: announce → gather a total → solve → count → sign and store → deliver.

One function over a transport, so that the in-process engine, Flower's simulation and a real
SuperLink run the very same code. What was accepted is in the ledger before the next step begins, so
a round that was cut off can be run again without asking for it twice.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ridgeway.common.base.errors import (
    JournalError,
    Refused,
    RidgewayError,
    RoundFailed,
)
from ridgeway.common.base.schema import Mode
from ridgeway.common.base.settings import DEFAULT, Confidence
from ridgeway.common.privacy.private_solve import solve_private
from ridgeway.common.protocol.messages import (
    Announce,
    Deliver,
    Evaluate,
    Hello,
    Here,
    Offer,
    Receipt,
)
from ridgeway.common.protocol.packet import Blob, vector_blob, weights_blob
from ridgeway.common.routing.evaluation import Evaluation
from ridgeway.common.routing.quality import QualityTable
from ridgeway.common.routing.release import (
    MANIFEST,
    PRIVACY,
    QUALITY,
    ROUTER,
    TOKENIZER,
)
from ridgeway.common.routing.token_table import normalised_columns
from ridgeway.coordinator.round import progress
from ridgeway.coordinator.round.ask import Channel, Transport
from ridgeway.coordinator.round.clear_round import ClearGathering
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.gathering import (
    Gathered,
    RoundCounts,
    check_nothing_lost,
    why_missing,
)
from ridgeway.coordinator.round.ledger import LedgerRelease
from ridgeway.coordinator.round.masked_round import MaskedGathering
from ridgeway.coordinator.round.progress import Watch
from ridgeway.coordinator.round.remedies import OTHER_RELEASE
from ridgeway.coordinator.solving.calibration import Fitted, fit, temperatures
from ridgeway.coordinator.solving.private_release import (
    NoisyAccuracy,
    confidence_under_noise,
    likeliest_counts,
    noisy_accuracy,
    privacy_facts,
)
from ridgeway.coordinator.solving.publish import RouterChoices, compose, sign
from ridgeway.coordinator.solving.release_comparison import DomainChange, worse
from ridgeway.coordinator.solving.solve import Solution, solve

POLL_S = 0.5
GREETING_TIMEOUT_S = 60.0
COUNTED = "counted"
"""What a manifest says of the domains whose holders have counted under noise."""
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True, slots=True)
class RoundWishes:
    """What the operator says to a round beside its settings.

    mode:               as the settings say if left out.
    accept_worse:       domains that may be routed worse than before.
    accept_unevaluated: domains whose holders need not have counted for the router.
    allow_missing:      domains that may be lost because their holders are not there.
    min_changed:        the fewest holders that must be new or have changed since the newest
                        release.
    even_unchanged:     publish though nothing has changed.
    """

    mode: Mode | None = None
    accept_worse: Collection[str] = ()
    accept_unevaluated: Collection[str] = ()
    allow_missing: Collection[str] = ()
    min_changed: int = 0
    even_unchanged: bool = False


NO_WISHES = RoundWishes()


def run_round(
    federation: Federation,
    transport: Transport,
    watch: Watch,
    wishes: RoundWishes = NO_WISHES,
) -> LedgerRelease:
    """Run one round to its release. Raises RoundFailed, with everything accepted so far kept, if
    there is none.

    The newest release is returned, and no other made, if it was made of the very same sums with the
    same settings.
    """
    with federation.exclusive_lock():
        try:
            return _Round(federation, transport, watch, wishes).run()
        except OSError as error:
            seen = (
                "the disk is full"
                if error.errno in FULL
                else (error.strerror or str(error)).lower()
            )
            raise RoundFailed(
                f"the coordinator cannot write to its folder: {seen}. Make room, or"
                " mend it, and run the round again: what was accepted is kept"
            ) from error


def deliver_newest(
    federation: Federation, transport: Transport, watch: Watch
) -> set[str]:
    """Hand the newest release to every holder that is there and does not have it; returns who got
    it.
    """
    with federation.exclusive_lock():
        round_ = _Round(federation, transport, watch)
        held = round_.greet()
        newest = federation.newest
        return round_.deliver(newest, held) if newest else set()


@dataclass(frozen=True, slots=True, eq=False)
class _Evaluated:
    """A router to be signed, and what holders counted for it.

    evaluation: None where no documents were held out, or noise left none.
    noisy:      its accuracy, where noise is in it. counted: then, the domains whose holders have
                counted.
    """

    solution: Solution
    evaluation: Evaluation | None
    fitted: Fitted | None = None
    quality: QualityTable | None = None
    noisy: NoisyAccuracy | None = None
    intervals: Mapping[str, tuple[float, float]] | None = None
    counted: tuple[str, ...] = ()

    def figures(self) -> dict[str, Any] | None:
        """What the manifest records: counts and rates, and the gap that calibration left."""
        if self.evaluation is None:
            return None
        figures = self.evaluation.to_json() | {
            "documents": self.evaluation.documents,
            "gap": None,
        }
        if self.noisy is not None:
            intervals = {
                name: list(pair) for name, pair in (self.intervals or {}).items()
            }
            return figures | self.noisy.to_json() | {"intervals": intervals}
        if self.fitted is None:
            return figures
        figures |= {"gap": self.fitted.gap, "reliability": self.fitted.reliability}
        return figures | (
            {}
            if self.fitted.separation is None
            else {"separation": self.fitted.separation}
        )


class _Round:
    """One round, or one delivery, over one conversation with the holders."""

    def __init__(
        self,
        federation: Federation,
        transport: Transport,
        watch: Watch,
        wishes: RoundWishes = NO_WISHES,
    ) -> None:
        self._federation = federation
        self._watch = watch
        self._wishes = wishes
        self._ledger = federation.ledger
        self._terms = federation.terms_in(wishes.mode)
        self._channel = Channel(federation, transport, secrets.token_hex(16), watch)
        self._held: dict[str, int] = {}
        way = MaskedGathering if self._terms.uses_masks else ClearGathering
        self._gathering: MaskedGathering | ClearGathering = way(
            federation, self._channel, self._terms, watch, self._must_lose_nothing
        )

    def run(self) -> LedgerRelease:
        """The round, step by step."""
        self._open()
        try:
            offers = self.announce()
            greeted = set(offers)
            self._must_have_changed(offers)
            gathered = self._gathering.gather(offers)
            self._watch(
                progress.TotalGathered(gathered.total.holders, gathered.total.domains)
            )
            published = self._release_of(gathered)
        except RidgewayError as error:
            with contextlib.suppress(
                JournalError
            ):  # a full disk, which is what the error tells of
                self._ledger.note(
                    "closed", round=self._channel.nonce, release=None, reason=str(error)
                )
            raise
        self.deliver(published, greeted)
        return published

    def _open(self) -> None:
        """Note the round, and give holders some time to come online; it begins as soon as all are
        there.
        """
        self._federation.point_to_latest()
        self._ledger.erase_outdated()
        standing = self._ledger.standing()
        number = standing.rounds + 1
        wanted = len(standing.active)
        terms = self._terms.model_dump(mode="json")
        self._channel.number = number
        self._ledger.note(
            "opened", round=self._channel.nonce, number=number, terms=terms
        )
        self._watch(progress.RoundOpened(number, wanted, **terms))
        until = time.monotonic() + self._federation.settings.round.wait
        while (
            online := len(self._channel.peers())
        ) < wanted and time.monotonic() < until:
            self._watch(progress.HoldersAwaited(online, wanted))
            time.sleep(POLL_S)

    def _must_have_changed(self, offers: Mapping[str, Offer]) -> None:
        """Raise RoundFailed, before anything is gathered, if too few holders have changed since the
        newest release.
        """
        newest = self._federation.newest
        least = self._wishes.min_changed
        known = (
            {member.name: member.source for member in newest.members} if newest else {}
        )
        changed = sum(
            known.get(name) != offer.epoch.name for name, offer in offers.items()
        )
        if newest and changed < least:
            raise RoundFailed(
                f"{changed} of the {least} holders that a round waits for are new or"
                " have opened a new epoch so far"
            )

    def _must_lose_nothing(self, names: Collection[str]) -> None:
        check_nothing_lost(
            self._federation, names, self._channel.refusals, self._wishes.allow_missing
        )

    # Announce: who is there, and what do they have?

    def announce(self) -> dict[str, Offer]:
        """What the holders offer that are there, by name; offers that cannot be used are
        refused.
        """
        offers: dict[str, Offer] = {}
        active = self._ledger.standing().active
        request = Announce(
            terms=self._terms, handovers=self._ledger.standing().holder_handovers
        )
        for answer in self._channel.ask(request, Offer):
            with answer.accept():
                name = answer.name
                offer = answer.message
                if name not in active:
                    raise Refused("retired", "the holder's domain was retired")
                if offer.domain != active[name].domain:
                    raise Refused(
                        "wrong_domain",
                        f"admitted for {active[name].domain}, offers {offer.domain}",
                    )
                self._gathering.check_offer(active[name].key, offer)
                offers[name] = offer
                self._note_held(name, offer)
                self._watch(progress.OfferReceived(name, offer.domain))
        return offers

    def greet(self) -> set[str]:
        """The holders that are there; what each of them has is noted."""
        here: dict[str, Here] = {}
        for answer in self._channel.ask(Hello(), Here, seconds=GREETING_TIMEOUT_S):
            here[answer.name] = answer.message
            self._watch(progress.HolderPresent(answer.name))
        for name, message in here.items():
            self._note_held(name, message)
        return set(here)

    def _note_held(self, name: str, told: Here | Offer) -> None:
        """Note the release that a holder says it has, if that is news."""
        self._held[name] = told.release.number if told.release else 0
        if told.release and told.release != self._ledger.standing().delivered.get(name):
            self._ledger.note("delivered", name=name, **told.release.model_dump())

    def _release_of(self, gathered: Gathered) -> LedgerRelease:
        """A new release; or the newest, if it was made of this very total with these settings, and
        evaluated.
        """
        newest = self._federation.newest
        if newest is not None and self._stands(newest, gathered):
            self._ledger.note(
                "closed",
                round=self._channel.nonce,
                release=None,
                reason="nothing has changed",
            )
            self._watch(progress.ReleaseStands(newest.number))
            return newest
        return self.publish(gathered, self.evaluate(gathered))

    def _stands(self, newest: LedgerRelease, gathered: Gathered) -> bool:
        if self._wishes.even_unchanged or self._ledger.standing().ahead:
            return False
        same = (newest.members, newest.choices) == (
            gathered.members,
            self._federation.choices_id(self._terms),
        )
        return same and _is_evaluated(self._federation.manifest(newest.number))

    # Solve, and let holders count for the router that is published

    def evaluate(self, gathered: Gathered) -> _Evaluated:
        """Solve the total, and let holders count on their own held-out documents where the router
        routes them.
        """
        solution = self._solved(gathered)
        self._watch(
            progress.TotalSolved(gathered.total.statistics.shape[0], solution.condition)
        )
        if self._terms.privacy:
            return self._evaluate_under_noise(gathered, solution)
        total = gathered.total
        newest = self._federation.newest
        rule = self._federation.settings.router.rule
        weights = solution.weights
        if self._federation.settings.router.normalise_columns:
            weights = normalised_columns(weights)
        question = Evaluate(
            terms=self._terms,
            domains=total.domains,
            selector=rule.name,
            k=rule.k,
            last=newest.release if newest else None,
            temperatures=temperatures(
                total.statistics, weights, self._federation.encoder.scale, rule
            ),
            experts=self._federation.settings.experts,
        )
        counts = self._counted(question, weights_blob(weights), gathered)
        evaluation = _evaluation(
            total.domains, {name: row.routed for name, row in counts.rows.items()}
        )
        self._tell_evaluation(evaluation)
        if newest is not None:
            changes = [
                DomainChange(
                    name,
                    int(row.changes[0]),
                    int(row.changes[1]),
                    int(row.routed.sum()),
                )
                for name, row in counts.rows.items()
            ]
            self._must_not_be_worse(newest, gathered, changes)
        quality = counts.quality(question) if question.experts else None
        if quality is not None:
            self._watch(
                progress.ExpertsMeasured(
                    len(quality.experts), int(quality.counts.sum())
                )
            )
        fitted = fit(
            question.temperatures, {"": counts.calibration()}, len(total.domains)
        )
        if fitted:
            curve = fitted.temperature, fitted.half, fitted.tail
            self._watch(
                progress.ConfidenceCalibrated(*curve, fitted.gap, fitted.separation)
            )
        return _Evaluated(solution, evaluation, fitted, quality)

    def _solved(self, gathered: Gathered) -> Solution:
        total = gathered.total
        scale = self._federation.encoder.scale
        if self._terms.privacy:
            holders = [member.domain for member in gathered.members]
            weights = solve_private(
                total.statistics,
                self._terms.privacy,
                holders,
                self._federation.prior,
                scale,
            )
            return Solution(weights, 0.0, 1.0, 0.0)
        solution = solve(
            total.statistics, scale, self._federation.settings.router.penalty
        )
        if solution.note:
            self._watch(progress.OperatorNote(solution.note))
        return solution

    def _evaluate_under_noise(
        self, gathered: Gathered, solution: Solution
    ) -> _Evaluated:
        """One count of where the router routes held-out documents, under noise; nothing is
        calibrated by it.
        """
        total = gathered.total
        question = Evaluate(
            terms=self._terms,
            domains=total.domains,
            selector=DEFAULT.selector.name,
            k=DEFAULT.selector.k,
            holders=tuple(member.domain for member in gathered.members),
        )
        counts = self._counted(
            question, vector_blob(self._terms.vector_of(total.statistics)), gathered
        )
        documents = {
            name: likeliest_counts(row.routed) for name, row in counts.rows.items()
        }
        evaluation = _evaluation(total.domains, documents)
        privacy = self._terms.privacy
        active = self._ledger.standing().active
        assert privacy is not None
        counted = [active[name].domain for name in sorted(counts.heard)]
        rows = {
            name: row.routed for name, row in counts.rows.items() if name in counted
        }
        noisy = noisy_accuracy(rows, total.masses, counted, privacy)
        intervals = {
            name: noisy_accuracy({name: row}, total.masses, counted, privacy).interval
            for name, row in rows.items()
        }
        self._tell_evaluation(evaluation, noisy)
        return _Evaluated(
            solution,
            evaluation,
            noisy=noisy,
            intervals=intervals,
            counted=tuple(sorted(set(counted))),
        )

    def _counted(
        self, question: Evaluate, blob: Blob, gathered: Gathered
    ) -> RoundCounts:
        """What holders count; raises RoundFailed if those of some domain do not, and that was not
        accepted.
        """
        accepted = self._wishes.accept_unevaluated
        counts = self._gathering.count(question, [blob], gathered.present, accepted)
        active = self._ledger.standing().active
        counted = {
            active[name].domain
            for name in counts.heard | counts.sealed
            if name in active
        }
        missing = set(question.domains) - counted
        if missing - set(accepted):
            names = sorted(
                member.name for member in gathered.members if member.domain in missing
            )
            flags = " ".join(
                f"--accept-unevaluated {domain}" for domain in sorted(missing)
            )
            raise RoundFailed(
                "nobody has counted how the router does on"
                f" {', '.join(sorted(missing))}, so it was not published:"
                f" {why_missing(names, self._channel.refusals)}. The total is kept; run"
                f" the round again, or publish it as it is with {flags}"
            )
        return counts

    def _must_not_be_worse(
        self, last: LedgerRelease, gathered: Gathered, changes: Sequence[DomainChange]
    ) -> None:
        """Raise RoundFailed, and say who is new or has changed, if a domain gets worse that was not
        accepted to.
        """
        before = {member.name: member.source for member in last.members}
        new = [member.name for member in gathered.members if member.name not in before]
        changed = [
            each.name
            for each in gathered.members
            if before.get(each.name, each.source) != each.source
        ]
        found = worse(changes)
        for each in found:
            self._watch(
                progress.RouterWorse(
                    each.domain, each.lost, each.won, each.documents, new, changed
                )
            )
        names = [
            each.domain
            for each in found
            if each.domain not in self._wishes.accept_worse
        ]
        if names:
            who = [
                f"{what} {', '.join(some)}"
                for what, some in (("new:", new), ("changed:", changed))
                if some
            ]
            raise RoundFailed(
                f"on held-out text of {', '.join(names)} the new router is worse than"
                f" release {last.number:04} by more than chance explains, so that"
                f" release stands ({'; '.join(who) or 'nobody is new or has changed'})."
                " Ask these holders what they have summed; if the change is wanted,"
                " run the round again with "
                + " ".join(f"--accept-worse {name}" for name in names)
            )

    def _tell_evaluation(
        self, evaluation: Evaluation | None, noisy: NoisyAccuracy | None = None
    ) -> None:
        settings = self._federation.settings.router
        self._watch(
            progress.RouterEvaluated(
                documents=evaluation.documents if evaluation else 0,
                ridge=None if self._terms.privacy else settings.ridge,
                selector=(
                    DEFAULT.selector.name if self._terms.privacy else settings.selector
                ),
                accuracy=(
                    noisy.accuracy
                    if noisy
                    else evaluation.accuracy
                    if evaluation
                    else None
                ),
                interval=noisy.interval if noisy else None,
            )
        )

    # Publish

    def publish(self, gathered: Gathered, made: _Evaluated) -> LedgerRelease:
        """Sign the release, store it whole, and let the ledger speak of it, in this order."""
        federation = self._federation
        newest = self._federation.newest
        total = gathered.total
        number = federation.next_number
        draft = compose(
            total,
            federation.encoder,
            self._choices(gathered, made),
            made.solution,
            number=number,
            parent=newest.release if newest else None,
            evaluation=made.figures(),
            **({QUALITY: made.quality.to_json()} if made.quality else {}),
            **self._privacy_facts(made),
        )
        release = sign(
            draft, federation.identity, federation.release_folder(number)
        ).release
        choices = federation.choices_id(self._terms)
        cause = f"round {self._ledger.standing().rounds}"
        published = LedgerRelease(
            number,
            release,
            cause,
            total.domains,
            gathered.members,
            self._terms,
            choices,
        )
        self._ledger.journal.append(
            ("released", published.to_json()),
            (
                "closed",
                {"round": self._channel.nonce, "release": release, "reason": ""},
            ),
        )
        federation.point_to_latest()
        self._watch(progress.ReleasePublished(number, release, total.domains))
        return published

    def _privacy_facts(self, made: _Evaluated) -> dict[str, Any]:
        if not self._terms.privacy:
            return {}
        return {
            PRIVACY: privacy_facts(self._terms.privacy) | {COUNTED: list(made.counted)}
        }

    def _choices(self, gathered: Gathered, made: _Evaluated) -> RouterChoices:
        settings = self._federation.settings
        threshold = settings.abstention.threshold
        fallback = settings.abstention.fallback
        confidence = Confidence(threshold=threshold, fallback=fallback)
        if self._terms.privacy and made.noisy:
            confidence = confidence_under_noise(
                gathered.total.statistics,
                self._terms.privacy,
                [member.domain for member in gathered.members],
                self._federation.prior,
                self._federation.encoder.scale,
                made.solution.weights,
                made.noisy,
                confidence,
            )
        if made.fitted:
            confidence = made.fitted.confidence(threshold, fallback)
        return RouterChoices(
            weighting=self._terms.weighting,
            ridge=settings.router.penalty,
            normalise_columns=settings.router.normalise_columns
            and not self._terms.privacy,
            selector=DEFAULT.selector if self._terms.privacy else settings.router.rule,
            confidence=confidence,
        )

    # Deliver

    def deliver(self, published: LedgerRelease, greeted: Collection[str]) -> set[str]:
        """Send a release to the holders that have an earlier one or none; returns who got it.

        Nobody is sent what it would refuse: another release of a number that it has.
        """
        standing = self._ledger.standing()
        there = set(greeted) & set(standing.active) - self._channel.silent
        if blocked := there & set(standing.ahead):
            self._watch(
                progress.DeliveryBlocked(
                    OTHER_RELEASE, sorted(blocked), published.number
                )
            )
        names = {name for name in there if self._held[name] < published.number}
        if not names:
            return set()
        folder = self._federation.release_folder(published.number)
        request = Deliver(number=published.number, release=published.release)
        blobs = [(folder / name).read_bytes() for name in (MANIFEST, ROUTER, TOKENIZER)]
        got = set()
        for answer in self._channel.ask(request, Receipt, names=names, blobs=blobs):
            with answer.accept():
                if answer.message.release != published.release:
                    raise Refused("malformed", "a receipt for another release")
                self._ledger.note(
                    "delivered",
                    name=answer.name,
                    number=published.number,
                    release=published.release,
                )
                got.add(answer.name)
        self._watch(progress.ReleaseDelivered(published.number, sorted(got)))
        return got


def _is_evaluated(manifest: Mapping[str, Any]) -> bool:
    """Whether holders have counted for a release; under noise that may have left no documents."""
    return bool(manifest["evaluation"] or manifest.get(PRIVACY, {}).get(COUNTED))


def _evaluation(
    domains: tuple[str, ...], routed: Mapping[str, Any]
) -> Evaluation | None:
    """Where documents of each domain were routed; None if there were none."""
    confusion = tuple(tuple(np.asarray(routed[name]).tolist()) for name in domains)
    return Evaluation(domains, confusion) if any(map(sum, confusion)) else None
