"""Making a coordinator's folder: the key it signs with, and coordinator.toml with every setting
explained; and taking away what it has gathered over the years and can do without.

Certificates and processes are made by others. What is never taken away: the ledger, whole; every
release's signed manifest; the sums and totals that the ledger still needs; keys and settings. So
`verify` holds as before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from ridgeway.common.base.errors import ProcessError
from ridgeway.common.base.files import check_new_folder, whole_folder, write_whole
from ridgeway.common.base.identity import create_identity
from ridgeway.common.base.settings_file import (
    read_settings,
    sampling_toml,
    template_literals,
)
from ridgeway.common.deploy.leftovers import Leftover, outdated_apps
from ridgeway.common.deploy.processes import only_one
from ridgeway.coordinator.deploy.kept_bundles import kept_bundles
from ridgeway.coordinator.round.federation import (
    COORDINATOR_TOML,
    KEY,
    NODES,
    Federation,
    FederationSettings,
)
from ridgeway.coordinator.round.ledger import Ledger, LedgerRelease

_TEMPLATE = """\
# A Ridgeway coordinator. Times are in seconds. A change applies from the next round on;
# only a change of `listen` needs a restart of `coordinator up`.

# The encoder all holders share: smollm2, hf:NAME_OR_DIR or dir:PATH; +words and +sentence add more.
# Changing it makes every holder sum again.
encoder = {encoder}

# What leaves the holders, and what everybody may learn (docs/reference/privacy.md):
#   "private"  every document is bounded, and holders add noise before anything leaves
#   "masked"   exact sums under masks: this coordinator learns each epoch's exact total, and what
#              changed between two
#   "clear"    exact sums: this coordinator sees each holder's own
# Holders take part only in the modes that they allow. `round --mode` runs another mode.
mode = {mode}

# "equal": every domain has the same weight. "tokens": plain sums, as in the paper.
weighting = {weighting}

# Where holders' SuperNodes connect. `listen` is the address to bind; `address` is the address in
# invitations, if it differs (a public name, a forwarded port).
listen = {listen}
address = {address}

# Experts whose quality in each domain a round measures, from the sums of holders' scores.
experts = {experts}

# Example prompts on the page of a release. They are published with it: write your own.
examples = {examples}

[sampling]
# How text is sampled. Holders refuse other values than they allow.
{sampling}

[round]
# A round fails, and keeps accepted data, if fewer holders than this take part.
min_holders = {min_holders}
# `wait`: timeout for holders to come online. `deadline`: timeout for their answers in each step.
wait = {wait}
deadline = {deadline}
# Domains that a release may lose if their holders do not take part; a round that would lose
# another domain stops.
may_lapse = {may_lapse}

[privacy]
# Private rounds: which sums leave with noise, and the maximal cost of a round per document: ε at
# this δ. "columns": a mean direction for each domain; "full": products of features, too
# (`ridgeway plan` says which is more accurate). The public prior is prior.safetensors. `ridgeway
# prior make FOLDER` makes it from public text; without the file, built-in text is used. A new
# prior needs a new invitation, and new epochs of all holders.
sums = {privacy_sums}
epsilon = {privacy_epsilon}
delta = {privacy_delta}

[router]
# How a router is solved from exact sums: λ, relative to the mean diagonal of A, and how tokens
# decide ("average", "entropy" by the k most certain tokens, "all"). A kept total is solved again
# under other settings without asking holders for sums; they count for one router per epoch.
ridge = {ridge}
normalise_columns = {normalise_columns}
selector = {selector}
k = {k}

[abstention]
# Below this confidence the router names `fallback` instead of a domain; 0: no threshold.
threshold = {threshold}
{fallback}
# Domains without an expert, such as everyday questions: the router abstains on their prompts.
outside = {outside}
"""


def create_federation(
    folder: Path,
    settings: FederationSettings,
    add: Callable[[Path], None] = lambda draft: None,
) -> Federation:
    """Make the folder, whole or not at all; an existing one is never touched.

    add: puts more into the folder before it is there for others.
    """
    check_new_folder(folder)
    with whole_folder(folder, new=True) as draft:
        identity = create_identity(draft / KEY)
        write_whole(draft / COORDINATOR_TOML, settings_text(settings).encode())
        read_settings(draft / COORDINATOR_TOML, FederationSettings)
        for name in ("contributions", "releases"):
            (draft / name).mkdir()
        add(draft)
        with Ledger(draft).journal as journal:
            journal.append(("founded", {"coordinator": identity.public}))
    folder.chmod(0o700)
    return Federation(folder)


def settings_text(settings: FederationSettings) -> str:
    """coordinator.toml. Law: read back, it is the same settings."""
    privacy = {f"privacy_{name}": value for name, value in settings.privacy}
    tables = (settings, settings.round, settings.router, settings.abstention)
    values = {name: value for table in tables for name, value in table}
    literals = template_literals(values | privacy)
    literals["sampling"] = sampling_toml(settings.sampling)
    example = '# fallback = "general"'
    fallback = settings.abstention.fallback
    line = f"fallback = {literals['fallback']}" if fallback else example
    return _TEMPLATE.format(**literals | {"fallback": line})


# What a folder can do without


KEPT_RUNS = 50


def leftovers(federation: Federation, keep: int) -> list[Leftover]:
    """Everything that may go, by kind. keep: how many releases keep their routers, the newest
    ones.
    """
    with _down(federation.link) as is_down:
        return _found(federation, keep, is_down)


def prune(federation: Federation, keep: int) -> list[Leftover]:
    """Take it all away. The ledger says first which releases lose their routers, so that none is
    missed later.
    """
    with federation.exclusive_lock(), _down(federation.link) as is_down:
        found = _found(federation, keep, is_down)
        if old := [each.number for each in _old(federation, keep)]:
            federation.ledger.note("pruned", releases=old)
        for each in found:
            each.remove()
        return found


def _found(federation: Federation, keep: int, is_down: bool) -> list[Leftover]:
    link = federation.link
    bundles = [each.sha256 for each in kept_bundles(federation.link)]
    routers = [
        path
        for each in _old(federation, keep)
        for path in federation.release_bulk(each.number)
    ]
    runs = sorted((federation.folder / "progress").glob("*.jsonl"))
    state = (*sorted(link.glob("state.db*")), *link.glob(NODES)) if is_down else ()
    flower = (
        "nothing: `coordinator up` creates it again"
        if is_down
        else "everything, because the coordinator is up"
    )
    return [
        Leftover(
            "routers of old releases",
            f"the newest {keep}, and every signed manifest",
            routers,
        ),
        Leftover(
            "progress files of past runs", f"the newest {KEPT_RUNS}", runs[:-KEPT_RUNS]
        ),
        outdated_apps(link / "flwr-home", bundles),
        Leftover("Flower's data of past runs", flower, state),
    ]


def _old(federation: Federation, keep: int) -> list[LedgerRelease]:
    return [
        each
        for each in federation.ledger.standing().releases[:-keep]
        if federation.release_bulk(each.number)
    ]


@contextlib.contextmanager
def _down(link: Path) -> Iterator[bool]:
    """Whether no coordinator runs in the folder; then none starts while this lasts."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(only_one(link, "a coordinator"))
            is_down = True
        except ProcessError:
            is_down = False
        yield is_down
