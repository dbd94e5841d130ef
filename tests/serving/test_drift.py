"""Drift: what is told of recent prompts, and when the alarm is raised."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ridgeway.common.base.errors import InputError
from ridgeway.common.routing.decision import _OUT_OF_SCOPE, Decision
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.coordinator.solving.solve import draft, sign
from ridgeway.serving import routing_service
from ridgeway.serving.routing_service import (
    MAX_RECENT_PROMPTS,
    MIN_PROMPTS_FOR_ALARM,
    DriftMonitor,
    ReleaseSource,
    RoutingService,
    ServedRelease,
    expected_share,
    share_alarm,
)
from tests.support.in_process import client_of
from tests.support.making import USUAL_CHOICES, fixed_identity, prepared

PROMPT = "a prompt of some tokens"


@pytest.fixture
def folder(tmp_path: Path, encoder: TableEncoder) -> Path:
    parts = [prepared("code", encoder, 1), prepared("law", encoder, 2)]
    sign(draft(parts, encoder, USUAL_CHOICES), fixed_identity(), tmp_path / "release")
    return tmp_path / "release"


@pytest.fixture
def served(folder: Path) -> ServedRelease:
    return ReleaseSource(folder).open()


def decided(confidence: float, reason: str | None = None) -> Decision:
    scores = {"law": confidence}
    abstains = reason is not None
    return Decision("law", confidence, scores, abstains, "law", 9, None, reason)


def observed(
    served: ServedRelease, count: int, confidence: float = 0.9
) -> DriftMonitor:
    """After so many prompts of one confidence."""
    drift = DriftMonitor()
    for _ in range(count):
        drift.observe(served, [decided(confidence)])
    return drift


def shares(drift: DriftMonitor, served: ServedRelease) -> tuple[float, bool]:
    facts = drift.to_json(served)
    return facts["out_of_scope_share"], facts["alarm"]


def test_the_share_of_low_confidence_is_that_of_the_last_prompts(
    served: ServedRelease,
) -> None:
    """Older ones fall out, one by one."""
    drift = observed(served, MAX_RECENT_PROMPTS, 0.4)
    for _ in range(MAX_RECENT_PROMPTS // 4):
        drift.observe(served, [decided(0.9)])
    facts = drift.to_json(served)
    assert facts["prompts"] == MAX_RECENT_PROMPTS
    assert facts["low_confidence_share"] == 0.75


def test_prompts_that_belong_to_no_domain_raise_the_alarm(
    served: ServedRelease,
) -> None:
    """However sure the router is of them."""
    drift = observed(served, MIN_PROMPTS_FOR_ALARM, 0.9)
    assert shares(drift, served) == (0, False)
    drift.observe(served, [decided(0.9, _OUT_OF_SCOPE)] * MIN_PROMPTS_FOR_ALARM)
    assert shares(drift, served) == (0.5, True)


@pytest.mark.parametrize(
    ("count", "alarm"),
    [(MIN_PROMPTS_FOR_ALARM - 1, False), (MIN_PROMPTS_FOR_ALARM, True)],
)
def test_few_prompts_raise_no_alarm(
    served: ServedRelease, count: int, alarm: bool
) -> None:
    """All of them are of low confidence, and still it takes some of them."""
    assert observed(served, count, 0.1).to_json(served)["alarm"] is alarm


def test_the_usual_share_makes_room_for_what_the_release_gets_wrong(
    served: ServedRelease,
) -> None:
    """A calibrated router that errs in three of ten is often unsure; that is no drift."""
    manifest = {"evaluation": {"accuracy": 70.0}, "confidence": {"calibrated": True}}
    assert expected_share(manifest) == pytest.approx(0.6)
    whole = {**served.release.manifest, **manifest}
    unsure = replace(served, release=replace(served.release, manifest=whole))
    assert share_alarm(unsure, None) == pytest.approx(0.75)
    assert share_alarm(served, None) == 0.25
    assert share_alarm(unsure, 0.1) == 0.1
    assert not observed(unsure, 100, 0.9).to_json(unsure)["alarm"]


def test_a_new_release_begins_anew(served: ServedRelease) -> None:
    """What was told under the old one says nothing of the new one, even before the first prompt."""
    drift = observed(served, 100, 0.1)
    assert drift.to_json(served)["alarm"]
    newer = replace(served, since=served.since + 1)
    after = drift.to_json(newer)
    assert (after["prompts"], after["low_confidence_share"]) == (0, None)
    assert not after["alarm"]
    drift.observe(newer, [decided(0.9)])
    assert drift.to_json(newer)["prompts"] == 1


def test_a_late_answer_of_the_release_before_clears_nothing(
    served: ServedRelease,
) -> None:
    """A request that began under the old one may end after the first of the new one."""
    newer = replace(served, since=served.since + 1)
    drift = observed(newer, 60, 0.1)
    drift.observe(served, [decided(0.9)])
    assert drift.to_json(newer)["prompts"] == 60


# Serving


def test_what_the_operator_says_of_confidence_holds_for_every_release(
    folder: Path,
) -> None:
    """A threshold and a fallback given to `serve` take the place of the release's own."""
    served = ReleaseSource(
        folder, changes={"threshold": 1.0, "fallback": "general"}
    ).open()
    decision = served.router.route("abc")
    assert (decision.domain, decision.abstained) == ("general", True)
    assert served.id == ReleaseSource(folder).open().id
    with pytest.raises(InputError, match="name a fallback"):
        ReleaseSource(folder, changes={"threshold": 0.5}).open()


def test_metrics_and_activity_tell_of_drift(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Share and alarm for Prometheus; the same for the page."""
    monkeypatch.setattr(routing_service, "LOW_BELOW", 2.0)

    service = RoutingService(ReleaseSource(folder), watch_s=0)
    with client_of(service) as client:
        for _ in range(MIN_PROMPTS_FOR_ALARM):
            reply = client.post("/v1/route", json={"prompt": PROMPT})
            assert reply.status_code == 200, reply.text
        metrics = client.get("/metrics").text
        drift = client.get("/v1/activity").json()["drift"]
    figures = dict(
        line.split(" ")
        for line in metrics.splitlines()
        if line.startswith("ridgeway_drift")
    )
    assert float(figures["ridgeway_drift_alarm"]) == 1
    assert float(figures["ridgeway_drift_low_confidence_ratio"]) == 1
    assert drift["low_confidence_share"] == 1
    assert drift["alarm"] is True
    assert drift["prompts"] == MIN_PROMPTS_FOR_ALARM
