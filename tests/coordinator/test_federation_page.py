"""The operator's page over HTTP, in this process: what it says of a folder, and that it changes
nothing in it.
"""

from __future__ import annotations

import fcntl
import json
import re
import socket
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from ridgeway.common.base.errors import InputError, RoundFailed
from ridgeway.common.base.journal import system_clock
from ridgeway.common.base.records import MODE_SENTENCES
from ridgeway.common.deploy.processes import free_port
from ridgeway.common.web.api_keys import AccessRules, add_key, make_rules
from ridgeway.common.web.site import create_page_app
from ridgeway.coordinator.deploy.authority import create_authority
from ridgeway.coordinator.federation_page import (
    FederationView,
    federation_page,
    serve_metrics,
)
from ridgeway.coordinator.history import domain_accuracies, noisy_mean
from ridgeway.coordinator.round.progress import progress_file
from tests.support.faults import let_join
from tests.support.hostile import MEMBERS
from tests.support.pages import UNSAFE_OPTIONS, file_hashes, must_guard, page_refusal
from tests.support.simulated_federation import (
    DOMAINS,
    Direct,
    Parties,
    found,
    round_of,
)

ROOT = Path(__file__).resolve().parents[2]
ADDRESSES = (
    "/v1/standing",
    "/v1/rounds",
    "/v1/releases",
    "/v1/ledger",
    "/v1/ledger/verification",
    "/metrics",
)
HOSTILE = "<script>alert(1)</script>"


@contextmanager
def asked(
    parties: Parties,
    online: Collection[str] | None = (),
    rules: AccessRules | None = None,
    **more: Any,
) -> Iterator[TestClient]:
    """The page of a federation in which these holders are connected; None: the coordinator is
    down.
    """
    there = None if online is None else frozenset(online)
    view = FederationView(parties.federation, lambda: there, **more)
    with TestClient(create_page_app(federation_page(view), rules)) as http:
        yield http


def standing(parties: Parties, online: Collection[str] | None = (), **more: Any) -> Any:
    with asked(parties, online, **more) as http:
        return http.get("/v1/standing").json()


def metric(http: TestClient, name: str, **labels: str) -> float | None:
    families = text_string_to_metric_families(http.get("/metrics").text)
    samples = [
        sample
        for family in families
        for sample in family.samples
        if sample.name == f"ridgeway_{name}"
    ]
    return next((sample.value for sample in samples if sample.labels == labels), None)


def words_of(standing: Any) -> str:
    return " ".join(
        f"{problem['words']} {problem['remedy']}" for problem in standing["obstacles"]
    )


def test_a_new_folder_has_words_for_everything_that_is_not_there_yet(
    tmp_path: Path,
) -> None:
    """No member, no round, no release: the page answers, and says what comes first."""
    parties = found(tmp_path, mode="masked")
    with asked(parties, None) as http:
        now = http.get("/v1/standing").json()
        values = [now[name] for name in ("members", "round", "release", "up")]
        assert values == [[], None, None, False]
        for path in ("/v1/rounds", "/v1/releases"):
            assert http.get(path).json() == []
        assert http.get("/v1/ledger/verification").json()["valid"] is True
        assert metric(http, "members") == metric(http, "release_number") == 0
        assert metric(http, "last_round_seconds") is None
    for words in ("0 holders are on the roster", "ridgeway coordinator up"):
        assert words in words_of(now)


def test_members_their_releases_and_who_is_online_are_shown(later: Parties) -> None:
    """As the ledger and the SuperLink have them."""
    now = standing(later, {"code-1", "law-1"})
    members = {member["name"]: member for member in now["members"]}
    assert set(members) == set(MEMBERS)
    for name, member in members.items():
        assert member["online"] == (name in ("code-1", "law-1"))
        assert member["release"] == 1 and member["in_newest"]
        assert not member["behind"] and "weight" not in member
    assert now["round"]["outcome"] == "released" and now["release"] == 1
    assert (now["mode"], now["sentence"]) == ("masked", MODE_SENTENCES["masked"])


def test_holders_that_are_away_are_named_and_a_lost_domain_stops_the_round(
    later: Parties,
) -> None:
    """medicine has one holder: without it the newest release would lose its domain."""
    obstacles = standing(later, set(MEMBERS) - {"medicine", "law-2"})["obstacles"]
    assert [(problem["stops"], problem["names"]) for problem in obstacles] == [
        (True, ["medicine"]),
        (False, ["law-2", "medicine"]),
    ]
    assert "--allow-missing" in obstacles[0]["remedy"]
    assert standing(later, set(MEMBERS))["obstacles"] == []


def test_a_refusal_is_shown_with_its_remedy_and_is_never_more_than_text(
    later: Parties,
) -> None:
    """What a holder says of itself may hold anything: it is JSON, and no browser may take it for
    something else.
    """
    ledger = later.ledger
    ledger.note("opened", round="n2", number=2, terms={"mode": "masked"})
    facts = {"round": "n2", "step": "announce", "reason": HOSTILE}
    for name in ("law-1", "law-2"):
        ledger.note("refused", name=name, code="not_pinned", **facts)
    ledger.note("refused", name=None, code="unknown_holder", **facts)
    ledger.note("closed", round="n2", release=None, reason="too few holders")
    with asked(later, set(MEMBERS)) as http:
        answer = http.get("/v1/standing")
        assert metric(http, "round_refusals_total", code="not_pinned") == 2
        for outcome in ("failed", "released"):
            assert metric(http, "rounds_total", outcome=outcome) == 1
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    now = answer.json()
    refusal = next(
        member["refusal"] for member in now["members"] if member["name"] == "law-1"
    )
    assert refusal["reason"] == HOSTILE
    assert "ridgeway client members" in refusal["remedy"]
    [problem] = [shown for shown in now["obstacles"] if HOSTILE in shown["words"]]
    assert problem["names"] == ["law-1", "law-2"]
    assert "round 2 failed: too few holders" in words_of(now)


def test_a_round_is_followed_as_it_runs_and_a_dead_one_is_said_to_be_dead(
    later: Parties,
) -> None:
    """Another process runs it: its events are in a file, and it holds the folder's lock for as long
    as it lives.
    """
    federation = later.federation
    federation.ledger.note("opened", round="n2", number=2, terms={"mode": "masked"})
    path = federation.progress("20300101-000000-abcdef")
    path.parent.mkdir(exist_ok=True)
    terms = federation.terms.model_dump(mode="json")
    events: list[dict[str, Any]] = [
        {"event": "opened", "number": 2, "holders": 5, **terms},
        *(
            {"event": "offered", "name": name, "domain": MEMBERS[name]}
            for name in ("code-1", "law-1")
        ),
        {"event": "sealed", "name": "law-1", "lot": "statistics", "bytes": 1000},
        {
            "event": "refused",
            "step": "announce",
            "name": "law-2",
            "code": "not_pinned",
            "reason": HOSTILE,
        },
    ]
    lines = "".join(json.dumps(event) + "\n" for event in events)
    path.write_text(lines + '{"event": "offer')
    with (later.folder / "coordinator/lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with asked(later) as http:
            running = http.get("/v1/standing").json()["round"]
            assert metric(http, "round_running") == 1
            assert metric(http, "rounds_total", outcome="cut off") is None
    dead = standing(later)
    assert (running["outcome"], dead["round"]["outcome"]) == ("running", "cut off")
    assert running["progress"]["stages"] == [
        {"name": "ready", "done": 2, "of": 5},
        {"name": "sealed statistics", "done": 1, "of": 5},
    ]
    states = {member["name"]: member["in_round"] for member in dead["members"]}
    assert states["law-1"] == "sealed statistics"
    assert states["law-2"] == "refused: not_pinned"
    assert ["round", "2", "5 holders", "encoder tiny"] in running["progress"]["lines"]
    assert ["mode", "masked", MODE_SENTENCES["masked"]] in running["progress"]["lines"]
    assert "round 2 was interrupted" in words_of(dead)


def test_looking_does_not_keep_a_round_from_beginning(later: Parties) -> None:
    """A page that is open while a round begins takes nothing from it: neither the folder nor the
    ledger.
    """
    with asked(later, set(MEMBERS)) as http:
        http.get("/v1/standing")
        with later.federation.exclusive_lock(patience=0.0):
            assert http.get("/v1/standing").status_code == 200


def test_a_real_round_leaves_its_steps(later: Parties) -> None:
    """The events that a round writes are those that the page reads, the last word of a failure
    among them.
    """
    path = later.federation.progress("20300101-000000-abcdef")
    with pytest.raises(RoundFailed), progress_file(path) as watch:
        round_of(later, Direct(later, ["code-1"]), watch)
    now = standing(later)
    assert now["round"]["number"] == 2 and now["round"]["outcome"] == "failed"
    assert {"name": "ready", "done": 1, "of": 5} in now["round"]["progress"]["stages"]
    assert now["round"]["progress"]["lines"][-1][0] == "failed"
    assert [
        member["absent"] for member in now["members"] if member["name"] == "law-1"
    ] == [["announce"]]


def test_releases_have_accuracies_with_their_doubt(later: Parties) -> None:
    """Shares of the held-out counts in the manifest, and the interval that so few texts allow."""
    with asked(later) as http:
        [made] = http.get("/v1/releases").json()
    manifest = json.loads(
        (later.folder / "coordinator/releases/0001/manifest.json").read_bytes()
    )
    evaluation = manifest["evaluation"]
    for index, name in enumerate(evaluation["order"]):
        row, shown = evaluation["confusion"][index], made["accuracies"][name]
        assert shown["texts"] == sum(row) and shown["share"] == row[index] / sum(row)
        assert shown["low"] < shown["share"] <= shown["high"] + 1e-9
    assert 100 * made["mean"]["share"] == pytest.approx(evaluation["accuracy"])
    assert made["settings"]["λ"] == "0.01 of the mean diagonal" and made["whole"]


def test_who_waits_for_its_next_epoch_is_shown_in_the_round(later: Parties) -> None:
    """Where the round goes on without it."""
    later.new_epochs(*set(MEMBERS) - {"law-2"})
    with progress_file(later.federation.progress("20300101-000000-abcdef")) as watch:
        round_of(later, watch=watch)
    now = standing(later, set(MEMBERS))
    states = {member["name"]: member["in_round"] for member in now["members"]}
    assert states["law-2"] == "waits for its next epoch"
    assert states["law-1"] == "sealed counts"
    stages = now["round"]["progress"]["stages"]
    assert {"name": "sealed counts", "done": 4, "of": 5} in stages


def test_an_interval_that_a_manifest_names_is_the_one_that_is_shown() -> None:
    """Noise makes it wider than the number of texts would; that of the mean is the manifest's,
    too.
    """
    evaluation: dict[str, Any] = {
        "order": ["code", "law"],
        "confusion": [[90, 10], [10, 90]],
        "domains": {"code": 70.0, "law": 90.0},
        "accuracy": 80.0,
    }
    manifest = {"evaluation": evaluation}
    plain = domain_accuracies(manifest)["code"]
    assert plain["share"] == 0.9 and plain["low"] > 0.8
    assert noisy_mean(manifest) is None
    evaluation["intervals"] = {"code": [40.0, 100.0], "law": [80.0, 100.0]}
    evaluation["interval"] = [60.0, 95.0]
    shown = domain_accuracies(manifest)["code"], noisy_mean(manifest)
    names = ("share", "low", "high", "texts")
    assert shown == (
        dict(zip(names, (0.7, 0.4, 1.0, 100), strict=True)),
        dict(zip(names, (0.8, 0.6, 0.95, 200), strict=True)),
    )


def test_what_changed_between_two_releases_is_told(later: Parties) -> None:
    """Members, sums and domains; a release that is not there is an answer too."""
    let_join(later, ("law-3", "poetry"))
    later.new_epochs(*MEMBERS)
    round_of(later, accept_worse=DOMAINS)
    with asked(later) as http:
        changes = http.get("/v1/releases/1/2").json()
        assert changes["members"] == {
            "joined": ["law-3", "poetry"],
            "left": [],
            "changed": sorted(MEMBERS),
        }
        assert changes["domains"] == {"added": ["poetry"], "lost": []}
        assert http.get("/v1/releases/2/1").json()["domains"] == {
            "added": [],
            "lost": ["poetry"],
        }
        [law] = [row for row in changes["accuracies"] if row["domain"] == "law"]
        assert law["change"] == law["after"]["share"] - law["before"]["share"]
        assert law["doubt"] > 0
        missing = http.get("/v1/releases/1/9")
        assert missing.status_code == 404
        assert "no release 9" in missing.json()["error"]["message"]


def test_a_release_that_is_gone_or_altered_is_said_to_be(later: Parties) -> None:
    """Its accuracies are not invented, and the verification names it."""
    path = later.folder / "coordinator/releases/0001/manifest.json"
    path.write_bytes(path.read_bytes().replace(b"null", b"true", 1))
    with asked(later) as http:
        [made] = http.get("/v1/releases").json()
        assert not made["whole"] and made["mean"] is None
        assert "release 0001" in http.get("/v1/ledger/verification").json()["words"]


def test_metrics_tell_what_alerts_need(later: Parties, tmp_path: Path) -> None:
    """The last round and its outcome, the age of the release, whose budget is spent, a rollback, an
    altered ledger.
    """
    with asked(later, set(MEMBERS)) as http:
        made = later.standing.releases[-1]
        seconds = datetime.fromisoformat(made.time).timestamp()
        assert metric(http, "release_timestamp_seconds") == seconds
        assert metric(http, "last_round_outcome", outcome="released") == 1
        for name in ("ledger_valid", "members_without_budget", "rolled_back"):
            assert metric(http, name) == float(name == "ledger_valid"), name
        last = later.entries("opened")[-1]["round"]
        spent = {"name": "law-1", "code": "budget_spent", "reason": ""}
        later.ledger.note("refused", round=last, step="announce", **spent)
        again = replace(made, number=2, cause="rolled back to 0001")
        later.ledger.note("released", **again.to_json())
        for name in ("members_without_budget", "rolled_back"):
            assert metric(http, name) == 1
        later.ledger.note("opened", round="ab" * 16, number=2, terms={"mode": "masked"})
        assert metric(http, "last_round_outcome", outcome="cut off") == 1
        alter(
            later.folder,
            "update entries set time = replace(time, '20', '21') where number = 3",
        )
        assert metric(http, "ledger_valid") == 0


def test_a_running_coordinator_tells_metrics_on_loopback(later: Parties) -> None:
    """On the port that was asked for; one that is taken is a sentence."""
    port = free_port()
    view = FederationView(later.federation, lambda: frozenset(MEMBERS))
    serve_metrics(view, port)
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    exported = {
        sample.name
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    rules = yaml.safe_load(
        (ROOT / "packages/prometheus/ridgeway-coordinator.rules.yaml").read_text()
    )
    [group] = rules["groups"]
    names = {
        name
        for rule in group["rules"]
        for name in re.findall(r"ridgeway_\w+", rule["expr"])
    }
    assert names - {"ridgeway_certificate_days_left"} <= exported, (
        "a simulation has no certificates"
    )
    for rule in group["rules"]:
        assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
    with pytest.raises(InputError, match=f"port {port}"):
        serve_metrics(view, port)


def alter(folder: Path, change: str) -> None:
    with sqlite3.connect(folder / "coordinator/ledger.db") as database:
        database.execute(change)
    database.close()


def test_a_ledger_that_cannot_be_read_is_a_sentence_and_no_secret(
    later: Parties,
) -> None:
    """Every part says so; that the process lives is still told."""
    alter(later.folder, "update entries set facts = '{' where number = 3")
    with asked(later) as http:
        for address in ADDRESSES[:4]:
            answer = http.get(address)
            assert answer.status_code == 503
            assert "entry 3" in answer.json()["error"]["message"]
            for secret in (str(later.folder), "Traceback"):
                assert secret not in answer.text
        assert http.get("/v1/ledger/verification").json()["valid"] is False
        assert (metric(http, "ledger_valid"), metric(http, "members")) == (0.0, None)
        assert http.get("/health").json() == {"status": "ok"}


def test_the_ledger_is_read_page_by_page(later: Parties) -> None:
    """The newest first, every entry once, the last page says that it is the last."""
    ledger = later.ledger
    for number in range(250):
        ledger.note("note", number=number)
    with asked(later) as http:
        numbers: list[int] = []
        before = ""
        while True:
            page = http.get(f"/v1/ledger{before}").json()
            numbers += [row["number"] for row in page["rows"]]
            if not page["older"]:
                break
            before = f"?before={numbers[-1]}"
    assert numbers == list(range(page["entries"], 0, -1))


def test_certificates_that_end_are_spoken_of(later: Parties) -> None:
    """With the days that are left, in the metrics too; one that has ended stops every round."""
    link = later.folder / "coordinator/link"
    create_authority(link, ["127.0.0.1"])
    soon, over = (
        lambda days=days: system_clock() + timedelta(days=days) for days in (700, 800)
    )
    assert "renew" not in words_of(standing(later, set(MEMBERS)))
    now = standing(later, set(MEMBERS), clock=soon)
    assert "the certificate of the server expires in" in words_of(now)
    assert not any(problem["stops"] for problem in now["obstacles"])
    ended = standing(later, set(MEMBERS), clock=over)
    assert [problem["stops"] for problem in ended["obstacles"]] == [True]
    assert str(later.folder) not in words_of(ended)
    with asked(later, clock=soon) as http:
        days = metric(http, "certificate_days_left", certificate="server")
    assert days == pytest.approx(30, abs=1)


def test_nothing_is_written(later: Parties) -> None:
    """Every address is asked, and every file of the folder is as it was."""
    before = file_hashes(later.folder / "coordinator")
    with asked(later, set(MEMBERS)) as http:
        for address in (*ADDRESSES, "/v1/releases/1/1", "/", "/health"):
            assert http.get(address).status_code == 200, address
        for address in ADDRESSES:
            for method in ("POST", "DELETE"):
                assert http.request(method, address).status_code == 405
    assert file_hashes(later.folder / "coordinator") == before


def test_keys_and_hosts_guard_the_page_as_they_guard_serving(
    later: Parties, tmp_path: Path
) -> None:
    """As `serve` does: the same rules, by the same guard."""
    keys = tmp_path / "keys.toml"
    key, _ = add_key(keys, "operator")
    rules = make_rules("127.0.0.1", keys, hosts=["testserver"])
    with asked(later, rules=rules) as http:
        must_guard(http, key, (*ADDRESSES, "/v1/releases/1/1"))


@pytest.mark.parametrize(("options", "words"), UNSAFE_OPTIONS)
def test_options_that_would_not_be_safe_are_refused(
    later: Parties, options: tuple[str, ...], words: str
) -> None:
    """One sentence and exit code 2, before anything listens."""
    assert words in page_refusal(later.federation.folder, *options)


def test_a_folder_that_is_none_and_a_port_in_use_are_one_sentence_each(
    later: Parties, tmp_path: Path
) -> None:
    """Exit code 2."""
    assert "is not a coordinator's folder" in page_refusal(tmp_path / "nothing")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        folder = later.federation.folder
        refused = page_refusal(folder, "--port", str(port))
    assert f"port {port} is in use on 127.0.0.1" in refused
