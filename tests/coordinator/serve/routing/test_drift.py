"""Drift: what is told of recent prompts, when the alarm is raised, and that a release without a companion serves."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.settings import DEFAULT, Confidence
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.encoding.tokenizer import Ids, Tokenizer
from ridgeway.common.routing import drift_sketch
from ridgeway.common.routing.drift_sketch import companion
from ridgeway.common.routing.release import ROUTER, load_release
from ridgeway.coordinator.serve.http_app import create_app
from ridgeway.coordinator.serve.routing.current_release import CurrentRelease, ReleaseSource, ServedRelease
from ridgeway.coordinator.serve.routing.drift import (
    MAX_RECENT_LEVERAGES,
    MAX_RECENT_PROMPTS,
    MIN_PROMPTS_FOR_ALARM,
    SAMPLE_INTERVAL_S,
    DriftMonitor,
    DriftSettings,
    expected_share,
)
from ridgeway.coordinator.serve.routing.routing_service import RoutingService
from ridgeway.coordinator.solving.publish import RouterChoices, draft, issue
from tests.support.making import fixed_identity, prepared

CHOICES = RouterChoices(DEFAULT.weighting, DEFAULT.ridge, DEFAULT.normalise_columns, DEFAULT.selector, Confidence())
PROMPT = "a prompt of some tokens"


class Clock:
    """A clock that is told what time it is."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def folder(tmp_path: Path, encoder: TableEncoder) -> Path:
    made = draft([prepared("code", encoder, 1), prepared("law", encoder, 2)], encoder, CHOICES)
    issue(made, fixed_identity(), tmp_path / "release")
    return tmp_path / "release"


@pytest.fixture
def served(folder: Path) -> ServedRelease:
    return ReleaseSource(folder).open()


def telling(served: ServedRelease, value: float, usual: float = float("nan")) -> ServedRelease:
    """The same release, under which every prompt has this leverage: one direction, in which all tokens are alike."""
    assert served.leverage is not None
    rows = np.full((len(served.leverage.rows), 1), value**0.5, dtype=np.float16)
    return replace(served, leverage=replace(served.leverage, rows=rows, usual=usual))


def observed(
    served: ServedRelease, count: int, confidence: float = 0.9, settings: DriftSettings | None = None
) -> DriftMonitor:
    """So many prompts, far enough apart that each is measured."""
    clock = Clock()
    drift = DriftMonitor(settings or DriftSettings(), clock)
    for _ in range(count):
        clock.now += SAMPLE_INTERVAL_S
        drift.observe(served, [PROMPT], [confidence])
    return drift


# Confidence


def test_the_share_of_low_confidence_is_that_of_the_last_prompts(served: ServedRelease) -> None:
    """Older ones fall out, one by one."""
    drift = observed(served, MAX_RECENT_PROMPTS, 0.4)
    for _ in range(MAX_RECENT_PROMPTS // 4):
        drift.observe(served, [PROMPT], [0.9])
    told = drift.to_json()
    assert (told["prompts"], told["low_confidence_share"]) == (MAX_RECENT_PROMPTS, 0.75)


@pytest.mark.parametrize(("count", "alarm"), [(MIN_PROMPTS_FOR_ALARM - 1, False), (MIN_PROMPTS_FOR_ALARM, True)])
def test_few_prompts_raise_no_alarm(served: ServedRelease, count: int, alarm: bool) -> None:
    """All of them are of low confidence and far away, and still it takes some of them."""
    assert observed(served, count, 0.1).to_json()["alarm"] is alarm
    assert observed(telling(served, 9.0), count).to_json()["alarm"] is alarm


def test_the_usual_share_makes_room_for_what_the_release_gets_wrong(served: ServedRelease) -> None:
    """A calibrated router that errs in three of ten is often unsure; that is no drift."""
    manifest = {"evaluation": {"accuracy": 70.0}, "confidence": {"calibrated": True}}
    assert expected_share(manifest, 0.5) == pytest.approx(0.6)
    unsure = replace(served, release=replace(served.release, manifest={**served.release.manifest, **manifest}))
    assert DriftSettings().share_alarm(unsure) == pytest.approx(0.75)
    assert DriftSettings().share_alarm(served) == 0.25
    assert DriftSettings(share=0.1).share_alarm(unsure) == 0.1
    assert not observed(unsure, 100, 0.9).to_json()["alarm"]


# Leverage


def test_leverage_is_that_of_the_prompts(served: ServedRelease) -> None:
    """Mean over those that were sampled, by the release's own companion."""
    told = observed(served, 60).to_json()
    assert served.leverage is not None
    assert told["leverage"] == pytest.approx(served.leverage.of(served.router.tokenizer.encode(PROMPT)))
    assert told["leverage_prompts"] == 60
    assert told["leverage_alarm"] == 3.0


def test_the_alarm_is_a_quarter_over_held_out_text(served: ServedRelease) -> None:
    """Where that was measured; else a fixed one; and always what the operator says."""
    assert observed(telling(served, 2.0, usual=1.0), 60).to_json()["alarm"]
    assert not observed(telling(served, 2.0, usual=1.7), 60).to_json()["alarm"]
    assert not observed(telling(served, 2.0), 60).to_json()["alarm"]
    assert observed(telling(served, 2.0), 60, settings=DriftSettings(leverage=1.5)).to_json()["alarm"]
    assert not observed(telling(served, 2.0, usual=1.0), 60, settings=DriftSettings(leverage=5)).to_json()["alarm"]


def test_leverage_is_measured_on_few_prompts_a_second(served: ServedRelease) -> None:
    """However many come; each is counted for its confidence."""
    clock = Clock()
    drift = DriftMonitor(DriftSettings(), clock)
    for tick in range(1000):
        clock.now = 100 + tick / 1000
        drift.observe(served, [PROMPT], [0.9])
    told = drift.to_json()
    assert told["prompts"] == 1000
    assert 9 <= told["leverage_prompts"] <= 11


def test_only_recent_leverages_count(served: ServedRelease) -> None:
    """After enough prompts that are near, those that were far are forgotten."""
    clock, far = Clock(), "qqqqqqqqqqqqqqqqqqqq"
    drift = DriftMonitor(DriftSettings(), clock)
    for text in [far] * MAX_RECENT_LEVERAGES + [PROMPT] * MAX_RECENT_LEVERAGES:
        clock.now += SAMPLE_INTERVAL_S
        drift.observe(served, [text], [0.9])
    told = drift.to_json()
    assert told["leverage_prompts"] == MAX_RECENT_LEVERAGES
    assert served.leverage is not None
    assert told["leverage"] == pytest.approx(served.leverage.of(served.router.tokenizer.encode(PROMPT)))


def test_short_prompts_are_passed_over_and_long_ones_cut(
    served: ServedRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few tokens say too little, and five megabytes would hold up everybody else."""
    clock, seen = Clock(), list[int]()
    encode = served.router.tokenizer.encode

    def watched(self: Tokenizer, text: str) -> Ids:
        seen.append(len(text))
        return encode(text)

    monkeypatch.setattr(Tokenizer, "encode", watched)
    drift = DriftMonitor(DriftSettings(), clock)
    drift.observe(served, ["short"], [0.9])
    assert drift.to_json()["leverage_prompts"] == 0
    clock.now += SAMPLE_INTERVAL_S
    drift.observe(served, ["a long prompt " * 400_000], [0.9])
    assert drift.to_json()["leverage_prompts"] == 1
    assert max(seen) <= 2000


def test_a_new_release_begins_anew(served: ServedRelease) -> None:
    """What was told under the old one says nothing of the new one, even before the first prompt."""
    drift = observed(telling(served, 9.0), 100, 0.1)
    assert drift.to_json()["alarm"]
    after = drift.to_json(served)
    assert (after["prompts"], after["leverage"], after["alarm"]) == (0, None, False)
    drift.observe(served, [PROMPT], [0.9])
    assert drift.to_json()["prompts"] == 1


def test_a_late_answer_of_the_release_before_clears_nothing(served: ServedRelease) -> None:
    """A request that began under the old one may end after the first of the new one."""
    newer = replace(served, since=served.since + 1)
    drift = observed(newer, 60, 0.1)
    drift.observe(served, [PROMPT], [0.9])
    assert drift.to_json()["prompts"] == 60


@pytest.mark.parametrize("settings", [{"share": 0.0}, {"share": 1.5}, {"leverage": 0.0}, {"leverage": float("nan")}])
def test_alarms_that_cannot_be_are_refused(settings: dict[str, float]) -> None:
    """In one sentence, before anything is served."""
    with pytest.raises(InputError, match="--drift-"):
        DriftSettings(**settings)


# Serving


def test_a_release_without_a_companion_serves_and_says_so(folder: Path) -> None:
    """Leverage is null, in words: not available with this release."""
    companion(folder).unlink()
    told = observed(ReleaseSource(folder).open(), 100, 0.1).to_json()
    assert (told["leverage"], told["leverage_alarm"]) == (None, None)
    assert told["leverage_note"] == "not available with this release"
    assert told["alarm"]


def test_a_damaged_companion_does_not_stop_a_good_release(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One line in the log, without a path, and the release is served."""
    companion(folder).write_bytes(b"nonsense")
    with caplog.at_level(logging.WARNING, "ridgeway.serve"):
        served = ReleaseSource(folder).open()
    assert served.leverage is None
    assert len(caplog.records) == 1
    assert str(folder) not in caplog.text


def test_a_companion_of_another_tokenizer_is_not_used(folder: Path, served: ServedRelease) -> None:
    """Its table would end before the prompt's tokens do."""
    assert served.leverage is not None
    drift_sketch.save(folder, replace(served.leverage, rows=served.leverage.rows[:3]))
    assert ReleaseSource(folder).open().leverage is None


def test_a_new_release_brings_its_own_companion(folder: Path, encoder: TableEncoder) -> None:
    """It is there before the release is, so whoever takes the release has it."""
    current = CurrentRelease(ReleaseSource(folder))
    made = draft([prepared("code", encoder, 5), prepared("law", encoder, 6)], encoder, CHOICES)
    issue(made, fixed_identity(), folder)
    assert current.refresh()
    assert current.served.leverage is not None
    assert current.served.leverage.router == load_release(folder).manifest["files"][ROUTER]


def test_what_the_operator_says_of_confidence_holds_for_every_release(folder: Path) -> None:
    """A threshold and a fallback given to `serve` take the place of the release's own."""
    served = ReleaseSource(folder, changes={"threshold": 1.0, "fallback": "general"}).open()
    decision = served.router.route("abc")
    assert (decision.domain, decision.abstained) == ("general", True)
    assert served.id == ReleaseSource(folder).open().id
    with pytest.raises(InputError, match="name a fallback"):
        ReleaseSource(folder, changes={"threshold": 0.5}).open()


def test_metrics_and_activity_tell_of_drift(folder: Path) -> None:
    """Share, leverage and alarm for Prometheus; the same for the page."""

    async def asked() -> tuple[str, dict[str, object]]:
        service = RoutingService(ReleaseSource(folder), DriftSettings(leverage=1e-6), watch_s=0)
        clock = Clock()
        service.drift = DriftMonitor(DriftSettings(leverage=1e-6), clock)
        transport = httpx.ASGITransport(create_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client, service.running():
            for _ in range(MIN_PROMPTS_FOR_ALARM):
                clock.now += SAMPLE_INTERVAL_S
                reply = await client.post("/v1/route", json={"prompt": PROMPT})
                assert reply.status_code == 200, reply.text
            metrics = await client.get("/metrics")
            activity = await client.get("/v1/activity")
            return metrics.text, json.loads(activity.text)["drift"]

    metrics, drift = asyncio.run(asked())
    figures = dict(line.split(" ") for line in metrics.splitlines() if line.startswith("ridgeway_drift"))
    assert float(figures["ridgeway_drift_alarm"]) == 1
    assert float(figures["ridgeway_drift_leverage"]) == pytest.approx(drift["leverage"])
    assert drift["alarm"] is True
    assert drift["leverage_prompts"] == MIN_PROMPTS_FOR_ALARM
