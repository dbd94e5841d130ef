"""Making a domain holder's folder: identity, the card for the operator, and client.toml with every
setting explained.

Nothing of a folder leaves but holder.pub, and that only when the holder hands it over.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ridgeway.client.round.holder import (
    CARD,
    CLIENT_TOML,
    IDENTITY,
    PRIOR,
    Holder,
    HolderSettings,
)
from ridgeway.client.round.policy import ROSTER, Policy
from ridgeway.client.round.spending import RESTORED, SPENT, UNPACKED, Expense
from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import check_new_folder, whole_folder, write_whole
from ridgeway.common.base.identity import (
    HandOver,
    create_identity,
    create_node_key,
    hand_over,
    make_next_key,
    next_key,
    public_line,
)
from ridgeway.common.base.journal import Journal
from ridgeway.common.base.records import (
    read_settings,
    sampling_toml,
    template_literals,
    toml_literal,
)
from ridgeway.common.deploy.backup import (
    BackupManifest,
    copy_files,
    copy_journal,
    unpacked,
    write_backup,
)
from ridgeway.common.protocol.cohort import (
    ANNOUNCED_ROSTER,
    AUTHORITY,
    INVITE,
    NOTICE,
    Card,
    Leaving,
    Terms,
    signed_json,
    write_signed_json,
)

RENEWED_NODE_KEY = "node_key"
"""The kind of a journal's entry about another key of the SuperNode."""
OPTIONAL = {
    "encoder": '"dir:PATH"',
    "spending": '"spending.jsonl"',
    "proxy": '"http://proxy.example.org:3128"',
    "scores": '"scores.jsonl"',
}
"""Settings that are left out where they are not made, and an example of each."""
SHOWN_BUNDLE = "shown_bundle"
"""The kind of a journal's entry about a bundle that the owner was shown and has not approved."""
LIST_OF_BUNDLES = re.compile(r"^bundles\s*=\s*\[[^\]]*\]", re.MULTILINE)
_TEMPLATE = """\
# A Ridgeway domain holder. Nothing in this folder leaves this machine but holder.pub, when you
# hand it over.

domain = {domain}

# The private text, as files and folders.
corpus = {corpus}
# The field that holds the text, where records have several; of several names, the first a record
# has.
text_field = {text_field}
# The share of documents that is kept out of the sums, to evaluate routers with.
holdout = {holdout}
# Scores of experts' answers to prompts of this domain (docs/application/gateway.md),
# .jsonl or .csv; only their sums leave.
{scores}
# The largest share of records that may be skipped because they cannot be read, such as 0.01;
# with 0, the first one stops everything. Their files and lines are listed in broken.txt.
skip_broken = {skip_broken}
# Threads to sum with; 0: one a core. And where: "auto" takes every GPU there is, else
# the CPU; or "cpu", "cuda", or one GPU such as "cuda:0". The sums are the same, unless a
# transformer reads sentences.
threads = {threads}
device = {device}
# Where this machine finds the encoder, if not under its own name: hf:NAME_OR_DIR or
# dir:PATH, and +sentence:DIR behind it.
{encoder}
# The file, shared by all folders of this user, that keeps what corpora have cost their documents.
# Keep a copy of it.
{spending}

# How many releases are kept, the newest ones: with each that comes, an older one goes.
keep = {keep}

# Where the coordinator is reached, and the SHA-256 of the app bundles that you allow it to run
# here.
address = {address}
bundles = {bundles}
# The proxy through which this machine reaches the coordinator, if not directly.
{proxy}

[policy]
# What this holder agrees to. Requests that ask for anything else are refused, whoever sends them.
# The coordinator's key: requests and releases signed by any other are refused.
coordinator = {coordinator}
# The encoders whose sums may leave, by fingerprint.
encoders = {encoders}
# The rounds that this holder takes part in (docs/reference/privacy.md):
#   "private"  every document is bounded, and noise is added before anything leaves
#   "masked"   exact sums under masks: the coordinator learns each epoch's exact total, and what
#              changed between two
#   "clear"    exact sums: the coordinator sees this holder's own
modes = {modes}
# How private rounds bound documents: "columns" (this holder's own noise hides them), or "full"
# (products of features, too, under noise that members draw in shares). And what one round, and
# all that ever leaves, may cost a document: an ε, at this δ. Private rounds that would cost more
# are refused. An exact sum costs infinity, so that after one they are refused altogether, unless
# inf allows anything.
privacy = {privacy}
max_round_epsilon = {max_round_epsilon}
max_epsilon = {max_epsilon}
max_delta = {max_delta}
# "tokens" tells how large the corpus is; "equal" does not say it, though it can be worked out
# with some effort.
weightings = {weightings}
# The fewest holders that a cohort must have; under masks there are three at least, and more than
# two thirds of the members that this holder has pinned.
min_cohort = {min_cohort}
# The mass of every domain where domains weigh the same.
mass = {mass}
# Whether rounds may learn the sums of the scores above, if there are any, together with those of
# the other holders.
share_scores = {share_scores}

[policy.sampling]
# How text is sampled; rounds that sample it otherwise are refused. Sums over single tokens give
# away how often each token occurs; larger windows, or fewer, blur it.
{sampling}
"""


def agreed_policy(terms: Terms, coordinator: str, **more: Any) -> Policy:
    """What a holder agrees to by taking an invitation up, and no more. more: what it says
    besides.
    """
    agreed: dict[str, Any] = {"modes": (terms.mode,), "sampling": terms.sampling}
    # under privacy documents weigh the same, which says nothing about exact sums
    if terms.privacy:
        agreed |= {"privacy": terms.privacy.mode, "max_delta": terms.privacy.delta}
    else:
        agreed["weightings"] = (terms.weighting,)
    return Policy(coordinator=coordinator, encoders=(terms.encoder,), **agreed | more)


def create_holder(
    folder: Path, settings: HolderSettings, papers: Mapping[str, bytes] | None = None
) -> Holder:
    """Make the folder; an existing one is never touched.

    papers: files of the invitation to keep beside the settings.
    """
    check_new_folder(folder)
    with whole_folder(folder, new=True) as draft:
        identity = create_identity(draft / IDENTITY)
        node = create_node_key(draft / "node.key")
        write_whole(draft / CLIENT_TOML, settings_text(settings).encode())
        read_settings(draft / CLIENT_TOML, HolderSettings)
        card = Card(domain=settings.domain, key=identity.public, node=node)
        write_signed_json(card, identity, draft / CARD)
        for name, content in (papers or {}).items():
            write_whole(draft / name, content)
    folder.chmod(0o700)
    return Holder(folder)


def renew_node_key(folder: Path) -> str:
    """Give the SuperNode another key, and the holder a card with it, signed with the key that
    others have pinned.
    """
    holder = Holder(folder)
    draft = folder / ".node.key.draft"
    draft.unlink(missing_ok=True)
    line = create_node_key(draft)
    draft.replace(folder / "node.key")
    _write_card(holder)
    holder.journal.append((RENEWED_NODE_KEY, {"node": line}))
    return line


def _write_card(holder: Holder) -> None:
    key = holder.key
    links = holder.handovers.leading_to(key)
    line = public_line(holder.folder / "node.key")
    write_signed_json(
        Card(domain=holder.domain, key=key, node=line, handovers=links),
        holder.identity,
        holder.folder / CARD,
    )


LEFT = "left"
"""The kind of a journal's entry by which a holder has left its federation."""


def leaving(holder: Holder) -> bytes:
    """The holder's signed word that it leaves."""
    return signed_json(
        Leaving(
            coordinator=holder.coordinator,
            key=holder.key,
            node=public_line(holder.folder / "node.key"),
        ),
        holder.identity,
    )


def has_left(journal: Journal) -> bool:
    """Whether the holder has left; another key for its SuperNode lets it be admitted again."""
    return [entry.kind for entry in journal.entries(LEFT, RENEWED_NODE_KEY)][-1:] == [
        LEFT
    ]


def renew_identity(folder: Path) -> HandOver:
    """Give the holder another identity, which the one before signs for, and a card that says so.

    A session under masks that is open is left, as after a crash.
    """
    holder = Holder(folder)
    path = folder / IDENTITY
    with holder.sessions.exclusive_lock():
        link = hand_over(
            holder.identity, make_next_key(path), time.time_ns() // 1_000_000
        )
        holder.sessions.erase()
        holder.take_handovers([link])
        renewed = Holder(folder)
    _write_card(renewed)
    return link


def approve_bundle(folder: Path, digest: str) -> None:
    """Add a bundle to those that client.toml approves, and leave every other word of it as its
    owner wrote it.
    """
    path = folder / CLIENT_TOML
    before = read_settings(path, HolderSettings)
    bundles = (*before.bundles, digest)
    text, times = LIST_OF_BUNDLES.subn(
        f"bundles = {toml_literal(bundles)}", path.read_text(encoding="utf-8")
    )
    draft = path.with_name(f".{path.name}.draft")
    try:
        write_whole(draft, text.encode())
        after = before.model_copy(update={"bundles": bundles})
        if times != 1 or read_settings(draft, HolderSettings) != after:
            raise InputError(
                f"{path} is not written as usual, so no command changes it; add"
                f" {digest} to `bundles`"
            )
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    Journal(folder / "journal.db").append(("approved", {"bundle": digest}))


def settings_text(settings: HolderSettings) -> str:
    """client.toml. Law: read back, it is the same settings."""
    values = {**dict(settings), **dict(settings.policy)}
    literals = template_literals(values)
    lines = {
        name: f"{name} = {literals[name]}" if values[name] else f"# {name} = {example}"
        for name, example in OPTIONAL.items()
    }
    lines["sampling"] = sampling_toml(settings.policy.sampling)
    return _TEMPLATE.format(**literals | lines)


# A holder's folder in one file, and back, without giving a budget back.
#
# A copy does not know what left after it was made. What bounds it is the owner's own doing: of an
# epoch one vector of sums and one of counts leave, and only the owner opens epochs (`client
# ready`). So whoever restores a copy says how many epochs were opened since. Each is charged as the
# most that the policy allows for a round, and so is what had not left yet of the epoch that was
# open; no epoch is open afterwards. No word of the coordinator's can lower this. If it knows of
# more outputs than were charged, rounds refuse (`Account.check_record`).
#
# Epochs, sessions, caches and logs are not in a backup.


JOURNAL = "journal.db"
SPENDING = "spending.jsonl"
"""In a backup: what this corpus had cost, through whichever folder."""
HOLDER_FILES = (
    CLIENT_TOML,
    IDENTITY,
    next_key(Path(IDENTITY)).name,
    "node.key",
    CARD,
    ROSTER,
    ANNOUNCED_ROSTER,
    NOTICE,
    INVITE,
    AUTHORITY,
    PRIOR,
)
"""Those that are there are taken."""


def back_up_holder(holder: Holder, target: Path) -> BackupManifest:
    """Write a backup, and read it again. The SuperNode may be running meanwhile."""

    def fill(draft: Path) -> int:
        copy_journal(holder.folder / JOURNAL, draft / JOURNAL)
        copy_files(holder.folder, _names(holder.folder), draft)
        lines = (json.dumps(output) for output in holder.account.outputs())
        write_whole(draft / SPENDING, "\n".join(lines).encode(), private=True)
        with Holder(draft).journal as journal:
            return journal.verify()

    return write_backup(target, fill, holder.coordinator, holder.key)


def _names(folder: Path) -> Iterator[str]:
    yield from (name for name in HOLDER_FILES if (folder / name).is_file())
    for part in ("releases", "in-totals"):
        for path in (folder / part).rglob("*"):
            if path.is_file():
                yield path.relative_to(folder).as_posix()


def restore_holder(source: Path, folder: Path) -> Holder:
    """Make a holder's folder of a backup, whole or not at all; what its corpus had cost is known
    again. Nothing was charged yet, and until then the folder takes part in nothing.
    """
    with unpacked(source, folder, "client") as (draft, _):
        copy = Holder(draft)
        with copy.journal as journal:
            journal.verify()
            journal.append((UNPACKED, {}))
        spent = draft / SPENDING
        lines = spent.read_text(encoding="utf-8").splitlines()
        copy.account.take_in(map(json.loads, lines))
        spent.unlink()
    return Holder(folder)


def charge_restored(holder: Holder, epochs_since: int) -> list[Expense]:
    """Charge what may have left since the copy was made, note that the folder was restored, and
    close its epoch; returns what was charged.

    epochs_since: how many epochs the owner has opened since, at most.
    """
    account = holder.account
    holdout = holder.settings.holdout
    policy = holder.policy
    with holder.sessions.exclusive_lock(), account.exclusive():
        known = account.forgotten()
        holder.journal.append(*((SPENT, expense.facts()) for expense in known))
        names = [secrets.token_hex(32) for _ in range(epochs_since)]
        if opened := holder.epochs.current_name():
            names.append(opened)
        paid = {expense.id for expense in account.noted()}
        charged = [
            expense
            for name in names
            for expense in account.most(
                name, policy.modes, policy.max_round_epsilon, holdout
            )
            if expense.id not in paid
        ]
        facts = {"epochs": epochs_since, "known": len(known)}
        account.pay(*charged)
        holder.journal.append((RESTORED, facts))
        holder.sessions.erase()
    return charged
