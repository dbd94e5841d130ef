"""Why a decision fell: what each word of a prompt added to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.settings import Selector
from ridgeway.common.routing.conversation import Turn, shares, weighed
from ridgeway.common.routing.decision import FOR, Decision, Flags, Floats, Tally
from ridgeway.common.routing.token_table import (
    Lengths,
    RouterTable,
    TokenTable,
    segment_sums,
    tally,
)
from ridgeway.common.text.tokenizer import Ids, Tokenizer

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
    tokenizer: Tokenizer,
    turns: Sequence[Turn],
    decide: Callable[[Tally, Ids, Lengths], Decision],
) -> Explanation:
    """The decision on a conversation, and what each word of its turns added to it, in the order of
    the turns.

    decide: on what the turns say together, given their tokens.
    """
    pieces = [tokenizer.words(turn.text) for turn in turns]
    lengths = np.array([sum(len(word_ids) for _, word_ids in part) for part in pieces])
    words = [word for part in pieces for word in part]
    ids = np.array(
        [number for _, word_ids in words for number in word_ids], dtype=np.int32
    )
    sizes = np.array([len(word_ids) for _, word_ids in words], dtype=np.int64)
    table, rows = compiled.read(ids, lengths)
    by_turn = tally(table, selector, rows, lengths)
    counted = weighed(by_turn, turns)
    decision = decide(counted, ids, lengths)
    domains = list(decision.scores)
    # Domains from best to worst: by points, then by summed logits, then by order.
    best, runner_up = np.lexsort((-counted.sums[0], -counted.points[0]))[:2].tolist()
    ends = np.cumsum(lengths)[:-1]
    says = shares(turns, by_turn.voters).tolist()
    of_tokens = np.concatenate(
        [
            _parts(table, selector, turn_ids) * say
            for turn_ids, say in zip(np.split(rows, ends), says, strict=True)
        ]
    )
    parts = segment_sums(of_tokens, sizes)
    said: NDArray[Any] = segment_sums(table.sums.take(rows, axis=0), sizes)
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


def _parts(table: TokenTable, selector: Selector, ids: Ids) -> Floats:
    """What each token of one text adds to the score of each domain."""
    if selector.name == "average":
        values = table.sums
        unit = table.step
        taking_part = np.ones(len(ids), dtype=bool)
    else:
        values = table.ballots
        unit = 1.0
        taking_part = _voters(table, selector, ids)
    rows = values.take(ids, axis=0) * taking_part[:, None]
    parts: Floats = rows * unit / max(int(taking_part.sum()), 1)
    return parts


def _voters(table: TokenTable, selector: Selector, ids: Ids) -> Flags:
    """Which tokens vote; of equal ones, the first."""
    if selector.name == "all":
        return np.ones(len(ids), dtype=bool)
    taking_part = np.zeros(len(ids), dtype=bool)
    taking_part[np.argsort(table.ranks[ids], kind="stable")[: selector.k]] = True
    return taking_part
