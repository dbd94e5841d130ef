"""What Prometheus reads: requests, latencies, decisions, abstentions, drift, experts.

Knows prometheus_client. One registry a service, so that two in one process do not mix.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

ROUTING_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
REQUEST_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        keep = self.registry
        self.requests = Counter(
            "ridgeway_requests", "Answers, by address and status.", ["path", "status"], registry=keep
        )
        self.request_seconds = Histogram(
            "ridgeway_request_seconds",
            "From a request's head to the end of its answer.",
            ["path"],
            buckets=REQUEST_S,
            registry=keep,
        )
        self.routing_seconds = Histogram(
            "ridgeway_routing_seconds",
            "From the prompts of a request to their decisions.",
            buckets=ROUTING_S,
            registry=keep,
        )
        self.decisions = Counter("ridgeway_decisions", "Decisions, by the domain ahead.", ["domain"], registry=keep)
        self.abstentions = Counter(
            "ridgeway_abstentions", "Decisions that the confidence was too low for.", registry=keep
        )
        self.release = Info("ridgeway_release", "The release in use.", registry=keep)
        self.release_since = Gauge(
            "ridgeway_release_since_seconds", "When the release in use was taken.", registry=keep
        )
        self.refused_releases = Counter("ridgeway_refused_releases", "New releases that were not good.", registry=keep)
        self.refusals = Counter(
            "ridgeway_refusals", "Requests that were not let in, by reason.", ["reason"], registry=keep
        )
        self.low_confidence = Gauge(
            "ridgeway_drift_low_confidence_share", "Share of recent prompts of low confidence.", registry=keep
        )
        self.leverage = Gauge(
            "ridgeway_drift_leverage", "Leverage of recent prompts; 1: like the text of the release.", registry=keep
        )
        self.alarm = Gauge(
            "ridgeway_drift_alarm", "1 while recent prompts are too far from the text of the release.", registry=keep
        )
        self.expert_requests = Counter(
            "ridgeway_expert_requests", "What became of requests to experts.", ["expert", "outcome"], registry=keep
        )
        self.expert_seconds = Histogram(
            "ridgeway_expert_seconds",
            "From a request to an expert to the head of its answer.",
            ["expert"],
            buckets=REQUEST_S,
            registry=keep,
        )
        self.expert_up = Gauge(
            "ridgeway_expert_up", "0 while an expert is not asked because it failed.", ["expert"], registry=keep
        )
        self.streams = Gauge("ridgeway_streams", "Answers that are being streamed now.", registry=keep)

    def exposition(self) -> bytes:
        return generate_latest(self.registry)
