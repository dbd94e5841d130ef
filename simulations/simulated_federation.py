"""A whole federation in a folder: corpora dealt out to holders, holders' folders, a coordinator's
folder.

Made with the same code that makes real ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ridgeway.client.deploy.holder_folder import agreed_policy, create_holder
from ridgeway.client.ready import SMALLEST_CORPUS, open_epoch
from ridgeway.client.round.holder import CARD, PRIOR, Holder, HolderSettings
from ridgeway.client.round.policy import ROSTER, write_roster
from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import without_syncing, write_whole
from ridgeway.common.base.operating_system import cores, process_context
from ridgeway.common.base.records import Mode
from ridgeway.common.base.settings import DEFAULT
from ridgeway.common.masking.agreement import SMALLEST_COHORT
from ridgeway.common.privacy.public_prior import (
    check_private_encoder,
    prior_bytes,
    read_prior,
    write_prior,
)
from ridgeway.common.protocol.cohort import Card, RosterMember, Terms, read_signed_json
from ridgeway.common.text.encoder_files import find_encoder
from ridgeway.coordinator.deploy.coordinator_folder import create_federation
from ridgeway.coordinator.round.federation import (
    Federation,
    RoundSettings,
    usual_settings,
)
from ridgeway.simulations import corpora
from ridgeway.simulations.local_grid import share_work

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
        check_private_encoder(shared)
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
