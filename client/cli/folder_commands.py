"""The commands that make a holder's folder, copy it and bring it back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from ridgeway.client.cli.holder_commands import (
    HolderFolder,
    agreed_invitation,
    open_holder,
    papers_of,
)
from ridgeway.client.deploy.holder_folder import (
    agreed_policy,
    back_up_holder,
    charge_restored,
    create_holder,
    restore_holder,
)
from ridgeway.client.round.holder import CARD, CLIENT_TOML, Holder, HolderSettings
from ridgeway.client.round.spending import epsilon_words, shared_file
from ridgeway.client.sums.corpus_places import is_url, place_name, real_place
from ridgeway.common.base.errors import InputError
from ridgeway.common.base.identity import HandOvers, public_key
from ridgeway.common.base.records import MODE_SENTENCES, Mode, plain_reason
from ridgeway.common.base.settings import (
    DEFAULT,
    MAX_LIFETIME_EPSILON,
    MAX_ROUND_EPSILON,
    check_domain_name,
)
from ridgeway.common.cli.terminal import (
    Fields,
    Json,
    SkipBroken,
    argument,
    count,
    option,
    show,
    size,
)
from ridgeway.common.deploy.bundle import installed_sha256
from ridgeway.common.protocol.cohort import Invite, Terms
from ridgeway.common.text.encoder_files import absolute_source

# ridgeway client init: a holder's folder from an invitation, and what its owner agrees to by that.


SMALL_WINDOW_TOKENS = 16
"""Below this a holder is warned."""

AcceptMode = Annotated[
    list[str] | None,
    option(
        "Accept rounds of this mode: private, masked or clear; repeatable. (default: "
        "private)",
        metavar="MODE",
    ),
]
RoundEpsilon = Annotated[
    float | None,
    option(f"Largest ε of one private round. (default: {MAX_ROUND_EPSILON:g})"),
]
LifetimeEpsilon = Annotated[
    float | None,
    option(
        "Largest ε of all rounds together; inf: no limit. (default: "
        f"{MAX_LIFETIME_EPSILON:g})"
    ),
]


def init(
    folder: HolderFolder,
    invite: Annotated[Path, option("The invitation folder from the operator.")],
    domain: Annotated[str, option("The domain that the text belongs to.")],
    corpus: Annotated[
        list[Path],
        option("A file or folder with the domain's text; repeatable."),
    ],
    scores: Annotated[
        Path | None,
        option("Expert scores on prompts of the domain (only their sums are shared)."),
    ] = None,
    accept_mode: AcceptMode = None,
    max_round_epsilon: RoundEpsilon = None,
    max_epsilon: LifetimeEpsilon = None,
    text_field: Fields = "text",
    holdout: Annotated[
        float, option("Share of documents kept for evaluation.")
    ] = DEFAULT.holdout,
    skip_broken: SkipBroken = 0.0,
    encoder: Annotated[
        str | None,
        option("The encoder on this machine, if it has another name here."),
    ] = None,
    coordinator_key: Annotated[
        str | None,
        option("The coordinator's expected key: refuse an invitation with any other."),
    ] = None,
    approve_bundle: Annotated[
        str | None,
        option(
            "SHA-256 of a bundle to approve that differs from the code of this "
            "installation."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Make the holder's folder DIR from an invitation.

    It holds an identity, a card for the operator, and client.toml.

    A holder takes part in private rounds only, unless --accept-mode says otherwise.
    """

    check_domain_name(domain)
    for path in (*corpus, scores):
        if path and not is_url(path) and not path.exists():
            raise InputError(f"there is no {path}")
    paper = agreed_invitation(invite)
    modes = _accepted_modes(accept_mode, paper.terms)
    _check_key(paper, coordinator_key)
    same = _check_bundle(paper, approve_bundle)
    budget = _budget(
        max_round_epsilon, max_epsilon, paper.terms, asks="private" in modes
    )
    settings = _settings(
        domain=domain,
        corpus=tuple(place_name(real_place(path)) for path in corpus),
        scores=str(scores.resolve()) if scores else None,
        text_field=text_field,
        holdout=holdout,
        skip_broken=skip_broken,
        encoder=absolute_source(encoder) if encoder else None,
        spending=str(shared_file().absolute()),
        address=paper.address,
        bundles=(paper.bundle,),
        policy=agreed_policy(paper.terms, paper.coordinator, modes=modes, **budget),
    )
    _show_made(
        create_holder(folder, settings, papers_of(invite, paper)), paper, same, json
    )


# What the owner agrees to


def _accepted_modes(given: list[str] | None, terms: Terms) -> tuple[Mode, ...]:
    """The modes that the owner accepts; raises InputError if the invitation's is not among them."""
    for name in given or ():
        if name not in MODE_SENTENCES:
            raise InputError(
                f"there is no mode {name!r} for --accept-mode; there are "
                f"{', '.join(MODE_SENTENCES)}"
            )
    modes: tuple[Mode, ...] = tuple(
        mode for mode in MODE_SENTENCES if mode in (given or ("private",))
    )
    if terms.mode not in modes:
        raise InputError(
            f"the invitation is to {terms.mode} rounds "
            f"({MODE_SENTENCES[terms.mode]}), and you accept {' and '.join(modes)}; "
            f"to accept these too, use --accept-mode {terms.mode}"
        )
    return modes


def _budget(
    a_round: float | None, in_all: float | None, terms: Terms, *, asks: bool
) -> dict[str, float]:
    """What private rounds may cost: as given, as answered on a terminal, or as proposed."""
    asks = asks and sys.stdin.isatty()
    limits = {
        "max_round_epsilon": _limit(
            "what one round may cost a document", a_round, MAX_ROUND_EPSILON, asks
        ),
        "max_epsilon": _limit(
            "what all rounds together may cost it", in_all, MAX_LIFETIME_EPSILON, asks
        ),
    }
    for name, value in limits.items():
        if not value > 0:
            raise InputError(
                f"--{name.replace('_', '-')} is an ε above 0, not {value:g}"
            )
    if terms.privacy and terms.privacy.epsilon > limits["max_round_epsilon"]:
        raise InputError(
            f"the invitation's rounds have ε {terms.privacy.epsilon:g}, and you allow "
            f"{limits['max_round_epsilon']:g} per round; ask the operator for less, "
            "or use --max-round-epsilon"
        )
    return limits


def _limit(words: str, given: float | None, proposed: float, asks: bool) -> float:
    if given is not None or not asks:
        return proposed if given is None else given
    return float(typer.prompt(f"ε, {words}", default=proposed, type=float, err=True))


def _settings(**options: Any) -> HolderSettings:
    """The settings that options name; what cannot be used is told by the option's name."""
    try:
        return HolderSettings(**options)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"--{first['loc'][0]}: {plain_reason(first['msg'])}") from None


def _check_key(paper: Invite, given: str | None) -> None:
    """Refuse an invitation by another coordinator than the one whose key was given, if one was."""

    if (
        given is not None
        and HandOvers().merged_with(paper.handovers).newest(public_key(given))
        != paper.coordinator
    ):
        raise InputError(
            f"the invitation is signed by {paper.coordinator[:12]}…, not by the key "
            "you gave; ask the operator which is right"
        )


def _check_bundle(paper: Invite, approved: str | None) -> bool:
    """Whether the bundle is this installation's own code; any other must be approved by its
    hash.
    """

    same = installed_sha256() == paper.bundle
    if not same and approved != paper.bundle:
        raise InputError(
            f"rounds would run the bundle {paper.bundle} on this machine, which "
            "differs from your installation; install the coordinator's version of "
            "Ridgeway, or review it and use --approve-bundle"
        )
    return same


# What was made


def _show_made(made: Holder, paper: Invite, same: bool, json: bool) -> None:
    """What was made, what was agreed to, and what to do next. same: the bundle is this
    installation's code.
    """

    folder = made.folder
    key = made.identity.public
    terms = paper.terms
    policy = made.policy
    facts = {
        "folder": str(folder),
        "card": str(folder / CARD),
        "key": key,
        "bundle": paper.bundle,
        "mode": terms.mode,
        "means": MODE_SENTENCES[terms.mode],
        "accepted": list(policy.modes),
    }
    approved = "the code of this installation" if same else "approved by you"
    privacy: tuple[str, ...] = ()
    if terms.privacy:
        privacy = (
            "privacy",
            terms.privacy.mode,
            f"ε {terms.privacy.epsilon:g}",
            f"at most ε {policy.max_round_epsilon:g} per round",
            f"{policy.max_epsilon:g} in all",
            f"δ {terms.privacy.delta:g}",
        )
    others = (
        "once all are admitted, compare the members with the other holders: ridgeway"
        f" client members {folder}"
    )
    show(
        facts,
        ("made", str(folder), f"domain {made.domain}", f"key {key[:12]}"),
        ("pinned", f"coordinator {paper.coordinator}"),
        ("bundle", paper.bundle, approved),
        ("agreed", f"encoder {terms.encoder_name}", str(terms.sampling)),
        *(("accepts", f"{mode} rounds", MODE_SENTENCES[mode]) for mode in policy.modes),
        privacy,
        *_warnings(terms),
        (
            "next",
            f"read {folder / CLIENT_TOML}, and send {folder / CARD} to the operator, "
            "who admits you",
        ),
        ("then", f"ridgeway client ready {folder}", f"ridgeway client join {folder}"),
        ("and", others) if terms.uses_masks else None,
        json=json,
    )


def _warnings(terms: Terms) -> list[tuple[str, ...]]:
    """What unusual terms would give away; where documents are bounded, none of it."""
    if terms.privacy:
        return []
    warnings: list[tuple[str, ...]] = []
    apart = max(terms.sampling.window, terms.sampling.stride)
    smallest = min(apart, terms.sampling.max_tokens or apart)
    if smallest < SMALL_WINDOW_TOKENS:
        words = (
            f"a window every {count(smallest, 'token')} reveals how often tokens "
            "occur in your text"
        )
        warnings.append(("warning", words, "ask the operator for larger ones"))
    if terms.mode == "clear":
        words = "statistics are sent in the clear: the coordinator will see yours"
        warnings.append(("warning", words, "see `ridgeway audit`"))
    if terms.weighting == "tokens":
        words = "weighting by tokens reveals how large your corpus is"
        warnings.append(("warning", words))
    return warnings


# ridgeway client backup, restore: a holder's folder in one file, and back without its budget.


def backup(
    folder: HolderFolder,
    target: Annotated[
        Path, argument("The file to write; none is overwritten.", "FILE")
    ],
    json: Json = False,
) -> None:
    """Write all of DIR that cannot be made again to one FILE.

    The journal, the keys, the settings, the releases, and what the corpus has cost; no text and no
    sums. FILE holds the private keys, and only its owner can read it: keep it as safe as DIR.
    """
    made = back_up_holder(open_holder(folder), target)
    room = target.stat().st_size
    files = count(len(made.files), "file")
    journal = f"journal to entry {made.entries:,}"
    show(
        {"file": str(target), "bytes": room, **made.model_dump(mode="json")},
        ("wrote", str(target), files, journal, size(room), "read again"),
        json=json,
    )


def restore(
    folder: HolderFolder,
    epochs_since: Annotated[
        int,
        option(
            "How often `client ready` was run after the copy was made, at most.", min=0
        ),
    ],
    source: Annotated[
        Path | None,
        option(
            "A file that `backup` wrote, to make DIR of; without it, DIR was put back by"
            " other means.",
            "--from",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Make the holder's folder DIR of a backup, or say that DIR is an older copy.

    A copy does not know what left after it was made. Each epoch that was opened since is charged
    as the most that one round may cost, and so is the one that was open. Run `ridgeway client
    ready` afterwards to open a new one.
    """
    if source is not None:
        restore_holder(source, folder)
    holder = open_holder(folder)
    charged = charge_restored(holder, epochs_since)
    account = holder.account
    total = epsilon_words(account.epsilon())
    limit = epsilon_words(account.max_epsilon)
    show(
        {"folder": str(folder), "charged": len(charged), "privacy": account.to_json()},
        ("restored", str(folder), f"key {holder.key[:12]}"),
        ("charged", count(len(charged), "output"), f"ε {total} of {limit} is spent"),
        ("first", "see to it that no other copy of this folder takes part any more"),
        ("then", f"ridgeway client ready {folder}", f"ridgeway client join {folder}"),
        json=json,
    )
