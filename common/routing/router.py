"""Router: a prompt in, a decision out, with a confidence and an explanation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.machine import native, serial_tokenizers
from ridgeway.common.base.operating_system import cores
from ridgeway.common.base.settings import Confidence, Selector, SentenceUse
from ridgeway.common.routing.conversation import Chat, Turn, chat_turns, shares, weighed
from ridgeway.common.routing.decision import (
    FOR,
    SENTENCES,
    TABLE,
    Decision,
    Floats,
    Integers,
    Tally,
    decide,
)
from ridgeway.common.routing.quality import QualityTable
from ridgeway.common.routing.release import (
    CurrentRelease,
    Release,
    find_release,
    load_release,
)
from ridgeway.common.routing.sentence_table import FIRST_TEXT, Cascade, SentenceTable
from ridgeway.common.routing.token_table import (
    RouterTable,
    ballots,
    check_domains,
    most_certain,
    segment_sums,
    tally_rows,
    tally_texts,
)
from ridgeway.common.text.tokens import TextReader, Tokens
from ridgeway.common.text.unigram import PieceTokenizer

# Why a decision fell: what each word of a prompt added to it.


AGAINST = "198, 40, 40"
"""The colour of words that speak against the domain ahead; how strongly, their opacity says."""
SHOWN_WORDS = 5


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
        strongest = sorted(self.words, key=lambda word: -abs(word.weight))
        words = ", ".join(
            f"{word.text!r} {word.weight:+.4f}" for word in strongest[:SHOWN_WORDS]
        )
        return (
            f"<Explanation {self.decision.best} over {self.runner_up} by"
            f" {self.margin:.4f}; {words}>"
        )

    def _repr_html_(self) -> str:
        most = max((abs(word.weight) for word in self.words), default=0.0) or 1.0
        spans = "".join(
            f'<span title="{word.weight:+.4f}"'
            f' style="background:rgba({FOR if word.weight > 0 else AGAINST},'
            f' {0.6 * abs(word.weight) / most:.2f})">{escape(word.text)}</span>'
            for word in self.words
        )
        return (
            f"<div><b>{escape(self.decision.best)}</b> over {escape(self.runner_up)}"
            f' by {self.margin:.4f}<div style="white-space:pre-wrap;'
            f'font-family:monospace">{spans}</div></div>'
        )


def explain(
    compiled: RouterTable,
    selector: Selector,
    reader: TextReader,
    turns: Sequence[Turn],
    decide: Callable[[Tally, Tokens], Decision],
) -> Explanation:
    """The decision on a conversation, and what each word of its turns added to it, in the order of
    the turns.

    decide: on what the turns say together, given their tokens.
    """
    words = [word for turn in turns for word in reader.tokenizer.words(turn.text)]
    sizes = np.array([len(word_ids) for _, word_ids in words], dtype=np.int64)
    tokens = reader.read([turn.text for turn in turns])
    rows = compiled.rows(tokens)
    by_turn = tally_rows(rows, tokens.lengths, selector, compiled.step)
    counted = weighed(by_turn, turns)
    decision = decide(counted, tokens)
    domains = list(decision.scores)
    # Domains from best to worst: by points, then by summed logits, then by order.
    best, runner_up = np.lexsort((-counted.sums[0], -counted.points[0]))[:2].tolist()
    ends = np.cumsum(tokens.lengths)[:-1]
    says = shares(turns, by_turn.voters).tolist()
    of_tokens = np.concatenate(
        [
            _parts(turn_rows, selector, compiled.step) * say
            for turn_rows, say in zip(np.split(rows, ends), says, strict=True)
        ]
    )
    parts = segment_sums(of_tokens, sizes)
    said: NDArray[Any] = segment_sums(rows, sizes)
    weights = parts[:, best] - parts[:, runner_up]
    votes = [domains[vote] for vote in said.argmax(axis=1).tolist()]
    centred = map(tuple, (parts - parts.mean(axis=1, keepdims=True)).tolist())
    texts = [text for text, _ in words]
    return Explanation(
        decision,
        domains[runner_up],
        float(weights.sum()),
        tuple(map(WordWeight, texts, votes, weights.tolist(), centred)),
    )


def _parts(rows: Integers, selector: Selector, step: float) -> Floats:
    """What each token of one text adds to the score of each domain."""
    if selector.name == "average":
        return np.asarray(rows * step / max(len(rows), 1))
    voting = np.arange(len(rows))
    if selector.name == "entropy":
        voting = most_certain(rows, np.array([len(rows)]), selector.k, step)
    parts = np.zeros(rows.shape)
    parts[voting] = ballots(rows[voting]) / max(len(voting), 1)
    return parts


PROMPTS_PER_CHUNK = 128
MAX_THREADS = 16
LOOK_FOR_RELEASE_S = 1.0
"""Between two looks for a new release."""


@dataclass(eq=False, repr=False)
class Router:
    """Routes prompts by a compiled table, and by their sentences where the release reads them.

    quality: what the release says of experts in its domains, if they were measured.
    Law: route_many(prompts) equals [route(p) for p in prompts], bit for bit.
    """

    domains: tuple[str, ...]
    compiled: RouterTable
    reader: TextReader
    selector: Selector
    confidence: Confidence = Confidence()  # noqa: RUF009
    release: str | None = None
    quality: QualityTable | None = None

    def __post_init__(self) -> None:
        check_domains(self.domains, self.compiled)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        key: str | None = None,
        sentences: SentenceUse = "auto",
        threshold: float | None = None,
        fallback: str | None = None,
        scope: float | None = None,
    ) -> Router:
        """The router of a release, after its hashes and its signature were verified.

        key:    the coordinator's public key; a release that anyone else signed is refused.
        sentences: which prompts are given to the release's sentence encoder, if it has one: those
                that its table is unsure of (auto), none (never), or all (always).
        threshold, scope: abstain below this confidence, and below this chance of belonging to any
                domain; a threshold of 0 without a scope is never.
        fallback: what decisions name where the router abstains.
        """
        loaded = _loaded(
            Path(folder),
            key=key,
            sentences=sentences,
            threshold=threshold,
            fallback=fallback,
            scope=scope,
        )
        return loaded.router

    @classmethod
    def follow(cls, folder: str | Path, **options: Any) -> FollowedRouter:
        """The router of a release, and of those that take its place in its folder.

        folder:  of a release, or a coordinator's or its releases/: then the newest.
        options: those of `load`.
        """
        return FollowedRouter(Path(folder), options)

    def with_confidence(self, **changes: Any) -> Router:
        """The same router with another temperature, threshold or fallback."""
        return replace(self, confidence=replace(self.confidence, **changes))

    def with_selector(self, selector: Selector) -> Router:
        """The same table under another selector; its confidence is then no longer calibrated."""
        return replace(self.with_confidence(calibrated=False), selector=selector)

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
        return replace(
            self.with_confidence(calibrated=False),
            domains=kept,
            compiled=self.compiled.without(self.domains.index(domain)),
            release=None,
            quality=self.quality.of_domains(kept) if self.quality else None,
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
        tokens = self.reader.read([turn.text for turn in turns])
        counted = tally_texts(self.compiled, self.selector, tokens)
        return self._decide_turns(turns, weighed(counted, turns), tokens)

    def route_by_table(self, turns: Sequence[Turn]) -> Decision | None:
        """The same where no sentence has to be read, which takes next to no time; else None."""
        if self.has_sentences and any(
            self.reads_sentences([turn.text for turn in turns])
        ):
            return None
        return self.route_turns(turns)

    @property
    def has_sentences(self) -> bool:
        """Whether a sentence encoder decides some prompts."""
        return isinstance(self.compiled, SentenceTable | Cascade)

    def reads_sentences(self, prompts: Sequence[str]) -> list[bool]:
        """Whether the sentence encoder decides each prompt; to tell takes next to no time."""
        if not self.has_sentences:
            return [False] * len(prompts)
        routers = self._routers(self.reader.read(prompts))
        return [router == SENTENCES for router in routers]

    def route_many(self, prompts: Iterable[str | Chat]) -> list[Decision]:
        """Where each of many prompts and chats should go; the prompts in parallel."""
        if isinstance(prompts, str):
            raise InputError(
                "route_many takes a list of prompts; use route for one prompt"
            )
        asked = list(prompts)
        texts = [prompt for prompt in asked if isinstance(prompt, str)]
        routed = iter(self._route_texts(texts))
        return [
            next(routed) if isinstance(prompt, str) else self.route(prompt)
            for prompt in asked
        ]

    def _route_texts(self, prompts: list[str]) -> list[Decision]:
        chunks = [
            prompts[start : start + PROMPTS_PER_CHUNK]
            for start in range(0, len(prompts), PROMPTS_PER_CHUNK)
        ]
        if len(chunks) < 2:
            return self._decide_all(prompts) if prompts else []
        with (
            serial_tokenizers(),
            ThreadPoolExecutor(min(cores(), MAX_THREADS), "route") as pool,
        ):
            decided = pool.map(self._decide_all, chunks)
            return [decision for decisions in decided for decision in decisions]

    def make_fast(self) -> bool:
        """Load at once what is otherwise loaded with use; whether compiled code does all the work
        where no sentence has to be read.
        """
        table = self.compiled
        if isinstance(table, Cascade):
            table = table.sentences
        table.token_sums(self.reader.read([FIRST_TEXT]))
        return native is not None and isinstance(self.reader.tokenizer, PieceTokenizer)

    def explain(self, prompt: str | Chat) -> Explanation:
        """The decision on one prompt or chat, and what each of its words added to it."""
        return self.explain_turns(
            [Turn(prompt, 1.0)] if isinstance(prompt, str) else chat_turns(prompt)
        )

    def explain_turns(self, turns: Sequence[Turn]) -> Explanation:
        """The same of a conversation, in the order of the turns."""
        return explain(
            self.compiled,
            self.selector,
            self.reader,
            turns,
            lambda counted, tokens: self._decide_turns(turns, counted, tokens),
        )

    def _routers(self, tokens: Tokens) -> list[str]:
        """Which router decides each text."""
        if isinstance(self.compiled, SentenceTable):
            return [SENTENCES] * len(tokens.lengths)
        if isinstance(self.compiled, Cascade):
            read = self.compiled.reads_sentences(tokens)
            return [SENTENCES if is_read else TABLE for is_read in read.tolist()]
        return [TABLE] * len(tokens.lengths)

    def _decide_all(self, prompts: Sequence[str]) -> list[Decision]:
        tokens = self.reader.read(prompts)
        counted = tally_texts(self.compiled, self.selector, tokens)
        readable = [_is_readable(prompt) for prompt in prompts]
        return decide(
            self.domains,
            self.confidence,
            counted,
            tokens.lengths.tolist(),
            readable,
            self._routers(tokens),
        )

    def _decide_turns(
        self,
        turns: Sequence[Turn],
        counted: Tally,
        tokens: Tokens,
    ) -> Decision:
        readable = any(_is_readable(turn.text) for turn in turns)
        router = SENTENCES if SENTENCES in self._routers(tokens) else TABLE
        count = len(tokens.ids)
        [decision] = decide(
            self.domains, self.confidence, counted, [count], [readable], [router]
        )
        return decision

    def __repr__(self) -> str:
        return f"<Router {len(self.domains)} domains, selector {self.selector.name}>"


class _LoadedRelease(NamedTuple):
    """A release and its router."""

    release: Release
    router: Router


def _loaded(
    folder: Path,
    *,
    key: str | None = None,
    sentences: SentenceUse = "auto",
    **abstaining: Any,
) -> _LoadedRelease:
    release = load_release(folder, key=key, sentences=sentences)
    router = router_of(release)
    router.confidence = router.confidence.abstaining(**abstaining)
    return _LoadedRelease(release, router)


@dataclass(frozen=True)
class _RouterOpener:
    """Opens the release that is in a folder now, with the options of `Router.load`."""

    folder: Path
    options: Mapping[str, Any]

    def open(self, signer: str | None = None) -> _LoadedRelease:
        known = {} if signer is None else {"key": signer}
        loaded = _loaded(self.folder.resolve(), **{**self.options, **known})
        loaded.router.route(FIRST_TEXT)
        return loaded


class FollowedRouter:
    """A router that looks for a new release once a second, when it is used.

    As `ridgeway serve` does, it takes a good one, and keeps the old one in place of a bad one:
    `refused` says why.
    """

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        self._current = CurrentRelease(_RouterOpener(find_release(folder), options))
        self._lock = Lock()
        self._looked = time.monotonic()

    @property
    def router(self) -> Router:
        """The router in use now."""
        if time.monotonic() - self._looked >= LOOK_FOR_RELEASE_S and self._lock.acquire(
            False
        ):
            try:
                self._current.refresh()
                self._looked = time.monotonic()
            finally:
                self._lock.release()
        return self._current.served.router

    @property
    def refused(self) -> str | None:
        """Why the newest release is not in use, if it is not."""
        return self._current.refused

    def route(self, prompt: str | Chat) -> Decision:
        """As `Router.route`, by the release in use."""
        return self.router.route(prompt)

    def route_many(self, prompts: Iterable[str | Chat]) -> list[Decision]:
        """As `Router.route_many`, by the release in use."""
        return self.router.route_many(prompts)

    def explain(self, prompt: str | Chat) -> Explanation:
        """As `Router.explain`, by the release in use."""
        return self.router.explain(prompt)


def _is_readable(text: str) -> bool:
    """Whether it has a letter or a digit."""
    return any(map(str.isalnum, text))


def router_of(release: Release) -> Router:
    """The router of a release that was loaded."""
    return Router(
        release.domains,
        release.compiled,
        release.reader,
        release.selector,
        release.confidence,
        release.id,
        release.quality,
    )


def origin(router: Router) -> dict[str, Any]:
    """Where decisions come from, and whether their confidence means something: what JSON says
    beside them.
    """
    return {"calibrated": router.confidence.calibrated, "release": router.release}
