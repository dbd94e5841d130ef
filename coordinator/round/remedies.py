"""What stands in a holder's way, by a code, and what its owner has to do: one table for every word to the operator.

Codes are those of refusals, and a few for holders that did not get so far as to refuse. Knows nothing of how they come
about.
"""

from __future__ import annotations

from collections.abc import Mapping

AWAY, SILENT, BUNDLE, OTHER_RELEASE, LONGER_LOG = "away", "no_answer", "bundle_refused", "other_release", "longer_log"
TERMS = "its owner must agree to these terms in `[policy]` of its client.toml, or the operator change coordinator.toml"
REMEDIES: Mapping[str, str] = {
    AWAY: "see that `ridgeway client join DIR` runs there",
    SILENT: "if it still sums, `ridgeway client ready DIR` does so ahead; else `logs/` in its folder says more",
    BUNDLE: "its owner reads the code with `ridgeway client bundle DIR` and runs `ridgeway client approve DIR`",
    OTHER_RELEASE: "publish again, by a round or `coordinator rollback`: the next number is one that it takes",
    LONGER_LOG: "restore the newest backup, or take its `log/opened.json` over with `ridgeway coordinator recover`",
    "forged_roster": "it must pin the members that are new to it: `ridgeway client pin DIR`",
    "roster_not_pinned": "it must pin the other members: `ridgeway client pin DIR`",
    "corpus_unreadable": "it must mend its corpus; `logs/holder.log` in its folder says where",
    "statistics_do_not_fit": "it must prepare its statistics again under these terms",
    "forked_log": "its owner must compare logs with the other holders first (`ridgeway client roster DIR --log`)",
    "disk_full": "its owner must make room on the disk of its folder",
    "device_missing": "its owner must set `device` in client.toml to one that is there, or to cpu",
    "encoder_missing": "its owner must install the encoder, or name its place in client.toml (`encoder`)",
    "encoder_mismatch": "its owner must name the place of the round's encoder in client.toml (`encoder`)",
    **dict.fromkeys(
        (
            *("encoder_not_allowed", "masking_required", "weighting_not_allowed", "window_not_allowed"),
            *("mass_not_allowed", "lopsided_shares", "privacy_not_allowed"),
        ),
        TERMS,
    ),
    "budget_spent": "what its documents may cost is spent: its owner may raise `max_epsilon`, or leave the federation",
    "foreign_journal": "its owner must bring back the journal.db that belongs to its folder",
    **dict.fromkeys(
        ("prior_mismatch", "prior_missing"),
        "`prior.safetensors` in the coordinator's folder is not what the terms name; run the round again",
    ),
    "cohort_too_small": "more holders must take part, or its owner lower `min_cohort` in its client.toml",
    "sets_apart": "another holder must join, leave or change at the same time",
    "history_too_long": "too many sums hang together to be judged; a new federation, with new folders, starts afresh",
    "too_many_to_judge": "its owner must lower `min_difference` in its client.toml, or fewer members take part",
    "wrong_domain": "admit it for the domain that it holds, or its owner sets `domain` in its client.toml",
    "unknown_coordinator": "its owner pinned another coordinator's key; it must `init` anew from this invitation",
    **dict.fromkeys(
        ("key_handed_over", "forked_key"),
        "a key was handed over to another one; compare keys with its owner by another way, and see `client status`",
    ),
    "repeated_holder": "one holder stands on the roster under two keys; remove the older one",
    "source_changed": "its corpus changed during the round; run the round again",
    "over_bound": "its sums are too large for these terms; set `max_tokens`, or weight domains equally",
    "failed": "`logs/holder.log` in its folder says why",
}
"""What is to be done, by the code. Where a code is not here, the reason that came with it says all there is."""

CHECKED = ("online", "code", "members", "corpus", "disk", "policy")
"""What is asked of a holder before a round, in the order in which it shows."""
_CHECK_OF: Mapping[str, str] = {
    **dict.fromkeys((AWAY, SILENT), "online"),
    **dict.fromkeys((BUNDLE, "version"), "code"),
    **dict.fromkeys(
        ("forged_roster", "roster_not_pinned", "key_handed_over", "forked_key", "repeated_holder"), "members"
    ),
    "disk_full": "disk",
    **dict.fromkeys(
        (
            *("corpus_unreadable", "statistics_do_not_fit", "encoder_missing", "encoder_mismatch", "device_missing"),
            *("over_bound", "broken_identity", "failed"),
        ),
        "corpus",
    ),
}


def check_of(code: str) -> str:
    """Which of the checks an obstacle belongs to: whatever is none of the others is the holder's own will."""
    return _CHECK_OF.get(code, "policy")


def why(code: str, reason: str = "") -> str:
    """What a holder did instead of taking part, and the remedy."""
    missing = {AWAY: "did not answer", SILENT: "was asked and did not answer in time"}
    done = missing.get(code, f"refused ({code}{': ' if reason else ''}{reason})")
    return f"{done}; {REMEDIES[code]}" if code in REMEDIES else done
