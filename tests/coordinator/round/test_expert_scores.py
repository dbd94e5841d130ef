"""Scores of experts in a round: sums that are opened with the counts, or not at all, and the table
in the release.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from ridgeway.client.round.scoring import MIN_SCORES
from ridgeway.common.base.errors import Refused, RidgewayError
from ridgeway.common.protocol.messages import Evaluate
from ridgeway.common.routing.quality import MAX_HOLDER_SCORES, SCORE_UNIT
from ridgeway.coordinator.round.federation import FederationSettings
from ridgeway.coordinator.round.gathering import checked_row, sizes_of
from ridgeway.coordinator.round.membership import retire
from tests.support.making import contents
from tests.support.simulated_federation import (
    DOMAINS,
    Direct,
    Parties,
    found,
    names_of,
    populate,
    round_of,
)

HOLDERS = {"code": "code", "law-1": "law", "law-2": "law", "medicine": "medicine"}
EXPERTS = ("large", "small", "nobody's")
SCORES: dict[str, dict[str, list[float]]] = {
    "code": {"large": [1.0] * 20, "small": [0.25] * 12},
    "law-1": {"large": [0.5] * MIN_SCORES, "small": [1.0] * (MIN_SCORES - 1)},
    "law-2": {"large": [0.0] * 11, "elsewhere": [1.0] * 30},
    "medicine": {"large": [0.75] * 40, "small": [0.75] * 40},
}


def write_scores(
    parties: Parties, name: str, scores: dict[str, list[float]], domain: str = ""
) -> None:
    """The file of a holder, and the line in its settings that names it."""
    path = parties.folder / "scores" / f"{name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    more = {"domain": domain} if domain else {}
    lines = [
        {"prompt": "?", "expert": expert, "score": score, **more}
        for expert, given in scores.items()
        for score in given
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if '# scores = "scores.jsonl"' in (parties.homes[name] / "client.toml").read_text():
        parties.rewrite(name, '# scores = "scores.jsonl"', f'scores = "{path}"')


@pytest.fixture
def parties(tmp_path: Path, haste: None) -> Parties:
    """Four holders with scores, of whom medicine's does not share them."""
    made = found(tmp_path / "parties", mode="masked", experts=EXPERTS)
    populate(made, HOLDERS)
    for name, scores in SCORES.items():
        write_scores(made, name, scores)
        made.rewrite(name, 'modes = ["masked"]', 'modes = ["masked", "clear"]')
    made.rewrite("medicine", "share_scores = true", "share_scores = false")
    made.new_epochs()
    return made


def quality_of(parties: Parties) -> Any:
    newest = parties.standing.releases[-1]
    return parties.federation.manifest(newest.number).get("quality")


def test_the_table_of_a_release_is_the_sum_of_what_holders_share(
    parties: Parties, tmp_path: Path
) -> None:
    """By domain and expert; none of those that decline, of too few scores, or of experts that were
    not asked about.
    """
    clear = parties.copy(tmp_path / "clear")
    round_of(parties)
    assert quality_of(parties) == {
        "domains": ["code", "law", "medicine"],
        "experts": list(EXPERTS),
        "unit": SCORE_UNIT,
        "sums": [
            [20 * SCORE_UNIT, 3 * SCORE_UNIT, 0],
            [MIN_SCORES * SCORE_UNIT // 2, 0, 0],
            [0, 0, 0],
        ],
        "counts": [[20, 12, 0], [MIN_SCORES + 11, 0, 0], [0, 0, 0]],
    }
    round_of(clear, mode="clear")
    assert contents(parties.release_folder(1)) == contents(clear.release_folder(1))


def test_scores_take_no_exchange_and_no_opened_sum_of_their_own(
    parties: Parties, tmp_path: Path
) -> None:
    """A round with them has the very messages of a round without; and without, the release says
    nothing of experts.
    """
    plain = parties.copy(tmp_path / "plain")
    plain.change_settings('experts = ["large", "small", "nobody\'s"]', "experts = []")
    kinds = []
    for federation in (parties, plain):
        transport = Direct(federation)
        round_of(federation, transport)
        kinds.append([message.kind for _, message in transport.messages])
    assert kinds[0] == kinds[1]
    assert quality_of(parties) is not None and quality_of(plain) is None


def test_a_score_file_that_cannot_be_read_opens_no_epoch(parties: Parties) -> None:
    """The owner is told, and rounds go on with the scores of the epoch before: no round reads the
    file.
    """
    write_scores(parties, "law-2", {"large": [7.0]})
    with pytest.raises(RidgewayError):
        parties.ready("law-2")
    published = round_of(parties)
    assert names_of(published) == set(HOLDERS)
    assert quality_of(parties)["counts"][1] == [MIN_SCORES + 11, 0, 0]


def test_other_experts_are_asked_about_with_the_next_epochs(parties: Parties) -> None:
    """Holders count for one router an epoch, and answer one question about it; until then the
    release stands.
    """
    round_of(parties)
    parties.change_settings(
        'experts = ["large", "small", "nobody\'s"]', 'experts = ["elsewhere"]'
    )
    assert round_of(parties).number == 1
    parties.new_epochs()
    round_of(parties, accept_worse=DOMAINS)
    assert quality_of(parties)["experts"] == ["elsewhere"]
    assert quality_of(parties)["counts"] == [[0], [30], [0]]


def test_a_retired_domain_leaves_the_table(parties: Parties) -> None:
    """Its row goes with its column."""
    round_of(parties)
    before = quality_of(parties)
    retire(parties.federation, "code")
    after = quality_of(parties)
    assert after["domains"] == ["law", "medicine"]
    for table in ("sums", "counts"):
        assert after[table] == before[table][1:]


@pytest.mark.parametrize(
    "names",
    [
        ("large", "large"),
        ("",),
        (" large",),
        ("la\x1brge",),
        tuple(map(str, range(257))),
    ],
)
def test_experts_are_named_once_and_so_that_they_can_be_shown(
    parties: Parties, names: tuple[str, ...]
) -> None:
    """In the settings, before a round asks anybody, and in what holders are asked."""
    with pytest.raises(ValidationError):
        FederationSettings(experts=names)
    terms = parties.federation.terms
    with pytest.raises(ValidationError, match="experts"):
        Evaluate(
            terms=terms,
            domains=("code", "law"),
            selector="average",
            k=10,
            experts=names,
        )


Change = Callable[[np.ndarray[Any, Any]], None]


def placed(row: int, expert: int, number: int) -> Change:
    """Put a number into the sums (row 0) or the numbers of scores (row 1) of an expert."""

    def change(quality: np.ndarray[Any, Any]) -> None:
        quality[row, expert] = number

    return change


@pytest.mark.parametrize(
    ("holders", "changes", "code"),
    [
        (1, [], ""),
        (1, [placed(1, 0, 3), placed(0, 0, 3 * SCORE_UNIT)], ""),
        (1, [placed(1, 0, 3), placed(0, 0, 3 * SCORE_UNIT + 1)], "over_bound"),
        (1, [placed(0, 1, 1)], "over_bound"),
        (1, [placed(1, 0, 3), placed(0, 0, -1)], "over_bound"),
        (1, [placed(1, 0, -1)], "over_bound"),
        (1, [placed(1, 1, MAX_HOLDER_SCORES + 1)], "over_bound"),
        (2, [placed(1, 1, MAX_HOLDER_SCORES + 1)], ""),
        (1, [placed(1, 1, 1 << 62)], "over_bound"),
    ],
)
def test_sums_that_no_scores_could_have_given_are_refused(
    parties: Parties, holders: int, changes: Sequence[Change], code: str
) -> None:
    """Negative numbers, sums beyond them, more scores than holders may have: opened or in the
    clear.
    """
    about: dict[str, Any] = {
        "domains": ("code", "law"),
        "selector": "average",
        "k": 10,
        "experts": EXPERTS[:2],
    }
    question = Evaluate(terms=parties.federation.terms, **about)
    counts = np.zeros(sum(sizes_of(question)), dtype=np.int64)
    quality = counts[4:].reshape(2, 2)
    for change in changes:
        change(quality)
    if not code:
        assert (checked_row(question, counts, holders).quality == quality.ravel()).all()
        return
    with pytest.raises(Refused) as refused:
        checked_row(question, counts, holders)
    assert refused.value.code == code
