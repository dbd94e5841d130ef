"""The protocol: announce → collect → check → total → solve → evaluate → choose → sign and store → deliver.

One function over a transport, so that the in-process engine, Flower's simulation and a real SuperLink run the very same
code. What was accepted is in the ledger before the next step begins, so a round that was cut off can be run again
without asking for it twice. Knows nothing of Flower.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.cohort import Cohort, Member, form_cohort
from common.compiled import normalised_columns
from common.errors import Refused, RidgewayError, RoundFailed
from common.evaluation import BEGINNINGS, EDGES, GROWTHS, MOST_HELD_OUT
from common.messages import (
    Announce,
    Blob,
    Calibrate,
    Candidate,
    ClearStatistics,
    Collect,
    Deliver,
    Evaluate,
    Hello,
    Here,
    Offer,
    Receipt,
    Reliability,
    Scores,
    statistics_of,
    weights_blob,
)
from common.release import MANIFEST, ROUTER, TOKENIZER
from common.router import Confidence
from common.statistics import Statistics, check_bound
from coordinator.candidates import Choice, Counts, Fitted, choose, fit, temperatures
from coordinator.federation import Federation
from coordinator.ledger import Contribution, Published
from coordinator.publish import Choices, compose, sign
from coordinator.solve import Solution, solve
from coordinator.talk import Talk, Transport, Watch
from coordinator.total import Total, add_weighted

POLL_S = 1.0
GREETING_S = 60.0


def run_round(federation: Federation, transport: Transport, watch: Watch) -> Published:
    """Run one round to its release. Raises RoundFailed, with everything accepted so far kept, if there is none."""
    with federation.alone():
        return _Round(federation, transport, watch).run()


def deliver_newest(federation: Federation, transport: Transport, watch: Watch) -> set[str]:
    """Hand the newest release to every holder that is there and does not have it; returns who got it."""
    with federation.alone():
        round_ = _Round(federation, transport, watch)
        newest = federation.newest
        return round_.deliver(newest, round_.greet()) if newest else set()


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A router to be signed: the candidate, its solution, and what was counted about it."""

    choice: Choice
    solution: Solution
    fitted: Fitted | None


class _Round:
    """One round, or one delivery, over one conversation with the holders."""

    def __init__(self, federation: Federation, transport: Transport, watch: Watch) -> None:
        self._federation, self._transport, self._watch = federation, transport, watch
        self._ledger, self._terms = federation.ledger, federation.terms
        self._talk = Talk(federation, transport, secrets.token_hex(16), watch)
        self._left_out: set[str] = set()

    def run(self) -> Published:
        """The round, step by step."""
        self._open()
        try:
            offers = self.announce()
            cohort = self.collect(offers)
            total = self.add_up(cohort)
            chosen = self.evaluate(total, set(offers) & self._members(cohort))
            published = self.publish(cohort, total, chosen)
        except RidgewayError as error:
            self._ledger.note("closed", round=self._talk.nonce, release=None, reason=str(error))
            raise
        self.deliver(published, {name: offer.release for name, offer in offers.items()})
        return published

    def _open(self) -> None:
        self._federation.point_to_latest()
        self._ledger.erase_outdated()
        standing = self._ledger.standing()
        number = standing.rounds + 1
        terms = self._terms.model_dump(mode="json")
        self._ledger.note("opened", round=self._talk.nonce, number=number, terms=terms)
        self._watch("opened", {"number": number, "holders": len(standing.active), **terms})
        self._wait_for_holders(len(standing.active))

    def _wait_for_holders(self, wanted: int) -> None:
        """Give holders some time to come online; the round begins as soon as all are there."""
        until = time.monotonic() + self._federation.settings.round.wait
        while (online := len(self._transport.peers())) < wanted and time.monotonic() < until:
            self._watch("waiting", {"online": online, "wanted": wanted})
            time.sleep(POLL_S)

    # Announce: who is there, and what do they have?

    def announce(self) -> dict[str, Offer]:
        offers: dict[str, Offer] = {}
        active = self._ledger.standing().active

        def take(name: str, offer: Offer, blobs: Sequence[Blob]) -> None:
            if name not in active:
                raise Refused("retired", "the holder's domain was retired")
            if offer.domain != active[name].domain:
                raise Refused("wrong_domain", f"admitted for {active[name].domain}, offers {offer.domain}")
            offers[name] = offer
            self._watch("offered", {"name": name, "domain": offer.domain})

        self._talk.ask(Announce(terms=self._terms), Offer, take)
        return offers

    def greet(self) -> dict[str, int]:
        """Which release each holder has that is there."""
        held: dict[str, int] = {}

        def take(name: str, here: Here, blobs: Sequence[Blob]) -> None:
            held[name] = here.release

        self._talk.ask(Hello(), Here, take, seconds=GREETING_S)
        return held

    # Collect: until every member's sums are there under the share that the cohort gives it

    def collect(self, offers: dict[str, Offer]) -> Cohort:
        """The cohort whose sums are all in the ledger. Sums that are there already are not asked for again.

        Whoever offers and then does not deliver is taken out of the offers.
        """
        while True:
            cohort = self._cohort(set(offers) | self._stored())
            shares = self._shares(cohort)
            missing = {name for name in shares if not self._is_settled(name, shares[name], offers.get(name))}
            away = missing - set(offers)
            if away:
                self._leave_out(away)
                continue
            if not missing:
                self._must_suffice(cohort, set(offers))
                return cohort
            for name in missing - self._ask_for(cohort, shares, offers, missing):
                del offers[name]
                self._left_out.clear()  # in the smaller cohort, what they sent before may fit again

    def _stored(self) -> set[str]:
        """Holders whose accepted sums can be used, whether they are there or not."""
        standing = self._ledger.standing()
        usable = {name for name, each in standing.contributions.items() if each.terms == self._terms.id}
        return usable & set(standing.active) - self._left_out

    def _leave_out(self, names: set[str]) -> None:
        """Their stored sums have another share than the cohort now gives them, and they are not there to send anew."""
        self._left_out |= names
        facts = {"step": "collect", "names": sorted(names)}
        self._ledger.note("absent", round=self._talk.nonce, **facts)
        self._watch("absent", facts)

    def _cohort(self, names: set[str]) -> Cohort:
        active = self._ledger.standing().active
        if len(names) < 2:
            raise RoundFailed(
                f"{len(names)} of {len(active)} holders can take part, and a router needs two domains; "
                "see that their SuperNodes run, then run the round again: what was accepted is kept"
            )
        by_key = {active[name].key: active[name] for name in names}
        domains = {key: holder.domain for key, holder in by_key.items()}
        return form_cohort(self._terms, domains, {key: holder.weight for key, holder in by_key.items()})

    def _shares(self, cohort: Cohort) -> dict[str, Member]:
        names = {holder.key: name for name, holder in self._ledger.standing().active.items()}
        return {names[member.key]: member for member in cohort.members}

    def _members(self, cohort: Cohort) -> set[str]:
        return set(self._shares(cohort))

    def _is_settled(self, name: str, member: Member, offer: Offer | None) -> bool:
        stored = self._ledger.standing().contributions.get(name)
        wanted = (self._terms.id, member.domain, member.share)
        if stored is None or (stored.terms, stored.domain, stored.share) != wanted:
            return False
        return (offer is None or stored.source == offer.source) and self._ledger.has_sums(stored)

    def _ask_for(
        self, cohort: Cohort, shares: dict[str, Member], offers: dict[str, Offer], names: Collection[str]
    ) -> set[str]:
        def take(name: str, reply: ClearStatistics, blobs: Sequence[Blob]) -> None:
            if reply.cohort != cohort.id:
                raise Refused("late", "statistics for another cohort")
            member = shares[name]
            own = checked(statistics_of(blobs, self._terms.features, len(cohort.domains)), member, cohort)
            given = Contribution(
                name=name,
                domain=member.domain,
                source=reply.source,
                share=member.share,
                terms=self._terms.id,
                holdout=offers[name].holdout,
                digest="",
            )
            offers[name] = offers[name].model_copy(update={"source": reply.source})
            self._ledger.contribute(self._talk.nonce, given, own, own.mass)
            size = sum(memoryview(blob).nbytes for blob in blobs)
            self._watch("received", {"name": name, "domain": member.domain, "bytes": size})

        return self._talk.ask(Collect(cohort=cohort), ClearStatistics, take, names=names)

    def _must_suffice(self, cohort: Cohort, there: set[str]) -> None:
        """Enough holders must be there themselves, for sums of the absent cannot evaluate anything."""
        least = self._federation.settings.round.min_holders
        present = self._members(cohort) & there
        if len(present) < least or len(cohort.domains) < 2:
            raise RoundFailed(
                f"{len(present)} holders took part, with sums of {len(cohort.domains)} domains; at least {least} "
                "holders and two domains are needed. What was accepted is kept: run the round again when more are there"
            )

    # Total, candidates, choice

    def add_up(self, cohort: Cohort) -> Total:
        contributions = self._ledger.standing().contributions
        names = sorted(self._members(cohort))
        parts = (
            (contributions[n].domain, self._ledger.sums(contributions[n]), contributions[n].holdout) for n in names
        )
        total = add_weighted(parts, self._terms)
        self._watch("added", {"holders": total.holders, "domains": list(total.domains)})
        return total

    def evaluate(self, total: Total, present: Collection[str]) -> _Chosen:
        """Solve every λ, let holders score the candidates on their own held-out documents, and take the best."""
        grid = self._federation.settings.candidates
        scale = self._federation.encoder.scale
        solutions = [solve(total.statistics, scale, ridge) for ridge in grid.penalties()]
        self._watch("solved", {"features": total.statistics.shape[0], "condition": solutions[0].condition})
        candidates = grid.candidates()
        counts, heard = self._scores(total, solutions, candidates, present)
        choice = choose(candidates, total.domains, counts)
        solution = solutions[choice.candidate.ridge]
        facts = {"candidates": choice.tried, "documents": choice.documents, **choice.candidate.model_dump(mode="json")}
        accuracy = choice.evaluation.accuracy if choice.evaluation else None
        self._watch("chosen", facts | {"ridge": grid.ridges[choice.candidate.ridge], "accuracy": accuracy})
        return _Chosen(choice, solution, self._calibrated(total, choice, solution, heard))

    def _scores(
        self, total: Total, solutions: Sequence[Solution], candidates: Sequence[Candidate], names: Collection[str]
    ) -> tuple[dict[str, Counts], set[str]]:
        """What was counted, by domain, and by whom."""
        shape = (len(candidates), len(total.domains))
        counts = {name: np.zeros(shape, dtype=np.int64) for name in total.domains}
        domain_of = {name: holder.domain for name, holder in self._ledger.standing().active.items()}

        def take(name: str, scores: Scores, blobs: Sequence[Blob]) -> None:
            counts[domain_of[name]] += _counted(scores.counts, shape)
            self._watch("scored", {"name": name})

        request = Evaluate(terms=self._terms, domains=total.domains, candidates=tuple(candidates))
        blobs = [weights_blob(solution.weights) for solution in solutions]
        return counts, self._talk.ask(request, Scores, take, names=names, blobs=blobs)

    def _calibrated(self, total: Total, choice: Choice, solution: Solution, names: Collection[str]) -> Fitted | None:
        weights = normalised_columns(solution.weights) if choice.candidate.normalise_columns else solution.weights
        tried = temperatures(total.statistics, weights, self._federation.encoder.scale, choice.candidate.rule)
        shape = (len(GROWTHS), len(tried), len(EDGES), 2)
        counts = {name: np.zeros(shape, dtype=np.int64) for name in total.domains}
        domain_of = {name: holder.domain for name, holder in self._ledger.standing().active.items()}

        def take(name: str, reliability: Reliability, blobs: Sequence[Blob]) -> None:
            counts[domain_of[name]] += _reliable(reliability.counts, shape)

        request = Calibrate(
            terms=self._terms,
            domains=total.domains,
            candidate=choice.candidate.model_copy(update={"ridge": 0}),
            temperatures=tried,
            growths=GROWTHS,
        )
        self._talk.ask(request, Reliability, take, names=names, blobs=[weights_blob(solution.weights)])
        fitted = fit(tried, counts)
        if fitted:
            self._watch("calibrated", {"temperature": fitted.temperature, "growth": fitted.growth, "gap": fitted.gap})
        return fitted

    # Publish

    def publish(self, cohort: Cohort, total: Total, chosen: _Chosen) -> Published:
        """Sign the release, store it whole, and let the ledger speak of it, in this order."""
        federation, newest = self._federation, self._federation.newest
        number = federation.next_number
        draft = compose(
            total,
            federation.encoder,
            self._choices(chosen),
            chosen.solution,
            number=number,
            parent=newest.release if newest else None,
            evaluation=_figures(chosen),
        )
        release = sign(draft, federation.identity, federation.release_folder(number)).release
        standing = self._ledger.standing()
        members = tuple(standing.contributions[name] for name in sorted(self._members(cohort)))
        cause = f"round {standing.rounds}"
        published = Published(number, release, cause, total.domains, members, self._terms)
        self._ledger.journal.append(
            ("released", published.to_json()),
            ("closed", {"round": self._talk.nonce, "release": release, "reason": ""}),
        )
        federation.point_to_latest()
        self._watch("released", {"number": number, "release": release, "domains": list(total.domains)})
        return published

    def _choices(self, chosen: _Chosen) -> Choices:
        settings, candidate = self._federation.settings, chosen.choice.candidate
        abstention = settings.abstention
        plain = Confidence(threshold=abstention.threshold, fallback=abstention.fallback)
        fitted = chosen.fitted
        return Choices(
            weighting=settings.weighting,
            ridge=settings.candidates.penalties()[candidate.ridge],
            normalise_columns=candidate.normalise_columns,
            selector=candidate.rule,
            confidence=fitted.confidence(abstention.threshold, abstention.fallback) if fitted else plain,
        )

    # Deliver

    def deliver(self, published: Published, held: dict[str, int]) -> set[str]:
        """Send a release to the holders that do not have it yet; that others have it is noted, if it was not."""
        noted = self._ledger.standing().delivered
        for name, number in held.items():
            if number >= published.number > noted.get(name, 0):
                self._ledger.note("delivered", name=name, number=published.number, release=published.release)
        there = set(self._talk.peer_of) - self._talk.silent
        names = {name for name, number in held.items() if number < published.number and name in there}
        if not names:
            return set()
        folder = self._federation.release_folder(published.number)

        def take(name: str, receipt: Receipt, blobs: Sequence[Blob]) -> None:
            if receipt.release != published.release:
                raise Refused("malformed", "a receipt for another release")
            self._ledger.note("delivered", name=name, number=published.number, release=published.release)

        request = Deliver(number=published.number, release=published.release)
        blobs = [(folder / name).read_bytes() for name in (MANIFEST, ROUTER, TOKENIZER)]
        got = self._talk.ask(request, Receipt, take, names=names, blobs=blobs)
        self._watch("delivered", {"number": published.number, "names": sorted(got)})
        return got


def checked(placed: Statistics, member: Member, cohort: Cohort) -> Statistics:
    """A holder's sums as those of its domain alone; raises unless some text of that domain could have made them."""
    place = cohort.domains.index(member.domain)
    if np.delete(placed.cross, place, axis=1).any():
        raise Refused("wrong_domain", f"sums for domains other than {member.domain}")
    own = Statistics(placed.gram, np.ascontiguousarray(placed.cross[:, [place]]))
    own.check(rounded=1 if member.share else 0)
    if not member.share:
        check_bound(own.mass * len(cohort.members))  # plain masses must leave room for the others'
    if member.share and own.mass != member.share:
        raise Refused("wrong_mass", f"sums of mass {own.mass:_} where the cohort gives {member.share:_}")
    return own


def _counted(rows: Sequence[Sequence[int]], shape: tuple[int, int]) -> Counts:
    if len(rows) != shape[0] or any(len(row) != shape[1] for row in rows):
        raise Refused("shape_mismatch", "counts are not of the shape that was asked for")
    counts = np.array(rows, dtype=np.int64)
    if len(set(counts.sum(axis=1).tolist())) != 1:
        raise Refused("broken_identity", "the candidates were not all scored on the same documents")
    if counts.max() > MOST_HELD_OUT or counts[0].sum() > MOST_HELD_OUT:
        raise Refused("over_bound", f"more documents than the {MOST_HELD_OUT:_} that a holder may evaluate on")
    return counts


def _reliable(given: Sequence[int], shape: tuple[int, ...]) -> Counts:
    if len(given) != int(np.prod(shape)):
        raise Refused("shape_mismatch", "counts are not of the shape that was asked for")
    counts = np.array(given, dtype=np.int64).reshape(shape)
    fallen, right = counts[..., 0], counts[..., 1]
    if counts.max() > MOST_HELD_OUT * (len(BEGINNINGS) + 1):
        raise Refused("over_bound", f"more documents than the {MOST_HELD_OUT:_} that a holder may evaluate on")
    if (right > fallen).any() or len(np.unique(fallen.sum(axis=-1))) != 1:
        raise Refused("broken_identity", "the temperatures were not all tried on the same documents")
    return counts


def _figures(chosen: _Chosen) -> dict[str, Any] | None:
    """What the manifest records of the evaluation: counts and rates, and the gap that calibration left."""
    figures = chosen.choice.to_json()
    if figures is None:
        return None
    return {**figures, "gap": chosen.fitted.gap if chosen.fitted else None}
