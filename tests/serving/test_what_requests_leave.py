"""What a request leaves in memory when it has ended: nothing, however it ended, and without the
cyclic collector.
"""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Iterator

import pytest

from ridgeway.common.web.http_errors import Problem
from ridgeway.serving.expert_client import ExpertRequest
from ridgeway.serving.expert_link import ExpertFailure
from ridgeway.serving.request_bodies import GatewayBody
from tests.support import fake_expert as faulty
from tests.support.fake_expert import Part
from tests.support.in_process import Fleet, Local, everyone
from tests.support.serving import chat, leaving
from tests.support.waiting import wait_for

KINDS = (GatewayBody, ExpertRequest, ExpertFailure, Problem)
"""A body, what was sent of it, and what holds a traceback that leads to them."""
FAULTS: dict[str, Part] = {
    "fails": faulty.fails,
    "dies": faulty.dies_at_once,
    "half": faulty.half_a_body,
    "broken": faulty.broken_json,
    "hangs": faulty.hangs,
    "endless": faulty.endless_body,
    "refuses": faulty.unauthorised,
    "complains": faulty.refuses_the_request,
    "not-http": faulty.not_http,
    "cut": lambda asked: asked.stream([faulty.token("one")]),
}


@contextlib.contextmanager
def uncollected() -> Iterator[Counter[str]]:
    """What only the collector would have freed of what was made inside, by kind."""
    kinds: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    try:
        yield kinds
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kinds.update(
            type(item).__name__ for item in gc.garbage if isinstance(item, KINDS)
        )
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("fallback", ["", "generalist"], ids=["alone", "backed"])
@pytest.mark.parametrize("fault", FAULTS)
def test_no_body_and_no_traceback_outlives_a_request_that_failed(
    fleet: Fleet, fault: str, fallback: str, streamed: bool
) -> None:
    """An expert that is down takes no memory, which would be missing when the fallback is
    needed.
    """
    local = fleet.serve(everyone(timeout=0.5, silence=0.5), fallback)
    local.all_domains(FAULTS[fault])
    with uncollected() as left:
        for _ in range(2):
            local.chat(stream=streamed)
    assert left == {}


def test_nor_does_that_of_a_client_that_has_gone(local: Local) -> None:
    local.all_domains(faulty.hangs)
    with uncollected() as left:
        with leaving(local.http.base_url, chat("auto", "hello")):
            local.chosen.last()
        wait_for("it is counted", lambda: local.chosen.last().gone.is_set())
        local.http.get("/healthz")
    assert left == {}
