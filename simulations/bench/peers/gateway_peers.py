"""Our gateway and LiteLLM's proxy before the same expert, which costs next to nothing.

Ours also chooses the expert by the prompt; LiteLLM passes every chat on to the one model that it is
asked for. Both have one worker.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import uvloop

from ridgeway.common.base.errors import ProcessError
from ridgeway.common.deploy.processes import free_port
from ridgeway.common.text.table_encoder import WORDS
from ridgeway.simulations.bench.bench_inputs import bench_text
from ridgeway.simulations.bench.measuring import (
    START_SECONDS,
    BenchOptions,
    Row,
    cpu_seconds,
    resident_bytes,
    running,
)
from ridgeway.simulations.bench.peers.peer import (
    Contest,
    Peer,
    PeerMissing,
    compared,
    peer_python,
)
from ridgeway.simulations.bench.route_bench import make_release
from ridgeway.simulations.bench.serving_bench import (
    TOKENS,
    Server,
    chat,
    gateway,
    open_session,
    prompts_of,
    put_load,
    stream,
)
from ridgeway.simulations.bench.stand_ins import CHAT

_LITELLM = Peer("LiteLLM", ".venv-adapters")
_TURNS = 3
"""The first one warms up."""
_STREAMS = 25
"""Of a turn."""
_PIECES = 20
_PACE_S = 0.001


def gateway_rows(options: BenchOptions) -> Iterator[Row]:
    what = "the gateway"
    try:
        command = peer_python(_LITELLM).with_name("litellm")
    except PeerMissing as missing:
        yield Row(f"{what}, to {_LITELLM.name}", "", str(missing), None)
        return
    text = bench_text(options)
    release = make_release(options.find_encoder(WORDS), text, options.work)
    prompts = prompts_of(release, "\n".join(text.documents), TOKENS)
    with (
        gateway(release, options.work) as (ours, expert),
        litellm_proxy(command, expert, options.work) as theirs,
    ):
        servers = (ours, theirs, expert)

        def whole(server: Server) -> tuple[float, float]:
            """Whole answers over one connection."""
            bodies = [chat(prompt) for prompt in prompts]
            load = uvloop.run(put_load(server, CHAT, bodies, connections=1))
            return load.p50_ms, load.cpu_ms

        def streamed(server: Server) -> tuple[float, float]:
            """Streams one after another, to the first piece."""
            before = cpu_seconds(server.pid)
            found = uvloop.run(_first_pieces(server, prompts))
            spent = cpu_seconds(server.pid) - before
            return 1e3 * statistics.median(found), 1e3 * spent / _STREAMS

        yield _cost_row(f"{what}, a whole answer", servers, whole)
        words = f"{what}, a stream of {_PIECES} pieces"
        yield _cost_row(words, servers, streamed)
        own, other = (
            resident_bytes("VmRSS", server.pid) / 1e6 for server in (ours, theirs)
        )
        memory = Contest(own, other, "MB")
        yield compared(f"{what}, memory", _LITELLM.name, memory)


async def _first_pieces(server: Server, prompts: Sequence[str]) -> list[float]:
    async with open_session() as session:
        return [
            await stream(session, server, prompts[n % len(prompts)], _PIECES, _PACE_S)
            for n in range(_STREAMS)
        ]


def _cost_row(
    what: str,
    servers: Sequence[Server],
    measure: Callable[[Server], tuple[float, float]],
) -> Row:
    """Milliseconds and CPU milliseconds of servers that take turns: ours, theirs, the expert."""
    turns = [[measure(server) for server in servers] for _ in range(_TURNS)][1:]
    (own, cpu), (other, other_cpu), (expert, _) = (
        map(statistics.median, zip(*figures, strict=True))
        for figures in zip(*turns, strict=True)
    )
    return compared(
        what,
        _LITELLM.name,
        Contest(own - expert, other - expert, "ms added"),
        Contest(cpu, other_cpu, "CPU ms"),
    )


@contextmanager
def litellm_proxy(command: Path, expert: Server, work: Path) -> Iterator[Server]:
    """The proxy, without keys, a database or callbacks."""
    port = free_port()
    model = {
        "model_name": "auto",
        "litellm_params": {
            "model": "openai/steady",
            "api_base": f"{expert.url}/v1",
            "api_key": "none",
        },
    }
    settings = work / "litellm.yaml"
    settings.write_text(json.dumps({"model_list": [model]}))
    words = ["--config", str(settings), "--host", "127.0.0.1", "--port", str(port)]
    environment = {
        **os.environ,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    environment.pop("PYTHONPATH", None)
    log = work / f"{port}.log"
    with running([str(command), *words], "Proxy initialized", log, environment) as pid:
        _wait_for(port)
        yield Server(port, pid)


def _wait_for(port: int) -> None:
    """Until the port answers."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise ProcessError("LiteLLM's proxy did not open its port")
