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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import uvloop
from tokenizers import Tokenizer

from ridgeway.common.base.errors import ProcessError
from ridgeway.common.base.operating_system import proc
from ridgeway.common.base.settings import WordFeatures
from ridgeway.common.deploy.processes import free_port
from ridgeway.common.encoding.table_encoder import with_words
from ridgeway.common.routing.router import Router
from ridgeway.simulations.bench.bench_text import bench_text
from ridgeway.simulations.bench.measuring import (
    START_SECONDS,
    BenchOptions,
    Row,
    resident_bytes,
    running,
)
from ridgeway.simulations.bench.peers.peer_environments import (
    Peer,
    PeerMissing,
    peer_python,
)
from ridgeway.simulations.bench.peers.peer_rows import (
    Contest,
    compared,
    not_measured,
)
from ridgeway.simulations.bench.route_bench import make_release
from ridgeway.simulations.bench.serving_bench import (
    TOKENS,
    Server,
    chat,
    experts_toml,
    open_session,
    prompts_of,
    put_load,
    ridgeway_serve,
    stand_in,
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
        if not command.exists():
            raise PeerMissing(
                "LiteLLM's proxy is not installed; `make peers` does that"
            )
    except PeerMissing as missing:
        yield not_measured(what, _LITELLM.name, str(missing))
        return
    text = bench_text(options)
    encoder = with_words(options.find_encoder(), WordFeatures())
    release = make_release(encoder, text, options.work)
    tokenizer = Tokenizer.from_file(str(release / "tokenizer.json"))
    prompts = prompts_of(tokenizer, "\n".join(text.documents), TOKENS)
    with stand_in(options.work) as expert:
        experts = options.work / "experts.toml"
        experts.write_text(experts_toml(Router.load(release).domains, expert.url))
        serving = ridgeway_serve(options.work, str(release), "--experts", str(experts))
        with serving as ours, litellm_proxy(command, expert, options.work) as theirs:
            yield _chat_row(what, prompts, ours, theirs, expert)
            yield _stream_row(what, prompts, ours, theirs, expert)
            own, other = (server_memory(server) / 1e6 for server in (ours, theirs))
            memory = Contest(own, other, "MB", "less")
            yield compared(f"{what}, memory", _LITELLM.name, memory)


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


def _chat_row(
    what: str, prompts: Sequence[str], ours: Server, theirs: Server, expert: Server
) -> Row:
    """Whole answers over one connection."""
    bodies = [chat(prompt) for prompt in prompts]
    servers = (ours, theirs, expert)
    times: dict[Server, list[float]] = {server: [] for server in servers}
    costs: dict[Server, list[float]] = {server: [] for server in servers}
    for turn in range(_TURNS):
        for server in servers:
            before = server_cpu_seconds(server)
            load = uvloop.run(put_load(server, CHAT, bodies, connections=1))
            spent = server_cpu_seconds(server) - before
            if turn:
                times[server].append(load.p50_ms)
                costs[server].append(1e3 * spent / load.requests)
    return _cost_row(f"{what}, a whole answer", servers, times, costs)


def _stream_row(
    what: str, prompts: Sequence[str], ours: Server, theirs: Server, expert: Server
) -> Row:
    """Streams one after another, to the first piece."""
    servers = (ours, theirs, expert)
    times: dict[Server, list[float]] = {server: [] for server in servers}
    costs: dict[Server, list[float]] = {server: [] for server in servers}

    async def firsts(server: Server) -> list[float]:
        async with open_session() as session:
            return [
                await stream(
                    session, server, prompts[n % len(prompts)], _PIECES, _PACE_S
                )
                for n in range(_STREAMS)
            ]

    for turn in range(_TURNS):
        for server in servers:
            before = server_cpu_seconds(server)
            found = uvloop.run(firsts(server))
            spent = server_cpu_seconds(server) - before
            if turn:
                times[server].append(1e3 * statistics.median(found))
                costs[server].append(1e3 * spent / _STREAMS)
    words = f"{what}, a stream of {_PIECES} pieces"
    return _cost_row(words, servers, times, costs)


def _cost_row(
    what: str,
    servers: tuple[Server, Server, Server],
    times: dict[Server, list[float]],
    costs: dict[Server, list[float]],
) -> Row:
    own, other, expert = (statistics.median(times[server]) for server in servers)
    cpu, other_cpu, _ = (statistics.median(costs[server]) for server in servers)
    return compared(
        what,
        _LITELLM.name,
        Contest(own - expert, other - expert, "ms added", "less"),
        Contest(cpu, other_cpu, "CPU ms", "less"),
    )


# Processes


def server_cpu_seconds(server: Server) -> float:
    """CPU seconds of the processes whose command names the server's port."""
    ticks = 0
    for pid in _pids(server):
        fields = proc(pid, "stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def server_memory(server: Server) -> int:
    return sum(resident_bytes("VmRSS", pid) for pid in _pids(server))


def _pids(server: Server) -> list[str]:
    own = os.getpid()
    return [
        path.parent.name
        for path in proc().glob("[0-9]*/cmdline")
        if int(path.parent.name) != own and _names(path, str(server.port))
    ]


def _names(path: Path, port: str) -> bool:
    try:
        return port in path.read_text(errors="replace").split("\0")
    except OSError:
        return False
