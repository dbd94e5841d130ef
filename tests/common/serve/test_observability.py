"""What a platform sees of the service: ids, traces, spans, logs, metrics and the dashboard; and
never a prompt.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Semaphore
from typing import Any

import httpx
import pytest

from ridgeway.common.base.errors import InputError
from ridgeway.common.experts.experts_file import ExpertsFile
from ridgeway.common.http.access_rules import AccessRules
from ridgeway.common.http.api_keys import KeyRing, add_key
from ridgeway.common.http.log_lines import FIELDS, LineFormatter
from ridgeway.common.serve import tracing
from ridgeway.common.serve.gateway.gateway import Gateway
from ridgeway.common.serve.gateway.token_usage import (
    StreamedUsage,
    TokenUsage,
    whole_usage,
)
from ridgeway.common.serve.http_app import create_app
from ridgeway.common.serve.routing.current_release import ReleaseSource
from ridgeway.common.serve.routing.routing_service import RoutingService
from tests.common.serve.gateway.api_experts import anthropic_expert, openai_expert
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
from tests.support.in_process import DOMAINS, chat, experts_toml, running
from tests.support.serving import Serving, prompt_for, release_of, write_experts

DASHBOARD = (
    Path(__file__).resolve().parents[3] / "packages" / "grafana" / "ridgeway-serve.json"
)
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET = "zyzzyva"
LAW = prompt_for("law", DOMAINS)

Watched = Callable[
    ..., contextlib.AbstractContextManager[tuple[httpx.Client, RoutingService]]
]


@pytest.fixture
def watched(release: Path, tmp_path: Path) -> Watched:
    """The service with the experts of a text, with keys if they are asked for."""

    @contextlib.contextmanager
    def play(text: str, keys: Path | None = None) -> Iterator[Any]:
        file = tmp_path / "experts.toml"
        file.write_text(text)
        service = RoutingService(ReleaseSource(release), watch_s=0)
        rules = AccessRules(keys=KeyRing(keys) if keys else None)
        app = create_app(
            service, gateway=Gateway(service, ExpertsFile(file)), rules=rules
        )
        with (
            running(app) as url,
            httpx.Client(base_url=url, trust_env=False, verify=False) as http,
        ):
            yield http, service

    return play


# Ids and traces


def test_a_request_has_one_id_from_the_client_to_the_expert_and_back(
    watched: Watched,
) -> None:
    """The client's own if it can stand in a header; else one that is made; in errors too."""
    with (
        Expert(well("law")) as law,
        watched(experts_toml({"law": law.url}, 'fallback = "law"')) as (http, _),
    ):
        answered = http.post(
            "/v1/chat/completions",
            json=chat("law", "x"),
            headers={"x-request-id": "shop-1/a"},
        )
        assert (
            answered.headers["x-request-id"]
            == law.last().headers["x-request-id"]
            == "shop-1/a"
        )
        made = http.post(
            "/v1/chat/completions",
            json=chat("law", "x"),
            headers={b"x-request-id": "a b\u00e4".encode()},
        )
        assert re.fullmatch("[0-9a-f]{32}", made.headers["x-request-id"])
        assert law.last(1).headers["x-request-id"] == made.headers["x-request-id"]
        refused = http.post(
            "/v1/messages", content=b"{", headers={"x-request-id": "mine"}
        )
        assert (
            refused.status_code,
            refused.headers["x-request-id"],
            refused.headers["request-id"],
        ) == (
            415,
            "mine",
            "mine",
        )
        assert (
            http.get("/nowhere").headers["x-request-id"]
            != http.get("/nowhere").headers["x-request-id"]
        )


def test_a_clients_trace_is_passed_on_to_experts(watched: Watched) -> None:
    """As W3C writes it, with its state; what is no trace goes no further."""
    with (
        Expert(well("law")) as law,
        watched(experts_toml({"law": law.url}, 'fallback = "law"')) as (http, _),
    ):
        for parent in (PARENT, PARENT[:-1], "ff" + PARENT[2:], PARENT.upper(), ""):
            headers = {
                "traceparent": parent,
                "tracestate": "vendor=1",
                "baggage": "user=7",
            }
            assert (
                http.post(
                    "/v1/chat/completions", json=chat("law", "x"), headers=headers
                ).status_code
                == 200
            )
            heard = law.asked[-1].headers
            assert heard.get("traceparent") == (parent if parent == PARENT else None)
            assert heard.get("tracestate") == ("vendor=1" if parent == PARENT else None)
            assert "baggage" not in heard


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
    monkeypatch.setattr(tracing.tracer, "_real_tracer", provider.get_tracer("ridgeway"))
    return kept


def test_spans_tell_of_routing_and_of_each_attempt(watched: Watched, kept: Any) -> None:
    """In the client's trace; the expert is told of the attempt's own span; no prompt is in any of
    them.
    """
    with contextlib.ExitStack() as stack:
        bad, good = (
            stack.enter_context(Expert(part)) for part in (dies_at_once, well("law"))
        )
        addresses = f'[experts.law]\naddresses = ["{bad.url}", "{good.url}"]\nmodel = "law-model"\n'
        http, _ = stack.enter_context(watched(f'fallback = "law"\n{addresses}'))
        body = chat("auto", f"{SECRET} {LAW}")
        answered = http.post(
            "/v1/chat/completions", json=body, headers={"traceparent": PARENT}
        )
        assert answered.status_code == 200
        heard = good.last().headers["traceparent"]
    spans = kept.get_finished_spans()
    names = [span.name for span in spans]
    assert sorted(names) == ["POST", "chat law-model", "chat law-model", "route"]
    facts = {span.name: dict(span.attributes or {}) for span in spans}
    assert facts["POST"]["http.route"] == "/v1/chat/completions"
    assert facts["POST"]["http.response.status_code"] == 200
    assert facts["POST"]["ridgeway.request_id"] == answered.headers["x-request-id"]
    assert facts["route"]["ridgeway.domain"] == "law"
    assert facts["route"]["ridgeway.router"] == "table"
    attempts = [
        dict(span.attributes or {}) for span in spans if span.name == "chat law-model"
    ]
    assert [
        (each["ridgeway.address"], each["ridgeway.outcome"]) for each in attempts
    ] == [(1, "failed"), (2, "ok")]
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
    assert (
        attempts[1]["gen_ai.usage.input_tokens"],
        attempts[1]["gen_ai.usage.output_tokens"],
    ) == (1, 1)
    assert "error.type" not in attempts[1]
    contexts = [span.get_span_context() for span in spans]
    assert {f"{each.trace_id:032x}" for each in contexts if each} == {PARENT[3:35]}
    last = next(
        span for span in reversed(spans) if span.name == "chat law-model"
    ).get_span_context()
    assert last is not None and heard == f"00-{PARENT[3:35]}-{last.span_id:016x}-01"
    root = next(span for span in spans if span.name == "POST")
    assert root.parent is not None and f"{root.parent.span_id:016x}" == PARENT[36:52]
    assert SECRET not in " ".join(span.to_json() for span in spans)


def test_the_span_of_a_stream_ends_with_the_stream(watched: Watched, kept: Any) -> None:
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
        return [
            span for span in kept.get_finished_spans() if span.name.startswith("chat")
        ]

    with (
        Expert(slow) as law,
        watched(experts_toml({"law": law.url}, 'fallback = "law"')) as (http, _),
    ):
        body = chat("law", f"{SECRET} {LAW}") | {"stream": True}
        with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            pieces = answer.iter_raw()
            next(pieces)
            assert not ended()
            steps.release()
            list(pieces)
        wait_for(lambda: len(ended()) == 1, "the span has ended")
        law.part = dies_after_two
        with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            law.last(1).was_read.set()
            assert b"expert_broken_off" in answer.read()
        wait_for(lambda: len(ended()) == 2, "the span has ended")
    whole, broken = (dict(span.attributes or {}) for span in ended())
    assert (whole["gen_ai.response.model"], whole["ridgeway.outcome"]) == (
        "law-7b",
        "ok",
    )
    assert (
        whole["gen_ai.usage.input_tokens"],
        whole["gen_ai.usage.output_tokens"],
    ) == (7, 2)
    assert (broken["ridgeway.outcome"], broken["error.type"]) == (
        "broken_off",
        "broken_off",
    )
    assert SECRET not in " ".join(span.to_json() for span in kept.get_finished_spans())


def test_spans_are_off_unless_the_environment_asks_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And if it asks and the packages are not there, the operator is told what to install."""
    assert tracing.find_provider({}) is None
    asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    assert tracing.find_provider({**asked, "OTEL_SDK_DISABLED": "true"}) is None
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.trace", None)
    monkeypatch.setitem(
        __import__("sys").modules,
        "opentelemetry.exporter.otlp.proto.http.trace_exporter",
        None,
    )
    with pytest.raises(InputError, match=r"pip install '.\[telemetry\]'"):
        tracing.find_provider(asked)


def test_spans_are_sent_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By OTLP over HTTP, at the latest when the service ends."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with Expert(lambda asked: asked.reply(200, b"{}")) as collector:
        address = collector.url.removesuffix("/v1")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "router-of-the-shop")
        provider = tracing.find_provider()
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


def test_a_failed_request_is_a_line_at_the_usual_level(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    """With its expert, reason and code; a stream that broke says so, and one that its client has
    left is no failure.
    """

    def breaks(asked: Asked) -> None:
        asked.stream([token("one")])

    with Expert(dies_at_once) as law, Expert(breaks) as code, Expert(pours) as more:
        text = experts_toml({"law": law.url, "code": code.url, "médecine": more.url})
        with watched(text) as (http, service):
            http.post("/v1/chat/completions", json=chat("auto", f"{SECRET} {LAW}"))
            http.post("/v1/chat/completions", json=chat("code", SECRET, stream=True))
            http.post("/v1/chat/completions", json=chat("nobody", SECRET))
            with http.stream(
                "POST",
                "/v1/chat/completions",
                json=chat("médecine", SECRET, stream=True),
            ) as response:
                lines = response.iter_lines()
                next(lines)
            streams = service.metrics.registry.get_sample_value
            wait_for(lambda: streams("ridgeway_streams") == 0, "the stream has ended")
    answered = [
        each.__dict__[FIELDS] for each in caplog.records if each.message == "answered"
    ]
    told = [
        (each["status"], each["expert"], each["reason"], each["error"])
        for each in answered
    ]
    assert told == [
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
    release_of(tmp_path / "release", DOMAINS)
    settings = {"log_format": "json", "workers": 2}
    with Expert(dies_at_once) as law:
        file = write_experts(tmp_path / "experts.toml", {"law": law.url}, "law")
        with Serving(
            tmp_path, tmp_path / "release", "--experts", file, settings=settings
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
    assert (
        "release " in words
        and "a worker exited with code -9" in words
        and "answered" in words
    )
    file.write_text("mu = [")
    for workers in ("1", "2"):
        refused = Serving(
            tmp_path,
            tmp_path / "release",
            "--experts",
            file,
            "--workers",
            workers,
            settings=settings,
        )
        refused.begin()
        assert refused.process is not None and refused.process.wait(60) == 2
        refused.end()
        [line] = [json.loads(line) for line in refused.said.splitlines()]
        assert line["level"] == "error" and "is not valid TOML" in line["message"]


def test_at_level_info_each_request_is_a_line_without_what_it_asks(
    watched: Watched, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its path, status, time, id, key and expert; at the usual level there is none."""
    key, _ = add_key(tmp_path / "keys.toml", "shop")
    text = 'fallback = "law"\n'
    with (
        Expert(well("law")) as law,
        watched(experts_toml({"law": law.url}, text), keys=tmp_path / "keys.toml") as (
            http,
            _,
        ),
    ):
        headers = {"authorization": f"Bearer {key}", "x-request-id": "r1"}
        body = chat("auto", f"{SECRET} {LAW}")
        http.post("/v1/chat/completions", json=body, headers=headers)
        assert not [each for each in caplog.records if each.message == "answered"]
        with caplog.at_level(logging.INFO, "ridgeway.http"):
            http.post(
                "/v1/chat/completions", json={**body, "stream": True}, headers=headers
            )
            http.get(f"/{SECRET}", headers=headers)
            wait_for(
                lambda: sum(each.message == "answered" for each in caplog.records) == 2,
                "both are told",
            )
    lines = [
        json.loads(LineFormatter("json").format(each))
        for each in caplog.records
        if each.message == "answered"
    ]
    lines.sort(
        key=lambda each: str(each["path"])
    )  # the end of a stream may be told after the next request
    assert [(each["path"], each["status"], each["key"]) for each in lines] == [
        ("/v1/chat/completions", 200, "shop"),
        ("other", 404, "shop"),
    ]
    assert (lines[0]["expert"], lines[0]["reason"], lines[0]["request_id"]) == (
        "law",
        "best",
        "r1",
    )
    assert lines[0]["router"] == "table"
    assert 0 < lines[0]["seconds"] < 60
    everything = " ".join(
        LineFormatter("json").format(each) + each.getMessage()
        for each in caplog.records
    )
    assert SECRET not in everything and key not in everything


# Metrics


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_and_cost_are_counted_by_key_and_expert(
    watched: Watched, tmp_path: Path, stream: bool
) -> None:
    """What the experts say they used, in either API and in responses, at the prices of
    experts.toml.
    """
    key, _ = add_key(tmp_path / "keys.toml", "shop")
    with (
        running(openai_expert("code")) as code,
        running(anthropic_expert("law")) as law,
    ):
        text = f"""fallback = "code"
        [experts.code]
        base_url = "{code}/v1"
        model = "m"
        prompt_price = 2.0
        answer_price = 10.0
        [experts.law]
        base_url = "{law}/v1"
        model = "m"
        apis = ["anthropic"]
        cost = 0.5
        """
        with watched(text, keys=tmp_path / "keys.toml") as (http, service):
            headers = {"authorization": f"Bearer {key}"}
            options = {"stream": stream, "stream_options": {"include_usage": True}}
            asked = chat("code", "x", **options)
            assert (
                http.post(
                    "/v1/chat/completions", json=asked, headers=headers
                ).status_code
                == 200
            )
            asked = chat("law", "x", stream=stream, max_tokens=9)
            assert (
                http.post("/v1/messages", json=asked, headers=headers).status_code
                == 200
            )
            body = {"model": "code", "input": "x", "stream": stream}
            assert (
                http.post("/v1/responses", json=body, headers=headers).status_code
                == 200
            )

            def counted(name: str, **labels: str) -> float | None:
                return service.metrics.registry.get_sample_value(
                    f"ridgeway_{name}", {"key": "shop", **labels}
                )

            wait_for(
                lambda: counted("tokens_total", expert="code", kind="answer") == 6,
                "the last stream is counted",
            )
            assert counted("tokens_total", expert="code", kind="prompt") == 14
            assert counted("tokens_total", expert="code", kind="answer") == 6
            assert counted("tokens_total", expert="law", kind="prompt") == 7
            assert counted("tokens_total", expert="law", kind="answer") == 3
            assert counted("cost_total", expert="code") == pytest.approx(
                (14 * 2 + 6 * 10) / 1e6
            )
            assert counted("cost_total", expert="law") == 0.5
            timed = service.metrics.registry.get_sample_value
            assert timed(
                "ridgeway_expert_first_token_seconds_count", {"expert": "code"}
            ) == (2 if stream else 0)


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
    assert watch.found is None


def test_numbers_that_cannot_be_are_not_counted() -> None:
    """Counters only grow, so a negative number or a text must not reach them."""
    assert whole_usage(
        b'{"usage": {"prompt_tokens": -5, "completion_tokens": "7"}}'
    ) == TokenUsage(0, 0)
    assert whole_usage(
        b'{"usage": {"input_tokens": 5, "output_tokens": 1e9}}'
    ) == TokenUsage(5, 0)


def test_a_key_for_metrics_reads_metrics_alone(
    watched: Watched, tmp_path: Path
) -> None:
    """A scraper's key is of no use to whoever finds it."""
    key, _ = add_key(tmp_path / "keys.toml", "prometheus", scope="metrics")
    with Expert(well("law")) as law:
        text = experts_toml({"law": law.url}, 'fallback = "law"')
        with watched(text, keys=tmp_path / "keys.toml") as (http, _):
            headers = {"authorization": f"Bearer {key}"}
            assert http.get("/metrics", headers=headers).status_code == 200
            assert http.get("/healthz", headers=headers).status_code == 200
            for path in (
                "/v1/models",
                "/v1/releases/current",
                "/v1/activity",
                "/v1/worths",
            ):
                refused = http.get(path, headers=headers)
                assert (refused.status_code, refused.json()["error"]["code"]) == (
                    403,
                    "key_scope",
                )
            assert (
                http.post(
                    "/v1/chat/completions", json=chat("law", "x"), headers=headers
                ).status_code
                == 403
            )
            assert not law.asked


def test_metrics_are_named_by_convention(watched: Watched) -> None:
    """Counters end in _total, times in seconds, shares in _ratio; the build and what is under way
    are told.
    """
    with (
        Expert(well("law")) as law,
        watched(experts_toml({"law": law.url}, 'fallback = "law"')) as (http, _),
    ):
        text = http.get("/metrics").text
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


def test_the_dashboard_asks_for_metrics_that_there_are(watched: Watched) -> None:
    """Every name in it, and every label that it groups or selects by, is one that the service
    tells.
    """
    with (
        Expert(well("law")) as law,
        watched(experts_toml({"law": law.url}, 'fallback = "law"')) as (http, service),
    ):
        for body in (chat("auto", LAW), chat("auto", LAW, stream=True)):
            assert http.post("/v1/chat/completions", json=body).status_code == 200
        assert http.post("/v1/route", content=bytes(5 * 1024**2)).status_code == 413
        labels: dict[str, set[str]] = {}
        for family in service.metrics.registry.collect():
            found = {name for sample in family.samples for name in sample.labels}
            names = {
                family.name,
                f"{family.name}_total",
                *(sample.name for sample in family.samples),
            }
            for name in names:
                labels[name] = found
    told = json.loads(DASHBOARD.read_text())
    panels = [panel for panel in told["panels"] if panel["type"] != "row"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(panels) >= 10 and all(asked)
    assert all(panel["title"] and panel["gridPos"] for panel in panels)
    assert len({panel["id"] for panel in told["panels"]}) == len(told["panels"])
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
