"""A coordinator's folder: settings, keys, the ledger, the releases. One process at a time works in
it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from ridgeway.common.base.errors import InputError, RidgewayError
from ridgeway.common.base.files import (
    cache_folder,
    canonical_json,
    is_locked,
    sha256,
)
from ridgeway.common.base.identity import (
    HandOver,
    Identity,
    hand_over,
    make_next_key,
    owned_identity,
)
from ridgeway.common.base.journal import Clock, system_clock
from ridgeway.common.base.records import (
    Address,
    DomainName,
    Example,
    ExpertNames,
    Mode,
    Record,
    SamplingNumbers,
    read_settings,
)
from ridgeway.common.base.settings import (
    DEFAULT,
    DEFAULT_DELTA,
    DEFAULT_LISTEN,
    EQUAL_MASS,
    PRIVATE_ENCODER,
    Ridge,
    Selector,
    SelectorName,
    Weighting,
)
from ridgeway.common.privacy.accountant import Delta, Epsilon, Privacy
from ridgeway.common.privacy.noise import PrivacyMode
from ridgeway.common.privacy.public_prior import (
    PUBLIC_TEXT_SHA256,
    PublicPrior,
    built_in_prior,
    private_reader,
    private_width,
    read_prior,
    write_prior,
)
from ridgeway.common.protocol.cohort import Terms
from ridgeway.common.routing.release import (
    MANIFEST,
    Release,
    load_manifest,
    load_release,
    release_id,
)
from ridgeway.common.text.encoder_files import find_encoder
from ridgeway.common.text.table_encoder import TableEncoder, usual_sampling
from ridgeway.coordinator.round.ledger import Ledger, LedgerRelease, Standing

COORDINATOR_TOML = "coordinator.toml"
KEY = "coordinator.key"
NEWEST = "newest"
NODES = "nodes.json"
PRIOR = "prior.safetensors"
_LATEST = "latest"
_POLL_S = 0.2
_MAX_LOG_BYTES = 1_000_000
LOCK_TIMEOUT_S = 60.0
"""A change waits this long for another to end: a delivery in the background must not stand in its
way.
"""

KEPT_RUNS = 50
"""How many of the newest runs keep the file in which they told what happened."""
MAX_LEAD = 1000
"""How far beyond the newest release here one at a holder is believed to be: a holder may say
anything.
"""

_NAME = re.compile("[0-9a-z-]{1,64}")


class RoundSettings(Record):
    """Who must be there, and how long the others wait for them; times are in seconds.

    may_lapse: domains that a release may lose because their holders are not there.
    """

    min_holders: int = Field(default=2, ge=2)
    wait: float = Field(default=60.0, ge=0)
    deadline: float = Field(default=600.0, gt=0)
    may_lapse: tuple[DomainName, ...] = ()


class Abstention(Record):
    """Below which confidence a router names the fallback instead of a domain, and which domains
    hold text that no expert is for.
    """

    threshold: float = Field(default=0.0, ge=0, le=1)
    fallback: str | None = Field(default=None, min_length=1)
    outside: tuple[DomainName, ...] = ()

    @model_validator(mode="after")
    def _something_to_name(self) -> Abstention:
        if self.threshold > 0 and self.fallback is None:
            raise ValueError("to abstain below a threshold, name a fallback")
        return self


class RouterSettings(Record):
    """How a router is solved from an exact total, and how tokens decide. λ is relative to the mean
    diagonal of A.
    """

    ridge: float = Field(default=DEFAULT.ridge.value, ge=1e-6, le=10)
    normalise_columns: bool = DEFAULT.normalise_columns
    selector: SelectorName = DEFAULT.selector.name
    k: int = Field(default=DEFAULT.selector.k, ge=1, le=1 << 20)

    @property
    def penalty(self) -> Ridge:
        return Ridge(self.ridge)

    @property
    def rule(self) -> Selector:
        return Selector(self.selector, self.k)


class PrivacySettings(Record):
    """How private rounds bound documents, and what a round costs each of them."""

    sums: PrivacyMode = "columns"
    epsilon: Epsilon = 1.0
    delta: Delta = DEFAULT_DELTA


class FederationSettings(Record):
    """coordinator.toml.

    bundle: the SHA-256 of the bundle that rounds run, or the newest.
    keep: how many releases keep their routers, the newest ones.
    experts: whose quality holders are asked to measure, where they have scores.
    examples: prompts that the operator wrote for the page of a release.
    """

    listen: Address = DEFAULT_LISTEN
    address: Address = DEFAULT_LISTEN
    encoder: str = PRIVATE_ENCODER
    mode: Mode = "private"
    weighting: Weighting = DEFAULT.weighting
    bundle: str = Field(default=NEWEST, pattern=rf"^({NEWEST}|[0-9a-f]{{64}})$")
    keep: int = Field(default=10, ge=1)
    sampling: SamplingNumbers = DEFAULT.sampling
    round: RoundSettings = RoundSettings()
    router: RouterSettings = RouterSettings()
    abstention: Abstention = Abstention()
    privacy: PrivacySettings = PrivacySettings()
    experts: ExpertNames = ()
    examples: tuple[Example, ...] = ()

    @property
    def uses_masks(self) -> bool:
        """As `Terms.uses_masks`, without the encoder."""
        return self.mode == "masked" or (
            self.mode == "private" and self.privacy.sums == "full"
        )


def usual_settings(shared: TableEncoder, **given: Any) -> FederationSettings:
    """The settings of a new federation whose holders share this encoder."""
    return FederationSettings(sampling=usual_sampling(shared), **given)


class Federation:
    """What the operator's side needs; deploy/coordinator_folder.py creates it, and every command
    opens it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        encoder: TableEncoder | None = None,
        clock: Clock = system_clock,
    ) -> None:
        self.folder = folder
        self.settings = read_settings(folder / COORDINATOR_TOML, FederationSettings)
        self.ledger = Ledger(folder, clock)
        self._given = encoder

    @property
    def standing(self) -> Standing:
        """What the ledger says now."""
        return self.ledger.standing()

    @cached_property
    def identity(self) -> Identity:
        """The coordinator's own."""
        return owned_identity(self.folder / KEY, self.standing.handovers)

    def renew_key(self) -> HandOver:
        """Sign with a new key from now on; the one before signs that it does, and is gone."""
        with self.exclusive_lock():
            before = self.identity
            next_key = make_next_key(self.folder / KEY)
            link = hand_over(before, next_key, time.time_ns() // 1_000_000)
            self.ledger.note("handed_over", **link.to_json())
            del self.identity
            _ = self.identity
            return link

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key that this coordinator has signed with, the newest last."""
        return self.standing.handovers.keys(self.identity.public)

    def release(self, number: int) -> Release:
        """A release of this coordinator, verified."""
        if number in self.standing.pruned:
            raise InputError(
                f"release {number:04} was pruned, so only its manifest is left;"
                " restore its files from a backup"
            )
        return load_release(self.release_folder(number), key=self.keys[0])

    def manifest(self, number: int) -> dict[str, Any]:
        """What a release says of itself, verified."""
        return load_manifest(self.release_folder(number), key=self.keys[0])

    @cached_property
    def encoder(self) -> TableEncoder:
        return self._given or find_encoder(self.settings.encoder)

    @property
    def terms(self) -> Terms:
        return self.terms_in(None)

    def terms_in(self, mode: Mode | None) -> Terms:
        """The terms of a round; in the mode of the settings if that is left open."""
        settings = self.settings
        chosen = mode or settings.mode
        private = chosen == "private"
        # documents weigh the same
        weighting: Weighting = "tokens" if private else settings.weighting
        return Terms(
            mode=chosen,
            encoder=self.encoder.fingerprint,
            encoder_name=self.encoder.name,
            features=(private_width(self.encoder) if private else self.encoder.width)
            + 1,
            sampling=settings.sampling,
            weighting=weighting,
            mass=EQUAL_MASS if weighting == "equal" else 0,
            privacy=self.privacy if private else None,
        )

    @property
    def privacy(self) -> Privacy:
        """What private rounds promise."""
        chosen = self.settings.privacy
        return Privacy(
            mode=chosen.sums,
            epsilon=chosen.epsilon,
            delta=chosen.delta,
            prior=self.prior.fingerprint,
        )

    @cached_property
    def prior(self) -> PublicPrior:
        """The public prior of private rounds: the one that lies here, else that of built-in text,
        which then stays.
        """
        path = self.folder / PRIOR
        private_reader(self.encoder)
        if not path.exists():
            name = f"{self.encoder.fingerprint}-{PUBLIC_TEXT_SHA256}.safetensors"
            built_in = cache_folder() / "priors" / name
            if not built_in.exists():
                write_prior(built_in_prior(self.encoder), built_in)
            write_prior(read_prior(built_in), path)
        prior = read_prior(path)
        prior.must_fit(self.encoder)
        return prior

    def choices_id(self, terms: Terms) -> str:
        """Stands for all that decides, beside the holders' sums and documents, what a release
        is.
        """
        choices = [self.settings.router, self.settings.abstention, terms]
        dumped = [choice.model_dump(mode="json") for choice in choices]
        return sha256(canonical_json([*dumped, list(self.settings.examples)]))

    @contextlib.contextmanager
    def exclusive_lock(self, patience: float = LOCK_TIMEOUT_S) -> Iterator[None]:
        """Hold the folder, so that no two rounds or changes of membership run at once; a short wait
        for it is fine. Raises JournalError if the ledger was altered.
        """
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            until = time.monotonic() + patience
            while not _has_taken(handle):
                if time.monotonic() >= until:
                    raise InputError(
                        f"a round or another change is running in {self.folder}; wait"
                        " until it has ended, then try again"
                    )
                time.sleep(_POLL_S)
            self.ledger.journal.verify()
            yield
        finally:
            os.close(handle)

    def is_busy(self) -> bool:
        """Whether a round, a delivery or a change of membership is running. Writes nothing."""
        return is_locked(self.folder / "lock")

    @contextlib.contextmanager
    def logged(self) -> Iterator[None]:
        """Write unforeseen errors to a log with their traceback: Flower throws away what a
        ServerApp prints.
        """
        try:
            yield
        except RidgewayError:
            raise
        except Exception:
            path = self.folder / "logs" / "rounds.log"
            path.parent.mkdir(exist_ok=True)
            if path.exists() and path.stat().st_size > _MAX_LOG_BYTES:
                path.replace(path.with_name("rounds.log.1"))
            with path.open("a", encoding="utf-8") as log:
                log.write(
                    f"{datetime.now(UTC).isoformat()}\n{traceback.format_exc()}\n"
                )
            raise

    @property
    def link(self) -> Path:
        """Where the SuperLink, its certificates and its app are kept."""
        return self.folder.resolve() / "link"

    def nodes(self) -> dict[int, str]:
        """The holders on the roster by the numbers of their SuperNodes, as far as the SuperLink has
        let them in.
        """
        name_of = {holder.node: name for name, holder in self.standing.roster.items()}
        try:
            nodes = json.loads((self.link / NODES).read_bytes())
        except FileNotFoundError:  # a simulation has no SuperLink
            return {}
        return {
            int(number): name_of[node["public_line"]]
            for number, node in nodes.items()
            if node["public_line"] in name_of
        }

    def progress(self, name: str) -> Path:
        """Where a run of this name writes what happens."""
        if not _NAME.fullmatch(name):
            raise InputError(f"invalid run name {name!r}")
        return self.folder / "progress" / f"{name}.jsonl"

    # Releases

    def release_folder(self, number: int) -> Path:
        return self.folder / "releases" / f"{number:04}"

    def prune(self) -> None:
        """Let go of the routers of old releases, and of what old runs told. Every signed manifest
        stays, and the ledger says first which routers go, so that none is missed later.
        """
        gone = []
        paths = sorted((self.folder / "progress").glob("*.jsonl"))[:-KEPT_RUNS]
        for release in self.standing.releases[: -self.settings.keep]:
            files = self.release_folder(release.number).glob("*")
            if routers := [path for path in files if path.name != MANIFEST]:
                gone.append(release.number)
                paths += routers
        if gone:
            self.ledger.note("pruned", releases=gone)
        for path in paths:
            path.unlink(missing_ok=True)

    @property
    def newest(self) -> LedgerRelease | None:
        return self.standing.newest

    @property
    def next_number(self) -> int:
        """One more than that of any release here, or at a holder, where this folder is an older
        copy.
        """
        standing = self.standing
        newest = max((release.number for release in standing.releases), default=0)
        held = (release.number for release in standing.delivered.values())
        believed = {number for number in held if number <= newest + MAX_LEAD}
        return max({newest, *believed}) + 1

    def verify(self) -> dict[str, int]:
        """Check the ledger's chain, the stored sums, and every release's bytes and signature;
        returns what there is.
        """
        counts = self.ledger.verify()
        standing = self.standing
        for release in standing.releases:
            number = release.number
            if number in standing.pruned:
                stored = release_id(self.manifest(number))
            else:
                stored = self.release(number).id
            if stored != release.release:
                raise InputError(f"release {number:04} differs from the ledger")
        return counts | {"releases": len(standing.releases)}

    def publish(self, *entries: tuple[str, dict[str, Any]]) -> None:
        """Enter a release into the ledger, with what else goes with it, and name it the newest."""
        self.ledger.journal.append(*entries)
        self.point_to_latest()

    def point_to_latest(self) -> None:
        """Let releases/latest name the newest release; done again after a crash."""
        newest = self.newest
        if newest is None:
            return
        link = self.folder / "releases" / _LATEST
        target = self.release_folder(newest.number).name
        if link.is_symlink() and link.readlink() == Path(target):
            return
        draft = link.with_name(f".{_LATEST}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        draft.symlink_to(target)
        draft.replace(link)


def _has_taken(handle: int) -> bool:
    """Whether the file could be locked just now."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
