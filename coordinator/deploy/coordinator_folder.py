"""Making a coordinator's folder: the key it signs with, and coordinator.toml with every setting
explained. Certificates and processes are made by others.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter

from ridgeway.common.base.errors import InputError, LinkError
from ridgeway.common.base.files import (
    canonical_json,
    check_new_folder,
    whole_folder,
    write_whole,
)
from ridgeway.common.base.identity import create_identity
from ridgeway.common.base.records import (
    read_settings,
    sampling_toml,
    template_literals,
)
from ridgeway.common.deploy.approved_bundle import SERVER_SUFFIX
from ridgeway.common.deploy.backup import (
    BackupManifest,
    copy_files,
    copy_journal,
    unpacked,
    write_backup,
)
from ridgeway.common.deploy.bundle import (
    SERVER_FILE,
    bundle_sha256,
    installed_bundle,
    installed_sha256,
    source_files,
)
from ridgeway.common.protocol.cohort import AnnouncedBundle
from ridgeway.coordinator.round.federation import (
    COORDINATOR_TOML,
    KEY,
    NEWEST,
    PRIOR,
    Federation,
    FederationSettings,
)
from ridgeway.coordinator.round.ledger import Ledger

_TEMPLATE = """\
# A Ridgeway coordinator. Times are in seconds. A change applies from the next round on;
# only a change of `listen` needs a restart of `coordinator up`.

# The encoder all holders share: use, smollm2, hf:NAME_OR_DIR or dir:PATH; +words and +sentence
# add more. Changing it makes every holder sum again.
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


# The bundles that rounds of a coordinator may run: that of the installed Ridgeway, and those before
# it.
#
#     bundles/HASH.fab      a bundle, as it was installed
#     bundles/HASH.server/  the coordinator's own code of the same version
#     bundles.json          their hashes, the newest first, and what the operator says of each
#
# Rounds run the newest, unless `bundle` in coordinator.toml names another: holders approve a new
# bundle in their own time.


_INDEX = "bundles.json"
CHANGES = "changes.txt"
MAX_KEPT = 3
INDEX_RECORDS = TypeAdapter(tuple[AnnouncedBundle, ...])


def keep_installed(federation: Federation) -> None:
    """Keep the bundle of this very Ridgeway as the newest, a few before it, and the one that the
    settings name.
    """
    link = federation.link
    content = installed_bundle()
    digest = bundle_sha256(content)
    newest = AnnouncedBundle(sha256=digest, changes=_changes(federation.folder))
    others = [bundle for bundle in kept_bundles(link) if bundle.sha256 != digest]
    kept = [
        bundle
        for number, bundle in enumerate(others, start=1)
        if number < MAX_KEPT or bundle.sha256 == federation.settings.bundle
    ]
    for name, source in source_files([SERVER_FILE]).items():
        write_whole(server_folder(link, digest) / name, source)
    write_whole(bundle_file(link, digest), content)
    index = [bundle.model_dump(mode="json") for bundle in (newest, *kept)]
    write_whole(link / _INDEX, canonical_json(index))
    for bundle in set(others) - set(kept):
        bundle_file(link, bundle.sha256).unlink(missing_ok=True)
        shutil.rmtree(server_folder(link, bundle.sha256), ignore_errors=True)


def kept_bundles(link: Path) -> tuple[AnnouncedBundle, ...]:
    """The newest first; none before the coordinator was up for the first time."""
    path = link / _INDEX
    return INDEX_RECORDS.validate_json(path.read_bytes()) if path.exists() else ()


def bundle_file(link: Path, digest: str) -> Path:
    return link / "bundles" / f"{digest}.fab"


def server_folder(link: Path, digest: str) -> Path:
    return link / "bundles" / f"{digest}{SERVER_SUFFIX}"


def bundle_content(link: Path, digest: str) -> bytes:
    path = bundle_file(link, digest)
    content = path.read_bytes() if path.exists() else b""
    if bundle_sha256(content) != digest:
        raise LinkError(f"{path} is missing or damaged; restart `coordinator up`")
    return content


def chosen_bundle(federation: Federation) -> str:
    """The hash of the bundle that rounds run."""
    kept = [bundle.sha256 for bundle in kept_bundles(federation.link)]
    named = federation.settings.bundle
    if named == NEWEST:
        return kept[0] if kept else installed_sha256()
    if named not in kept:
        raise InputError(
            f"{federation.folder / COORDINATOR_TOML}: `bundle` names {named}, which is"
            f" not kept; those that are: {', '.join(kept) or 'none'}"
        )
    return named


def _changes(folder: Path) -> tuple[str, ...]:
    """What the operator has written about the newest bundle, a line each."""
    path = folder / CHANGES
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = ["".join(filter(str.isprintable, line))[:300] for line in text.splitlines()]
    return tuple(line for line in lines if line.strip())[:50]


# A coordinator's folder in one file, and back: taken while it runs, verified when it is written and
# when it is read.
#
# The ledger is copied at one moment; then every file that this copy names. What Flower keeps is
# left out: `coordinator up` makes it anew from the ledger.


LEDGER = "ledger.db"
SINGLE_FILES = (
    "coordinator.toml",
    KEY,
    f"{KEY}.next",
    "changes.txt",
    PRIOR,
    "link/ca.crt",
    "link/ca.key",
    "link/server.crt",
    "link/server.key",
    "link/notice.json",
    "link/bundles.json",
)
"""Those that are there are taken."""
MAX_ATTEMPTS = 5


def back_up(federation: Federation, target: Path) -> BackupManifest:
    """Write a backup and verify it. A round may be running meanwhile: if it erases sums while they
    are copied, they are looked for in a later ledger.
    """
    fill = partial(_fill, federation.folder)
    for _ in range(MAX_ATTEMPTS):
        try:
            return write_backup(target, fill, federation.identity.public)
        except FileNotFoundError as error:
            missing = error
    raise InputError(
        f"{missing.filename} is in the ledger, but the file is missing; run `ridgeway"
        " coordinator verify`"
    )


def restore(source: Path, folder: Path) -> BackupManifest:
    """Make a coordinator's folder of a backup, whole and verified, or nothing at all."""
    with unpacked(source, folder, "coordinator") as (draft, manifest):
        _verified(draft)
    Federation(folder).point_to_latest()
    return manifest


def _fill(folder: Path, draft: Path) -> int:
    copy_journal(folder / LEDGER, draft / LEDGER)
    copy_files(folder, _named(folder, draft), draft)
    return _verified(draft)["entries"]


def _named(folder: Path, draft: Path) -> Iterator[str]:
    """The names of the files that belong to the copied ledger."""
    yield from (name for name in SINGLE_FILES if (folder / name).is_file())
    bundles = (folder / "link/bundles").rglob("*")
    paths = [path for path in bundles if path.suffix in (".fab", ".py")]
    ledger = Ledger(draft)
    with ledger.journal:
        yield from (f"contributions/{name}" for name in ledger.file_names())
        for made in ledger.standing().releases:
            paths += (folder / f"releases/{made.number:04}").iterdir()
    yield from (path.relative_to(folder).as_posix() for path in paths)


def _verified(folder: Path) -> dict[str, int]:
    for name in ("contributions", "releases"):
        (folder / name).mkdir(exist_ok=True)
    federation = Federation(folder)
    with federation.ledger.journal:
        return federation.verify()
