"""The pages that operators, holders and newcomers follow first, as a reader would: their own
commands, in their order, in real processes where they stay running.

What is not as in the pages: addresses are on loopback, with free ports; corpora and encoder are
those of tests (the default encoder takes ten seconds a command), and simulations read such corpora,
too; all folders lie on one machine, so that a card or an invitation is sent by copying it. What
installs is left out, and `make demo` has a test of its own.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from ridgeway.common.deploy.processes import free_port
from ridgeway.common.privacy.public_prior import write_prior
from tests.support.commands import Finished
from tests.support.corpora_on_disk import write_jsonl
from tests.support.deployment import PROCESSES, Deployment, texts
from tests.support.tiny import private_encoder
from tests.test_docs import DOCS, commands_in

pytestmark = PROCESSES

HOLDERS = ("code", "law", "medicine")
LATER = "chess"


@dataclass(slots=True)
class Reader:
    """Types the commands of a page. key, code: what earlier ones have printed, and later ones are
    given.
    """

    town: Deployment
    key: str = ""
    code: str = ""

    def types(self, words: Sequence[str], name: str) -> Finished | None:
        """One command, for a holder of this name where the page has `law`; None if it stays
        running.
        """
        given = {
            "law": name,
            "law.pub": f"{name}.pub",
            "/data/contracts": str(self.town.corpus(name)),
        }
        given |= {
            "0.0.0.0:9443": self.town.address,
            "router.example.org:9443": self.town.address,
        }
        given |= {"KEY": self.key, "7DQ2-…": self.code}
        match [given.get(word, word) for word in words[1:]]:
            case ["coordinator", "up", *_] as typed:
                self._stays("up", typed, "up")
            case ["client", "join", *_] as typed:
                self._stays(name, typed, "note", "connected")
            case ["serve", *_] as typed:
                port = free_port()
                self._stays("serve", [*typed, "--port", str(port)], "serving")
                assert httpx.get(f"http://127.0.0.1:{port}/").status_code == 200
            case ["simulate", *_] as typed:
                typed += self.town.encoder_option
                typed += [] if "--data" in typed else ["--data", "DATA"]
                typed += (
                    ["--prior", "prior.safetensors"] if "--private" in typed else []
                )
                done = self.town.start("simulate", *typed).end()
                assert done.code == 0, done.stderr
                return done
            case [_, "init", *_] as typed:
                return self.town.do(*typed, *self.town.encoder_option)
            case typed:
                return self.town.do(*typed)
        return None

    def _stays(self, name: str, typed: Sequence[str], *said: str) -> None:
        started = self.town.start(name, *typed)
        self.town.wait_for(
            f"`{name}` is there", lambda: self.town.reported(started, *said)
        )

    def carries(self, words: Sequence[str], name: str, done: Finished | None) -> None:
        """What people bring from one machine to another, or tell each other, after a command."""
        folder = self.town.folder
        match words[1:3]:
            case ["coordinator", "init"]:
                write_prior(self.town.prior(), folder / "co" / "prior.safetensors")
            case ["coordinator", "invite"]:
                shutil.copytree(folder / "co" / "invite", folder / "invite")
            case ["coordinator", "key"]:
                assert done is not None
                self.key = done.stdout.strip()
            case ["client", "init"]:
                shutil.copy(folder / name / "holder.pub", folder / f"{name}.pub")
            case ["client", "members"]:
                assert done is not None
                [self.code] = re.findall(r"^code +(\S+)$", done.stderr, re.MULTILINE)


@pytest.fixture(scope="module")
def reader(
    module_path: Path, private_sentences: None, sentences_cache: Path
) -> Iterator[Reader]:
    """Has the folders of all machines side by side, by the names that the pages give them."""
    with Deployment(module_path, private_encoder(16), sentences_cache) as town:
        (town.folder / "coordinator").symlink_to("co")
        (town.folder / "holders").symlink_to(".")
        for name in (*HOLDERS, LATER):
            write_jsonl(town.corpus(name), texts(name))
        yield Reader(town)


@pytest.fixture(scope="module")
def federation(reader: Reader) -> dict[str, Finished | None]:
    """What the commands of the operator's first page have said."""
    said: dict[str, Finished | None] = {}
    for words in commands_in((DOCS / "operator/first-federation.md").read_text()):
        if "--dry-run" in words:
            said["status"] = reader.town.do("coordinator status co --json")
        for name in HOLDERS if words[1] == "client" or words[2] == "admit" else ("co",):
            said[words[2]] = done = reader.types(words, name)
            reader.carries(words, name, done)
    return said


def test_the_first_federation_is_made_by_the_commands_of_its_page(
    reader: Reader, federation: dict[str, Finished | None]
) -> None:
    """Three holders, one round, no problem before it, and a release that every holder has and a
    service serves.
    """
    assert (
        federation["status"] is not None
        and federation["status"].json["obstacles"] == []
    )
    assert set("init up invite key admit ready join round verify".split()) <= set(
        federation
    )
    assert [reader.town.newest(name) for name in HOLDERS] == [1, 1, 1]


def test_a_holder_joins_and_leaves_by_the_commands_of_its_page(
    reader: Reader, federation: dict[str, Finished | None]
) -> None:
    """The operator does one thing: it admits the card."""
    ran = []
    for words in commands_in((DOCS / "holder/join.md").read_text()):
        done = reader.types(words, LATER)
        reader.carries(words, LATER, done)
        ran.append(words[2])
        if ran == ["init"]:
            reader.town.do("coordinator admit co", f"{LATER}.pub", "--name", LATER)
    assert ran == "init bundle ready join status members confirm leave renew".split()
    assert reader.town.running[LATER].end().code == 0


@pytest.mark.usefixtures("private_sentences")
def test_the_quickstart_runs_as_written(tmp_path: Path, sentences_cache: Path) -> None:
    """Simulations of every kind, a routed prompt, an evaluation, a service."""
    with Deployment(tmp_path, private_encoder(16), sentences_cache) as town:
        for name in HOLDERS:
            write_jsonl(tmp_path / f"DATA/{name}.train.jsonl", texts(name, 200, 60))
            write_jsonl(
                tmp_path / f"DATA/{name}.test.jsonl", texts(name, 12, 60, seed=1)
            )
        write_prior(town.prior(), tmp_path / "prior.safetensors")
        reader = Reader(town)
        reader.types(["ridgeway", "simulate", "--out", "demo-run/release"], "")
        ran = []
        for words in commands_in((DOCS / "quickstart.md").read_text()):
            reader.types(words, "law")
            ran.append(words[1])
        assert ran == [*["simulate"] * 6, "route", "evaluate", "serve"]
