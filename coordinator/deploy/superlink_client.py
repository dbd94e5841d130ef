"""What the operator's commands ask of a running SuperLink: who is registered, submit a run, how is it.

Knows the folder that coordinator/deploy/superlink.py runs for, and Flower's command `flwr`, which it calls as a
process (about two seconds a call). Imports nothing of Flower. The SuperLink is reached over loopback and must show a
certificate of the folder's authority.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import ssl
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from ridgeway.common.base.errors import LinkDown, LinkError
from ridgeway.common.base.files import canonical_json, write_whole
from ridgeway.common.deploy.bundle import build
from ridgeway.common.deploy.node_key import check_public_line
from ridgeway.common.deploy.processes import Value, flower_environment, script, toml

CALL_TIMEOUT_S = 120.0
STATES = ("pending", "starting", "running", "finished")


@dataclass(frozen=True, slots=True)
class Node:
    """A registered SuperNode; one that was registered by other hands has no public line."""

    node_id: int
    online: bool
    public_line: str | None = None
    name: str = ""


class SuperLinkClient:
    """The SuperLink of a folder, as seen from any process of the operator's machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def port(self) -> int:
        """The loopback port of the SuperLink."""
        try:
            return int(json.loads((self.folder / "link.json").read_bytes())["internal_port"])
        except (OSError, ValueError, KeyError, TypeError):
            raise LinkDown(f"no SuperLink has been started for {self.folder}; start the coordinator first") from None

    def is_up(self) -> bool:
        """Whether the SuperLink answers."""
        try:
            context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
            url = f"https://127.0.0.1:{self.port}/health"
            return httpx.get(url, verify=context, trust_env=False, timeout=3.0).status_code == 200
        except (LinkError, OSError, httpx.HTTPError):
            return False

    def register(self, public_line: str, name: str) -> int:
        """Let a SuperNode in, and return its id; a key that is in already keeps its id."""
        line = check_public_line(public_line)
        known = self._registry()
        for registered, entry in known.items():
            if entry["public_line"] == line:
                return int(registered)
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "node.pub"
            path.write_text(line + "\n", encoding="ascii")
            try:
                node_id = int(self._flwr("supernode", "register", str(path), "ridgeway", "--name", name)["node-id"])
            except LinkError as error:
                node_id = self._adopt(line, error)
        self._remember({**known, str(node_id): {"public_line": line, "name": name}})
        return node_id

    def _adopt(self, line: str, error: LinkError) -> int:
        """The id of a key that the SuperLink knows and the registry does not: a crash came between the two."""
        if "[code: 23]" not in str(error):
            raise error
        key = load_ssh_public_key(line.encode()).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        place = f"file:{quote(str(self.folder.resolve() / 'state.db'))}?mode=ro"
        try:
            with contextlib.closing(sqlite3.connect(place, uri=True)) as database:
                found = database.execute("SELECT node_id, status FROM node WHERE public_key = ?", (key,)).fetchone()
        except sqlite3.Error:
            raise error from None
        if found is None or found[1] == "unregistered":
            raise LinkError(
                "this key was registered before and shut out, which cannot be undone; the holder makes a new key"
            ) from error
        return int(found[0]) % 2**64

    def unregister(self, node_id: int) -> None:
        """Shut a SuperNode out; its key cannot be registered again."""
        self._flwr("supernode", "unregister", str(node_id), "ridgeway")
        self._remember({key: entry for key, entry in self._registry().items() if key != str(node_id)})

    def nodes(self) -> list[Node]:
        """Every registered SuperNode."""
        known = self._registry()
        return [
            Node(int(each["node-id"]), online=each["status"] == "online", **known.get(each["node-id"], {}))
            for each in self._flwr("supernode", "list", "ridgeway")["nodes"]
            if each["status"] not in ("unregistered", "deleted")
        ]

    def submit(self, app: Path, run_config: Mapping[str, Value]) -> int:
        """Start a run of an app folder, and return its id. Keys of `run_config` must be declared in the app.

        `flwr run` always builds the bundle anew, so its hash is compared with the one the holders approved.
        """
        expected = build(app).sha256
        with tempfile.TemporaryDirectory() as place:
            values = Path(place) / "values.toml"
            values.write_text(toml(run_config), encoding="utf-8")
            words = ("--run-config", str(values)) if run_config else ()
            answer = self._flwr("run", str(app.resolve()), "ridgeway", *words)
        run_id = int(answer["run-id"])
        if not expected.startswith(str(answer.get("fab-hash", "-"))):
            self.stop_run(run_id)
            raise LinkError(
                f"Flower made the bundle {answer.get('fab-hash')} where {expected[:8]} was expected, so the run was "
                "stopped; another version of Flower is the likely cause: install the pinned one"
            )
        return run_id

    def has_finished(self, run_id: int) -> bool:
        """Whether a run has come to its end, well or not."""
        state = str(self._flwr("list", "ridgeway", "--run-id", str(run_id))["runs"][0]["status"]).partition(":")[0]
        if state not in STATES:
            raise LinkError(f"the SuperLink reports the state {state!r}, which this version of Ridgeway does not know")
        return state == "finished"

    def stop_run(self, run_id: int) -> None:
        self._flwr("stop", str(run_id), "ridgeway")

    def _flwr(self, *words: str) -> dict[str, Any]:
        """What a `flwr` command answered; its failure is one clear error."""
        home = self.folder / "flwr-home"
        self._write_config(home)
        command = [script("flwr"), *words, "--format", "json"]
        try:
            done = subprocess.run(
                command,
                env=flower_environment(home),
                cwd=home,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=CALL_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise LinkError(
                f"the SuperLink gave no answer to `flwr {words[0]}` within {CALL_TIMEOUT_S:g} s; try again"
            ) from None
        answer = _parsed(done.stdout)
        if done.returncode == 0 and answer.get("success"):
            return answer
        raise self._failure(words, answer, done.stderr)

    def _failure(self, words: tuple[str, ...], answer: Mapping[str, Any], stderr: str) -> LinkError:
        if not self.is_up():
            return LinkDown(f"the SuperLink of {self.folder} does not answer; start the coordinator and try again")
        said = " ".join((str(answer.get("error-message", "")) or stderr).split())
        reason = said[said.rfind("[code:") :] if "[code:" in said else said[-400:]
        return LinkError(f"the SuperLink refused `flwr {' '.join(words[:2])}`: {reason or 'no reason given'}")

    def _write_config(self, home: Path) -> None:
        """Flower's own configuration, which names the one SuperLink of this folder."""
        address = toml(
            {"address": f"127.0.0.1:{self.port}", "root-certificates": str(self.folder.resolve() / "ca.crt")}
        )
        content = f'[superlink]\ndefault = "ridgeway"\n\n[superlink.ridgeway]\n{address}'.encode()
        path = home / "config.toml"
        if not path.exists() or path.read_bytes() != content:
            write_whole(path, content, private=True)

    def _registry(self) -> dict[str, dict[str, str]]:
        path = self.folder / "nodes.json"
        return dict(json.loads(path.read_bytes())) if path.exists() else {}

    def _remember(self, nodes: Mapping[str, Mapping[str, str]]) -> None:
        write_whole(self.folder / "nodes.json", canonical_json(nodes), private=True)


def _parsed(text: str) -> dict[str, Any]:
    """The JSON object a command printed, or an empty one."""
    try:
        found = json.loads(text[text.index("{") :])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
