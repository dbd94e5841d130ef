"""What stands in a holder's way, by a code, and what its owner has to do: one table for every word
to the operator.

Codes are those of refusals, and a few for holders that did not get so far as to refuse.
"""

from __future__ import annotations

from collections.abc import Mapping

AWAY = "away"
NO_ANSWER = "no_answer"
LEFT = "left"
BUNDLE = "bundle_refused"
OTHER_RELEASE = "other_release"
EPOCH_USED = "epoch_used"
ALREADY_COUNTED = "already_counted"
_TERMS = (
    "its owner must agree to these terms in `[policy]` of its client.toml, or the"
    " operator change coordinator.toml"
)
REMEDIES: Mapping[str, str] = {
    AWAY: "see that `ridgeway client join DIR` runs there",
    NO_ANSWER: "`logs/` in its folder says more",
    LEFT: "`ridgeway coordinator retire DIR DOMAIN` lets its domain go for good",
    BUNDLE: (
        "its owner reads the code with `ridgeway client bundle DIR` and runs `ridgeway"
        " client approve DIR`"
    ),
    OTHER_RELEASE: (
        "publish again, by a round or `coordinator rollback`: the next number is one"
        " that it takes"
    ),
    EPOCH_USED: (
        "data of one epoch is in one total: its owner opens the next with `ridgeway"
        " client ready DIR`"
    ),
    ALREADY_COUNTED: (
        "its owner opens the next epoch with `ridgeway client ready DIR`"
    ),
    "no_epoch": "its owner opens an epoch with `ridgeway client ready DIR`",
    "epoch_does_not_fit": (
        "its owner opens an epoch under these terms with `ridgeway client ready DIR`"
    ),
    "not_pinned": (
        "its owner compares the members with the other holders: `ridgeway client members"
        " DIR`"
    ),
    "roster_not_pinned": (
        "its owner compares the members with the other holders: `ridgeway client members"
        " DIR`"
    ),
    "too_few_of_roster": (
        "more of the members that it has confirmed must be there; remove those who have"
        " gone, and its owner confirms the new list"
    ),
    "older_copy": (
        "its folder was restored from an older copy: its owner says what may have left"
        " since with `ridgeway client restore DIR`"
    ),
    "disk_full": "its owner must make room on the disk of its folder",
    "device_missing": (
        "its owner must set `device` in client.toml to one that is there, or to cpu"
    ),
    "encoder_missing": (
        "its owner must install the encoder, or name its place in client.toml"
        " (`encoder`)"
    ),
    "encoder_mismatch": (
        "its owner must name the place of the round's encoder in client.toml"
        " (`encoder`)"
    ),
    "encoder_not_allowed": _TERMS,
    "mode_not_allowed": _TERMS,
    "weighting_not_allowed": _TERMS,
    "window_not_allowed": _TERMS,
    "mass_not_allowed": _TERMS,
    "privacy_not_allowed": _TERMS,
    "budget_spent": (
        "what its documents may cost is spent: its owner may raise `max_epsilon`, or"
        " leave the federation"
    ),
    "prior_missing": (
        "its owner takes the newest invitation: `ridgeway client accept DIR --invite"
        " invite/`"
    ),
    "cohort_too_small": (
        "more holders must take part, or its owner lower `min_cohort` in its"
        " client.toml"
    ),
    "wrong_domain": (
        "admit it for the domain that it holds, or its owner sets `domain` in its"
        " client.toml"
    ),
    "unknown_coordinator": (
        "its owner pinned another coordinator's key; it must `init` anew from this"
        " invitation"
    ),
    "key_handed_over": (
        "compare keys with its owner by another way, and see `client status`"
    ),
    "forked_key": "compare keys with its owner by another way, and see `client status`",
    "repeated_holder": (
        "one holder stands on the roster under two keys; remove the older one"
    ),
    "source_changed": (
        "its owner opened a new epoch during the round; run the round again"
    ),
    "failed": "`logs/holder.log` in its folder says why",
}
"""What is to be done, by the code. Where a code is not here, the reason that came with it says all
there is.
"""

CHECKED = ("online", "code", "members", "epoch", "disk", "policy")
"""What is asked of a holder before a round, in the order in which it shows."""
_CHECK_OF: Mapping[str, str] = {
    AWAY: "online",
    NO_ANSWER: "online",
    BUNDLE: "code",
    "version": "code",
    "not_pinned": "members",
    "roster_not_pinned": "members",
    "too_few_of_roster": "members",
    "key_handed_over": "members",
    "forked_key": "members",
    "repeated_holder": "members",
    "disk_full": "disk",
    EPOCH_USED: "epoch",
    ALREADY_COUNTED: "epoch",
    "no_epoch": "epoch",
    "epoch_does_not_fit": "epoch",
    "encoder_missing": "epoch",
    "encoder_mismatch": "epoch",
    "device_missing": "epoch",
    "prior_missing": "epoch",
    "failed": "epoch",
}


def check_of(code: str) -> str:
    """Which of the checks a problem belongs to: whatever is none of the others is the holder's
    own will.
    """
    return _CHECK_OF.get(code, "policy")


def why(code: str, reason: str = "") -> str:
    """What a holder did instead of taking part, and the remedy."""
    missing = {
        AWAY: "did not answer",
        LEFT: "has left the federation",
        NO_ANSWER: "was asked and did not answer in time",
        EPOCH_USED: "must open a new epoch",
        ALREADY_COUNTED: "has counted for another router",
    }
    done = missing.get(code, f"refused ({code}{': ' if reason else ''}{reason})")
    return f"{done}; {REMEDIES[code]}" if code in REMEDIES else done
