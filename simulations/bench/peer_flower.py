"""Flower's SecAgg+: its workflow and its client's modifier, over a grid in one process.

Messages are handed over as they are: sending them is left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import (
    ConfigRecord,
    Context,
    Error,
    Message,
    RecordDict,
)
from flwr.client.mod import secaggplus_mod
from flwr.common import (
    Code,
    FitIns,
    FitRes,
    Parameters,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.common.secure_aggregation.secaggplus_constants import (
    RECORD_KEY_CONFIGS,
    Key,
    Stage,
)
from flwr.compat.common import recorddict_compat
from flwr.server import LegacyContext
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.supercore.task_identity import TaskIdentity

from ridgeway.simulations.bench.peer import Answered, answer_request

_LEVELS = 1 << 22
_THRESHOLD = 2 / 3
_NONE = Parameters([], "numpy.ndarray")


class EveryClient(FedAvg):
    """Asks all clients, and keeps what the workflow aggregates: the mean."""

    def __init__(self, nodes: Iterable[int]) -> None:
        super().__init__()
        self._nodes = list(nodes)
        self.mean: Any = None

    def configure_fit(self, server_round: int, parameters: Any, manager: Any) -> Any:
        return [
            (SimpleNamespace(node_id=node), FitIns(_NONE, {})) for node in self._nodes
        ]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        self.mean = parameters_to_ndarrays(results[0][1].parameters)[0]
        return None, {}


class ModifiedClients:
    """The clients behind Flower's modifier. away: nodes that do not send their masked vector."""

    def __init__(self, vectors: Mapping[int, Any], away: Iterable[int]) -> None:
        self._vectors = vectors
        self._away = set(away)
        self._contexts = {
            node: Context(0, node, {}, RecordDict(), {}) for node in vectors
        }
        self.sent = dict.fromkeys(vectors, 0)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return [self._replied(message) for message in messages]

    def _replied(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        stage = message.content.config_records[RECORD_KEY_CONFIGS][Key.STAGE]
        if node in self._away and stage == Stage.COLLECT_MASKED_VECTORS:
            return Message(Error(0, "away"), reply_to=message)
        # several messages may hold one record, and the modifier takes entries out of it
        records: dict[str, Any] = dict(message.content.array_records)
        for name, record in message.content.config_records.items():
            records[name] = ConfigRecord(dict(record))
        content = RecordDict(records)
        arrived = Message(content, node, "train", group_id="1")
        reply = secaggplus_mod(arrived, self._contexts[node], self._fit)
        self.sent[node] += _size(reply)
        return Message(reply.content, reply_to=message)

    def _fit(self, message: Message, context: Context) -> Message:
        parameters = ndarrays_to_parameters([self._vectors[context.node_id]])
        result = FitRes(Status(Code.OK, ""), parameters, 1, {})
        content = recorddict_compat.fitres_to_recorddict(result, False)
        return Message(content, reply_to=message)


def _size(reply: Message) -> int:
    """Bytes, and eight for an integer."""
    size = 0
    for record in reply.content.config_records.values():
        for value in record.values():
            several = value if isinstance(value, Sequence) else [value]
            parts = [several] if isinstance(several, bytes | str) else several
            size += sum(len(x) if isinstance(x, bytes | str) else 8 for x in parts)
    return size


def masked_total(request: Any) -> Answered:
    """The sum over those who send, with shares for every member, as ours has in small cohorts."""
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    rows = np.load(request["vectors"]) / request["largest"]
    nodes = dict(enumerate(rows, start=1))
    sending = len(rows) - request["away"]
    clients = ModifiedClients(nodes, range(sending + 1, len(rows) + 1))
    strategy = EveryClient(nodes)
    state = RecordDict({MAIN_CONFIGS_RECORD: ConfigRecord({"current_round": 1})})
    state[MAIN_PARAMS_RECORD] = recorddict_compat.parameters_to_arrayrecord(_NONE, True)
    context = LegacyContext(Context(0, 0, {}, state, {}), strategy=strategy)
    workflow = SecAggPlusWorkflow(
        1.0,
        _THRESHOLD,
        max_weight=1.0,
        clipping_range=1.0,
        quantization_range=_LEVELS,
        modulus_range=1 << 32,
    )
    started = time.process_time()
    workflow(clients, context)  # type: ignore[arg-type]
    seconds = time.process_time() - started
    if strategy.mean is None:
        return {"failed": "too many clients are away, so nothing opens"}
    error = np.abs(strategy.mean * sending - rows[:sending].sum(axis=0)).max()
    return {
        "seconds": seconds,
        "bytes": max(clients.sent.values()),
        "error": float(error * request["largest"]),
    }


if __name__ == "__main__":
    answer_request(masked_total)
