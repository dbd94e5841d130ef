"""A whole federation in a folder, made with the same code that makes real ones, and the engines
that its rounds can run on.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flwr.app import ConfigRecord, Context, Error, Message
from flwr.clientapp import ClientApp

from ridgeway.client import client_app
from ridgeway.client.deploy.holder_folder import agreed_policy, create_holder
from ridgeway.client.ready import SMALLEST_CORPUS, open_epoch
from ridgeway.client.round.holder import CARD, PRIOR, Holder, HolderSettings
from ridgeway.client.round.policy import ROSTER, write_roster
from ridgeway.common.base.errors import InputError, LinkError
from ridgeway.common.base.files import without_syncing, write_whole
from ridgeway.common.base.operating_system import cores, may_fork, process_context
from ridgeway.common.base.records import Mode
from ridgeway.common.base.settings import DEFAULT
from ridgeway.common.deploy.bundle import SERVER_FILE, write_app
from ridgeway.common.deploy.processes import (
    end_leftovers,
    flower_environment,
    free_port,
    marked,
    script,
)
from ridgeway.common.masking.agreement import SMALLEST_COHORT
from ridgeway.common.privacy.public_prior import (
    prior_bytes,
    private_reader,
    read_prior,
    write_prior,
)
from ridgeway.common.protocol.cohort import Card, RosterMember, Terms, read_signed_json
from ridgeway.common.protocol.messages import CANNOT_ANSWER
from ridgeway.common.text.encoder_files import find_encoder
from ridgeway.coordinator.deploy.coordinator_folder import create_federation
from ridgeway.coordinator.round.ask import RunOrder, give_order
from ridgeway.coordinator.round.federation import (
    Federation,
    RoundSettings,
    usual_settings,
)
from ridgeway.coordinator.round.progress import Watch, follow
from ridgeway.coordinator.round.round import run_round
from ridgeway.coordinator.server_app import GridTransport
from ridgeway.simulations import corpora
from ridgeway.simulations.local_grid import process_grid, share_work

# A whole federation in a folder: corpora dealt out to holders, holders' folders, a coordinator's
# folder.
#
# Made with the same code that makes real ones.


UNUSED_ADDRESS = "127.0.0.1:1"
NO_BUNDLE = "0" * 64
MANY_HOLDERS = 100
"""From so many on, processes answer for holders, as many as there are cores, so each holder sums on
one thread.
"""


@dataclass(frozen=True, slots=True)
class SimulatedFederation:
    """A federation whose holders and coordinator lie in one folder.

    nodes: the folders of the holders that are there, by holder, in the order of their names.
    tests: the test texts, by domain. sizes: how many documents each holder has, also those that are
           not there.
    """

    folder: Path
    federation: Federation
    nodes: Mapping[str, Path]
    tests: Mapping[str, tuple[str, ...]]
    sizes: Mapping[str, int]

    @property
    def newest_release(self) -> Path:
        """The folder of the release that the last round made."""
        newest = self.federation.newest
        assert newest is not None
        return self.federation.release_folder(newest.number)


def create_simulated_federation(
    folder: Path,
    domains: Sequence[corpora.Corpus],
    *,
    holders: int | None = None,
    drop: Sequence[str] = (),
    encoder: str = DEFAULT.encoder,
    mode: Mode = "masked",
    prior: Path | None = None,
    **settings: Any,
) -> SimulatedFederation:
    """Deal the corpora out and make every folder. Holders in `drop` are admitted but are not there.

    prior:    the file of a public prior, if it is not to be that of built-in text.
    settings: others of coordinator.toml.
    """
    share_work()
    dealt = deal(domains, len(domains) if holders is None else holders)
    fewest = min(dealt, key=lambda name: len(dealt[name][1]))
    if len(dealt[fewest][1]) < SMALLEST_CORPUS:
        raise InputError(
            f"{fewest} would have {len(dealt[fewest][1])} documents, and a holder needs"
            f" {SMALLEST_CORPUS}; ask for fewer --holders, or name more text"
        )
    unknown = sorted(set(drop) - set(dealt))
    if unknown:
        raise InputError(
            f"there is no holder {unknown[0]!r} to drop; there are {', '.join(dealt)}"
        )
    shared = find_encoder(encoder)
    rounds = RoundSettings(wait=0.0)
    chosen = usual_settings(
        shared, encoder=encoder, mode=mode, round=rounds, **settings
    )
    if chosen.uses_masks and len(dealt) < SMALLEST_COHORT:
        raise InputError(
            f"a round under masks needs {SMALLEST_COHORT} holders, and there are"
            f" {len(dealt)}; ask for more with --holders, or for one in the clear with"
            " --clear"
        )
    given = read_prior(prior) if prior else None
    if mode == "private":
        private_reader(shared)
    created = create_federation(folder / "coordinator", chosen)
    federation = Federation(created.folder, encoder=shared)
    if given is not None:
        write_prior(given, federation.folder / PRIOR)
    homes = {}
    roster = []
    threads = 1 if len(dealt) >= MANY_HOLDERS else 0
    for name, (domain, texts) in dealt.items():
        homes[name] = _holder(folder, name, domain, texts, federation, threads=threads)
        card = read_signed_json(homes[name] / CARD, Card)
        federation.ledger.admit(name, card)
        roster.append(RosterMember(name=name, domain=domain, key=card.key))
    first = next(iter(homes.values()))
    write_roster(first, roster)
    # the same for all: each has itself in it, too
    pinned = (first / ROSTER).read_bytes()
    for name, home in homes.items():
        write_whole(home / ROSTER, pinned, private=True)
        if name in drop:
            home.rename(folder / f"away-{name}")
    nodes = {name: home for name, home in homes.items() if name not in drop}
    tests = {corpus.name: corpus.test for corpus in domains}
    return SimulatedFederation(
        folder,
        federation,
        nodes,
        tests,
        {name: len(texts) for name, (_, texts) in dealt.items()},
    )


def deal(
    domains: Sequence[corpora.Corpus], holders: int
) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Each holder's domain and texts: domains take turns, and the texts of one are dealt out to its
    holders in turn.
    """
    if holders < len(domains):
        raise InputError(
            f"{len(domains)} domains need at least as many holders, not {holders}"
        )
    dealt = {}
    for index, corpus in enumerate(domains):
        count = (holders - index + len(domains) - 1) // len(domains)
        if count > len(corpus.train):
            raise InputError(
                f"{corpus.name!r} has {len(corpus.train)} documents, too few for {count}"
                " holders"
            )
        for turn in range(count):
            name = (
                corpus.name
                if count == 1
                else f"{corpus.name}-{turn + 1:0{len(str(count))}}"
            )
            if name in dealt:
                raise InputError(
                    f"two holders would be called {name!r}; rename one of the domains"
                )
            dealt[name] = (corpus.name, corpus.train[turn::count])
    return dict(sorted(dealt.items()))


def open_epochs(simulated: SimulatedFederation) -> Iterator[str]:
    """Let every holder sum its corpus, as its owner does before a round; yields names as they are
    done.

    Many holders are shared out over as many processes as there are cores.
    """
    terms = simulated.federation.terms
    if len(simulated.nodes) < MANY_HOLDERS:
        for name, home in simulated.nodes.items():
            open_epoch(Holder(home), terms)
            yield name
        return
    # before processes start: forks share it
    find_encoder(simulated.federation.settings.encoder)
    opened = partial(_open_epoch, terms)
    with process_context().Pool(cores()) as pool:
        names = iter(simulated.nodes)
        for _ in pool.imap(opened, simulated.nodes.values(), chunksize=8):
            yield next(names)


def _open_epoch(terms: Terms, home: Path) -> None:
    with without_syncing():
        open_epoch(Holder(home), terms)


def _holder(
    folder: Path,
    name: str,
    domain: str,
    texts: Sequence[str],
    federation: Federation,
    *,
    threads: int,
) -> Path:
    corpus = folder / "corpora" / f"{name}.jsonl"
    corpora.write_texts(corpus, texts)
    settings = federation.settings
    terms = federation.terms
    policy = agreed_policy(
        terms,
        federation.identity.public,
        min_cohort=SMALLEST_COHORT if terms.uses_masks else 2,
        max_round_epsilon=settings.privacy.epsilon,
        max_epsilon=settings.privacy.epsilon,
    )
    home = folder / "holders" / name
    papers = {PRIOR: prior_bytes(federation.prior)} if terms.privacy else {}
    create_holder(
        home,
        HolderSettings(
            domain=domain,
            corpus=(str(corpus.resolve()),),
            holdout=DEFAULT.holdout,
            threads=threads,
            encoder=settings.encoder if settings.encoder.startswith("dir:") else None,
            spending=str((folder / "spending" / f"{name}.jsonl").resolve()),
            address=UNUSED_ADDRESS,
            bundles=(NO_BUNDLE,),
            policy=policy,
        ),
        papers,
    )
    return home


# The engines that a simulated round can run on: this very process, or Flower's simulation engine.
#
# Both run the same ClientApp, ServerApp and protocol as a deployment; only the way messages travel
# differs.


# Holders that drop out in the middle of a round, as a simulation was asked to let them.
#
# A ClientApp around the holders' own: it answers a number of requests, then fails for good, as a
# machine does whose network is cut. Which holders drop out, and when, is the same in every run.
# Flower's simulation engine loads `app`.


DROPOUTS_FILE = "dropouts.json"
APP = "ridgeway.simulations.simulated_federation:app"
APP_FILES = ("simulations/__init__.py", "simulations/simulated_federation.py")
"""What the bundle of a simulation holds beside the rooms of a round."""

STAGES = {
    1: "before sharing",
    2: "after sharing",
    3: "after sending",
    4: "before opening",
}
UNMASKED_STAGES = {1: "before sending", 2: "before counting", 3: "before the delivery"}
"""After how many answers a holder drops out, and what that means: in a round under masks, and in
one without.
"""


def choose_dropouts(
    names: Sequence[str], rate: float, stages: Mapping[int, str] = STAGES
) -> dict[str, int]:
    """Which holders drop out, and after how many answers: the given part of them, spread over the
    stages.
    """
    if not 0 <= rate < 1:
        raise InputError(f"a drop rate lies between 0 and 1, not at {rate:g}")
    order = sorted(names)
    random.Random("ridgeway falls").shuffle(order)
    chosen = order[: round(rate * len(order))]
    return {name: 1 + index % len(stages) for index, name in enumerate(chosen)}


def write_dropouts(folder: Path, dropouts: Mapping[str, int]) -> None:
    (folder / DROPOUTS_FILE).write_text(json.dumps(dict(dropouts)), encoding="utf-8")


def dropout_app(
    dropouts: Mapping[str, int], plain: ClientApp | None = None
) -> ClientApp:
    """The holders' ClientApp, in which some drop out. plain: one in its place."""
    answering = plain or client_app.app
    wrapped = ClientApp()

    @wrapped.query("ridgeway")
    def ridgeway(message: Message, context: Context) -> Message:
        limit = dropouts.get(client_app.holder_folder(context).name)
        given = context.state.config_records.get("given") or ConfigRecord(
            {"answers": 0}
        )
        answers = int(str(given["answers"]))
        if limit is not None and answers >= limit:
            return Message(
                Error(code=CANNOT_ANSWER, reason="fell away, as asked for"),
                reply_to=message,
            )
        context.state["given"] = ConfigRecord({"answers": answers + 1})
        return answering(message, context)

    return wrapped


def __getattr__(name: str) -> ClientApp:
    """`app`, made when Flower asks for it, of what stands in the folder that the environment
    names.
    """
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    path = Path(os.environ["RIDGEWAY_SIMULATION"]) / DROPOUTS_FILE
    # Flower looks for an assignment to this name
    app = dropout_app(json.loads(path.read_text(encoding="utf-8")))
    return app  # noqa: RET504


_SILENCE_S = 10.0
"""After no event for this long, Flower is asked whether the run has ended; asking starts a process.
"""
RUN_NAME = "simulation"
NO_DROPOUTS: Mapping[str, int] = MappingProxyType({})


def run_in_memory(
    simulated: SimulatedFederation,
    watch: Watch,
    dropouts: Mapping[str, int] = NO_DROPOUTS,
    app: ClientApp | None = None,
) -> None:
    """One round in this process; messages go through Flower's own serialisation.

    Many holders are shared out over as many further processes as there are cores; what comes of
    the round is the same.

    dropouts: holders that drop out, and after how many answers.
    app:      in place of the holders' own.
    """

    # an app that was made here reaches another process by a fork alone
    shared = app is None or may_fork()
    processes = cores() if shared and len(simulated.nodes) >= MANY_HOLDERS else 1
    make_app = partial(dropout_app, dropouts, app)
    nodes = dict(enumerate(simulated.nodes.values(), start=1))
    with process_grid(make_app, nodes, processes) as grid:
        run_round(simulated.federation, GridTransport(grid, least_pause_s=0.0), watch)


def run_on_flower(
    simulated: SimulatedFederation,
    watch: Watch,
    dropouts: Mapping[str, int] = NO_DROPOUTS,
) -> None:
    """One round on Flower's simulation engine (Ray): `flwr run` with a local SuperLink that is
    stopped afterwards.
    """
    app = simulated.folder / "app"
    write_dropouts(simulated.folder, dropouts)
    write_app(app, client=APP, also=[SERVER_FILE, *APP_FILES])
    with _local_superlink(simulated) as environment:
        resources = f"num-supernodes={len(simulated.nodes)} client-resources-num-cpus=1"
        words = ["run", str(app), "local", "--federation-config", resources]
        log = simulated.folder / "flower.log"
        answer = simulated.folder / "run.json"
        # files: a SuperLink that stays would hold a pipe open
        with log.open("wb") as err, answer.open("wb") as out:
            subprocess.run(
                [script("flwr"), *words, "--format", "json"],
                env=environment,
                stdout=out,
                stderr=err,
            )
        try:
            text = answer.read_text(encoding="utf-8")
            run = int(json.loads(text[text.index("{") :])["run-id"])
        except (ValueError, LookupError):
            raise LinkError(
                f"Flower's simulation did not start; {log} says why"
            ) from None
        give_order(
            simulated.federation.link, run, RunOrder(work="round", name=RUN_NAME)
        )
        follow(
            simulated.federation.progress(RUN_NAME),
            watch,
            lambda: _has_ended(environment),
            _SILENCE_S,
        )


def _has_ended(environment: dict[str, str]) -> bool:
    words = "list local --limit 1 --format json".split()
    listed = subprocess.run(
        [script("flwr"), *words], env=environment, capture_output=True, text=True
    )
    try:
        return str(json.loads(listed.stdout)["runs"][0]["status"]).startswith(
            "finished"
        )
    except (ValueError, LookupError):
        return listed.returncode != 0


@contextmanager
def _local_superlink(simulated: SimulatedFederation) -> Iterator[dict[str, str]]:
    """The environment of a SuperLink of our own, which `flwr run` starts; all that came of it is
    stopped at the end.
    """
    folder = simulated.folder.resolve()
    home = folder / "flwr"
    home.mkdir()
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "local"\n\n[superlink.local]\naddress ='
        ' ":local-in-memory:"\n',
        encoding="utf-8",
    )
    scratch = tempfile.mkdtemp(prefix="rw-")  # Ray's sockets need a short path
    port = free_port()
    environment = marked(flower_environment(home), folder) | {
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port),
        "RIDGEWAY_SIMULATION": str(folder),
        "RIDGEWAY_COORDINATOR": str(simulated.federation.link.resolve()),
        "RAY_TMPDIR": scratch,
        "PATH": os.pathsep.join(
            (str(Path(script("flower-superlink")).parent), os.environ.get("PATH", ""))
        ),
    }
    try:
        yield environment
    finally:
        end_leftovers(folder, lambda word: None)
        shutil.rmtree(scratch, ignore_errors=True)
