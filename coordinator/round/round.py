"""The protocol: announce → gather a total → solve → count → sign and store → deliver.

One function over a transport, so that the in-process engine, Flower's simulation and a real
SuperLink run the very same code. What was accepted is in the ledger before the next step begins, so
a round that was cut off can be run again without asking for it twice.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ridgeway.common.base.errors import (
    JournalError,
    Refused,
    RidgewayError,
    RoundFailed,
    is_disk_full,
)
from ridgeway.common.base.settings import DEFAULT, Confidence, Ridge, Selector
from ridgeway.common.privacy.noisy_solve import solve_private
from ridgeway.common.protocol.cohort import Terms
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
    EXAMPLES,
    PRIVACY,
    QUALITY,
    release_files,
)
from ridgeway.common.routing.sentence_table import margin_for
from ridgeway.common.routing.token_table import normalised_columns
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.coordinator.round import progress
from ridgeway.coordinator.round.ask import Channel, RoundWishes, Transport
from ridgeway.coordinator.round.clear_round import ClearGathering
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.gathering import (
    Gathered,
    Gathering,
    Offers,
    RoundCounts,
)
from ridgeway.coordinator.round.ledger import (
    MADE_BY_ROUND,
    Contribution,
    LedgerRelease,
    Standing,
)
from ridgeway.coordinator.round.masked_round import MaskedGathering
from ridgeway.coordinator.round.progress import OTHER_RELEASE, Watch
from ridgeway.coordinator.solving.calibration import (
    Fitted,
    NoisyAccuracy,
    confidence_under_noise,
    fit,
    likeliest_counts,
    noisy_accuracy,
    privacy_facts,
    temperatures,
)
from ridgeway.coordinator.solving.solve import (
    DomainChange,
    RouterChoices,
    Solution,
    Total,
    compose,
    sign,
    solve_router,
    worse,
)

_POLL_S = 0.5
GREETING_TIMEOUT_S = 60.0
COUNTED = "counted"
"""What a manifest says of the domains whose holders have counted under noise."""


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
    with _round(federation, transport, watch, wishes) as round_:
        return round_.run()


def check_round(
    federation: Federation,
    transport: Transport,
    watch: Watch,
    wishes: RoundWishes = NO_WISHES,
) -> None:
    """Do what a round does before it asks for sums. Raises RoundFailed if there could be no
    release.

    Nothing is opened, and the ledger has no round of it.
    """
    with _round(federation, transport, watch, wishes) as round_:
        round_.check()


@contextlib.contextmanager
def _round(
    federation: Federation, transport: Transport, watch: Watch, wishes: RoundWishes
) -> Iterator[_Round]:
    """A round that may run: no other does, and no rollback holds that the operator has not
    ended.
    """
    with federation.exclusive_lock():
        held = federation.standing.rolled_back
        if held is not None and not wishes.end_rollback:
            raise RoundFailed(
                f"the router was rolled back to release {held:04}; end the rollback"
                " with --end-rollback"
            )
        try:
            yield _Round(federation, transport, watch, wishes)
        except OSError as error:
            cause = (error.strerror or str(error)).lower()
            if is_disk_full(error):
                cause = "the disk is full"
            raise RoundFailed(
                f"the coordinator cannot write to its folder: {cause}. Fix this and"
                " run the round again: accepted data is kept"
            ) from error


def deliver_newest(
    federation: Federation, transport: Transport, watch: Watch
) -> set[str]:
    """Hand the newest release to every holder that is there and does not have it; returns who got
    it.
    """
    with federation.exclusive_lock():
        round_ = _Round(federation, transport, watch)
        round_.greet()
        newest = federation.newest
        return round_.deliver(newest) if newest else set()


@dataclass(frozen=True, slots=True, eq=False)
class _Evaluated:
    """A router to be signed, and what holders counted for it.

    evaluation: None where no documents were held out, or noise left none.
    noisy:      its accuracy, where noise is in it, in all and by domain. counted: then, the domains
                whose holders have counted.
    """

    solution: Solution
    evaluation: Evaluation | None
    fitted: Fitted | None = None
    quality: QualityTable | None = None
    noisy: NoisyAccuracy | None = None
    by_domain: Mapping[str, NoisyAccuracy] = field(default_factory=dict)
    counted: tuple[str, ...] = ()

    def figures(self) -> dict[str, Any] | None:
        """What the manifest records: counts and rates, and the gap that calibration left."""
        if self.evaluation is None:
            return None
        figures = self.evaluation.to_json()
        figures |= {"documents": self.evaluation.documents, "gap": None}
        if self.noisy is not None:
            figures |= self.noisy.to_json() | {"domains": {}, "intervals": {}}
            for domain, noisy in self.by_domain.items():
                facts = noisy.to_json()
                figures["domains"][domain] = facts["accuracy"]
                figures["intervals"][domain] = facts["interval"]
        if self.fitted is not None:
            figures["gap"] = self.fitted.gap
            figures["reliability"] = self.fitted.reliability
            if self.fitted.separation is not None:
                figures["separation"] = self.fitted.separation
        return figures


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
        gathering = MaskedGathering if self._terms.uses_masks else ClearGathering
        self._gathering: Gathering = gathering(self._channel, self._terms, wishes)

    @property
    def _standing(self) -> Standing:
        return self._ledger.standing()

    def _close(self, reason: str) -> None:
        """Note that the round ends without a release of its own."""
        self._ledger.note(
            "closed", round=self._channel.nonce, release=None, reason=reason
        )

    def run(self) -> LedgerRelease:
        """The round, step by step."""
        self._open()
        try:
            gathered = self._gathering.gather(self.announce())
            total = gathered.total
            self._watch(progress.TotalGathered(total.holders, total.domains))
            published = self._release_of(gathered)
        except RidgewayError as error:
            # a full disk, which is what the error tells of
            with contextlib.suppress(JournalError):
                self._close(str(error))
            raise
        self.deliver(published)
        self._federation.prune()
        return published

    def check(self) -> None:
        """The round up to the offers, and what it judges by them."""
        self._await_holders()
        self._gathering.agreed(self.announce())

    def _open(self) -> None:
        """Note the round, and give holders some time to come online."""
        self._federation.point_to_latest()
        self._ledger.erase_outdated()
        number = self._standing.rounds + 1
        self._channel.number = number
        self._ledger.note(
            "opened",
            round=self._channel.nonce,
            number=number,
            terms=self._terms.model_dump(mode="json"),
        )
        self._await_holders()

    def _await_holders(self) -> None:
        """Give holders some time to come online; the round begins as soon as all are there."""
        wanted = len(self._standing.active)
        terms = self._terms.model_dump(mode="json")
        self._watch(progress.RoundOpened(self._channel.number, wanted, **terms))
        until = time.monotonic() + self._federation.settings.round.wait
        while True:
            online = len(self._channel.peers())
            if online >= wanted or time.monotonic() >= until:
                return
            self._watch(progress.HoldersAwaited(online, wanted))
            time.sleep(_POLL_S)

    # Announce: who is there, and what do they have?

    def announce(self) -> Offers:
        """What the holders offer that are there, by name; offers that cannot be used are
        refused.
        """
        offers: Offers = {}
        active = self._standing.active
        handovers = self._standing.holder_handovers
        request = Announce(
            terms=self._terms, handovers=handovers, heard=self._standing.heard
        )
        for answer in self._channel.ask(request, Offer):
            with answer.accept():
                name = answer.name
                offer = answer.message
                if name not in active:
                    raise Refused("retired", "the holder's domain was retired")
                holder = active[name]
                if offer.domain != holder.domain:
                    raise Refused(
                        "wrong_domain",
                        f"admitted for {holder.domain}, but offers {offer.domain}",
                    )
                self._gathering.check_offer(holder.key, offer)
                offers[name] = offer
                self._note_held(name, offer)
                self._watch(progress.OfferReceived(name, offer.domain))
        return offers

    def greet(self) -> None:
        """Note what each of the holders has that are there."""
        for answer in self._channel.ask(Hello(), Here, seconds=GREETING_TIMEOUT_S):
            self._note_held(answer.name, answer.message)
            self._watch(progress.HolderPresent(answer.name))

    def _note_held(self, name: str, message: Here | Offer) -> None:
        """Note the release that a holder says it has, if that is news."""
        held = message.release
        self._held[name] = held.number if held else 0
        if held and held != self._standing.delivered.get(name):
            self._ledger.note("delivered", name=name, **held.model_dump())

    def _release_of(self, gathered: Gathered) -> LedgerRelease:
        """A new release; or the newest, if it was made of this very total with these settings, and
        evaluated.
        """
        newest = self._federation.newest
        if newest is not None and self._stands(newest, gathered):
            self._close("nothing has changed")
            self._watch(progress.ReleaseStands(newest.number))
            return newest
        return self.publish(gathered, self.evaluate(gathered))

    def _stands(self, newest: LedgerRelease, gathered: Gathered) -> bool:
        if self._wishes.even_unchanged or self._standing.ahead:
            return False
        manifest = self._federation.manifest(newest.number)
        # noise may have left no documents to holders that have counted
        counted = manifest.get(PRIVACY, {}).get(COUNTED)
        return (
            newest.members == gathered.members
            and newest.choices == self._federation.choices_id(self._terms)
            and bool(manifest["evaluation"] or counted)
        )

    # Solve, and let holders count for the router that is published

    def evaluate(self, gathered: Gathered) -> _Evaluated:
        """Solve the total, and let holders count on their own held-out documents where the router
        routes them.
        """
        federation = self._federation
        total = gathered.total
        settings = federation.settings.router
        solution = solve_total(
            federation,
            self._terms,
            total,
            gathered.members,
            federation.encoder,
            settings.penalty,
        )
        if solution.note:
            self._watch(progress.OperatorNote(solution.note))
        features = total.statistics.shape[0]
        self._watch(progress.TotalSolved(features, solution.condition))
        if self._terms.privacy:
            return self._evaluate_under_noise(gathered, solution)
        newest = federation.newest
        rule = self._selector
        weights = solution.weights
        if settings.normalise_columns:
            weights = normalised_columns(weights)
        question = Evaluate(
            terms=self._terms,
            domains=total.domains,
            selector=rule.name,
            k=rule.k,
            last=newest.release if newest else None,
            temperatures=temperatures(
                total.statistics, weights, federation.encoder.scale, rule
            ),
            experts=federation.settings.experts,
        )
        counts = self._counted(question, weights_blob(weights), gathered)
        routed = {domain: row.routed for domain, row in counts.rows.items()}
        evaluation = _evaluation(total.domains, routed)
        self._tell_evaluation(evaluation)
        changes = [
            DomainChange(domain, int(lost), int(won), int(row.routed.sum()))
            for domain, row in counts.rows.items()
            for lost, won in [row.changes]
        ]
        self._must_not_be_worse(gathered, map(asdict, worse(changes)))
        quality = counts.quality(question) if question.experts else None
        if quality is not None:
            scores = int(quality.counts.sum())
            self._watch(progress.ExpertsMeasured(len(quality.experts), scores))
        fitted = fit(question.temperatures, counts.calibration(), len(total.domains))
        if fitted:
            curve = fitted.temperature, fitted.half, fitted.tail
            self._watch(
                progress.ConfidenceCalibrated(*curve, fitted.gap, fitted.separation)
            )
        return _Evaluated(solution, evaluation, fitted, quality)

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
            selector=self._selector.name,
            k=self._selector.k,
            holders=tuple(member.domain for member in gathered.members),
        )
        blob = vector_blob(self._terms.vector_of(total.statistics))
        counts = self._counted(question, blob, gathered)
        documents = {
            domain: likeliest_counts(row.routed) for domain, row in counts.rows.items()
        }
        evaluation = _evaluation(total.domains, documents)
        privacy = self._terms.privacy
        assert privacy is not None
        domain_of = self._standing.domain_of
        # one noise for each holder that has counted
        counted = [domain_of[name] for name in sorted(counts.holders)]
        rows = {
            domain: row.routed
            for domain, row in counts.rows.items()
            if domain in counted
        }
        noisy = noisy_accuracy(rows, total.masses, counted, privacy)
        by_domain = {
            domain: noisy_accuracy({domain: row}, total.masses, counted, privacy)
            for domain, row in rows.items()
        }
        self._tell_evaluation(evaluation, noisy if evaluation else None)
        newest = self._federation.newest
        last = newest and self._federation.manifest(newest.number)["evaluation"]
        before = (last or {}).get("intervals", {})
        surely_worse = (
            {"domain": domain, "before": tuple(before[domain]), "after": after.interval}
            for domain, after in by_domain.items()
            if domain in before and after.interval[1] < before[domain][0]
        )
        self._must_not_be_worse(gathered, surely_worse)
        return _Evaluated(
            solution,
            evaluation,
            noisy=noisy,
            by_domain=by_domain,
            counted=tuple(sorted(set(counted))),
        )

    def _counted(
        self, question: Evaluate, blob: Blob, gathered: Gathered
    ) -> RoundCounts:
        """What holders count; raises RoundFailed if those of some domain do not, and that was not
        accepted.
        """
        counts = self._gathering.count(question, blob, gathered.present)
        self._gathering.must_be_counted(
            question.domains,
            counts.holders | counts.sealed,
            [member.name for member in gathered.members],
        )
        return counts

    def _must_not_be_worse(
        self, gathered: Gathered, changes: Iterable[Mapping[str, Any]]
    ) -> None:
        """Raise RoundFailed, and say who is new or has changed, if a domain got worse that was not
        accepted to. changes: what is known of each that did.
        """
        last = self._federation.newest
        if last is None:
            return
        before = {member.name: member.source for member in last.members}
        new = []
        changed = []
        for member in gathered.members:
            if member.name not in before:
                new.append(member.name)
            elif before[member.name] != member.source:
                changed.append(member.name)
        refused = []
        for change in changes:
            self._watch(progress.RouterWorse(newcomers=new, changed=changed, **change))
            if change["domain"] not in self._wishes.accept_worse:
                refused.append(change["domain"])
        if refused:
            who = [f"new: {', '.join(new)}"] if new else []
            who += [f"changed: {', '.join(changed)}"] if changed else []
            flags = " ".join(f"--accept-worse {domain}" for domain in refused)
            raise RoundFailed(
                f"on held-out text of {', '.join(refused)} the new router is"
                f" significantly worse than release {last.number:04}, so that release"
                f" stays ({'; '.join(who) or 'nobody is new or has changed'}). Ask"
                " these holders what they have summed; if the change is wanted, run"
                f" the round again with {flags}"
            )

    def _tell_evaluation(
        self, evaluation: Evaluation | None, noisy: NoisyAccuracy | None = None
    ) -> None:
        measured = noisy or evaluation
        self._watch(
            progress.RouterEvaluated(
                documents=evaluation.documents if evaluation else 0,
                ridge=(
                    None
                    if self._terms.privacy
                    else self._federation.settings.router.ridge
                ),
                selector=self._selector.name,
                accuracy=measured.accuracy if measured else None,
                interval=noisy.interval if noisy else None,
            )
        )

    @property
    def _selector(self) -> Selector:
        """How tokens decide; in private rounds always alike."""
        if self._terms.privacy:
            return DEFAULT.selector
        return self._federation.settings.router.rule

    # Publish

    def publish(self, gathered: Gathered, made: _Evaluated) -> LedgerRelease:
        """Sign the release, store it whole, and let the ledger speak of it, in this order."""
        federation = self._federation
        newest = federation.newest
        domains = gathered.total.domains
        number = federation.next_number
        more: dict[str, Any] = {}
        if federation.settings.examples:
            more[EXAMPLES] = list(federation.settings.examples)
        if made.quality:
            more[QUALITY] = made.quality.to_json()
        if self._terms.privacy:
            facts = privacy_facts(self._terms.privacy)
            more[PRIVACY] = facts | {COUNTED: list(made.counted)}
        draft = compose(
            gathered.total,
            federation.encoder,
            self._choices(gathered, made),
            made.solution,
            number=number,
            parent=newest.release if newest else None,
            evaluation=made.figures(),
            **more,
        )
        folder = federation.release_folder(number)
        release = sign(draft, federation.identity, folder)
        published = LedgerRelease(
            number,
            release,
            f"{MADE_BY_ROUND} {self._standing.rounds}",
            domains,
            gathered.members,
            self._terms,
            federation.choices_id(self._terms),
        )
        closing = {"round": self._channel.nonce, "release": release, "reason": ""}
        federation.publish(("released", published.to_json()), ("closed", closing))
        self._watch(progress.ReleasePublished(number, release, domains))
        return published

    def _choices(self, gathered: Gathered, made: _Evaluated) -> RouterChoices:
        router = self._federation.settings.router
        confidence = Confidence(**dict(self._federation.settings.abstention))
        if self._terms.privacy and made.noisy:
            confidence = confidence_under_noise(
                gathered.total.statistics,
                self._terms.privacy,
                [member.domain for member in gathered.members],
                self._federation.prior,
                self._federation.encoder,
                made.solution.weights,
                made.noisy,
                confidence,
            )
        if made.fitted:
            confidence = made.fitted.confidence(confidence)
        return RouterChoices(
            weighting=self._terms.weighting,
            ridge=router.penalty,
            normalise_columns=router.normalise_columns and not self._terms.privacy,
            selector=self._selector,
            confidence=confidence,
            margin=margin_for(private=bool(self._terms.privacy)),
        )

    # Deliver

    def deliver(self, published: LedgerRelease) -> set[str]:
        """Send a release to the holders that have an earlier one or none; returns who got it.

        Nobody is sent what it would refuse: another release of a number that it has.
        """
        number = published.number
        there = set(self._held) & set(self._standing.active) - self._channel.silent
        if blocked := sorted(there & set(self._standing.ahead)):
            self._watch(progress.DeliveryBlocked(OTHER_RELEASE, blocked, number))
        names = {name for name in there if self._held[name] < number}
        if not names:
            return set()
        folder = self._federation.release_folder(number)
        held = {"number": number, "release": published.release}
        request = Deliver.model_validate(held)
        blobs = release_files(folder)
        got = set()
        for answer in self._channel.ask(request, Receipt, names=names, blobs=blobs):
            with answer.accept():
                if answer.message.release != published.release:
                    raise Refused("malformed", "the receipt is for another release")
                self._ledger.note("delivered", name=answer.name, **held)
                got.add(answer.name)
        self._watch(progress.ReleaseDelivered(number, sorted(got)))
        return got


def solve_total(
    federation: Federation,
    terms: Terms,
    total: Total,
    members: Sequence[Contribution],
    encoder: TableEncoder,
    ridge: Ridge,
) -> Solution:
    """The weights that a total gives under its terms: exact sums by a ridge, noisy ones by the
    public prior.
    """
    if not terms.privacy:
        return solve_router(total.statistics, encoder, ridge)
    weights = solve_private(
        total.statistics,
        terms.privacy,
        [member.domain for member in members],
        federation.prior,
        encoder,
    )
    return Solution(weights, 0.0, 1.0, 0.0)


def _evaluation(
    domains: tuple[str, ...], routed: Mapping[str, Any]
) -> Evaluation | None:
    """Where documents of each domain were routed; None if there were none."""
    confusion = tuple(tuple(np.asarray(routed[name]).tolist()) for name in domains)
    return Evaluation(domains, confusion) if any(map(sum, confusion)) else None
