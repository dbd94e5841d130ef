"""The protocol: announce → gather a total → solve → evaluate → choose → sign and store → deliver.

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

from common.cohort import Mode
from common.compiled import normalised_columns
from common.errors import Refused, RidgewayError
from common.evaluation import GROWTHS
from common.messages import (
    Announce,
    Blob,
    Calibrate,
    Deliver,
    Evaluate,
    Hello,
    Here,
    Offer,
    Receipt,
    weights_blob,
)
from common.release import MANIFEST, ROUTER, TOKENIZER
from common.router import Confidence
from coordinator.candidates import Choice, Fitted, choose, fit, temperatures
from coordinator.clear import ClearGathering
from coordinator.federation import Federation
from coordinator.gathering import Gathered, Gathering
from coordinator.ledger import Published
from coordinator.masked import MaskedGathering
from coordinator.publish import Choices, compose, issue
from coordinator.solve import Solution, solve
from coordinator.talk import Talk, Transport, Watch
from coordinator.total import Total

POLL_S = 1.0
GREETING_S = 60.0


def run_round(federation: Federation, transport: Transport, watch: Watch, mode: Mode | None = None) -> Published:
    """Run one round to its release. Raises RoundFailed, with everything accepted so far kept, if there is none.

    mode: clear or masked; as the settings say if left out.
    """
    with federation.alone():
        return _Round(federation, transport, watch, mode).run()


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

    def __init__(self, federation: Federation, transport: Transport, watch: Watch, mode: Mode | None = None) -> None:
        self._federation, self._transport, self._watch = federation, transport, watch
        self._ledger, self._terms = federation.ledger, federation.terms_in(mode)
        self._talk = Talk(federation, transport, secrets.token_hex(16), watch)
        way = MaskedGathering if self._terms.mode == "masked" else ClearGathering
        self._gathering: Gathering = way(federation, self._talk, self._terms, watch)

    def run(self) -> Published:
        """The round, step by step."""
        self._open()
        try:
            offers = self.announce()
            gathered = self._gathering.gather(offers)
            self._watch("added", {"holders": gathered.total.holders, "domains": list(gathered.total.domains)})
            published = self.publish(gathered, self.evaluate(gathered))
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
            self._gathering.hear(active[name].key, offer, blobs)
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

    # Candidates, choice

    def evaluate(self, gathered: Gathered) -> _Chosen:
        """Solve every λ, let holders score the candidates on their own held-out documents, and take the best."""
        total = gathered.total
        grid = self._federation.settings.candidates
        scale = self._federation.encoder.scale
        solutions = [solve(total.statistics, scale, ridge) for ridge in grid.penalties()]
        self._watch("solved", {"features": total.statistics.shape[0], "condition": solutions[0].condition})
        candidates = grid.candidates()
        question = Evaluate(terms=self._terms, domains=total.domains, candidates=candidates)
        blobs = [weights_blob(solution.weights) for solution in solutions]
        counts, heard = self._gathering.count(question, blobs, gathered.present)
        choice = choose(candidates, total.domains, counts)
        solution = solutions[choice.candidate.ridge]
        facts = {"candidates": choice.tried, "documents": choice.documents, **choice.candidate.model_dump(mode="json")}
        accuracy = choice.evaluation.accuracy if choice.evaluation else None
        self._watch("chosen", facts | {"ridge": grid.ridges[choice.candidate.ridge], "accuracy": accuracy})
        return _Chosen(choice, solution, self._calibrated(total, choice, solution, heard) if heard else None)

    def _calibrated(self, total: Total, choice: Choice, solution: Solution, names: Collection[str]) -> Fitted | None:
        weights = normalised_columns(solution.weights) if choice.candidate.normalise_columns else solution.weights
        tried = temperatures(total.statistics, weights, self._federation.encoder.scale, choice.candidate.rule)
        question = Calibrate(
            terms=self._terms,
            domains=total.domains,
            candidate=choice.candidate.model_copy(update={"ridge": 0}),
            temperatures=tried,
            growths=GROWTHS,
        )
        counts, _ = self._gathering.count(question, [weights_blob(solution.weights)], names)
        fitted = fit(tried, counts)
        if fitted:
            self._watch("calibrated", {"temperature": fitted.temperature, "growth": fitted.growth, "gap": fitted.gap})
        return fitted

    # Publish

    def publish(self, gathered: Gathered, chosen: _Chosen) -> Published:
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
        )
        release = issue(draft, federation.identity, federation.release_folder(number)).release
        cause = f"round {self._ledger.standing().rounds}"
        published = Published(number, release, cause, total.domains, gathered.members, self._terms)
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


def _figures(chosen: _Chosen) -> dict[str, Any] | None:
    """What the manifest records of the evaluation: counts and rates, and the gap that calibration left."""
    figures = chosen.choice.to_json()
    if figures is None:
        return None
    return {**figures, "gap": chosen.fitted.gap if chosen.fitted else None}
