"""A year of a federation of five, in one process and deployed: joins, a holder that leaves and
comes back, changed corpora, an upgrade, renewed keys, a restore on each side, and private rounds
until a budget ends. Nothing surprises.

One story in the order of this file, month by month; the time of day plays no part. It runs with
`pytest --long` alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeway.common.deploy.bundle import installed_sha256
from ridgeway.common.privacy.accountant import Privacy, epsilon_of
from ridgeway.common.routing.release import load_release
from tests.support.commands import Finished
from tests.support.deployment import DEPLOYED, SECRET, holding
from tests.support.earlier_bundle import EARLIER_SHA256, keep_earlier
from tests.support.played_year import PlayedYear, Year
from tests.support.tiny import private_encoder

pytestmark = [*DEPLOYED, pytest.mark.long]

NAMES = ("chess", "code", "law", "medicine", "music")
POOR = "music"
"""Its owner allows what two rounds cost."""
LEAVING = "chess"
UNLUCKY = "code"
"""Its disk will be lost."""
WIDTH = 16


@pytest.fixture(
    scope="module", params=[PlayedYear, Year], ids=["in one process", "deployed"]
)
def town(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    private_sentences: None,
    sentences_cache: Path,
) -> Iterator[Year]:
    folder = tmp_path_factory.mktemp("year")
    with request.param(folder, private_encoder(WIDTH), sentences_cache) as made:
        yield made


def done(town: Year, *options: str) -> Finished:
    finished = town.play(*options)
    assert finished.code == 0, finished.stderr
    return finished


def test_in_january_five_holders_join_and_compare_one_code(town: Year) -> None:
    """Each confirms the members once; the first release has all five domains."""
    town.found(wait=5.0)
    keep_earlier(town.coordinator / "link")
    for name in NAMES:
        town.settle(name, *(("--max-epsilon", "1.5") if name == POOR else ()))
        town.change_holder(name, bundles=f'["{EARLIER_SHA256}"]')
        town.admit(name)
    town.change(bundle=f'"{EARLIER_SHA256}"')
    town.up()
    town.confirm(*NAMES)
    town.ready(*NAMES)
    town.join(*NAMES)
    assert done(town).json["domains"] == list(NAMES)
    assert [town.newest(name) for name in NAMES] == [1] * len(NAMES)
    town.first_key = str(town.status("law")["coordinator"])
    assert all(town.epochs(name) == 1 for name in NAMES)


def test_in_february_a_holder_backs_up_and_in_march_corpora_have_changed(
    town: Year,
) -> None:
    """A new release of new epochs; every budget has paid for two rounds and no more."""
    assert town.backup("client", town.holder(UNLUCKY)).exists()
    for name in ("law", UNLUCKY):
        town.grow(name, seed=1)
    town.ready(*(name for name in NAMES if name not in ("law", UNLUCKY)))
    assert done(town).json["number"] == 2
    assert all(town.epochs(name) == 2 for name in NAMES)


def test_in_april_code_is_upgraded_and_keys_are_renewed(town: Year) -> None:
    """Holders approve what they have looked at; the coordinator, a holder and a SuperNode sign with
    other keys.
    """
    for name in NAMES:
        shown = town.run("client bundle --json", town.holder(name))
        assert (shown.code, shown.json["bundle"]) == (2, installed_sha256())
        assert town.owner(name, "approve")["approved"] == installed_sha256()
    town.change(bundle='"newest"')
    town.do("coordinator renew --signing-key", town.coordinator)
    town.leave("law")
    town.do("client renew --identity", town.holder("law"))
    town.leave("medicine")
    town.do("client renew", town.holder("medicine"))
    for name in ("law", "medicine"):
        town.admit(name)
    town.join("law", "medicine")
    shown = town.owner(UNLUCKY, "members")
    assert shown["confirmed"], "a key that its owner handed over needs no new code"
    assert town.backup("coordinator", town.coordinator).exists()


def test_in_may_a_holder_leaves_and_a_budget_ends(town: Year) -> None:
    """Its SuperNode stops, its domain is not lost in silence; whose budget is spent opens no epoch,
    and stays in.
    """
    town.do("client leave", town.holder(LEAVING))
    assert town.stops_by_itself(LEAVING)
    again = town.run("client join", town.holder(LEAVING))
    assert "has left the federation" in again.refusal
    refused = town.run("client ready --new-epoch", town.holder(POOR))
    assert "`max_epsilon` in client.toml allows 1.5" in refused.refusal
    stay = [name for name in NAMES if name != LEAVING]
    shown = {name: town.owner(name, "members") for name in stay}
    assert all(members["removed"] == [LEAVING] for members in shown.values())
    town.confirm(*stay)
    town.ready(*(name for name in stay if name != POOR))
    stopped = town.play()
    assert (
        stopped.code != 0
        and f"would lose {LEAVING}" in stopped.stderr
        and "has left" in stopped.stderr
    )
    made = done(town, "--allow-missing", LEAVING, "--accept-unevaluated", POOR)
    assert (made.json["number"], made.json["domains"]) == (3, stay)
    assert town.epochs(POOR) == 2 and town.spent(POOR) <= 1.5


def test_in_june_a_holder_is_restored_and_its_budget_is_not(town: Year) -> None:
    """The machine was lost, with all that it had spent since February; an owner who names too few
    epochs is told.
    """
    truly = town.spent(UNLUCKY)
    town.lose(UNLUCKY, town.holder(UNLUCKY))
    file = town.folder / "state" / "spending.jsonl"
    lines = file.read_text().splitlines()
    kept = [
        line
        for line in lines
        if str(town.corpus(UNLUCKY)) not in json.loads(line)["corpus"]
    ]
    assert len(kept) < len(lines)
    file.write_text("".join(f"{line}\n" for line in kept))
    backup = town.folder / "backups" / f"{UNLUCKY}-client.backup"
    town.do("client restore --epochs-since 0", town.holder(UNLUCKY), "--from", backup)
    town.do("client approve", town.holder(UNLUCKY), installed_sha256())
    town.ready(UNLUCKY)
    town.join(UNLUCKY)
    asked = town.run("coordinator round --dry-run --json", town.coordinator)
    assert "older_copy" in asked.stderr
    restored = town.owner(UNLUCKY, "restore --epochs-since 2")
    assert restored["charged"] == 6
    assert town.spent(UNLUCKY) > truly
    town.ready(UNLUCKY)
    asked = town.run("coordinator round --dry-run --json", town.coordinator)
    assert "older_copy" not in asked.stderr


def test_in_july_the_holder_that_left_comes_back(town: Year) -> None:
    """With another key of its SuperNode, and with the budget that it had."""
    spent = town.spent(LEAVING)
    town.do("client renew", town.holder(LEAVING))
    town.admit(LEAVING)
    town.do("client approve", town.holder(LEAVING), installed_sha256())
    assert town.spent(LEAVING) == spent > 0
    town.ready(LEAVING)
    town.join(LEAVING)
    town.confirm(*NAMES)


def test_in_august_the_coordinator_is_restored_from_the_backup_of_april(
    town: Year,
) -> None:
    """It knows neither the release of May nor who left; holders keep what they have, and the next
    number is beyond.
    """
    town.lose("up", town.coordinator)
    town.do(
        "coordinator restore",
        town.folder / "backups" / "coordinator-coordinator.backup",
        town.coordinator,
    )
    town.admit(LEAVING)
    town.up()
    town.wait_for("all are connected again", town.all_online)
    town.ready(*(name for name in NAMES if name not in (POOR, UNLUCKY, LEAVING)))
    made = done(town, "--accept-unevaluated", POOR)
    assert (made.json["number"], made.json["domains"]) == (4, list(NAMES))
    town.wait_for("all have it", lambda: all(town.newest(name) == 4 for name in NAMES))


def test_in_december_all_that_was_written_holds_and_budgets_add_up(town: Year) -> None:
    """Journals, ledger and releases verify, also by the key of January; nobody spent more than it
    allowed.
    """
    town.do("coordinator verify", town.coordinator)
    rho = Privacy(mode="columns", epsilon=1.0, prior="0" * 64).rho
    for name in NAMES:
        town.do("client verify", town.holder(name))
        privacy = town.status(name)["privacy"]
        assert (
            privacy["spent"]
            == epsilon_of(town.epochs(name) * rho, privacy["delta"])
            <= privacy["allowed"]
        )
        assert town.do("client statement", town.holder(name)).stdout
    used = {name: town.epochs(name) for name in NAMES}
    assert used == {"chess": 3, "code": 5, "law": 4, "medicine": 4, "music": 2}
    for number in (1, 2, 4):
        folder = town.coordinator / "releases" / f"{number:04}"
        if folder.exists():
            load_release(folder, key=town.first_key)
    load_release(town.holder("law") / "releases" / "0003", key=town.first_key)
    private = [SECRET, str(town.folder / "private")]
    assert (
        holding(town.coordinator.rglob("*"), [word.encode() for word in private]) == []
    )
