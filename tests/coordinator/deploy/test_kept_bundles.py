"""Old and new code side by side: rounds run the newest bundle, or the one that the settings
name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ridgeway.common.base.errors import BundleError, InputError, LinkError
from ridgeway.common.base.files import canonical_json, write_whole
from ridgeway.common.deploy.bundle import (
    bundle_changes,
    installed_bundle,
    installed_sha256,
    unpacked_bundle,
)
from ridgeway.coordinator.deploy import supervisor
from ridgeway.coordinator.deploy.coordinator_folder import (
    _INDEX,
    MAX_KEPT,
    bundle_content,
    bundle_file,
    chosen_bundle,
    keep_installed,
    kept_bundles,
    server_folder,
)
from ridgeway.coordinator.deploy.superlink import Node
from ridgeway.coordinator.federation_page import problems
from ridgeway.coordinator.round.ask import RunOrder
from ridgeway.coordinator.round.federation import COORDINATOR_TOML, Federation
from ridgeway.coordinator.round.progress import Event, OperatorNote
from tests.support.simulated_federation import ONE_EACH, found, of_kind, populate

OLD = b"the bundle before"
OLD_SHA256 = hashlib.sha256(OLD).hexdigest()


class Link:
    """Stands for the SuperLink's client: takes bundles."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def is_up(self) -> bool:
        return True

    def nodes(self) -> list[Node]:
        return [Node(number, True, "", name) for number, name in enumerate(ONE_EACH)]

    def submit(self, bundle: bytes) -> int:
        self.ran.append(hashlib.sha256(bundle).hexdigest())
        return len(self.ran)


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    """One that has run with another bundle before, and was just upgraded."""
    made = populate(found(tmp_path), ONE_EACH).federation
    write_whole(bundle_file(made.link, OLD_SHA256), OLD)
    write_whole(made.link / _INDEX, canonical_json([{"sha256": OLD_SHA256}]))
    keep_installed(made)
    return made


def let_rounds_run(federation: Federation, bundle: str) -> Federation:
    """Change the setting."""
    path = federation.folder / COORDINATOR_TOML
    path.write_text(
        re.sub("(?m)^bundle = .*$", f'bundle = "{bundle}"', path.read_text())
    )
    return Federation(federation.folder)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Callable[[Federation], tuple[str, str]]:
    """Which bundle a round runs, and what the operator is told."""

    def run(federation: Federation) -> tuple[str, str]:
        link, said = Link(), list[Event]()
        monkeypatch.setattr(supervisor, "SuperLinkClient", lambda folder: link)
        monkeypatch.setattr(supervisor, "_follow", lambda *words: None)
        for name in ("register", "take_leaves", "ending_certificates"):
            monkeypatch.setattr(supervisor, name, lambda *words: ())
        supervisor.run_work(federation, RunOrder(work="round"), said.append)
        return link.ran[-1], " ".join(
            event.words for event in of_kind(OperatorNote, said)
        )

    return run


def test_rounds_run_the_newest_bundle(
    federation: Federation, ran: Callable[[Federation], tuple[str, str]]
) -> None:
    assert ran(federation) == (installed_sha256(), "")


def test_rounds_run_the_bundle_that_the_settings_name(
    federation: Federation, ran: Callable[[Federation], tuple[str, str]]
) -> None:
    """From the next round on, in words, until they name it no more."""
    bundle, words = ran(let_rounds_run(federation, OLD_SHA256))
    assert bundle == OLD_SHA256 and f"running the bundle {OLD_SHA256[:12]}" in words
    assert ran(let_rounds_run(federation, "newest")) == (installed_sha256(), "")


def test_a_bundle_that_is_not_kept_is_not_run(
    federation: Federation, ran: Callable[[Federation], tuple[str, str]]
) -> None:
    """Nor another in its place: a sentence names those that could."""
    with pytest.raises(
        InputError,
        match=f"which is not kept; those that are: {installed_sha256()}, {OLD_SHA256}",
    ):
        ran(let_rounds_run(federation, "ab" * 32))
    for words in (OLD_SHA256[:12], OLD_SHA256.upper(), "Newest", ""):
        with pytest.raises(InputError, match="bundle"):
            let_rounds_run(federation, words)


def test_a_few_earlier_bundles_are_kept_and_the_one_that_rounds_run(
    federation: Federation,
) -> None:
    """However old it is; the others go with the next start."""
    earlier = [bytes([number]) for number in range(4)]
    digests = [hashlib.sha256(content).hexdigest() for content in earlier]
    for content, digest in zip(earlier, digests, strict=True):
        write_whole(bundle_file(federation.link, digest), content)
    write_whole(
        federation.link / _INDEX,
        canonical_json([{"sha256": digest} for digest in digests]),
    )
    pinned = let_rounds_run(federation, digests[3])
    keep_installed(pinned)
    kept = [installed_sha256(), *digests[: MAX_KEPT - 1], digests[3]]
    assert [bundle.sha256 for bundle in kept_bundles(federation.link)] == kept
    assert not bundle_file(federation.link, digests[2]).exists()
    assert chosen_bundle(pinned) == digests[3]
    server = server_folder(federation.link, installed_sha256())
    assert (server / "ridgeway/coordinator/server_app.py").is_file()
    assert bundle_content(federation.link, installed_sha256()) == installed_bundle()
    keep_installed(let_rounds_run(federation, "newest"))
    assert [bundle.sha256 for bundle in kept_bundles(federation.link)] == kept[
        :MAX_KEPT
    ]


def test_that_an_earlier_bundle_runs_is_told(federation: Federation) -> None:
    """And that the one that is named is not there, which stops the next round."""

    def named(bundle: str) -> list[tuple[bool, str]]:
        changed = let_rounds_run(federation, bundle)
        return [
            (problem.stops, problem.words)
            for problem in problems(changed, ONE_EACH, None, datetime.now(UTC))
            if "certificate" not in problem.words
        ]

    assert named("newest") == []
    [(stops, words)] = named(OLD_SHA256)
    assert not stops and OLD_SHA256[:12] in words and installed_sha256()[:12] in words
    [(stops, words)] = named("ab" * 32)
    assert stops and "which is not kept" in words


def test_a_late_delivery_runs_what_rounds_run(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the setting was changed since `up`; who does not take it is asked ever more
    seldom.
    """
    link, now = Link(), [1e6]
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now[0])  # type: ignore[attr-defined]
    monkeypatch.setattr(supervisor.LateDelivery, "_missing", lambda self: {"law"})
    late = supervisor.LateDelivery(federation, lambda words: None)
    times = []
    for _ in range(40):
        before = len(link.ran)
        late.tick(link)  # type: ignore[arg-type]
        times += [now[0] - 1e6] * (len(link.ran) - before)
        now[0] += supervisor.DELIVERY_INTERVAL_S
        let_rounds_run(federation, OLD_SHA256)
    assert link.ran == [installed_sha256(), *[OLD_SHA256] * 3]
    assert times == [0.0, 60.0, 180.0, 420.0]


def test_a_damaged_bundle_is_noticed(federation: Federation) -> None:
    bundle_file(federation.link, OLD_SHA256).write_bytes(b"another")
    with pytest.raises(LinkError, match="damaged"):
        bundle_content(federation.link, OLD_SHA256)


def test_a_bundle_is_shown_whole_or_not_at_all() -> None:
    """What is packed differently from how it is shown, or holds more than it shows, is refused."""
    whole = installed_bundle()
    files = unpacked_bundle(whole)
    assert bundle_changes(files, files) == []
    for damaged in (
        whole + b"x",
        b"x" + whole,
        whole[:-1],
        whole.replace(b"import", b"imporT", 1),
        b"",
    ):
        with pytest.raises(BundleError):
            unpacked_bundle(damaged)


def test_changes_are_told_by_file_with_their_lines() -> None:
    old = {"a": b"1\n2\n3\n", "b": b"x\n", "c": b"same\n"}
    new = {"a": b"1\n3\n4\n5\n", "d": b"y\nz\n", "c": b"same\n"}
    changes = [
        (change.change, change.name, change.added, change.removed)
        for change in bundle_changes(old, new)
    ]
    assert changes == [
        ("changed", "a", 2, 1),
        ("removed", "b", 0, 1),
        ("added", "d", 2, 0),
    ]
