"""The statement for whoever answers for privacy: what one document has cost, what left, and whom
one must trust.

Pure: from a holder's record to sections of plain words, and from sections to text or a page to
print. Needs no key and writes nothing.
"""

from __future__ import annotations

import math
import textwrap
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from ridgeway.client.evidence import HolderRecord
from ridgeway.client.round.spending import (
    Account,
    Output,
    epsilon_words,
    finite,
    spent,
)
from ridgeway.common.base.records import MODE_SENTENCES, Mode
from ridgeway.common.privacy.accountant import Privacy, epsilon_of

MAX_ROUNDS_FORESEEN = 1000
_SHOWN_DIGITS = 12
WRAPPED = 96
"""Letters in a line of text."""

OUTPUTS: dict[Output, str] = {
    "statistics": "sums over documents",
    "counts": "counts of held-out documents",
}
LEARNT: dict[Mode, str] = {
    "private": (
        "Sums over documents of bounded length, and counts of held-out documents for"
        " the released router, leave under noise. Whoever sees all of them learns of"
        " any one document at most what the ε and δ above allow, and who took part, and"
        " when."
    ),
    "masked": (
        "Exact sums leave under masks, once an epoch. The coordinator learns the exact"
        " total of each epoch. Where this holder is the only one of its domain, that"
        " domain's column of the total is this holder's own. Two epochs' totals tell"
        " the sum of what changed, came and went between them. No ε bounds this."
    ),
    "clear": (
        "Exact sums leave as they are. The coordinator learns everything in them. No ε"
        " bounds this."
    ),
}
TRUST: dict[Mode, str] = {
    "private": (
        "Nobody, but this machine and the approved code on it: the noise is drawn here."
    ),
    "masked": (
        "The coordinator, with the totals. And the pinned members: if a third of them or"
        " more collude with the coordinator, it can see this holder's own sums."
    ),
    "clear": "The coordinator, with this holder's own sums.",
}
TRUST_IN_SHARES = (
    "All members draw shares of the noise on sums of products: there one trusts that"
    " fewer than a third of them leave out or reveal theirs. For all else nobody, but"
    " this machine and the approved code on it."
)
ASSUMPTIONS = (
    "The random numbers of this machine's operating system cannot be foretold.",
    (
        "Signatures (Ed25519), key agreement (X25519) and the cipher of the masks are"
        " not broken."
    ),
    (
        "Whoever can write to this folder, to the shared file of expenses or to the"
        " corpus is trusted."
    ),
)
NOT_PROTECTED = (
    "That this holder takes part, when, and with which domain.",
    (
        "Copies of one document, and several documents about one person: each costs by"
        " itself, so that what is known of the person may be as many times as much."
    ),
    "What is true of the domain as a whole: a router must tell its domains apart.",
    "The public prior, and whatever else was published otherwise.",
    (
        "What left this corpus by other ways than Ridgeway, or by another user of this"
        " machine."
    ),
)


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the statement: a title, paragraphs, points, and a table under headings."""

    title: str
    paragraphs: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    headings: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Statement:
    """What is stated, and the figures in it for programs; an ε of infinity is null."""

    title: str
    sections: tuple[Section, ...]
    figures: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {
            **self.figures,
            "sections": [asdict(section) for section in self.sections],
        }


def statement(record: HolderRecord, made_at: str) -> Statement:
    """The statement of a holder as its records are. made_at: the time that it says."""
    privacy = record.terms.privacy if record.terms else None
    return Statement(
        title=f"What one document of {record.domain} has cost",
        sections=(
            _about(record, made_at),
            _meaning(),
            _spent(record, privacy),
            _outputs(record),
            _trust(record, privacy),
            Section("What is not protected", points=NOT_PROTECTED),
        ),
        figures=_figures(record, made_at, privacy),
    )


# The sections


def _about(record: HolderRecord, made_at: str) -> Section:
    epochs = record.epochs()
    current = epochs[-1].facts["epoch"][:_SHOWN_DIGITS] if epochs else "none yet"
    read_from = "this folder's journal"
    if record.settings.spending and record.account.shared.exists():
        read_from += ", and the file of expenses that all folders of this user share"
    elif record.settings.spending:
        read_from += (
            ", and no shared file of expenses, which is not here: what left through"
            " other folders is missing"
        )
    rows = (
        ("Domain", record.domain),
        ("Holder's key", record.key),
        ("Coordinator's key", record.coordinator),
        ("Stated at (UTC)", _time(made_at)),
        ("Current epoch", f"{current}, of {len(epochs)} opened so far"),
        ("Read from", read_from),
    )
    return Section("Whose statement this is", rows=rows, headings=("", ""))


def _meaning() -> Section:
    return Section(
        "What is counted",
        paragraphs=(
            (
                "The unit is one document. Two corpora are neighbours if one of them is"
                " the other with one document added or removed."
            ),
            (
                "ε and δ say how much more likely anything that left can be with a"
                " document than without it: at most e^ε times, but for a chance of δ."
                " An ε of 0 tells nothing; an exact output has no such bound, and is"
                " written as ∞."
            ),
        ),
    )


def _spent(record: HolderRecord, privacy: Privacy | None) -> Section:
    account = record.account
    policy = record.policy
    rows = [
        ("ε so far", epsilon_words(account.epsilon())),
        ("at a δ of", f"{account.delta:g}"),
        ("ε that one private round may cost", epsilon_words(policy.max_round_epsilon)),
        ("ε that all together may cost", epsilon_words(policy.max_epsilon)),
        ("ε that is left", _left(account)),
    ]
    if privacy:
        rounds = further_rounds(record, privacy)
        fit = f"more than {MAX_ROUNDS_FORESEEN:,}" if rounds is None else f"{rounds:,}"
        rows.append((f"further rounds of ε {privacy.epsilon:g} that fit", fit))
    notes = [
        "A document is either summed or held out, so it pays for one of the two outputs"
        " of a round."
    ]
    if exact := len(account.exact()):
        notes.append(
            f"{exact} exact outputs have left. No ε bounds what is known of the"
            " documents that were in them; private rounds are refused from then on,"
            " unless the owner allows anything."
        )
    title = "What a document has cost, and may cost"
    return Section(title, tuple(notes), headings=("", ""), rows=tuple(rows))


def _outputs(record: HolderRecord) -> Section:
    account = record.account
    keys = set(record.handovers.keys(record.policy.coordinator))
    title = "Every output that left"
    rows = []
    for expense in account.expenses():
        federation = f"another, {expense.federation[:_SHOWN_DIGITS]}"
        cost = epsilon_words(epsilon_of(expense.rho, account.delta))
        rows.append(
            (
                _time(expense.time),
                OUTPUTS[expense.output],
                expense.mode,
                expense.epoch[:_SHOWN_DIGITS],
                "exact (∞)" if expense.rho == math.inf else cost,
                "this one" if expense.federation in keys else federation,
            )
        )
    if not rows:
        return Section(title, ("Nothing that was made of this corpus has left.",))
    note = (
        "Each is written down before it leaves, so one of them may have got lost on the"
        " way."
    )
    headings = ("Time (UTC)", "What left", "Mode", "Epoch", "ε", "Federation")
    return Section(title, (note,), headings=headings, rows=tuple(rows))


def _trust(record: HolderRecord, privacy: Privacy | None) -> Section:
    """For every mode that is accepted, or was used: what everybody may learn for ever, and whom one
    trusts.
    """
    accepted = record.policy.modes
    used = {expense.mode for expense in record.account.expenses()}
    in_shares = (privacy.mode if privacy else record.policy.privacy) == "full"
    rows = []
    for mode in MODE_SENTENCES:
        if mode not in accepted and mode not in used:
            continue
        allowed = "accepted" if mode in accepted else "not accepted"
        happened = "used" if mode in used else "not used"
        trusted = TRUST_IN_SHARES if mode == "private" and in_shares else TRUST[mode]
        rows.append((f"{mode}: {allowed}, {happened}", LEARNT[mode], trusted))
    headings = (
        "Mode of rounds",
        "What others may learn, for ever",
        "Whom one must trust",
    )
    note = (
        "Rounds of modes that are not accepted are refused. In all of them it is"
        " assumed:"
    )
    title = "Whom one must trust, and with what"
    return Section(title, (note,), ASSUMPTIONS, headings, tuple(rows))


# Figures


def _figures(
    record: HolderRecord, made_at: str, privacy: Privacy | None
) -> dict[str, Any]:
    account = record.account
    policy = record.policy
    so_far = account.epsilon()
    return {
        "domain": record.domain,
        "key": record.key,
        "time": made_at,
        "unit": "one document",
        "neighbours": "add or remove one document",
        "modes": list(policy.modes),
        "epsilon": finite(so_far),
        "delta": account.delta,
        "max_round_epsilon": finite(policy.max_round_epsilon),
        "max_epsilon": finite(policy.max_epsilon),
        "left": None if so_far == math.inf else finite(account.left()),
        "further_rounds": further_rounds(record, privacy) if privacy else None,
        "exact_outputs": len(account.exact()),
        "outputs": account.outputs(),
    }


def _left(account: Account) -> str:
    if account.epsilon() == math.inf:
        return "no bound: exact outputs have left"
    return epsilon_words(account.left())


def further_rounds(record: HolderRecord, privacy: Privacy) -> int | None:
    """How many more private rounds fit into the budget; None: more than anybody will run."""
    account = record.account
    paid = account.expenses()
    a_round = account.private_round(privacy, record.settings.holdout)

    def fits(rounds: int) -> bool:
        cost = spent([*paid, *(a_round * rounds)])
        return epsilon_of(cost, account.delta) <= account.max_epsilon

    numbers = range(1, MAX_ROUNDS_FORESEEN + 1)
    count = bisect_left(numbers, True, key=lambda rounds: not fits(rounds))
    return None if count == MAX_ROUNDS_FORESEEN else count


def _time(iso: str) -> str:
    return iso[:19].replace("T", " ")


# As text


def as_text(stated: Statement) -> str:
    parts = [stated.title, "=" * len(stated.title)]
    for section in stated.sections:
        parts += ["", section.title, "-" * len(section.title)]
        parts += [line for words in section.paragraphs for line in _wrapped(words)]
        parts += [line for words in section.points for line in _wrapped(words, "- ")]
        parts += _text_table(section)
    return "\n".join(parts) + "\n"


def _wrapped(words: str, mark: str = "") -> list[str]:
    return textwrap.wrap(
        words, WRAPPED, initial_indent=mark, subsequent_indent=" " * len(mark)
    )


def _text_table(section: Section) -> Iterable[str]:
    """Columns side by side; where a cell is long, one cell under the other."""
    rows = [row for row in (section.headings, *section.rows) if any(row)]
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if sum(widths) + 2 * len(widths) <= WRAPPED + 40 and max(widths) <= WRAPPED:
        return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    lines = []
    for first, *others in section.rows:
        lines.append(first)
        for heading, cell in zip(section.headings[1:], others, strict=True):
            lines += textwrap.wrap(
                f"{heading}: {cell}",
                WRAPPED,
                initial_indent="  ",
                subsequent_indent="    ",
            )
    return lines


# As a page

STYLE = """
@page { size: A4; margin: 13mm 15mm; }
* { box-sizing: border-box; }
body { font: 9pt/1.35 system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; color: #1b1f24;
  background: #fff; max-width: 180mm; margin: 0 auto; padding: 8mm 4mm; }
h1 {
  font-size: 15pt; line-height: 1.2; margin: 0 0 3mm;
  padding-bottom: 2mm; border-bottom: 2px solid #1b1f24;
}
h2 { font-size: 10pt; margin: 3.5mm 0 1mm; break-after: avoid; }
p { margin: 0 0 1.2mm; }
ul { margin: 0 0 1.2mm; padding-left: 5mm; }
table {
  border-collapse: collapse; width: 100%; margin: 0.5mm 0 1mm;
  font-size: 8.5pt; line-height: 1.35;
}
th, td {
  text-align: left; vertical-align: top;
  padding: 0.6mm 3mm 0.6mm 0; border-bottom: 1px solid #d0d5db;
}
thead { display: table-header-group; }
thead th { border-bottom: 1.5px solid #6b7480; font-weight: 600; }
tbody th { width: 34%; font-weight: 500; color: #4a525c; }
.wide td:first-child { min-width: 30mm; }
tr { break-inside: avoid; }
@media print { body { max-width: none; padding: 0; } }
"""


def as_html(stated: Statement) -> str:
    """A page by itself: no scripts, and nothing from elsewhere."""
    body = "\n".join(_html_section(section) for section in stated.sections)
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(stated.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(stated.title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def _html_section(section: Section) -> str:
    parts = [f"<h2>{escape(section.title)}</h2>"]
    parts += [f"<p>{escape(words)}</p>" for words in section.paragraphs]
    if section.points:
        points = "".join(f"<li>{escape(words)}</li>" for words in section.points)
        parts.append(f"<ul>{points}</ul>")
    if section.rows:
        parts.append(_html_table(section.headings, section.rows))
    return "<section>\n" + "\n".join(parts) + "\n</section>"


def _html_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Under headings; or, where these are empty, names and what they are."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in headings)
    start = f'<table class="wide"><thead><tr>{head}</tr></thead>'
    first = "<td>{}</td>"
    if not any(headings):
        start = "<table>"
        first = '<th scope="row">{}</th>'
    body = ""
    for name, *others in rows:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in others)
        body += f"<tr>{first.format(escape(name))}{cells}</tr>"
    return f"{start}<tbody>{body}</tbody></table>"
