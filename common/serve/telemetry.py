"""What is counted: metrics for Prometheus, and the last minutes of decisions for the page.

Holds no prompt.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import Counter, Histogram, Info

from ridgeway.common.http.request_metrics import REQUEST_BUCKETS_S, RequestMetrics

ROUTING_BUCKETS_S = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    1.0,
)
SOUND_OUTCOMES = ("ok", "mistake", "gone")
"""Of requests to experts: answered, refused for the client's mistake, given up by the client."""
STEP_S = 5
MAX_STEPS = 60
MAX_TIMES_PER_STEP = 256
"""Of more times in a step, the latest are kept."""


class Metrics(RequestMetrics):
    """What Prometheus reads of a service that routes."""

    def __init__(self) -> None:
        super().__init__()
        counter = self.counter
        gauge = self.gauge
        histogram = self.histogram
        expert = ("expert",)
        self.routing_seconds = histogram(
            "routing_seconds",
            "From the prompts of a request to their decisions.",
            buckets=ROUTING_BUCKETS_S,
        )
        self.decisions = counter(
            "decisions",
            "Decisions, by domain; an abstention by the fallback, or none.",
            ("domain",),
        )
        self.decisions_by_router = counter(
            "decisions_by_router",
            "Decisions by the table, and by the sentence encoder.",
            ("router",),
        )
        self.abstentions = counter(
            "abstentions", "Decisions that the confidence was too low for."
        )
        self.release = Info(
            "ridgeway_release", "The release in use.", registry=self.registry
        )
        self.release_since = gauge(
            "release_timestamp_seconds", "When the release in use was taken."
        )
        self.refused_releases = counter("refused_releases", "New releases refused.")
        self.low_confidence = gauge(
            "drift_low_confidence_ratio", "Share of recent prompts of low confidence."
        )
        self.out_of_scope = gauge(
            "drift_out_of_scope_ratio",
            "Share of recent prompts that belong to no domain.",
        )
        self.alarm = gauge(
            "drift_alarm",
            "1 while recent prompts are too far from the text of the release.",
        )
        self.expert_requests = counter(
            "expert_requests", "Requests to experts, by outcome.", ("expert", "outcome")
        )
        self.expert_seconds = histogram(
            "expert_seconds",
            "From a request to an expert to the head of its answer.",
            expert,
            buckets=REQUEST_BUCKETS_S,
        )
        self.expert_up = gauge(
            "expert_up", "0 while an expert is not asked because it failed.", expert
        )
        self.expert_addresses_up = gauge(
            "expert_addresses_up",
            "Addresses of an expert that are asked now.",
            expert,
        )
        self.first_token_seconds = histogram(
            "expert_first_token_seconds",
            "From a request to an expert to the first event of its stream.",
            expert,
            buckets=REQUEST_BUCKETS_S,
        )
        self.expert_in_flight = gauge(
            "expert_requests_in_flight", "In-flight requests to an expert.", expert
        )
        self.tokens = counter(
            "tokens",
            "Tokens of prompts and answers as experts report them, by key.",
            ("key", "expert", "kind"),
        )
        self.cost = counter(
            "cost",
            "Cost of answers by experts.toml, in its unit, by key.",
            ("key", "expert"),
        )
        self.streams = gauge("streams", "Answers that are being streamed now.")

    def of_expert(self, name: str) -> dict[str, Any]:
        """What an expert was asked and has cost so far, and how long it took to begin an answer on
        the mean, in seconds.
        """

        def total(metric: Counter | Histogram, suffix: str, **labels: str) -> float:
            wanted = (labels | {"expert": name}).items()
            return sum(
                sample.value
                for family in metric.collect()
                for sample in family.samples
                if sample.name.endswith(suffix) and wanted <= sample.labels.items()
            )

        requests = total(self.expert_requests, "_total")
        sound = (
            total(self.expert_requests, "_total", outcome=outcome)
            for outcome in SOUND_OUTCOMES
        )
        timed = total(self.expert_seconds, "_count")
        return {
            "requests": requests,
            "failed": requests - sum(sound),
            "seconds": total(self.expert_seconds, "_sum") / timed if timed else None,
            "tokens": total(self.tokens, "_total"),
            "cost": total(self.cost, "_total"),
        }


@dataclass(slots=True)
class ActivityStep:
    """What happened in five seconds."""

    number: int
    decisions: dict[str, int] = field(default_factory=dict)
    abstained: int = 0
    times: deque[float] = field(
        default_factory=lambda: deque(maxlen=MAX_TIMES_PER_STEP)
    )

    def to_json(self) -> dict[str, Any]:
        times = sorted(self.times)
        return {
            "start": self.number * STEP_S,
            "decisions": self.decisions,
            "abstained": self.abstained,
            "p50_ms": 1000 * times[len(times) // 2] if times else None,
            "p99_ms": 1000 * times[len(times) * 99 // 100] if times else None,
        }


class Activity:
    """The last minutes, in steps: decisions by domain, abstentions, and how long deciding took."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._steps: deque[ActivityStep] = deque(maxlen=MAX_STEPS)

    def add(self, decisions: Mapping[str, int], abstained: int, seconds: float) -> None:
        """Count the decisions of one request, by domain, and how long they took together."""
        number = int(self._clock()) // STEP_S
        if not self._steps or self._steps[-1].number < number:
            self._steps.append(ActivityStep(number))
        step = self._steps[-1]
        for domain, count in decisions.items():
            step.decisions[domain] = step.decisions.get(domain, 0) + count
        step.abstained += abstained
        step.times.append(seconds)

    def to_json(self) -> dict[str, Any]:
        oldest = int(self._clock()) // STEP_S - MAX_STEPS
        steps = [step.to_json() for step in self._steps if step.number > oldest]
        return {
            "now": self._clock(),
            "step_s": STEP_S,
            "steps": steps,
            "kept": MAX_STEPS,
        }
