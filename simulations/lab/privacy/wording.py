"""What the attacks brought, in words that follow from the figures. Knows nothing of how they were found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from client.audit import CLEAR, COLUMN
from common.encoder import Encoder
from common.settings import DEFAULT, Sampling
from simulations.lab.privacy.ground import Ground
from simulations.lab.privacy.trials import CALLED, Seen

UNMATCHED = "the attack takes a window for the tokens it stands for, so one made for it may find more"
ALL = 99.95
"""What prints as 100 percent."""


def words(
    ground: Ground,
    encoder: Encoder,
    width: int,
    corpus: Sequence[Seen],
    holders: Sequence[Seen],
    widths: Sequence[Seen],
) -> tuple[str, ...]:
    found = (*_clear(corpus), *_column(corpus), *_holders(holders), *_width(widths))
    return (*found, _attacked(ground, encoder, width), LIMITS)


LIMITS = (
    "These are the attacks that are known to this project, so the shares are lower bounds: a better attack may find "
    "more. A small share of the tokens is still a share of a private text; what protects a holder is the masked round, "
    "in which its own sums are never seen, together with other holders of its domain."
)


def _attacked(ground: Ground, encoder: Encoder, width: int) -> str:
    cut = ground.encoder.rows < encoder.rows or width < encoder.width
    easier = (
        f" In short the encoder is cut: {ground.encoder.rows:,} of its {encoder.rows:,} tokens (the {ground.used:,} "
        f"that occur, and others drawn at random) and the first {width} of its {encoder.width} columns. Fewer tokens "
        "make an attack easier, fewer columns harder, so the figures show how things change and not what they are with "
        "the whole encoder; the full run attacks that."
    )
    whole = f" The encoder is attacked whole: {encoder.rows:,} tokens, {encoder.width} columns."
    return (
        f"The attacks of `ridgeway audit` are run on the sums of one holder of {ground.domain}, whose text is known "
        "here, so that the shares are true ones. The attacker is given what a coordinator sees: the public table, the "
        f"window and the sums.{easier if cut else whole}"
    )


def _clear(corpus: Sequence[Seen]) -> Iterator[str]:
    clear = [each for each in corpus if each.view == CLEAR]
    windows = sorted({each.trial.window for each in clear if each.trial.is_plain})
    if len(windows) < 2:
        return
    first, last = (_of(clear, Sampling(window=window)) for window in (windows[0], windows[-1]))
    plain = (
        f"From clear statistics, windows of {windows[0]} give back {_span(first)} of the distinct tokens "
        f"({_span(first, 'rare')} of the rare ones), windows of {windows[-1]} {_span(last)} ({_span(last, 'rare')} of "
        "the rare ones)"
    )
    proven = sum(each.proven for each in first)
    shown = f"; in {proven} of {len(first)} cases the attacker can prove its counts" if windows[0] == 1 else ""
    why = (
        " Longer windows blur, and they do not hide: this is why rounds are masked unless asked otherwise."
        if _mean(last) < _mean(first)
        else " Longer windows did not blur here."
    )
    usual = [each for each in clear if each.trial.sampling == DEFAULT.sampling and not each.trial.is_plain]
    asked = (
        f" Sampled as usual ({DEFAULT.sampling}), it is {_span(usual)} ({_span(usual, 'rare')}); {UNMATCHED}."
        if usual
        else ""
    )
    yield f"{plain}{shown}.{asked}{why}"


def _column(corpus: Sequence[Seen]) -> Iterator[str]:
    column = [each for each in corpus if each.view == COLUMN]
    if not column:
        return
    small, large = (_of_tokens(column, pick(each.trial.tokens for each in column)) for pick in (min, max))
    yield (
        "From its column of B alone, which a masked round shows where a domain has a single holder, "
        f"{_span(small)} of the distinct tokens of {small[0].trial.tokens:,} come back and {_span(large)} of those of "
        f"{large[0].trial.tokens:,}, over all windows that were tried."
    )


def _holders(holders: Sequence[Seen]) -> Iterator[str]:
    for sampling in dict.fromkeys(each.trial.sampling for each in holders):
        own = [each for each in _of(holders, sampling) if each.view == CLEAR]
        called = [each for each in _of(holders, sampling) if each.view == CALLED]
        if len(own) < 2 or len(called) < 2:
            continue
        yield (
            f"With {own[0].trial.sampled}, where the sums of a whole domain are seen, {_both(own, 'precision')} of the "
            f"tokens named are the holder's with {_few_and_many(own)}; {_both(own, 'recovered')} of its own tokens are "
            "among them. From the total of the cohort, which is all that a masked round opens, "
            f"{_both(called, 'recovered')} of its tokens are called the domain's with {_few_and_many(called)}, and "
            f"{_both(called, 'precision')} of those so called are the holder's."
        )


def _both(seen: Sequence[Seen], name: str) -> str:
    """The first and the last."""
    return f"{_percent(getattr(seen[0], name))} and {_percent(getattr(seen[-1], name))}"


def _few_and_many(seen: Sequence[Seen]) -> str:
    few, many = seen[0].trial.holders, seen[-1].trial.holders
    return f"{few} and with {many} holders"


def _width(widths: Sequence[Seen]) -> Iterator[str]:
    clear = [each for each in widths if each.view == CLEAR]
    for sampling in dict.fromkeys(each.trial.sampling for each in clear):
        own = sorted(_of(clear, sampling), key=lambda each: each.trial.width)
        whole = next((each.trial.width for each in own if each.recovered >= ALL), None)
        reached = f", and all from h = {whole} on" if whole is not None and _stays(own, whole) else ""
        yield (
            f"With {own[0].trial.sampled} the share that comes back is {own[0].recovered:.1f} % at "
            f"h = {own[0].trial.width} and {own[-1].recovered:.1f} % at h = {own[-1].trial.width}{reached}."
        )


def _stays(own: Sequence[Seen], width: int) -> bool:
    return all(each.recovered >= ALL for each in own if each.trial.width >= width)


def _of(seen: Iterable[Seen], sampling: Sampling) -> list[Seen]:
    return [each for each in seen if each.trial.sampling == sampling]


def _of_tokens(seen: Iterable[Seen], tokens: int) -> list[Seen]:
    return [each for each in seen if each.trial.tokens == tokens]


def _mean(seen: Sequence[Seen]) -> float:
    return sum(each.recovered for each in seen) / len(seen)


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{share:.1f} %"


def _span(seen: Sequence[Seen], name: str = "recovered") -> str:
    """From the least to the most."""
    values = [value for each in seen if (value := getattr(each, name)) is not None]
    if not values:
        return "none"
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return f"{low} %" if low == high else f"{low} to {high} %"
