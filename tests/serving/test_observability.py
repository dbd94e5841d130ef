"""What a platform sees of the service: ids, traces, spans, logs, metrics and the dashboard; and
never a prompt.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Semaphore
from typing import Any

import pytest

from ridgeway.common.base.errors import InputError
from ridgeway.common.web.request_context import FIELDS, LineFormatter
from ridgeway.serving import telemetry
from ridgeway.serving.sse import (
    StreamedUsage,
    TokenUsage,
    whole_usage,
)
from tests.serving.api_experts import anthropic_expert, openai_expert
from tests.support.fake_expert import (
    END,
    Asked,
    Expert,
    dies_after_two,
    dies_at_once,
    pours,
    token,
    wait_for,
    well,
)
from tests.support.in_process import DOMAINS, Fleet, chat, running
from tests.support.serving import Serving, prompt_for, release_of, write_experts

DASHBOARD = (
    Path(__file__).resolve().parents[2] / "packages" / "grafana" / "ridgeway-serve.json"
)
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET = "zyzzyva"
LAW = prompt_for("law", DOMAINS)

CHATS = "/v1/chat/completions"


# Ids and traces


def test_a_request_has_one_id_from_the_client_to_the_expert_and_back(
    fleet: Fleet,
) -> None:
    """The client's own if it can stand in a header; else one that is made; in errors too."""
    http = fleet.serve({"law": {}}).http
    law = fleet.experts["law"]
    body = chat("law", "x")
    answered = http.post(CHATS, json=body, headers={"x-request-id": "shop-1/a"})
    assert answered.headers["x-request-id"] == "shop-1/a"
    assert law.last().headers["x-request-id"] == "shop-1/a"
    odd = {b"x-request-id": "a b\u00e4".encode()}
    made = http.post(CHATS, json=body, headers=odd).headers["x-request-id"]
    assert re.fullmatch("[0-9a-f]{32}", made)
    assert law.last(1).headers["x-request-id"] == made
    headers = {"x-request-id": "mine"}
    refused = http.post("/v1/messages", content=b"{", headers=headers)
    assert refused.status_code == 415
    assert refused.headers["x-request-id"] == refused.headers["request-id"] == "mine"
    two = [http.get("/nowhere").headers["x-request-id"] for _ in range(2)]
    assert two[0] != two[1]


@pytest.mark.parametrize(
    "parent", [PARENT, PARENT[:-1], "ff" + PARENT[2:], PARENT.upper(), ""]
)
def test_a_clients_trace_is_passed_on_to_experts(fleet: Fleet, parent: str) -> None:
    """As W3C writes it, with its state; what is no trace goes no further."""
    local = fleet.serve({"law": {}})
    sent = {"traceparent": parent, "tracestate": "vendor=1", "baggage": "user=7"}
    assert local.post(CHATS, chat("law", "x"), **sent).status_code == 200
    received = fleet.experts["law"].last().headers
    state = ("traceparent", "tracestate") if parent == PARENT else ()
    assert {name: received[name] for name in sent if name in received} == {
        name: sent[name] for name in state
    }


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Where spans are kept during a test."""
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import (
        InMemorySpanExporter,
    )

    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(
        telemetry.tracer, "_real_tracer", provider.get_tracer("ridgeway")
    )
    return kept


def test_spans_tell_of_routing_and_of_each_attempt(fleet: Fleet, kept: Any) -> None:
    """In the client's trace; the expert is told of the attempt's own span; no prompt is in any of
    them.
    """
    bad, good = fleet.start(dies_at_once, well("law"))
    local = fleet.serve({"law": {"addresses": [bad.url, good.url]}})
    body = chat("auto", f"{SECRET} {LAW}")
    answered = local.post(CHATS, body, traceparent=PARENT)
    assert answered.status_code == 200
    parent = good.last().headers["traceparent"]
    spans = kept.get_finished_spans()
    names = [span.name for span in spans]
    assert sorted(names) == ["POST", "chat law-model", "chat law-model", "route"]
    facts = {span.name: dict(span.attributes or {}) for span in spans}
    assert facts["POST"]["http.route"] == "/v1/chat/completions"
    assert facts["POST"]["http.response.status_code"] == 200
    assert facts["POST"]["ridgeway.request_id"] == answered.headers["x-request-id"]
    assert facts["route"]["ridgeway.domain"] == "law"
    assert facts["route"]["ridgeway.router"] == "table"
    attempts = [dict(span.attributes or {}) for span in attempted(spans)]
    assert [attempt["ridgeway.address"] for attempt in attempts] == [1, 2]
    assert attempts[1]["ridgeway.outcome"] == "ok"
    assert attempts[0] == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "law-model",
        "ridgeway.expert": "law",
        "ridgeway.address": 1,
        "ridgeway.outcome": "failed",
        "error.type": "failed",
    }
    assert attempts[1]["gen_ai.response.model"] == "law"
    assert attempts[1]["gen_ai.usage.input_tokens"] == 1
    assert attempts[1]["gen_ai.usage.output_tokens"] == 1
    assert "error.type" not in attempts[1]
    contexts = [span.get_span_context() for span in spans]
    ids = {f"{context.trace_id:032x}" for context in contexts if context}
    assert ids == {PARENT[3:35]}
    last = attempted(spans)[-1].get_span_context()
    assert last is not None and parent == f"00-{PARENT[3:35]}-{last.span_id:016x}-01"
    root = next(span for span in spans if span.name == "POST")
    assert root.parent is not None and f"{root.parent.span_id:016x}" == PARENT[36:52]
    assert SECRET not in " ".join(span.to_json() for span in spans)


def attempted(spans: Any) -> list[Any]:
    """Those of requests to experts."""
    return [span for span in spans if span.name.startswith("chat")]


def test_the_span_of_a_stream_ends_with_the_stream(fleet: Fleet, kept: Any) -> None:
    """With the tokens that it used; and as a failure, if the stream breaks off."""
    used = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}\n\n'
    steps = Semaphore(0)

    def slow(asked: Asked) -> None:
        def events() -> Iterator[bytes]:
            yield token(SECRET, "law-7b")
            steps.acquire()
            yield from (used, END)

        asked.stream(events())

    def ended() -> list[Any]:
        return attempted(kept.get_finished_spans())

    local = fleet.serve({"law": {}})
    law = fleet.experts["law"]
    law.part = slow
    with local.streamed("law", f"{SECRET} {LAW}") as answer:
        pieces = answer.iter_raw()
        next(pieces)
        assert not ended()
        steps.release()
        list(pieces)
    wait_for(lambda: len(ended()) == 1, "the span has ended")
    law.part = dies_after_two
    with local.streamed("law", f"{SECRET} {LAW}") as answer:
        law.last(1).was_read.set()
        assert b"expert_broken_off" in answer.read()
    wait_for(lambda: len(ended()) == 2, "the span has ended")
    whole, broken = (dict(span.attributes or {}) for span in ended())
    assert whole["gen_ai.response.model"] == "law-7b"
    assert whole["ridgeway.outcome"] == "ok"
    assert whole["gen_ai.usage.input_tokens"] == 7
    assert whole["gen_ai.usage.output_tokens"] == 2
    assert broken["ridgeway.outcome"] == broken["error.type"] == "broken_off"
    assert SECRET not in " ".join(span.to_json() for span in kept.get_finished_spans())


def test_spans_are_off_unless_the_environment_asks_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And if it asks and the packages are not there, the operator is told what to install."""
    assert telemetry.find_provider({}) is None
    asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    assert telemetry.find_provider({**asked, "OTEL_SDK_DISABLED": "true"}) is None
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    exporter = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    monkeypatch.setitem(sys.modules, exporter, None)
    with pytest.raises(InputError, match=r"pip install '.\[telemetry\]'"):
        telemetry.find_provider(asked)


def test_spans_are_sent_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By OTLP over HTTP, at the latest when the service ends."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with Expert(lambda asked: asked.reply(200, b"{}")) as collector:
        address = collector.url.removesuffix("/v1")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "router-of-the-shop")
        provider = telemetry.find_provider()
        assert provider is not None
        with provider.get_tracer("ridgeway").start_as_current_span("route") as span:
            span.set_attribute("ridgeway.domain", "law")
        provider.shutdown()
        sent = collector.last()
    assert sent.path == "/v1/traces"
    assert b"router-of-the-shop" in sent.body and b"ridgeway.domain" in sent.body


# Logs


def test_lines_have_levels_and_times_in_utc() -> None:
    """As text and as JSON, with what stands beside the words."""
    record = logging.LogRecord(
        "ridgeway.http", logging.WARNING, __file__, 1, "it is %s", ("so",), None
    )
    record.created = 1763303647.25
    record.__dict__[FIELDS] = {"status": 200}
    assert (
        LineFormatter("text").format(record)
        == "2025-11-16T14:34:07.250Z WARNING it is so status=200"
    )
    assert json.loads(LineFormatter("json").format(record)) == {
        "time": "2025-11-16T14:34:07.250Z",
        "level": "warning",
        "logger": "ridgeway.http",
        "message": "it is so",
        "status": 200,
    }


def lines_of(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """What was logged of requests."""
    return [
        record.__dict__[FIELDS]
        for record in caplog.records
        if record.message == "answered"
    ]


def test_a_failed_request_is_a_line_at_the_usual_level(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """With its expert, reason and code; a stream that broke says so, and one that its client has
    left is no failure.
    """
    chain: Any = {"fallbacks": []}
    local = fleet.serve({"law": chain, "code": {}, "médecine": {}})
    fleet.experts["law"].part = dies_at_once
    fleet.experts["code"].part = lambda asked: asked.stream([token("one")])
    fleet.experts["médecine"].part = pours
    local.chat("auto", f"{SECRET} {LAW}")
    local.chat("code", SECRET, stream=True)
    local.chat("nobody", SECRET)
    with local.streamed("médecine", SECRET) as response:
        next(response.iter_lines())
    wait_for(lambda: local.counted("streams") == 0, "the stream has ended")
    assert [
        (line["status"], line["expert"], line["reason"], line["error"])
        for line in lines_of(caplog)
    ] == [
        (502, "law", "best", "expert_failed"),
        (200, "code", "forced", "expert_broken_off"),
    ]
    assert SECRET not in caplog.text


@pytest.mark.slow
def test_every_line_of_the_service_is_json_where_it_is_asked_for(
    tmp_path: Path,
) -> None:
    """The banner, a worker that was killed, a request that failed, and why the service did not
    begin; no header.
    """
    release = tmp_path / "release"
    release_of(release, DOMAINS)
    settings = {"log_format": "json", "workers": 2}
    with Expert(dies_at_once) as law:
        file = write_experts(tmp_path / "experts.toml", {"law": law.url}, "law")
        with Serving(
            tmp_path, release, "--experts", file, settings=settings
        ) as serving:
            wait_for(lambda: serving.said.count('"serving ') == 2, "both serve")
            assert serving.chat("auto", LAW).status_code == 502
            state = {"traceparent": PARENT, "tracestate": SECRET}  # which is none
            assert (
                serving.post("/v1/route", {"prompt": LAW}, **state).status_code == 200
            )
            os.kill(min(serving.children()), signal.SIGKILL)
            wait_for(lambda: serving.said.count('"serving ') == 3, "another serves")
            assert serving.stop() == 0
    lines = [json.loads(line) for line in serving.said.splitlines()]
    assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
    assert SECRET not in serving.said
    words = " ".join(line["message"] for line in lines)
    for part in ("release ", "a worker exited with code -9", "answered"):
        assert part in words
    file.write_text("mu = [")
    for workers in ("1", "2"):
        options = ("--experts", file, "--workers", workers)
        refused = Serving(tmp_path, release, *options, settings=settings)
        refused.begin()
        assert refused.process is not None and refused.process.wait(60) == 2
        refused.end()
        [line] = [json.loads(line) for line in refused.said.splitlines()]
        assert line["level"] == "error" and "is not valid TOML" in line["message"]


def test_at_level_info_each_request_is_a_line_without_what_it_asks(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """Its path, status, time, id, key and expert; at the usual level there is none."""
    local, key = fleet.serve_keyed({"law": {}})
    local.http.headers["x-request-id"] = "r1"
    local.chat("auto", f"{SECRET} {LAW}")
    assert not lines_of(caplog)
    with caplog.at_level(logging.INFO, "ridgeway.http"):
        local.chat("auto", f"{SECRET} {LAW}", stream=True)
        local.http.get(f"/{SECRET}")
        wait_for(lambda: len(lines_of(caplog)) == 2, "both are told")
    # the end of a stream may be told after the next request
    line, other = sorted(lines_of(caplog), key=lambda line: str(line["path"]))
    assert (line["path"], line["status"]) == (CHATS, 200)
    assert (other["path"], other["status"]) == ("other", 404)
    assert line["key"] == other["key"] == "shop"
    assert (line["expert"], line["reason"], line["router"]) == ("law", "best", "table")
    assert line["request_id"] == "r1"
    assert 0 < line["seconds"] < 60
    everything = " ".join(map(LineFormatter("json").format, caplog.records))
    assert SECRET not in everything and key not in everything


# Metrics


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_and_cost_are_counted_by_key_and_expert(
    fleet: Fleet, stream: bool
) -> None:
    """What the experts say they used, in either API and in responses, at the prices of
    experts.toml.
    """
    apps = openai_expert("code"), anthropic_expert("law")
    urls = [f"{fleet.enter_context(running(app))}/v1" for app in apps]
    prices = {"prompt_price": 2.0, "answer_price": 10.0}
    code = {"addresses": urls[:1], **prices}
    law = {"addresses": urls[1:], "apis": ["anthropic"], "cost": 0.5}
    local, _ = fleet.serve_keyed({"law": law, "code": code})
    more = {"stream": stream, "stream_options": {"include_usage": True}}
    for path, body in (
        (CHATS, chat("code", "x", **more)),
        ("/v1/messages", chat("law", "x", stream=stream, max_tokens=9)),
        ("/v1/responses", {"model": "code", "input": "x", "stream": stream}),
    ):
        assert local.post(path, body).status_code == 200

    def tokens(expert: str) -> list[float]:
        return [
            local.counted("tokens_total", key="shop", expert=expert, kind=kind)
            for kind in ("prompt", "answer")
        ]

    wait_for(lambda: tokens("code") == [14, 6], "the last stream is counted")
    assert tokens("law") == [7, 3]
    cost = local.counted("cost_total", key="shop", expert="code")
    assert cost == pytest.approx((14 * 2 + 6 * 10) / 1e6)
    assert local.counted("cost_total", key="shop", expert="law") == 0.5
    timed = local.counted("expert_first_token_seconds_count", expert="code")
    assert timed == (2 if stream else 0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"usage": null}',
        b'{"usage": 7}',
        b'"usage"',
        b'{"usage"',
        b'{"x": {"usage": {}}}',
    ],
)
def test_what_tells_no_usage_counts_nothing(body: bytes) -> None:
    """However odd it is."""
    assert whole_usage(body) is None
    watch = StreamedUsage()
    watch.feed(b"data: " + body + b"\n\n")
    assert watch.usage is None


def test_numbers_that_cannot_be_are_not_counted() -> None:
    """Counters only grow, so a negative number or a text must not reach them."""
    assert whole_usage(
        b'{"usage": {"prompt_tokens": -5, "completion_tokens": "7"}}'
    ) == TokenUsage(0, 0)
    assert whole_usage(
        b'{"usage": {"input_tokens": 5, "output_tokens": 1e9}}'
    ) == TokenUsage(5, 0)


def test_a_key_for_metrics_reads_metrics_alone(fleet: Fleet) -> None:
    """A scraper's key is of no use to whoever finds it."""
    local, _ = fleet.serve_keyed({"law": {}}, scope="metrics")
    http = local.http
    for path in ("/metrics", "/healthz"):
        assert http.get(path).status_code == 200
    closed = ("/v1/models", "/v1/releases/current", "/v1/activity", "/v1/worths")
    for refused in (local.chat("law"), *map(http.get, closed)):
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "key_scope"
    assert not fleet.asked


def test_metrics_are_named_by_convention(fleet: Fleet) -> None:
    """Counters end in _total, times in seconds, shares in _ratio; the build and what is under way
    are told.
    """
    text = fleet.serve({"law": {}}).http.get("/metrics").text
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    assert {
        "ridgeway_build_info",
        "ridgeway_requests_in_flight",
        "ridgeway_release_timestamp_seconds",
    } <= set(kinds)
    assert "ridgeway_drift_low_confidence_ratio" in kinds
    for name, kind in kinds.items():
        if name.endswith("_created"):
            continue
        assert name.startswith("ridgeway_"), name
        assert (kind == "counter") == name.endswith("_total"), name
        if kind == "histogram":
            assert name.endswith("_seconds"), name
    assert re.search(
        r'^ridgeway_build_info\{python="[\d.]+",version="[^"]+"\} 1\.0$',
        text,
        re.MULTILINE,
    )
    assert "ridgeway_requests_in_flight 1.0" in text


# The dashboard


def test_the_dashboard_asks_for_metrics_that_there_are(fleet: Fleet) -> None:
    """Every name in it, and every label that it groups or selects by, is one that the service
    tells.
    """
    local = fleet.serve({"law": {}})
    for stream in (False, True):
        assert local.chat("auto", LAW, stream=stream).status_code == 200
    refused = local.http.post("/v1/route", content=bytes(5 * 1024**2))
    assert refused.status_code == 413
    labels: dict[str, set[str]] = {}
    for family in local.service.metrics.registry.collect():
        used = {name for sample in family.samples for name in sample.labels}
        names = {family.name, f"{family.name}_total"}
        for name in names | {sample.name for sample in family.samples}:
            labels[name] = used
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(panels) >= 10 and all(asked)
    assert all(panel["title"] and panel["gridPos"] for panel in panels)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(
        dashboard["panels"]
    )
    for expression in asked:
        metrics = re.findall(r"ridgeway_\w+", expression)
        assert metrics, expression
        used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression))
        for group in re.findall(r"by \(([^)]*)\)", expression):
            used |= {label.strip() for label in group.split(",")}
        for name in metrics:
            assert name in labels, (name, expression)
        known = set().union(*(labels[name] for name in metrics))
        assert used <= known | {"le", "job", "instance"}, (used - known, expression)
