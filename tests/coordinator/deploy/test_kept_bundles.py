"""Old and new code side by side: rounds run the bundle that the fewest holders refuse, and the ledger knows who."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ridgeway.common.base.errors import BundleError, InputError, LinkError
from ridgeway.common.base.files import canonical_json, write_whole
from ridgeway.common.deploy.bundle import bundle_changes, installed_bundle, installed_sha256, unpacked_bundle
from ridgeway.common.deploy.notice import AnnouncedBundle
from ridgeway.coordinator.deploy import supervisor
from ridgeway.coordinator.deploy.kept_bundles import (
    _INDEX,
    bundle_content,
    bundle_file,
    keep_installed,
    kept_bundles,
    named_bundle,
    ranked,
    server_folder,
    waiting,
)
from ridgeway.coordinator.deploy.superlink_client import Node
from ridgeway.coordinator.page.problems import bundle_facts, problems
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.progress import AnswerRefused, Event, HolderPresent, OperatorNote, Watch
from ridgeway.coordinator.round.remedies import BUNDLE
from ridgeway.coordinator.round.run_order import RunOrder
from tests.support.simulated_federation import found, populate

OLD = b"the bundle before"
OLD_SHA256 = hashlib.sha256(OLD).hexdigest()
NAMES = ("code", "law", "medicine")


class Link:
    """Stands for the SuperLink's client: takes bundles, and lets holders answer as they have approved them."""

    def __init__(self, approved: dict[str, set[str]]) -> None:
        self.approved = approved
        self.ran: list[str] = []

    def nodes(self) -> list[Node]:
        return [Node(place, True, "", name) for place, name in enumerate(NAMES)]

    def submit(self, bundle: bytes) -> int:
        self.ran.append(hashlib.sha256(bundle).hexdigest())
        return len(self.ran)

    def follow(self, follower: object, client: object, number: int, watch: Watch) -> None:
        for node in self.nodes():
            if self.ran[-1] in self.approved[node.name]:
                watch(HolderPresent(node.name))
            else:
                watch(AnswerRefused("hello", node.name, BUNDLE, ""))


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    """One that has run with another bundle before, and was just upgraded."""
    parties = found(tmp_path)
    populate(parties, {name: name for name in NAMES})
    made = parties.federation()
    write_whole(bundle_file(made.link, OLD_SHA256), OLD)
    write_whole(made.link / _INDEX, canonical_json([{"sha256": OLD_SHA256}]))
    keep_installed(made)
    return made


@pytest.fixture
def choose(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, set[str]]], tuple[str, str]]:
    """Which bundle a round would run where holders have approved these, and what the operator is told."""

    def chosen(approved: dict[str, set[str]]) -> tuple[str, str]:
        link, said = Link(approved), list[Event]()
        monkeypatch.setattr(supervisor, "_follow", link.follow)
        found = supervisor._choose_bundle(federation, link, said.append)  # type: ignore[arg-type]
        supervisor._run(federation, link, RunOrder(work="round"), found, said.append)  # type: ignore[arg-type]
        return found, " ".join(each.words for each in said if isinstance(each, OperatorNote))

    return chosen


def test_rounds_change_to_the_new_bundle_when_nobody_refuses_it_any_more(
    federation: Federation, choose: Callable[[dict[str, set[str]]], tuple[str, str]]
) -> None:
    """Until then they run the earlier one, for everybody; who has not approved the new one is told by name."""
    new = installed_sha256()
    found, words = choose({name: {OLD_SHA256} for name in NAMES})
    assert found == OLD_SHA256 and "not approved yet by code, law, medicine" in words
    found, words = choose({"code": {OLD_SHA256}, "law": {OLD_SHA256, new}, "medicine": {OLD_SHA256, new}})
    assert found == OLD_SHA256 and "not approved yet by code" in words and "medicine" not in words
    assert choose({name: {OLD_SHA256, new} for name in NAMES}) == (new, "")
    assert waiting(new, federation.ledger.standing()) == []
    assert federation.ledger.verify()


def test_one_that_refuses_both_bundles_does_not_keep_the_others_from_the_new_one(
    choose: Callable[[dict[str, set[str]]], tuple[str, str]],
) -> None:
    """Nor does one that came with the new one, and knows no other: before a round turns back, both are tried."""
    new = installed_sha256()
    found, words = choose({"code": set(), "law": {new}, "medicine": {OLD_SHA256, new}})
    assert found == new and "not approved yet by code" in words


def test_a_bundle_that_everybody_has_approved_stands_alone(
    federation: Federation, choose: Callable[[dict[str, set[str]]], tuple[str, str]]
) -> None:
    """The earlier one goes with the next start, and not before."""
    keep_installed(federation)
    assert [each.sha256 for each in kept_bundles(federation.link)] == [installed_sha256(), OLD_SHA256]
    choose({name: {installed_sha256()} for name in NAMES})
    keep_installed(federation)
    assert [each.sha256 for each in kept_bundles(federation.link)] == [installed_sha256()]
    assert not bundle_file(federation.link, OLD_SHA256).exists()
    assert (server_folder(federation.link, installed_sha256()) / "ridgeway/coordinator/server_app.py").is_file()
    assert bundle_content(federation.link, installed_sha256()) == installed_bundle()


def test_where_nothing_is_known_the_newest_runs(federation: Federation) -> None:
    assert ranked(kept_bundles(federation.link), federation.ledger.standing())[0] == installed_sha256()


def test_before_holders_were_asked_about_a_new_bundle_the_approved_one_is_named(federation: Federation) -> None:
    """As the next round will, if they refuse the new one; once they are heard, what they said counts."""
    note = federation.ledger.note
    note("bundle", sha256=OLD_SHA256, approved=list(NAMES), refused=[])
    told = {"newest": installed_sha256(), "in_use": OLD_SHA256, "waiting": sorted(NAMES)}
    assert bundle_facts(federation) == told
    note("bundle", sha256=installed_sha256(), approved=["code"], refused=[])
    assert bundle_facts(federation) == told | {"in_use": installed_sha256(), "waiting": ["law", "medicine"]}
    note("bundle", sha256=installed_sha256(), approved=[], refused=["law"])
    assert bundle_facts(federation) == told | {"waiting": ["law", "medicine"]}


def test_a_bundle_is_a_problem_once_it_is_refused_or_an_earlier_one_runs(federation: Federation) -> None:
    """A first bundle that nobody was asked about stands in nobody's way: invitations name it."""

    def told() -> list[tuple[str, tuple[str, ...]]]:
        now = datetime.now(UTC)
        found = problems(federation, frozenset(NAMES), None, now)
        return [(each.words, each.names) for each in found if each.words.startswith("bundle ")]

    note = federation.ledger.note
    newest = f"bundle {installed_sha256()[:12]} is not approved"
    assert told() == []
    note("bundle", sha256=installed_sha256(), approved=["code"], refused=["law"])
    assert told() == [(f"{newest} yet; rounds run the earlier bundle {OLD_SHA256[:12]}", ("law", "medicine"))]
    note("bundle", sha256=OLD_SHA256, approved=[], refused=["law", "medicine"])
    assert told() == [(newest, ("law",))]


def test_a_late_delivery_tries_one_bundle_after_the_other(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is heard of refusals there, so a holder that takes only one of them is served at the second try."""
    link, now = Link({}), [1e6]
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now[0])  # type: ignore[attr-defined]
    monkeypatch.setattr(supervisor.LateDelivery, "_missing", lambda self: {"law"})
    late = supervisor.LateDelivery(federation, lambda words: None)
    for _ in range(10):
        late.tick(link)  # type: ignore[arg-type]
        now[0] += supervisor.DELIVERY_INTERVAL_S
    assert link.ran == [installed_sha256(), OLD_SHA256] * 2


def test_a_bundle_is_named_by_its_first_digits_and_damage_is_noticed(federation: Federation) -> None:
    kept = (AnnouncedBundle(sha256="ab" * 32), AnnouncedBundle(sha256="ac" * 32))
    assert named_bundle(kept, "AB") == "ab" * 32
    for digits in ("a", "b"):
        with pytest.raises(InputError, match="of the available bundles"):
            named_bundle(kept, digits)
    bundle_file(federation.link, OLD_SHA256).write_bytes(b"another")
    with pytest.raises(LinkError, match="damaged"):
        bundle_content(federation.link, OLD_SHA256)


def test_a_bundle_is_shown_whole_or_not_at_all() -> None:
    """What is packed differently from how it is shown, or holds more than it shows, is refused."""
    own = installed_bundle()
    files = unpacked_bundle(own)
    assert bundle_changes(files, files) == []
    for damaged in (own + b"x", b"x" + own, own[:-1], own.replace(b"import", b"imporT", 1), b""):
        with pytest.raises(BundleError):
            unpacked_bundle(damaged)


def test_changes_are_told_by_file_with_their_lines() -> None:
    old = {"a": b"1\n2\n3\n", "b": b"x\n", "c": b"same\n"}
    new = {"a": b"1\n3\n4\n5\n", "d": b"y\nz\n", "c": b"same\n"}
    told = [(each.change, each.name, each.added, each.removed) for each in bundle_changes(old, new)]
    assert told == [("changed", "a", 2, 1), ("removed", "b", 0, 1), ("added", "d", 2, 0)]
