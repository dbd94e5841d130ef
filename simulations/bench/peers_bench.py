"""The same work by other projects, in turn, in one run: routing, the gateway, secure sums, private
means.

A peer is run by the interpreter of its own environment, which `make peers` builds; a peer that is
not there, or does not run, has a row that says so.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from ridgeway.client.round.epochs import laid_out, with_noise
from ridgeway.common.base.errors import InputError, ProcessError
from ridgeway.common.base.identity import Identity
from ridgeway.common.deploy.processes import free_port
from ridgeway.common.masking.reference_session import Step, Transcript, masked_sum
from ridgeway.common.privacy.accountant import Privacy
from ridgeway.common.privacy.noise import VECTOR_LENGTH, bounded_sums
from ridgeway.common.text.encoder_files import find_encoder
from ridgeway.common.text.sentence_encoder import SENTENCE
from ridgeway.common.text.table_encoder import WORDS
from ridgeway.simulations import corpora
from ridgeway.simulations.bench.bench_inputs import bench_text
from ridgeway.simulations.bench.measuring import (
    START_SECONDS,
    BenchOptions,
    Row,
    cpu_seconds,
    resident_bytes,
    running,
)
from ridgeway.simulations.bench.peer import (
    Answered,
    Contest,
    Peer,
    PeerMissing,
    asked_peer,
    compared,
    peer_python,
    rows_beside,
)
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
from ridgeway.simulations.bench.sums_bench import make_release
from ridgeway.simulations.experiments.dataset import (
    DATA_FOLDER,
    Dataset,
    ExperimentPlan,
    builtin_dataset,
    folder_dataset,
    split,
)
from ridgeway.simulations.experiments.routers import labelled, our_release
from ridgeway.simulations.experiments.sentence_routers import sentence_vectors

# Sums under masks and under noise, beside other projects.


# Secure sums of the same vectors: ours, Flower's SecAgg+ and NVFLARE's homomorphic encryption.
#
# All members and the coordinator work one after another in one process; sending is left out. Bytes
# are what one member sends.


_LARGEST = 1 << 22
_CASES = ((10, 1), (30, 3))
"""Members, and how many of them drop out before they send."""
_NUMBERS = 170_000
"""About as many as the sums of 576 features have."""
_PEERS = (
    Peer("Flower SecAgg+", "", "peer_flower"),
    Peer("NVFLARE, CKKS", ".venv-peers-nvflare", "peer_nvflare"),
)


def secure_sum_rows(work: Path) -> Iterator[Row]:
    for members, away in _CASES:
        vectors = np.random.default_rng(members).integers(
            0, _LARGEST, (members, _NUMBERS)
        )
        path = work / "vectors.npy"
        np.save(path, vectors)
        what = (
            f"secure sum, {members - away} of {members} members, {_NUMBERS:,} numbers"
        )
        request = {"vectors": str(path), "largest": _LARGEST, "away": away}
        contests = partial(_contests, what, our_sum(vectors, away))
        for peer in _PEERS:
            ask = partial(asked_peer, peer, request, work)
            yield from rows_beside(what, peer.name, ask, contests)


def _contests(what: str, ours: Answered, theirs: Answered) -> dict[str, list[Contest]]:
    return {
        what: [
            Contest(ours["seconds"], theirs["seconds"], "CPU s"),
            Contest(ours["bytes"] / 1e6, theirs["bytes"] / 1e6, "MB a member"),
            Contest(ours["error"], theirs["error"], "off at most"),
        ]
    }


def our_sum(vectors: Any, away: int) -> Answered:
    members = [Identity.generate() for _ in vectors]
    in_order = sorted(range(len(members)), key=lambda member: members[member].public)
    dropped: dict[int, Step] = dict.fromkeys(
        range(len(members) - away + 1, len(members) + 1), "send"
    )
    started = time.process_time()
    run = masked_sum(
        members, list(vectors), dropped, lambda purpose, member: secrets.token_bytes
    )
    seconds = time.process_time() - started
    senders = in_order[: len(members) - away]
    error = np.abs(run.total - vectors[senders].sum(axis=0)).max()
    return {"seconds": seconds, "bytes": _sent(run, 1), "error": float(error)}


def _sent(run: Transcript, member: int) -> int:
    """What one member sends, without signatures around messages."""
    dealt = sum(map(len, run.dealt[member].envelopes.values()))
    revealed = sum(map(len, run.reveals[member].values()))
    signed = len(run.confirmations[member]) // 2
    return run.sealed[member].data.nbytes + dealt + revealed + signed


# Means under the same ε and δ: pfl's Gaussian mechanism, and the noise of our private rounds.
#
# pfl adds noise once, on the total, at a server that sees every user's vector. In our `columns`
# every holder adds all of the noise before anything leaves it: so the error grows with the root of
# the number of holders that share a domain.


_PFL = Peer("pfl", ".venv-peers-pfl", "peer_pfl")
_ROWS = 2000
_WIDTH = 512
_REPEATS = 10
_EPSILONS = (0.3, 1.0, 8.0)
_DELTA = 1e-6
_HOLDERS = (1, 10)
"""That share the rows of one domain."""


def private_mean_rows(work: Path) -> Iterator[Row]:
    drawn = np.random.default_rng(1).normal(size=(_ROWS, _WIDTH))
    rows = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    path = work / "rows.npy"
    np.save(path, rows)
    request = {
        "vectors": str(path),
        "epsilons": _EPSILONS,
        "delta": _DELTA,
        "repeats": _REPEATS,
    }

    def contests(answer: Answered) -> dict[str, list[Contest]]:
        named = {}
        for epsilon, theirs in zip(_EPSILONS, answer["errors"], strict=True):
            for holders in _HOLDERS:
                whose = "one holder" if holders == 1 else f"{holders} holders"
                name = f"{what}, ε {epsilon:g}, δ {_DELTA:g}, {whose}"
                ours = our_mean(rows, epsilon, holders)
                named[name] = [Contest(ours, theirs, "off (RMS)")]
        return named

    what = f"private mean of {_ROWS:,} rows"
    ask = partial(asked_peer, _PFL, request, work)
    yield from rows_beside(what, _PFL.name, ask, contests)


def our_mean(rows: Any, epsilon: float, holders: int) -> float:
    """The root mean square error, over repeats, of a mean whose rows several holders have."""
    privacy = Privacy(mode="columns", epsilon=epsilon, delta=_DELTA, prior="0" * 64)
    errors = []
    for _ in range(_REPEATS):
        # towards zero, so that no row is longer than it may be
        whole = np.trunc(rows * VECTOR_LENGTH).astype(np.int64)
        total = np.zeros(rows.shape[1] + 1)
        for part in np.array_split(whole, holders):
            exact, scales = laid_out(bounded_sums("columns", part), privacy)
            total += with_noise(exact, scales)
        mean = total[:-1] / VECTOR_LENGTH / len(rows)
        errors.append(mean - rows.mean(axis=0))
    return float(np.sqrt(np.mean(np.square(errors))))


# Our gateway and LiteLLM's proxy before the same expert, which costs next to nothing.
#
# Ours also chooses the expert by the prompt; LiteLLM passes every chat on to the one model that it
# is asked for. Both have one worker.


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
    prompts = prompts_of("\n".join(text.documents), TOKENS)
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


# Routing the same prompts to the same domains: accuracy, CPU time of a prompt, and memory.
#
# All learn from the same sample of training texts. Those that work over sentence vectors get ours,
# and what the encoder takes is counted in.


_SETS = {"stern/clinc10": (150, 60), "reasoning": (100, 40), "clm": (60, 30)}
"""Beside the project, and how many texts of a domain are learnt from and tested on: long ones take
the sentence encoder long."""
_USUAL = (100, 30)
_SEED = 1
_OWN = Peer("ours", "", "peer_own")
_OVER_VECTORS = {
    "kNN": (_OWN, {"kind": "knn"}),
    "logistic regression": (_OWN, {"kind": "logistic"}),
    "semantic-router": (
        Peer("semantic-router", ".venv-peers-semantic-router", "peer_semantic_router"),
        {},
    ),
    "lunar-router": (Peer("lunar-router", ".venv-peers-lunar", "peer_lunar"), {}),
}


def shown_datasets(folder: Path | None) -> list[Dataset]:
    """A folder that is named; else the sets beside the project; else built-in text."""
    if folder is not None:
        return [_sampled(folder_dataset(folder), *_USUAL)]
    there = [
        _sampled(folder_dataset(DATA_FOLDER / name), *sizes)
        for name, sizes in _SETS.items()
        if (DATA_FOLDER / name).is_dir()
    ]
    return there or [_sampled(builtin_dataset(), *_USUAL)]


def _sampled(dataset: Dataset, train: int, test: int) -> Dataset:
    return dataset.sampled(_SEED, train=train, test=test)


def routing_rows(options: BenchOptions) -> Iterator[Row]:
    for dataset in shown_datasets(options.text):
        work = options.work / dataset.digest[:8]
        work.mkdir()
        yield from RoutingContest(dataset, options.encoder, work).rows()


@dataclass(frozen=True, slots=True)
class RoutingContest:
    """One dataset, and routers that learn from it."""

    dataset: Dataset
    encoder: str
    work: Path

    def rows(self) -> Iterator[Row]:
        ours = {
            "the table": self._of_release(WORDS, "never"),
            "with sentences": self._of_release(WORDS + SENTENCE, "auto"),
        }
        request = self._vectors()
        encoder = self.encoder + SENTENCE
        reading = self._asked(_OWN, {"kind": "encoder", "encoder": encoder})
        contenders = {
            f"{name} on our sentence vectors": partial(
                asked_peer, peer, request | more, self.work
            )
            for name, (peer, more) in _OVER_VECTORS.items()
        }
        for name, ask in contenders.items():
            contests = partial(self._contests, ours, reading)
            yield from rows_beside(self._what, name, ask, contests)
        corpora.write(self.dataset.corpora, self.work / "texts")
        texts = {"kind": "classifier", "data": str(self.work / "texts")}
        ask = partial(self._asked, _OWN, texts)
        alone = partial(self._contests, ours, dict.fromkeys(reading, 0.0))
        yield from rows_beside(self._what, "a MoDEM-like classifier", ask, alone)

    @property
    def _what(self) -> str:
        return f"routing {self.dataset.name}"

    def _of_release(self, features: str, sentences: str) -> Answered:
        plan = ExperimentPlan((self.dataset,), self.work, encoder=self.encoder)
        release = our_release(plan, self.dataset, features)
        request = {
            "kind": "release",
            "release": str(release),
            "sentences": sentences,
            "domains": self.dataset.domains,
        }
        return self._asked(_OWN, request)

    def _asked(self, peer: Peer, request: dict[str, Any]) -> Answered:
        """Of one that reads the test texts themselves."""
        texts, _ = labelled(self.dataset.test)
        return asked_peer(peer, request | {"test": texts}, self.work)

    def _vectors(self) -> dict[str, Any]:
        """Rows for what is learnt from, held-out text and the test, one after another."""
        parts = split(self.dataset)
        sides = {"train": parts.fit, "held": parts.held, "test": self.dataset.test}
        groups = [labelled(texts) for texts in sides.values()]
        texts = [text for own, _ in groups for text in own]
        labels = np.concatenate([own for _, own in groups])
        rows = sentence_vectors(find_encoder(self.encoder + SENTENCE), texts)
        vectors = self.work / "vectors.npy"
        scores = self.work / "scores.npy"
        np.save(vectors, rows)
        np.save(scores, np.eye(len(self.dataset.domains))[labels])
        ends = np.cumsum([len(own) for own, _ in groups])
        places = np.split(np.arange(len(texts)), ends[:-1])
        return {
            "vectors": str(vectors),
            "scores": str(scores),
            "labels": labels.tolist(),
            **{side: own.tolist() for side, own in zip(sides, places, strict=True)},
        }

    def _contests(
        self, ours: dict[str, Answered], reading: Answered, theirs: Answered
    ) -> dict[str, list[Contest]]:
        """reading: what the encoder takes of time and memory, where an answer is without it."""
        accuracy = self._accuracy(theirs)
        milliseconds = theirs["milliseconds"] + reading["milliseconds"]
        megabytes = theirs["megabytes"] + reading["megabytes"]
        contests = {}
        for words, answer in ours.items():
            right = self._accuracy(answer)
            time = answer["milliseconds"]
            contests[f"{self._what}, {words}"] = [
                Contest(right, accuracy, "%", "more"),
                Contest(time, milliseconds, "ms"),
                Contest(answer["megabytes"], megabytes, "MB"),
                Contest(
                    right / (1e3 * time),
                    accuracy / (1e3 * milliseconds),
                    "%/µs",
                    "more",
                ),
            ]
        return contests

    def _accuracy(self, answer: Answered) -> float:
        """Percent, the mean over domains."""
        _, truth = labelled(self.dataset.test)
        right = np.equal(answer["choices"], truth)
        means = [right[truth == label].mean() for label in set(truth)]
        return 100 * float(np.mean(means))


_PARTS: dict[str, Callable[[BenchOptions], Iterator[Row]]] = {
    "means": lambda options: private_mean_rows(options.work),
    "sums": lambda options: secure_sum_rows(options.work),
    "gateway": gateway_rows,
    "routing": routing_rows,
}


def peers_rows(options: BenchOptions) -> Iterator[Row]:
    if options.only and options.only not in _PARTS:
        raise InputError(
            f"peers has no part {options.only!r}; it has {', '.join(_PARTS)}"
        )
    for name, part in _PARTS.items():
        if options.only in ("", name):
            yield from part(options)
