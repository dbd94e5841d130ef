"""What the operator's commands ask of a SuperLink: Flower's messages to its control API, and clear
errors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from ridgeway.common.base.errors import LinkDown, LinkError
from ridgeway.common.base.identity import create_node_key
from ridgeway.coordinator.deploy.superlink import Node, SuperLinkClient, pem_key
from ridgeway.coordinator.deploy.supervisor import register

control: Any = pytest.importorskip("flwr.proto.control_pb2")

BUNDLE = hashlib.sha256(b"bundle").hexdigest()
Handler = Callable[[Any], Any]


class SuperLinkStandIn:
    """Answers the control API as Flower's SuperLink would, and notes what was asked."""

    def __init__(
        self, folder: Path, **answers: Handler | httpx.Response | Exception
    ) -> None:
        (folder / "link.json").write_text(
            json.dumps({"internal_port": 9, "bundles": [BUNDLE]}), encoding="utf-8"
        )
        self.asked: list[str] = []
        self._answers = answers
        self.client = SuperLinkClient(folder)
        self.client.__dict__["_http"] = httpx.Client(
            transport=httpx.MockTransport(self._answer)
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        _, version, api, path = request.url.path.split("/")
        assert (version, api) == ("v1", "control")
        assert request.headers["content-type"] == "application/protobuf"
        method = "".join(word.capitalize() for word in path.split("-"))
        self.asked.append(method)
        answer = self._answers[method]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx.Response):
            return answer
        asked = getattr(control, f"{method}Request").FromString(request.content)
        message = answer(asked)
        return httpx.Response(200, content=message.SerializeToString())


def test_every_request_is_one_of_flowers() -> None:
    """The paths that are made of the names are those that Flower's own client calls."""
    source = Path(
        pytest.importorskip("flwr.supercore.control.control_http_client").__file__
    ).read_text()
    for path in (
        "start-run",
        "stop-run",
        "list-runs",
        "list-nodes",
        "register-node",
        "unregister-node",
    ):
        assert f'"/v1/control/{path}"' in source


def listed(*lines: str) -> Handler:
    """Nodes in these states with these keys, the first online, the last shut out."""
    states = ("online", *("offline" for _ in lines[2:]), "unregistered")
    nodes = [
        {
            "node_id": 2**63 + number,
            "status": state,
            "public_key": pem_key(line),
            "name": f"holder-{number}",
        }
        for number, (line, state) in enumerate(zip(lines, states, strict=True))
    ]
    return lambda request: control.ListNodesResponse(nodes_info=nodes)


@pytest.fixture
def lines(tmp_path: Path) -> list[str]:
    return [create_node_key(tmp_path / f"{number}.key") for number in range(3)]


def test_a_key_is_registered_once(tmp_path: Path, lines: list[str]) -> None:
    """Keys of the roster that are in stay; those that are not on it are shut out; who is in is
    written down.
    """
    registered: list[tuple[bytes, str]] = []

    def register_node(request: Any) -> Any:
        registered.append((request.public_key, request.name))
        return control.RegisterNodeResponse(node_id=7)

    unregistered: list[int] = []

    def unregister_node(request: Any) -> Any:
        unregistered.append(request.node_id)
        return control.UnregisterNodeResponse()

    handlers = {"RegisterNode": register_node, "UnregisterNode": unregister_node}
    link = SuperLinkStandIn(tmp_path, ListNodes=listed(*lines), **handlers)
    new = create_node_key(tmp_path / "new.key")
    roster = {"law": SimpleNamespace(node=lines[0]), "code": SimpleNamespace(node=new)}
    standing = SimpleNamespace(roster=roster, left=())
    federation = cast(Any, SimpleNamespace(standing=standing))
    register(federation, link.client, lambda words: pytest.fail(words))
    assert registered == [(pem_key(new), "code")]
    assert unregistered == [2**63 + 1]
    noted = json.loads((tmp_path / "nodes.json").read_bytes())
    assert noted[str(2**63)] == {"public_line": lines[0], "name": "holder-0"}


def test_a_key_that_was_shut_out_is_refused_with_a_reason(
    tmp_path: Path, lines: list[str]
) -> None:
    refusal = httpx.Response(409, json={"code": 23, "detail": "the key is in use"})
    link = SuperLinkStandIn(tmp_path, RegisterNode=refusal)
    with pytest.raises(LinkError, match="registered and removed before"):
        link.client.register(lines[0], "law")


def test_nodes_are_those_that_may_come_in_with_the_names_they_were_given(
    tmp_path: Path, lines: list[str]
) -> None:
    link = SuperLinkStandIn(tmp_path, ListNodes=listed(*lines))
    assert link.client.nodes() == [
        Node(2**63, True, lines[0], "holder-0"),
        Node(2**63 + 1, False, lines[1], "holder-1"),
    ]


def test_a_run_is_submitted_with_its_bundle_and_followed(tmp_path: Path) -> None:
    def start(request: Any) -> Any:
        assert (request.fab.content, request.fab.hash_str) == (b"bundle", BUNDLE)
        assert not request.override_config
        return control.StartRunResponse(run_id=5)

    states = iter(("running", "finished", "resting"))

    def runs(request: Any) -> Any:
        return control.ListRunsResponse(
            run_dict={request.run_id: {"status": {"status": next(states)}}}
        )

    link = SuperLinkStandIn(tmp_path, StartRun=start, ListRuns=runs)
    assert link.client.submit(b"bundle") == 5
    with pytest.raises(LinkError, match="from different Ridgeway code"):
        link.client.submit(b"other")
    assert [link.client.has_finished(5), link.client.has_finished(5)] == [False, True]
    with pytest.raises(LinkError, match="'resting'"):
        link.client.has_finished(5)


def test_a_refusal_is_one_sentence_with_flowers_number(tmp_path: Path) -> None:
    refusal = httpx.Response(404, json={"code": 12, "detail": "no such run"})
    for answer, words in (
        (refusal, r"refused stop-run: \[code: 12\] no such run$"),
        (httpx.Response(502, text="<html>"), "refused stop-run: 502 <html>"),
    ):
        with pytest.raises(LinkError, match=words):
            SuperLinkStandIn(tmp_path, StopRun=answer).client.stop_run(5)


def test_a_superlink_that_is_away_is_named(tmp_path: Path) -> None:
    for error, expected, words in (
        (httpx.ConnectError("refused"), LinkDown, "does not answer"),
        (httpx.ReadTimeout("late"), LinkError, "did not answer list-nodes"),
    ):
        with pytest.raises(expected, match=words):
            SuperLinkStandIn(tmp_path, ListNodes=error).client.nodes()
    with pytest.raises(LinkDown, match="run `ridgeway coordinator up` first"):
        SuperLinkClient(tmp_path / "nowhere").nodes()
    assert not SuperLinkClient(tmp_path / "nowhere").is_up()


def test_runs_that_an_earlier_coordinator_left_are_stopped(tmp_path: Path) -> None:
    """Those that had begun, also where one ends by itself meanwhile; not those that wait for their
    turn.
    """
    states = {1: "pending", 2: "starting", 3: "running", 4: "finished"}
    stopped: list[int] = []

    def stop(request: Any) -> Any:
        stopped.append(request.run_id)
        return control.StopRunResponse()

    def runs(request: Any) -> Any:
        return control.ListRunsResponse(
            run_dict={
                number: {"status": {"status": state}}
                for number, state in states.items()
            }
        )

    SuperLinkStandIn(tmp_path, ListRuns=runs, StopRun=stop).client.stop_runs()
    assert sorted(stopped) == [2, 3]
    SuperLinkStandIn(
        tmp_path, ListRuns=runs, StopRun=httpx.Response(409)
    ).client.stop_runs()
