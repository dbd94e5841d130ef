"""The part `selectors`: how accuracy depends on what can be chosen, on the text there is, and on the prompt.

Setting ──▶ Bench (tokens, sums, routers) ──▶ curves, kept on the shelf ──▶ plots, tables, words
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from common.encoder import Encoder
from common.encoder_sources import find_encoder
from common.settings import DEFAULT, PAPER
from simulations.lab.findings import Part
from simulations.lab.plan import Plan
from simulations.lab.selectors import measured
from simulations.lab.selectors.bench import Bench
from simulations.lab.selectors.measured import FULL, SHORT, Curve, Effort, curve_from_json
from simulations.lab.selectors.shown import Figure, plot, table, words
from simulations.lab.setting import HELD_OUT, Setting

KEY = "selectors"
TITLE = "Selectors, λ, windows, bits, and how much text and how good a prompt is needed"
CODE = 1

TEXT_NOTE = "At most so many tokens of each domain, or all that it has; the axis shows the mean over domains."
FIGURES = (
    Figure("k-paper", "k of the entropy selector, the paper's preset", "k", measured.K_OF_PAPER, str(PAPER.selector.k)),
    Figure("k-ours", "k of the entropy selector, our table", "k", measured.K_OF_OURS, DEFAULT.selector.name),
    Figure("ridge", "λ", "λ, relative", measured.over_ridge, f"{DEFAULT.ridge.value:g}"),
    Figure("window", "Window", "tokens of a sample", measured.over_window, measured.USUAL),
    Figure("table-bits", "Bits of the public table", "bits and a sign", measured.over_table_bits, "12", "linear"),
    Figure("logit-bits", "Bits of the compiled logits", "bits and a sign", measured.over_logit_bits, "12", "linear"),
    Figure("text", "Training text of a domain", "tokens of a domain", measured.over_text, note=TEXT_NOTE),
    Figure("length", "Length of the prompt", "first tokens of a text", measured.over_length),
    Figure("typing", "Typing errors, whole texts", "% of characters", measured.over_typing(0), "", "linear"),
    Figure(
        "typing-short",
        f"Typing errors, first {measured.SHORT_PROMPT} tokens",
        "% of characters",
        measured.over_typing(measured.SHORT_PROMPT),
        "",
        "linear",
    ),
)


def run(plan: Plan) -> Part:
    """Every figure in every setting."""
    encoder = find_encoder(plan.encoder)
    if not isinstance(encoder, Encoder):
        reason = f"{plan.encoder} has no table over tokens, and this part is about such tables; take smollm2"
        return Part(KEY, TITLE, (), left_out=(reason,))
    effort = FULL if plan.full else SHORT
    found = [(setting, _curves(plan, Bench(encoder, setting, plan.seed), effort)) for setting in plan.settings]
    pairs = [(setting, figure, curves[figure.key]) for setting, curves in found for figure in FIGURES]
    return Part(
        key=KEY,
        title=TITLE,
        words=(*(said for setting, curves in found for said in _said(setting, curves)), _opening(effort)),
        tables=tuple(table(each, curve, own.name, f"{_key(each, own)}-table") for own, each, curve in pairs),
        plots=tuple(plot(each, curve, own.name, _key(each, own)) for own, each, curve in pairs),
        facts={"encoder": encoder.name, "fingerprint": encoder.fingerprint, "full": plan.full, **asdict(effort)},
    )


def _curves(plan: Plan, bench: Bench, effort: Effort) -> dict[str, Curve]:
    """Each kept on the shelf by what decides it: the setting's own texts, whatever else is planned."""
    decided = {
        **plan.facts(),
        "settings": bench.setting.digest,
        "encoder": bench.encoder.fingerprint,
        "effort": asdict(effort),
        "presets": [asdict(DEFAULT), asdict(PAPER)],
        "code": CODE,
    }
    curves = {}
    with plan.ticking(f"selectors {bench.setting.name}", len(FIGURES)) as tick:
        for each in FIGURES:
            make = _maker(each, bench, effort)
            curves[each.key] = curve_from_json(plan.shelf.kept(f"{KEY}-{each.key}", decided, make))
            tick()
    return curves


def _maker(figure: Figure, bench: Bench, effort: Effort) -> Callable[[], dict[str, Any]]:
    return lambda: asdict(figure.measure(bench, effort))


def _key(figure: Figure, setting: Setting) -> str:
    name = re.sub(r"[^\w.-]+", "-", setting.name)
    return f"{KEY}-{figure.key}-{name}"


def _opening(effort: Effort) -> str:
    new = "; where each value needs sums of its own (windows, bits of the table), from {:,} tokens of each domain"
    some = "" if effort.sum_tokens is None else new.format(effort.sum_tokens)
    few = "" if effort.typing_texts is None else f" of at most {effort.typing_texts} texts a domain"
    return (
        f"Routers learn from training text of which {100 * HELD_OUT:.0f} % is held out{some}. Accuracy is the mean "
        "over domains, in brackets that on the test. Choices are to be made on held-out text, as a federation makes "
        "them; what the test itself would choose is given beside it, since the paper chose so. Where routers are "
        f"compared, ours is the default, the paper's is its preset with k = {PAPER.selector.k}, and naive Bayes counts "
        "tokens with all text in one place and is smoothed as held-out text likes it best. "
        f"{measured.FEW:,} tokens and fewer were drawn {effort.draws} times, and typing errors are made in a share of "
        f"the characters{few}."
    )


def _said(setting: Setting, curves: dict[str, Curve]) -> list[str]:
    """A paragraph on what can be chosen, and one on how routers compare."""
    choices = [words(each, curves[each.key]) for each in FIGURES if each.usual]
    compared = [words(each, curves[each.key]) for each in FIGURES if not each.usual]
    return [" ".join((f"{setting.name}.", *said)) for said in (choices, compared)]
