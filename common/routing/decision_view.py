"""Decisions and explanations as people read them: in a line, and as HTML for notebooks.

Every text is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

SHOWN_DOMAINS = 5
FOR = "46, 125, 50"
AGAINST = "198, 40, 40"
"""Colours of words that speak for the domain ahead, and against it; how strongly, their opacity
says.
"""


def ranked(scores: Mapping[str, float]) -> list[tuple[str, float]]:
    """The most probable first."""
    return sorted(scores.items(), key=lambda pair: -pair[1])


def decision_line(
    name: str,
    confidence: float,
    scores: Mapping[str, float],
    abstained: bool,
    tokens: int,
) -> str:
    others = ranked(scores)[:SHOWN_DOMAINS]
    told = ", ".join(f"{domain} {100 * score:.1f} %" for domain, score in others)
    more = f" and {len(scores) - len(others)} more" if len(scores) > len(others) else ""
    state = "abstained" if abstained else f"{100 * confidence:.1f} %"
    return f"<Decision {name}, {state}; {told}{more}; {tokens} tokens>"


def decision_html(
    name: str, scores: Mapping[str, float], abstained: bool, tokens: int
) -> str:
    rows = "".join(
        f'<tr><td style="text-align:left">{escape(domain)}</td><td>{100 * score:.1f}'
        " %</td>"
        '<td style="text-align:left"><div'
        f' style="background:rgb({FOR});height:0.7em;width:{100 * score:.0f}px"></div>'
        "</td></tr>"
        for domain, score in ranked(scores)
    )
    state = " (abstained)" if abstained else ""
    return (
        f"<div><b>{escape(name)}</b>{state}, {tokens} tokens<table>{rows}</table></div>"
    )


def explanation_html(
    best: str, runner_up: str, margin: float, words: Sequence[tuple[str, float]]
) -> str:
    most = max((abs(weight) for _, weight in words), default=0.0) or 1.0
    spans = "".join(
        f'<span title="{weight:+.4f}"'
        f' style="background:rgba({FOR if weight > 0 else AGAINST},'
        f' {0.6 * abs(weight) / most:.2f})">{escape(text)}</span>'
        for text, weight in words
    )
    told = f"<b>{escape(best)}</b> over {escape(runner_up)} by {margin:.4f}"
    return (
        f"<div>{told}<div"
        f' style="white-space:pre-wrap;font-family:monospace">{spans}</div></div>'
    )
