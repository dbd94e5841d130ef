"""The protocol: announce → gather a total → solve → evaluate → choose → sign and store → deliver.

One function over a transport, so that the in-process engine, Flower's simulation and a real SuperLink run the very same
code. What was accepted is in the ledger before the next step begins, so a round that was cut off can be run again
without asking for it twice. Knows nothing of Flower.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ridgeway.common.base.errors import JournalError, Refused, RidgewayError, RoundFailed
from ridgeway.common.base.schema import Mode
from ridgeway.common.base.settings import Confidence
from ridgeway.common.privacy.public_prior import prior_bytes
from ridgeway.common.protocol.messages import (
    Announce,
    Calibrate,
    Candidate,
    Deliver,
    Evaluate,
    Hello,
    Here,
    Offer,
    Receipt,
)
from ridgeway.common.protocol.opened_log import state_log
from ridgeway.common.protocol.packet import weights_blob
from ridgeway.common.routing.quality import QualityTable
from ridgeway.common.routing.release import MANIFEST, PRIVACY, QUALITY, ROUTER, TOKENIZER
from ridgeway.common.routing.token_table import normalised_columns
from ridgeway.coordinator.round import progress
from ridgeway.coordinator.round.ask import Channel, Transport
from ridgeway.coordinator.round.clear_round import ClearGathering
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.gathering import Gathered, check_nothing_lost, measured
from ridgeway.coordinator.round.ledger import LedgerRelease
from ridgeway.coordinator.round.masked_round import MaskedGathering
from ridgeway.coordinator.round.progress import Watch
from ridgeway.coordinator.round.remedies import LONGER_LOG, OTHER_RELEASE
from ridgeway.coordinator.solving.candidates import (
    CandidateChoice,
    DomainChange,
    Fitted,
    affordable,
    choose,
    fit,
    temperatures,
    worse,
)
from ridgeway.coordinator.solving.private_solve import (
    PRIVATE_CANDIDATE,
    PUBLIC_GROWTH,
    PUBLIC_TEMPERATURE,
    likeliest_counts,
    privacy_facts,
    solve_private,
)
from ridgeway.coordinator.solving.publish import RouterChoices, compose, issue
from ridgeway.coordinator.solving.solve import Solution, solve
from ridgeway.coordinator.solving.total import Total

POLL_S = 0.5
GREETING_TIMEOUT_S = 60.0
COUNTED = {"scores", "reliability"}
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def run_round(
    federation: Federation,
    transport: Transport,
    watch: Watch,
    mode: Mode | None = None,
    accept_worse: Collection[str] = (),
    allow_missing: Collection[str] = (),
    min_changed: int = 0,
    even_unchanged: bool = False,
) -> LedgerRelease:
    """Run one round to its release. Raises RoundFailed, with everything accepted so far kept, if there is none.

    The newest release is returned, and no other made, if it was made of the very same sums with the same settings.
    mode: clear or masked; as the settings say if left out. accept_worse: domains that may get worse.
    allow_missing: domains that may be lost because their holders are not there. min_changed: the fewest holders that
    must be new or have changed since the newest release. even_unchanged: publish though nothing has changed.
    """
    with federation.alone():
        try:
            round_ = _Round(federation, transport, watch, mode, allow_missing)
            return round_.run(accept_worse, min_changed, even_unchanged)
        except OSError as error:
            seen = "the disk is full" if error.errno in FULL else (error.strerror or str(error)).lower()
            raise RoundFailed(
                f"the coordinator cannot write to its folder: {seen}. Make room, or mend it, and run the round again: "
                "what was accepted is kept"
            ) from error


def deliver_newest(federation: Federation, transport: Transport, watch: Watch) -> set[str]:
    """Hand the newest release to every holder that is there and does not have it; returns who got it."""
    with federation.alone():
        round_ = _Round(federation, transport, watch)
        held, newest = round_.greet(), federation.newest
        return round_.deliver(newest, held) if newest else set()


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A router to be signed: the candidate, its solution, and what was counted about it."""

    choice: CandidateChoice
    solution: Solution
    fitted: Fitted | None
    quality: QualityTable | None


class _Round:
    """One round, or one delivery, over one conversation with the holders."""

    def __init__(
        self,
        federation: Federation,
        transport: Transport,
        watch: Watch,
        mode: Mode | None = None,
        allow_missing: Collection[str] = (),
    ) -> None:
        self._federation, self._transport, self._watch = federation, transport, watch
        self._ledger, self._terms = federation.ledger, federation.terms_in(mode)
        self._channel = Channel(federation, transport, secrets.token_hex(16), watch)
        way = MaskedGathering if self._terms.mode == "masked" else ClearGathering
        self._log_lengths: dict[str, int] = {}
        self._held: dict[str, int] = {}
        self._allow_missing = allow_missing
        self._gathering: MaskedGathering | ClearGathering = way(
            federation, self._channel, self._terms, watch, self._must_lose_nothing
        )

    def run(
        self, accept_worse: Collection[str] = (), min_changed: int = 0, even_unchanged: bool = False
    ) -> LedgerRelease:
        """The round, step by step."""
        self._open()
        try:
            offers = self.announce()
            self._must_have_changed(offers, min_changed)
            gathered = self._gathering.gather(offers)
            self._watch(progress.TotalGathered(gathered.total.holders, gathered.total.domains))
            published = self._release_of(gathered, accept_worse, even_unchanged)
        except RidgewayError as error:
            with contextlib.suppress(JournalError):  # a full disk, which is what the error tells of
                self._ledger.note("closed", round=self._channel.nonce, release=None, reason=str(error))
            raise
        self.deliver(published, set(offers))
        return published

    def _open(self) -> None:
        """Note the round, and give holders some time to come online; it begins as soon as all are there."""
        self._federation.point_to_latest()
        self._ledger.erase_outdated()
        standing = self._ledger.standing()
        number, wanted = standing.rounds + 1, len(standing.active)
        terms = self._terms.model_dump(mode="json")
        self._channel.number = number
        self._ledger.note("opened", round=self._channel.nonce, number=number, terms=terms)
        self._watch(progress.RoundOpened(number, wanted, **terms))
        until = time.monotonic() + self._federation.settings.round.wait
        while (online := len(self._channel.peers())) < wanted and time.monotonic() < until:
            self._watch(progress.HoldersAwaited(online, wanted))
            time.sleep(POLL_S)

    def _must_have_changed(self, offers: Mapping[str, Offer], least: int) -> None:
        """Raise RoundFailed, before anything is gathered, if too few holders have changed since the newest release."""
        newest = self._federation.newest
        known = {member.name: member.source for member in newest.members} if newest else {}
        changed = sum(known.get(name) != offer.source for name, offer in offers.items())
        if newest and changed < least:
            raise RoundFailed(f"{changed} of the {least} holders that a round waits for are new or have changed so far")

    def _must_lose_nothing(self, names: Collection[str]) -> None:
        check_nothing_lost(self._federation, names, self._channel.refusals, self._allow_missing)

    # Announce: who is there, and what do they have?

    def announce(self) -> dict[str, Offer]:
        """What the holders offer that are there, by name; offers that cannot be used are refused."""
        offers: dict[str, Offer] = {}
        active, log = self._ledger.standing().active, len(self._ledger.opened_log())
        prior = [prior_bytes(self._federation.prior)] if self._terms.privacy else []
        request = Announce(terms=self._terms, handovers=self._ledger.standing().holder_handovers)
        for answer in self._channel.ask(request, Offer, blobs=prior):
            with answer.accept():
                name, offer = answer.name, answer.message
                if name not in active:
                    raise Refused("retired", "the holder's domain was retired")
                if offer.domain != active[name].domain:
                    raise Refused("wrong_domain", f"admitted for {active[name].domain}, offers {offer.domain}")
                if offer.log > log:
                    raise Refused(LONGER_LOG, "the holder knows of more opened sums than this coordinator's ledger")
                self._gathering.check_offer(active[name].key, offer, answer.blobs)
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
        """Note the release that a holder says it has, if that is news; and how much of the log of opened sums."""
        self._log_lengths[name], self._held[name] = told.log, told.release.number if told.release else 0
        if told.release and told.release != self._ledger.standing().delivered.get(name):
            self._ledger.note("delivered", name=name, **told.release.model_dump())

    def _release_of(self, gathered: Gathered, accept_worse: Collection[str], even_unchanged: bool) -> LedgerRelease:
        """A new release; or the newest, if it was made of this very total with these settings and nothing was learned.

        What holders have not counted about it yet is asked for again; of a masked total, counts are kept with it.
        """
        newest, known = self._federation.newest, self._counted(gathered)
        made_of = gathered.members, self._federation.choices_id(self._terms)
        same = newest is not None and (newest.members, newest.choices) == made_of and not even_unchanged
        same = same and not self._ledger.standing().ahead
        chosen = self.evaluate(gathered, accept_worse) if not same or known < COUNTED else None
        if chosen is not None and not (same and known == self._counted(gathered, chosen)):
            return self.publish(gathered, chosen)
        assert newest is not None
        self._ledger.note("closed", round=self._channel.nonce, release=None, reason="nothing has changed")
        self._watch(progress.ReleaseStands(newest.number))
        return newest

    def _counted(self, gathered: Gathered, chosen: _Chosen | None = None) -> set[str]:
        """What holders have counted about a total: under masks it is kept, in the clear the release's manifest has it.

        chosen: what was chosen of it now, where the newest release is not what is asked about.
        """
        if gathered.kept:
            return set(self._ledger.standing().counts.get(gathered.kept, ()))
        newest = self._federation.newest
        manifest = self._federation.manifest(newest.number) if newest and not chosen else {}
        return COUNTED if (_figures(chosen) if chosen else manifest.get("evaluation")) else set()

    # Candidates, choice

    def evaluate(self, gathered: Gathered, accept_worse: Collection[str]) -> _Chosen:
        """Solve every λ, let holders score the candidates on their own held-out documents, and take the best."""
        total, newest = gathered.total, self._federation.newest
        if self._terms.privacy:
            return self._evaluate_under_noise(gathered)
        grid = self._federation.settings.candidates
        scale = self._federation.encoder.scale
        solutions = [solve(total.statistics, scale, ridge) for ridge in grid.penalties()]
        for words in sorted({solution.note for solution in solutions} - {""}):
            self._watch(progress.OperatorNote(words))
        self._watch(progress.TotalSolved(total.statistics.shape[0], solutions[0].condition))
        candidates = affordable(grid.candidates(), len(total.domains))
        question = Evaluate(
            terms=self._terms,
            domains=total.domains,
            candidates=candidates,
            last=newest.release if newest else None,
            temperatures=self._temperatures(total, candidates[0], solutions[candidates[0].ridge]),
            experts=self._federation.settings.experts,
        )
        blobs = [weights_blob(solution.weights) for solution in solutions]
        counts, heard = self._gathering.count(question, blobs, gathered.present)
        choice = choose(candidates, total.domains, {name: rows[:, :-2] for name, rows in counts.items()})
        solution = solutions[choice.candidate.ridge]
        self._tell_choice(choice)
        if newest is not None:
            place = candidates.index(choice.candidate)
            changes = [_change(name, rows[place].tolist()) for name, rows in counts.items()]
            self._must_not_be_worse(newest, gathered, changes, accept_worse)
        quality = measured(self._gathering.known)
        if quality is not None:
            self._watch(progress.ExpertsMeasured(len(quality.experts), int(quality.counts.sum())))
        fitted = self._calibrated(total, question, choice, solution, heard) if heard else None
        return _Chosen(choice, solution, fitted, quality)

    def _evaluate_under_noise(self, gathered: Gathered) -> _Chosen:
        """One router, solved of what noise has left, and one count of where it routes held-out documents, under noise.

        Nothing is searched for or calibrated: every further number would cost documents more, or routers accuracy.
        """
        total, members = gathered.total, [member.domain for member in gathered.members]
        known = self._federation.prior, self._federation.encoder.scale
        solution = solve_private(total, self._terms, members, *known)
        self._watch(progress.TotalSolved(total.statistics.shape[0], solution.condition))
        question = Evaluate(terms=self._terms, domains=total.domains, candidates=(PRIVATE_CANDIDATE,))
        counts, _ = self._gathering.count(question, [weights_blob(solution.weights)], gathered.present)
        documents = {name: likeliest_counts(rows[0, :-2])[None] for name, rows in counts.items()}
        choice = choose([PRIVATE_CANDIDATE], total.domains, documents)
        self._tell_choice(choice)
        return _Chosen(choice, solution, None, None)

    def _must_not_be_worse(
        self, last: LedgerRelease, gathered: Gathered, changes: Sequence[DomainChange], accepted: Collection[str]
    ) -> None:
        """Raise RoundFailed, and say who is new or has changed, if a domain gets worse that was not accepted to."""
        before = {member.name: member.source for member in last.members}
        new = [member.name for member in gathered.members if member.name not in before]
        changed = [each.name for each in gathered.members if before.get(each.name, each.source) != each.source]
        found = worse(changes)
        for each in found:
            self._watch(progress.RouterWorse(each.domain, each.lost, each.won, each.documents, new, changed))
        names = [each.domain for each in found if each.domain not in accepted]
        if names:
            who = [f"{what} {', '.join(some)}" for what, some in (("new:", new), ("changed:", changed)) if some]
            raise RoundFailed(
                f"on held-out text of {', '.join(names)} the new router is worse than release {last.number:04} by more "
                f"than chance explains, so that release stands ({'; '.join(who) or 'nobody is new or has changed'}). "
                "Ask these holders what they have summed; if the change is wanted, run the round again with "
                + " ".join(f"--accept-worse {name}" for name in names)
            )

    def _tell_choice(self, choice: CandidateChoice) -> None:
        chosen = choice.candidate.model_dump(mode="json")
        chosen["ridge"] = self._federation.settings.candidates.ridges[choice.candidate.ridge]
        accuracy = choice.evaluation.accuracy if choice.evaluation else None
        self._watch(progress.CandidateChosen(choice.tried, choice.documents, accuracy=accuracy, **chosen))

    def _temperatures(self, total: Total, candidate: Candidate, solution: Solution) -> tuple[float, ...]:
        weights = normalised_columns(solution.weights) if candidate.normalise_columns else solution.weights
        return temperatures(total.statistics, weights, self._federation.encoder.scale, candidate.rule)

    def _calibrated(
        self, total: Total, asked: Evaluate, choice: CandidateChoice, solution: Solution, names: Collection[str]
    ) -> Fitted | None:
        """The confidence of the chosen candidate; that of the first one came with the evaluation."""
        question = asked.calibration
        if question is None or choice.candidate != question.candidate:
            tried = self._temperatures(total, choice.candidate, solution)
            question = Calibrate(
                terms=self._terms, domains=total.domains, candidate=choice.candidate, temperatures=tried
            )
        counts, _ = self._gathering.count(question, [weights_blob(solution.weights)], names)
        fitted = fit(question.temperatures, counts, len(total.domains))
        if fitted:
            curve = fitted.temperature, fitted.half, fitted.tail
            self._watch(progress.ConfidenceCalibrated(*curve, fitted.gap, fitted.separation))
        return fitted

    # Publish

    def publish(self, gathered: Gathered, chosen: _Chosen) -> LedgerRelease:
        """Sign the release, store it whole, and let the ledger speak of it, in this order."""
        federation, newest, total = self._federation, self._federation.newest, gathered.total
        number = federation.next_number
        draft = compose(
            total,
            federation.encoder,
            self._choices(chosen),
            chosen.solution,
            number=number,
            parent=newest.release if newest else None,
            evaluation=_figures(chosen),
            **({QUALITY: chosen.quality.to_json()} if chosen.quality else {}),
            **({PRIVACY: privacy_facts(self._terms)} if self._terms.privacy else {}),
        )
        release = issue(draft, federation.identity, federation.release_folder(number)).release
        made = federation.choices_id(self._terms)
        cause = f"round {self._ledger.standing().rounds}"
        published = LedgerRelease(number, release, cause, total.domains, gathered.members, self._terms, made)
        self._ledger.journal.append(
            ("released", published.to_json()),
            ("closed", {"round": self._channel.nonce, "release": release, "reason": ""}),
        )
        federation.point_to_latest()
        self._watch(progress.ReleasePublished(number, release, total.domains))
        return published

    def _choices(self, chosen: _Chosen) -> RouterChoices:
        settings, candidate, fitted = self._federation.settings, chosen.choice.candidate, chosen.fitted
        below = settings.abstention.threshold, settings.abstention.fallback
        plain = Confidence(threshold=below[0], fallback=below[1])
        if self._terms.privacy:
            plain = replace(plain, temperature=PUBLIC_TEMPERATURE, growth=PUBLIC_GROWTH)
        return RouterChoices(
            weighting=self._terms.weighting,
            ridge=settings.candidates.penalties()[candidate.ridge],
            normalise_columns=candidate.normalise_columns,
            selector=candidate.rule,
            confidence=fitted.confidence(*below) if fitted else plain,
            abstain=True,
        )

    # Deliver

    def deliver(self, published: LedgerRelease, greeted: Collection[str]) -> set[str]:
        """Send a release to the holders that have an earlier one or none; returns who got it.

        Nobody is sent what it would refuse: another release of a number that it has, or a log shorter than its own.
        """
        standing, log = self._ledger.standing(), self._ledger.opened_log()
        there = set(greeted) & set(standing.active) - self._channel.silent
        longer = {name for name in there if self._log_lengths[name] > len(log)}
        for code, found in ((OTHER_RELEASE, there & set(standing.ahead)), (LONGER_LOG, longer)):
            if found:
                self._watch(progress.DeliveryBlocked(code, sorted(found), published.number))
        names = {name for name in there - longer if self._held[name] < published.number}
        if not names:
            return set()
        folder = self._federation.release_folder(published.number)
        request = Deliver(number=published.number, release=published.release)
        blobs = [(folder / name).read_bytes() for name in (MANIFEST, ROUTER, TOKENIZER)]
        known = min(self._log_lengths[name] for name in names)
        blobs.append(state_log(log, known, self._federation.identity).to_bytes())
        got = set()
        for answer in self._channel.ask(request, Receipt, names=names, blobs=blobs):
            with answer.accept():
                if answer.message.release != published.release:
                    raise Refused("malformed", "a receipt for another release")
                self._ledger.note("delivered", name=answer.name, number=published.number, release=published.release)
                got.add(answer.name)
        self._watch(progress.ReleaseDelivered(published.number, sorted(got)))
        return got


def _change(domain: str, row: Sequence[int]) -> DomainChange:
    """What the counts of one candidate, a row of them, say beside the last release."""
    *routed, lost, won = row
    return DomainChange(domain, lost, won, sum(routed))


def _figures(chosen: _Chosen) -> dict[str, Any] | None:
    """What the manifest records of the evaluation: counts and rates, and the gap that calibration left."""
    figures = chosen.choice.to_json()
    if figures is None:
        return None
    fitted = chosen.fitted
    told = {"separation": fitted.separation} if fitted and fitted.separation is not None else {}
    return {
        **figures,
        "gap": fitted.gap if fitted else None,
        **({"reliability": fitted.reliability} if fitted else {}),
        **told,
    }
