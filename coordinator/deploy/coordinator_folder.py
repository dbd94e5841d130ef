"""Making a coordinator's folder: the key it signs with, and coordinator.toml with every setting
explained. Certificates and processes are made by others.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ridgeway.common.base.files import check_new_folder, whole_folder, write_whole
from ridgeway.common.base.identity import create_identity
from ridgeway.common.base.settings_file import (
    read_settings,
    sampling_toml,
    template_literals,
)
from ridgeway.coordinator.round.federation import (
    COORDINATOR_TOML,
    KEY,
    Federation,
    FederationSettings,
)
from ridgeway.coordinator.round.ledger import Ledger

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

# The code that rounds run: the newest bundle, or the SHA-256 of an earlier one that holders have
# approved.
bundle = {bundle}

# How many releases keep their routers, the newest ones: each round lets older ones go. Every signed
# manifest stays.
keep = {keep}

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
