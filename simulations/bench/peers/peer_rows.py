"""Rows that hold figures of ours against a peer's, the better ones in bold."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ridgeway.simulations.bench.measuring import Row


class Contest(NamedTuple):
    """One figure of both. better: whether more of it is better, or less."""

    ours: float
    theirs: float
    unit: str
    better: Literal["more", "less"]

    @property
    def words(self) -> tuple[str, str]:
        """The better figure in bold; none, where both look alike in the digits that are shown."""
        own, other = (f"{figure:,.3g} {self.unit}" for figure in self[:2])
        if own == other:
            return own, other
        sign = 1 if self.better == "more" else -1
        ahead = sign * self.ours > sign * self.theirs
        return (f"**{own}**", other) if ahead else (own, f"**{other}**")


def compared(what: str, peer: str, *contests: Contest) -> Row:
    """The ratio is that of the first figures."""
    pairs = [contest.words for contest in contests]
    own, other = (", ".join(words) for words in zip(*pairs, strict=True))
    first = contests[0]
    ratio = first.ours / first.theirs if first.theirs else None
    return Row(f"{what}, to {peer}", own, other, ratio)


def not_measured(what: str, peer: str, reason: str) -> Row:
    return Row(f"{what}, to {peer}", "", reason, None)
