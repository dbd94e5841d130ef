"""The holder's page over HTTP, in this process: everything that left, nothing of the corpus, and
nothing written.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from ridgeway.client.evidence import HolderRecord
from ridgeway.client.holder_view import CONTENTS, holder_page
from ridgeway.client.round.answers import answer
from ridgeway.common.base.journal import Journal
from ridgeway.common.base.records import MODE_SENTENCES
from ridgeway.common.deploy.bundle import installed_sha256, source_files
from ridgeway.common.protocol.messages import SUM_NAMES, Hello
from ridgeway.common.protocol.packet import seal_packet
from ridgeway.common.web.api_keys import AccessRules, add_key, make_rules
from ridgeway.common.web.site import create_page_app
from tests.support.pages import file_hashes, must_guard
from tests.support.simulated_federation import (
    NO_BUNDLE,
    ONE_EACH,
    Parties,
    found,
    found_private,
    populate,
    round_of,
)

pytestmark = pytest.mark.usefixtures("private_sentences")

ADDRESSES = ("/v1/standing", "/v1/checks", "/metrics")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    """A masked round of three, and one request by a stranger that law has refused."""
    parties = found(tmp_path_factory.mktemp("played"), mode="masked")
    populate(parties, ONE_EACH)
    round_of(parties)
    stranger = parties.holder("code").identity
    answer(parties.law, seal_packet(Hello(), stranger, round="ab" * 16, number=7))
    return parties


@pytest.fixture
def home(played: Parties, tmp_path: Path) -> Path:
    """A copy of law's folder, all of its journal in one file: SQLite may move what lies beside it
    when it is read.
    """
    shutil.copytree(played.homes["law"], tmp_path / "law")
    with sqlite3.connect(tmp_path / "law/journal.db") as database:
        database.execute("pragma wal_checkpoint(truncate)")
    database.close()
    return tmp_path / "law"


@contextmanager
def asked(home: Path, rules: AccessRules | None = None) -> Iterator[TestClient]:
    with TestClient(create_page_app(holder_page(home), rules)) as http:
        yield http


def standing(home: Path) -> Any:
    with asked(home) as http:
        return http.get("/v1/standing").json()


def test_everything_that_left_is_there_with_its_hash_and_its_cohort(home: Path) -> None:
    """The same list as `ridgeway client export`, the newest first, members by the names that are
    known here.
    """
    record, now = HolderRecord(home), standing(home)
    wanted = [
        (item.time, item.kind, item.lot, item.bytes, item.sha256, item.number)
        for item in record.sent()
    ]
    fields = ("time", "kind", "lot", "bytes", "sha256", "number")
    assert [
        tuple(item[name] for name in fields) for item in reversed(now["items"])
    ] == wanted
    sums = [item for item in now["items"] if item["kind"] == "sealed_sums"]
    assert [item["lot"] for item in reversed(sums)] == list(SUM_NAMES)
    assert all(
        now["cohorts"][item["cohort"]] == ["code", "law (self)", "medicine"]
        for item in sums
    )
    assert sum(kind["bytes"] for kind in now["kinds"]) == sum(
        item.bytes for item in record.sent()
    )
    assert sum(kind["times"] for kind in now["kinds"]) == len(wanted)


def test_every_kind_of_answer_has_words_for_what_it_holds(home: Path) -> None:
    """Nobody has to guess what left."""
    assert all(item["holds"] for item in standing(home)["items"])
    assert {kind["kind"] for kind in standing(home)["kinds"]} < set(CONTENTS)


def test_what_a_document_has_cost_is_there(home: Path) -> None:
    """Exact sums and counts cost infinity; the totals that were opened are counted."""
    budget = standing(home)["budget"]
    assert budget["sums"] == {f"{lot} yes": 1 for lot in SUM_NAMES}
    assert (budget["clear"], budget["noisy"], budget["unopened"]) == (0, 0, 0)
    assert (budget["spent"], budget["exact"], budget["outputs"]) == (None, 2, 2)
    assert (budget["allowed"], budget["round_limit"], budget["delta"]) == (
        4.0,
        1.0,
        1e-8,
    )


def test_the_modes_have_their_sentences_and_the_epoch_says_whether_it_was_used(
    home: Path,
) -> None:
    """In the words that `client init` uses; without an invitation, which tests have none of, no
    mode is named.
    """
    now = standing(home)
    assert (now["mode"], now["modes"]) == (None, {"masked": MODE_SENTENCES["masked"]})
    assert now["epoch"]["used"] and now["epoch"]["number"] == 1
    assert now["epoch"]["name"] == HolderRecord(home).epochs()[-1].facts["epoch"]
    Journal(home / "journal.db").append(
        ("epoch", {"epoch": "ab" * 32, "sums": "cd" * 32, "places": []})
    )
    assert not standing(home)["epoch"]["used"]


def test_private_rounds_show_what_was_spent_and_what_the_next_one_will_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ε, and no exact output; sums and counts together, and whether the budget suffices."""
    parties = found_private(tmp_path)
    populate(parties, ONE_EACH)
    monkeypatch.setattr(HolderRecord, "terms", parties.terms)
    budget = standing(parties.homes["law"])["budget"]
    following = budget["next"]
    assert (budget["spent"], following["cost"], following["allowed"]) == (0, 1.0, True)
    assert 0.99 < following["afterwards"] <= 1
    round_of(parties)
    parties.rewrite("law", "max_epsilon = 4.0", "max_epsilon = 1.2")
    budget = standing(parties.homes["law"])["budget"]
    assert 0.99 < budget["spent"] <= 1 and budget["allowed"] == 1.2
    assert (budget["exact"], budget["noisy"], budget["clear"]) == (0, 2, 0)
    following = budget["next"]
    assert following["afterwards"] > 1.2 and not following["allowed"]


def test_a_refusal_and_a_refused_bundle_are_there_with_their_reasons(
    home: Path,
) -> None:
    """Also those that never came to an answer."""
    Journal(home / "journal.db").append(
        ("refused_bundle", {"bundle": "ef" * 32, "reason": "not approved <b>here</b>"})
    )
    refused = {
        item["code"]: item["reason"] for item in standing(home)["items"] if item["code"]
    }
    assert set(refused) == {"unknown_coordinator", "bundle_refused"}
    assert refused["bundle_refused"] == "not approved <b>here</b>"


def test_the_bundle_is_listed_file_by_file_and_an_approval_counts_at_once(
    home: Path,
) -> None:
    """The page is open while the owner changes client.toml."""
    with asked(home) as http:
        bundle = http.get("/v1/standing").json()["bundle"]
        assert bundle["sha256"] == installed_sha256() and not bundle["approved"]
        assert [file["name"] for file in bundle["files"]] == list(source_files())
        path = home / "client.toml"
        path.write_text(path.read_text().replace(NO_BUNDLE, installed_sha256()))
        assert http.get("/v1/standing").json()["bundle"]["approved"]


def test_no_text_and_no_path_is_in_any_answer(played: Parties, home: Path) -> None:
    """Neither a piece of the corpus nor where anything lies on this machine."""
    [corpus] = played.law.settings.corpus
    texts = [json.loads(line)["text"] for line in Path(corpus).read_text().splitlines()]
    pieces = {
        text[start : start + 12]
        for text in texts
        for start in range(0, len(text) - 12, 6)
    }
    with asked(home) as http:
        answers = [http.get(address).text for address in (*ADDRESSES, "/")]
    assert len(pieces) > 50
    for text in answers:
        assert not [piece for piece in pieces if piece in text]
        assert (
            str(home) not in text
            and str(played.folder) not in text
            and corpus not in text
        )


def test_an_altered_journal_is_found(home: Path) -> None:
    """By the check if it can be read, and by every part of the page if not."""
    with sqlite3.connect(home / "journal.db") as database:
        database.execute("update entries set time = '2020' where number = 2")
    database.close()
    with asked(home) as http:
        checks = {check["name"]: check for check in http.get("/v1/checks").json()}
        assert (
            not checks["journal"]["good"]
            and "entry 2" in checks["journal"]["words"]
            and checks["sums"]["good"]
        )
        assert str(home) not in json.dumps(checks)
    with sqlite3.connect(home / "journal.db") as database:
        [number] = database.execute(
            "select min(number) from entries where kind = 'sent'"
        ).fetchone()
        database.execute("update entries set facts = '{' where number = ?", (number,))
    database.close()
    with asked(home) as http:
        answer_ = http.get("/v1/standing")
        assert (
            answer_.status_code == 503
            and f"entry {number}" in answer_.json()["error"]["message"]
        )
        assert str(home) not in answer_.text and http.get("/health").status_code == 200


def test_nothing_is_written(home: Path) -> None:
    """Every address is asked, and every file of the folder is as it was; a new answer is seen all
    the same.
    """
    before = file_hashes(home)
    with asked(home) as http:
        for address in (*ADDRESSES, "/", "/health"):
            assert http.get(address).status_code == 200, address
            assert (
                http.post(address).status_code
                == http.delete(address).status_code
                == 405
            )
        assert file_hashes(home) == before
        seen = len(http.get("/v1/standing").json()["items"])
        sent = {
            "round": "cd" * 16,
            "number": 9,
            "kind": "here",
            "sha256": "ab" * 32,
            "bytes": 5,
        }
        Journal(home / "journal.db").append(("sent", sent))
        assert len(http.get("/v1/standing").json()["items"]) == seen + 1


def test_keys_and_hosts_guard_the_page_as_they_guard_serving(
    home: Path, tmp_path: Path
) -> None:
    """As `serve` does: the same rules, by the same guard."""
    key, _ = add_key(tmp_path / "keys.toml", "owner")
    with asked(
        home, make_rules("127.0.0.1", tmp_path / "keys.toml", hosts=["testserver"])
    ) as http:
        must_guard(http, key, ADDRESSES)
