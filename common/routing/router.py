"""Router: a prompt in, a decision out, with a confidence and an explanation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, reduce
from math import exp, log, sqrt
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.settings import Confidence, Selector
from ridgeway.common.base.threads import cores, serial_tokenizers
from ridgeway.common.encoding.tokenizer import Ids, Numbers, Tokenizer
from ridgeway.common.routing.conversation import Chat, Turn, chat_turns, shares
from ridgeway.common.routing.decision_view import (
    decision_html,
    decision_line,
    explanation_html,
)
from ridgeway.common.routing.token_table import (
    RouterTable,
    Tally,
    TokenTable,
    check_domains,
    most_certain,
    segment_sums,
    tally,
    tally_texts,
)
from ridgeway.common.routing.word_table import WordTable, side_by_side

if TYPE_CHECKING:
    from ridgeway.common.routing.quality import QualityTable
    from ridgeway.common.routing.release import Release

PROMPTS_PER_CHUNK = 128
MAX_THREADS = 16


class Decision(NamedTuple):
    """Where a prompt should go.

    domain:     the chosen expert; the fallback's name where the router abstained.
    confidence: the probability that `best` is right; it means that only if the router is
                calibrated.
    scores:     every domain's probability.
    abstained:  whether the confidence lay below the threshold, or the prompt belongs to no domain.
    best:       the domain ahead of the others, abstention or not.
    tokens:     how many tokens the prompt has.
    scope:      the chance that it belongs to any domain; None if the router has not learnt that.
    belongs:    whether that chance is large enough.
    """

    domain: str
    confidence: float
    scores: dict[str, float]
    abstained: bool
    best: str
    tokens: int
    scope: float | None = None
    belongs: bool = True

    def to_json(self) -> dict[str, Any]:
        """The same on the command line and over HTTP; written out, since `_asdict` takes three
        times as long.
        """
        domain, confidence, scores, abstained, best, tokens, scope, belongs = self
        return {
            "domain": domain,
            "confidence": confidence,
            "scores": scores,
            "abstained": abstained,
            "best": best,
            "tokens": tokens,
            "scope": scope,
            "belongs": belongs,
        }

    def __repr__(self) -> str:
        return decision_line(
            self.domain, self.confidence, self.scores, self.abstained, self.tokens
        )

    def _repr_html_(self) -> str:
        return decision_html(self.domain, self.scores, self.abstained, self.tokens)


class WordWeight(NamedTuple):
    """A word's part in a decision: the domain it speaks for, and what it adds to the winner's
    margin.

    parts: what it adds to each domain's score, in the order of the router's domains, over their
           mean.
    """

    text: str
    domain: str
    weight: float
    parts: tuple[float, ...] = ()


class Explanation(NamedTuple):
    """Why a decision fell. Law: the weights of its words add up to the margin between best and
    runner-up.

    words: in their order; what is no word, such as a comma, stands among them, token by token.
    """

    decision: Decision
    runner_up: str
    margin: float
    words: tuple[WordWeight, ...]

    def to_json(self) -> dict[str, Any]:
        """The decision, and what each word added to it: `parts` follow the order of `order`."""
        return self.decision.to_json() | {
            "runner_up": self.runner_up,
            "margin": self.margin,
            "order": list(self.decision.scores),
            "explanation": [word._asdict() for word in self.words],
        }

    def __repr__(self) -> str:
        told = f"{self.decision.best} over {self.runner_up} by {self.margin:.4f}"
        strongest = sorted(self.words, key=lambda word: -abs(word.weight))[:5]
        return (
            f"<Explanation {told};"
            f" {', '.join(f'{word.text!r} {word.weight:+.4f}' for word in strongest)}>"
        )

    def _repr_html_(self) -> str:
        weights = [(word.text, word.weight) for word in self.words]
        return explanation_html(
            self.decision.best, self.runner_up, self.margin, weights
        )


class Router:
    """Routes prompts by a compiled table, or by one that a model makes for each prompt.

    quality: what the release says of experts in its domains, if they were measured.
    familiar: one column, which is below 0 for text that is like none that the router was built
              from, if there is one.
    Law: route_many(prompts) equals [route(p) for p in prompts], bit for bit.
    """

    def __init__(
        self,
        domains: Sequence[str],
        compiled: RouterTable,
        tokenizer: Tokenizer,
        selector: Selector,
        confidence: Confidence | None = None,
        release: str | None = None,
        quality: QualityTable | None = None,
        familiar: RouterTable | None = None,
    ) -> None:
        check_domains(domains, compiled)
        self.domains = tuple(domains)
        self.compiled = compiled
        self.tokenizer = tokenizer
        self.selector = selector
        self.confidence = confidence or Confidence()
        self.release = release
        self.quality = quality
        self.familiar = familiar
        unit = compiled.step if selector.name == "average" else 1.0
        self._sharpness = unit / self.confidence.temperature
        self._power = (
            self.confidence.growth - 1
        )  # the mean over n tokens, times n to the growth
        self._half = self.confidence.half
        self._tail = self.confidence.tail
        self._threshold = self.confidence.threshold
        self._fallback = self.confidence.fallback
        self._scope = self.confidence.scope
        self._unit = unit

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        key: str | None = None,
        model: str | Path | None = None,
        device: str = "auto",
    ) -> Router:
        """The router of a release, after its hashes and its signature were verified.

        key:    the coordinator's public key; a release that anyone else signed is refused.
        model:  the folder of a contextual encoder's model, if it is not known here.
        device: where such a model runs: auto, cpu, cuda, or one GPU such as cuda:0. A table needs
                none.
        """
        from ridgeway.common.routing.release import load_release

        return router_of(
            load_release(
                Path(folder),
                key=key,
                model=Path(model) if model else None,
                device=device,
            )
        )

    def with_confidence(self, **changes: Any) -> Router:
        """The same router with another temperature, threshold or fallback."""
        confidence = replace(self.confidence, **changes)
        return Router(
            self.domains,
            self.compiled,
            self.tokenizer,
            self.selector,
            confidence,
            self.release,
            self.quality,
            self.familiar,
        )

    def with_selector(self, selector: Selector) -> Router:
        """The same table under another selector; its confidence is then no longer calibrated."""
        confidence = replace(self.confidence, calibrated=False)
        own = (
            self.domains,
            self.compiled,
            self.tokenizer,
            selector,
            confidence,
            self.release,
            self.quality,
        )
        return Router(*own, self.familiar)

    def without(self, domain: str) -> Router:
        """The router with a domain retired: its column dropped at once, nothing solved again."""
        if domain not in self.domains:
            raise InputError(
                f"there is no domain {domain!r}; there are {', '.join(self.domains)}"
            )
        if len(self.domains) <= 2:
            raise InputError(
                f"{domain!r} cannot be retired: a router needs two domains"
            )
        kept = tuple(name for name in self.domains if name != domain)
        compiled = self.compiled.without(self.domains.index(domain))
        confidence = replace(self.confidence, calibrated=False)
        quality = self.quality.of_domains(kept) if self.quality else None
        return Router(
            kept,
            compiled,
            self.tokenizer,
            self.selector,
            confidence,
            None,
            quality,
            self.familiar,
        )

    def route(self, prompt: str | Chat) -> Decision:
        """Where one prompt should go: a text, or a chat as a list of messages with `role` and
        `content`.
        """
        if not isinstance(prompt, str):
            return self.route_turns(chat_turns(prompt))
        return self._decide_all([prompt])[0]

    def route_turns(self, turns: Sequence[Turn]) -> Decision:
        """Where a conversation should go: each turn speaks with the mean of its tokens, and has its
        share of the say.

        Law: a single turn is routed as `route` routes its text.
        """
        if len(turns) == 1:
            return self.route(turns[0].text)
        ids, lengths = self.tokenizer.encode_many([turn.text for turn in turns])
        counted = tally_texts(self.compiled, self.selector, ids, lengths)
        decision = self._decide(*_weighed(counted, turns), len(ids))
        return self._if_turns_are_known(decision, turns, ids, lengths)

    def route_many(self, prompts: Iterable[str]) -> list[Decision]:
        """Where each of many prompts should go, in parallel."""
        if isinstance(prompts, str):
            raise InputError(
                "route_many takes a list of prompts; for a single one there is route"
            )
        prompts = list(prompts)
        for place, prompt in enumerate(prompts):
            if not isinstance(prompt, str):
                words = "route_many takes texts alone; give each chat to route"
                raise InputError(
                    f"prompt {place} is of the type {type(prompt).__name__}; {words}"
                )
        parts = [
            prompts[start : start + PROMPTS_PER_CHUNK]
            for start in range(0, len(prompts), PROMPTS_PER_CHUNK)
        ]
        if (
            len(parts) < 2 or self.compiled.runs_a_model
        ):  # a model keeps all cores busy by itself
            return [decision for part in parts for decision in self._decide_all(part)]
        with (
            serial_tokenizers(),
            ThreadPoolExecutor(min(cores(), MAX_THREADS), "route") as pool,
        ):
            return [
                decision
                for decisions in pool.map(self._decide_all, parts)
                for decision in decisions
            ]

    def make_fast(self) -> bool:
        """Work out at once what else comes with use; whether compiled code then does all the
        work.
        """
        if isinstance(self._side_by_side, WordTable):
            self._side_by_side.make_fast()
        return self.tokenizer.make_fast()

    def _decide_all(self, prompts: Sequence[str]) -> list[Decision]:
        ids, lengths = self.tokenizer.encode_raw(prompts)
        found = self._decide_texts(ids, lengths)
        if self.familiar is None and self._scope is None:
            return found
        told = zip(found, prompts, strict=True)
        return [
            each if any(map(str.isalnum, prompt)) else self._unknown(each)
            for each, prompt in told
        ]

    def _decide_texts(self, ids: Numbers, lengths: Numbers) -> list[Decision]:
        """Decisions on texts whose ids stand in one row, `lengths` of them each."""
        found: Iterator[Decision]
        if self.selector.name == "average":
            tokens = np.frombuffer(lengths, dtype=np.int64).tolist()
            if self.familiar and self._side_by_side:
                sums = self._side_by_side.token_sums(ids, lengths).tolist()
                return [
                    self._if_known(
                        self._decide(own[:-1], own[:-1], size, size), own[-1]
                    )
                    for own, size in zip(sums, tokens, strict=True)
                ]
            points = self.compiled.token_sums(ids, lengths).tolist()
            found = map(self._decide, points, points, tokens, tokens)
        else:
            found = self._decisions(
                np.frombuffer(ids, dtype=np.int32),
                np.frombuffer(lengths, dtype=np.int64),
            )
        if self.familiar is None:
            return list(found)
        return [
            self._if_known(each, known)
            for each, [known] in zip(
                found, self.familiar.token_sums(ids, lengths).tolist(), strict=False
            )
        ]

    @cached_property
    def _side_by_side(self) -> RouterTable | None:
        """The table that is added up: with the column that tells unfamiliar text, if there is
        one.
        """
        return (
            self.compiled
            if self.familiar is None
            else side_by_side(self.compiled, self.familiar)
        )

    def explain(self, prompt: str | Chat) -> Explanation:
        """The decision on one prompt or chat, and what each of its words added to it."""
        return self.explain_turns(
            [Turn(prompt, 1.0)] if isinstance(prompt, str) else chat_turns(prompt)
        )

    def explain_turns(self, turns: Sequence[Turn]) -> Explanation:
        """The decision on a conversation, and what each word of its turns added to it, in the order
        of the turns.
        """
        pieces = [self.tokenizer.words(turn.text) for turn in turns]
        lengths = np.array([sum(len(own) for _, own in part) for part in pieces])
        ids = np.array(
            [number for part in pieces for _, own in part for number in own],
            dtype=np.int32,
        )
        table, places = self.compiled.read(ids, lengths)
        counted = tally(table, self.selector, places, lengths)
        points, sums, voters = _weighed(counted, turns)
        best, runner_up = _ranking(points, sums)[:2]
        says = shares(turns, counted.voters).tolist()
        cuts = np.split(places, np.cumsum(lengths)[:-1])
        of_tokens = np.concatenate(
            [self._parts(table, cut) * say for cut, say in zip(cuts, says, strict=True)]
        )
        texts = [text for part in pieces for text, _ in part]
        sizes = [len(own) for part in pieces for _, own in part]
        parts = segment_sums(of_tokens, np.array(sizes, dtype=np.int64))
        said: NDArray[Any] = segment_sums(
            table.sums.take(places, axis=0), np.array(sizes, dtype=np.int64)
        )
        weights = parts[:, best] - parts[:, runner_up]
        votes = [self.domains[vote] for vote in said.argmax(axis=1).tolist()]
        centred = map(tuple, (parts - parts.mean(axis=1, keepdims=True)).tolist())
        words = tuple(map(WordWeight, texts, votes, weights.tolist(), centred))
        decision = self._decide(points, sums, voters, len(ids))
        decision = self._if_turns_are_known(decision, turns, ids, lengths)
        return Explanation(
            decision, self.domains[runner_up], float(weights.sum()), words
        )

    def _parts(self, table: TokenTable, ids: Ids) -> NDArray[np.float64]:
        """What each token of one text adds to the score of each domain."""
        if self.selector.name == "average":
            values = table.sums
            unit = table.step
            taking_part = np.ones(len(ids), dtype=bool)
        else:
            values = table.ballots
            unit = 1.0
            taking_part = self._voters(table, ids)
        rows = values.take(ids, axis=0) * taking_part[:, None]
        parts: NDArray[np.float64] = rows * unit / max(int(taking_part.sum()), 1)
        return parts

    def _voters(self, table: TokenTable, ids: Ids) -> NDArray[np.bool_]:
        if self.selector.name == "all" or len(ids) <= self.selector.k:
            return np.ones(len(ids), dtype=bool)
        chosen, _ = most_certain(table, self.selector.k, ids, np.array([len(ids)]))
        left = dict(
            zip(
                *(part.tolist() for part in np.unique(chosen, return_counts=True)),
                strict=True,
            )
        )
        taking_part = np.zeros(len(ids), dtype=bool)
        for place, number in enumerate(ids.tolist()):
            if left.get(number, 0):
                left[number] -= 1
                taking_part[place] = True
        return taking_part

    def _decisions(self, ids: Ids, lengths: NDArray[np.int64]) -> Iterator[Decision]:
        counted = tally_texts(self.compiled, self.selector, ids, lengths)
        lists = (
            counted.points.tolist(),
            counted.sums.tolist(),
            counted.voters.tolist(),
            lengths.tolist(),
        )
        return map(self._decide, *lists)

    def _decide(
        self, points: Sequence[float], sums: Sequence[float], voters: float, tokens: int
    ) -> Decision:
        """One decision; what `sum` gives for floats depends on the Python."""
        most = max(points)
        winner = (
            points.index(most) if points.count(most) == 1 else _ranking(points, sums)[0]
        )
        sharpness = (
            self._sharpness * voters**self._power * (voters / (voters + self._half))
            if voters
            else 0.0
        )
        odds = [self._odds((most - point) * sharpness) for point in points]
        confidence = 1.0 / reduce(add, odds)
        best = self.domains[winner]
        scores = {name: odd * confidence for name, odd in zip(self.domains, odds)}  # noqa: B905
        scope = None if self._scope is None else self._chance(points, most, voters)
        belongs = self._scope is None or scope is None or scope >= self._scope.least
        if belongs and confidence >= self._threshold:
            return Decision(best, confidence, scores, False, best, tokens, scope)
        return Decision(
            self._fallback or best,
            confidence,
            scores,
            True,
            best,
            tokens,
            scope,
            belongs,
        )

    def _odds(self, distance: float) -> float:
        """Of a domain to the one ahead of it."""
        return (
            (1.0 + self._tail * distance) ** (-1.0 / self._tail)
            if self._tail
            else exp(-distance)
        )

    def _chance(self, points: Sequence[float], most: float, voters: float) -> float:
        """The chance that a prompt belongs to any domain, as `belonging` and the scope say; none if
        it has no token.
        """
        if not voters or self._scope is None:
            return 0.0
        count = len(points)
        unit = self._unit / voters
        mean = sum(points) / count
        squares = reduce(add, [(point - mean) * (point - mean) for point in points])
        spread = squares / count * unit * unit + 1 / count**2
        above = (most - mean) * unit / sqrt((count - 1) * spread)
        scope = self._scope
        return 1 / (
            1 + exp(-(scope.slope * above + scope.growth * log(voters) + scope.offset))
        )

    def _if_turns_are_known(
        self,
        decision: Decision,
        turns: Sequence[Turn],
        ids: Ids,
        lengths: NDArray[np.int64],
    ) -> Decision:
        if self.familiar is None and self._scope is None:
            return decision
        if not any(str.isalnum(letter) for turn in turns for letter in turn.text):
            return self._unknown(decision)
        known = (
            int(self.familiar.token_sums(ids, lengths).sum()) if self.familiar else 0
        )
        return self._if_known(decision, known)

    def _if_known(self, decision: Decision, known: int) -> Decision:
        """The same decision, unless its text is like nothing that was learnt."""
        if known < 0:
            return self._unknown(decision)
        return decision if decision.scope is not None else decision._replace(scope=1.0)

    def _unknown(self, decision: Decision) -> Decision:
        """The decision on a text that has neither letters nor digits, or is like nothing that was
        learnt.
        """
        return decision._replace(
            domain=self._fallback or decision.best,
            abstained=True,
            scope=0.0,
            belongs=False,
        )

    def __repr__(self) -> str:
        return f"<Router {len(self.domains)} domains, selector {self.selector.name}>"


def router_of(release: Release) -> Router:
    """The router of a release that was loaded."""
    parts = (
        release.domains,
        release.compiled,
        release.tokenizer,
        release.selector,
        release.confidence,
    )
    return Router(*parts, release.id, release.quality, release.familiar)


def origin(router: Router) -> dict[str, Any]:
    """Where decisions come from, and whether their confidence means something: what JSON says
    beside them.
    """
    return {"calibrated": router.confidence.calibrated, "release": router.release}


def _weighed(
    counted: Tally, turns: Sequence[Turn]
) -> tuple[list[float], list[float], float]:
    """The points and sums of a conversation, and its mean number of voters; those of a single turn
    as they are.
    """
    voters = counted.voters
    if len(turns) == 1:
        return counted.points[0].tolist(), counted.sums[0].tolist(), int(voters[0])
    says = shares(turns, voters)
    length = float(np.dot(says, voters))
    scale = (says * length / np.maximum(voters, 1))[:, None]
    return (
        (scale * counted.points).sum(axis=0).tolist(),
        (scale * counted.sums).sum(axis=0).tolist(),
        length,
    )


def _ranking(points: Sequence[float], sums: Sequence[float]) -> list[int]:
    """Domains, the best first: by points, then by the voters' summed logits, then by order."""
    return sorted(
        range(len(points)), key=lambda place: (-points[place], -sums[place], place)
    )
