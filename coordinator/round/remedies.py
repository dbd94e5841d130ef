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
    "its owner must allow these terms in `[policy]` of its client.toml, or the"
    " operator must change coordinator.toml"
)
REMEDIES: Mapping[str, str] = {
    AWAY: "check that `ridgeway client join DIR` is running there",
    NO_ANSWER: "see `logs/` in its folder",
    LEFT: "`ridgeway coordinator retire DIR DOMAIN` drops its domain for good",
    BUNDLE: (
        "its owner must read the code (`ridgeway client bundle DIR`) and run"
        " `ridgeway client approve DIR`"
    ),
    OTHER_RELEASE: (
        "publish again, with a round or `coordinator rollback`: it accepts the next"
        " number"
    ),
    EPOCH_USED: (
        "an epoch can be in only one total: its owner must open the next with"
        " `ridgeway client ready DIR`"
    ),
    ALREADY_COUNTED: (
        "its owner must open the next epoch with `ridgeway client ready DIR`"
    ),
    "no_epoch": "its owner must open an epoch with `ridgeway client ready DIR`",
    "epoch_does_not_fit": (
        "its owner must open an epoch under these terms with `ridgeway client ready"
        " DIR`"
    ),
    "not_pinned": (
        "its owner must compare the members with the other holders: `ridgeway client"
        " members DIR`"
    ),
    "roster_not_pinned": (
        "its owner must compare the members with the other holders: `ridgeway client"
        " members DIR`"
    ),
    "too_few_of_roster": (
        "more of the members that it has confirmed must take part; remove those that"
        " have left, then its owner must confirm the new list"
    ),
    "older_copy": (
        "its folder was restored from an older copy: its owner must declare what may"
        " have left since with `ridgeway client restore DIR`"
    ),
    "disk_full": "its owner must free disk space",
    "device_missing": (
        "its owner must set `device` in client.toml to an available device, or to cpu"
    ),
    "encoder_missing": (
        "its owner must install the encoder, or set its path in client.toml (`encoder`)"
    ),
    "encoder_mismatch": (
        "its owner must set the path of the round's encoder in client.toml (`encoder`)"
    ),
    "encoder_not_allowed": _TERMS,
    "mode_not_allowed": _TERMS,
    "weighting_not_allowed": _TERMS,
    "window_not_allowed": _TERMS,
    "mass_not_allowed": _TERMS,
    "privacy_not_allowed": _TERMS,
    "budget_spent": (
        "its privacy budget is spent: its owner may raise `max_epsilon`, or leave the"
        " federation"
    ),
    "prior_missing": (
        "its owner must accept the newest invitation: `ridgeway client accept DIR"
        " --invite invite/`"
    ),
    "cohort_too_small": (
        "more holders must take part, or its owner must lower `min_cohort` in"
        " client.toml"
    ),
    "wrong_domain": (
        "admit it for its domain, or its owner must set `domain` in client.toml"
    ),
    "unknown_coordinator": (
        "its owner pinned another coordinator's key, and must run `init` again with"
        " this invitation"
    ),
    "key_handed_over": (
        "compare keys with its owner over another channel, and see `client status`"
    ),
    "forked_key": "compare keys with its owner over another channel, and see `client status`",
    "repeated_holder": (
        "one holder is on the roster with two keys; remove the older one"
    ),
    "source_changed": (
        "its owner opened a new epoch during the round; run the round again"
    ),
    "failed": "see `logs/holder.log` in its folder",
}
"""What is to be done, by the code. Where a code is not here, the reason that came with it says all
there is.
"""


def why(code: str, reason: str = "") -> str:
    """What a holder did instead of taking part, and the remedy."""
    missing = {
        AWAY: "did not answer",
        LEFT: "has left the federation",
        NO_ANSWER: "did not answer in time",
        EPOCH_USED: "must open a new epoch",
        ALREADY_COUNTED: "has counted for another router",
    }
    done = missing.get(code, f"refused ({code}{': ' if reason else ''}{reason})")
    return f"{done}; {REMEDIES[code]}" if code in REMEDIES else done
