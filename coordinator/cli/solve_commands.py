"""ridgeway coordinator …: what the operator runs; ridgeway experts: how good experts are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.identity import Identity, create_identity, load_identity
from ridgeway.common.base.settings import Confidence, preset
from ridgeway.common.cli.terminal import (
    Fallback,
    Json,
    Key,
    KeyFile,
    ReleaseFolder,
    TextTable,
    argument,
    command_group,
    option,
    show,
    signing_key,
    size,
    step,
)
from ridgeway.common.routing.decision import Decision
from ridgeway.common.routing.expert_choice import ExpertChooser
from ridgeway.common.routing.experts_file import read_experts
from ridgeway.common.routing.quality import (
    DomainScore,
    QualityTable,
    quality_of,
    read_scores,
    save_quality,
)
from ridgeway.common.routing.release import refuse_foreign
from ridgeway.common.routing.router import Router
from ridgeway.common.statistics import load_prepared
from ridgeway.common.text.encoder_files import find_by_fingerprint
from ridgeway.coordinator.cli.federation_commands import (
    backup,
    init,
    open_federation,
    page,
    renew,
    restore,
    status,
    up,
    verify,
)
from ridgeway.coordinator.cli.round_commands import (
    admit,
    deliver,
    invite,
    releases,
    remove,
    retire,
    rollback,
    round_,
)
from ridgeway.coordinator.solving.solve import (
    RouterChoices,
    draft,
    must_agree,
    sign,
    sign_quality,
)

app = command_group()


def solve(
    statistics: Annotated[
        list[Path],
        argument("Statistics files; files of one domain are added.", "FILE..."),
    ],
    out: Annotated[Path, option("The folder of the release.")],
    preset_name: Annotated[
        str,
        option("default, or paper (the published method).", "--preset"),
    ] = "default",
    threshold: Annotated[
        float, option("Abstain below this confidence; 0: never.")
    ] = 0.0,
    fallback: Fallback = None,
    encoder: Annotated[
        str | None,
        option("Encoder, if this machine does not find it by name."),
    ] = None,
    key_file: KeyFile = None,
    json: Json = False,
) -> None:
    """Add statistics, solve, compile and sign a release."""
    confidence = Confidence(threshold=threshold, fallback=fallback)
    choices = RouterChoices.of_preset(preset(preset_name), confidence)
    known = key_file is not None or signing_key(None).exists()
    refuse_foreign(
        out, signing_identity(key_file, make=False).public if known else None
    )
    parts = [load_prepared(path) for path in statistics]
    first = must_agree(parts)
    shared = find_by_fingerprint(first.fingerprint, first.encoder_name, encoder)
    made = draft(parts, shared, choices)
    if made.solution.note:
        step("note", made.solution.note)
    # a key is made only once there is something to sign
    release = sign(made, signing_identity(key_file, make=True), out)
    total = made.total
    solution = made.solution
    room = sum(path.stat().st_size for path in out.iterdir())
    show(
        {
            "release": release,
            "domains": list(total.domains),
            "masses": total.masses,
            "holders": total.holders,
            "ridge": solution.ridge,
            "condition": solution.condition,
            "residual": solution.residual,
            "device": solution.device,
            "bytes": room,
            "out": str(out),
        },
        (
            "added",
            f"{total.holders} statistics files",
            f"{len(total.domains)} domains",
            ", ".join(total.domains),
        ),
        (
            "solved",
            f"{total.statistics.shape[0]} features",
            f"condition {solution.condition:.1e}",
            f"residual {solution.residual:.1e}",
        ),
        ("release", str(out), release[:12], size(room)),
        json=json,
    )


def signing_identity(key_file: Path | None, *, make: bool) -> Identity:
    """The key that releases are signed with; the one in the configuration folder is made for the
    first release.
    """
    path = signing_key(key_file)
    if key_file is not None or path.exists() or not make:
        return load_identity(path)
    identity = create_identity(path)
    step("made", "a new signing key", str(path), f"public key {identity.public}")
    return identity


def key(
    folder: Annotated[
        Path | None, argument("The coordinator's folder.", "[DIR]")
    ] = None,
    key_file: Annotated[
        Path | None,
        option("The key file of `solve` instead; created if missing."),
    ] = None,
    json: Json = False,
) -> None:
    """Print the public key of DIR, which holders and users of its releases should pin."""
    if folder is not None and key_file is None:
        identity = open_federation(folder).identity
    elif key_file is not None and folder is None:
        is_made = key_file.exists()
        identity = load_identity(key_file) if is_made else create_identity(key_file)
    else:
        raise InputError(
            "give either the coordinator's folder (`ridgeway coordinator key DIR`), or"
            " the key file of `coordinator solve` (--key-file FILE)"
        )
    show({"public_key": identity.public}, identity.public, json=json)


_PANELS = {
    "Set up": (init, up, invite, admit, remove, retire, page),
    "Run rounds": (round_, deliver, releases, rollback),
    "Maintain": (status, verify, backup, restore, renew, solve, key),
}
for panel, commands in _PANELS.items():
    for command in commands:
        name = command.__name__.rstrip("_")
        app.command(name, rich_help_panel=panel)(command)


# ridgeway experts: how good experts are in the domains of a release, measured by scores, and which
# of them is chosen.


experts = command_group()


@experts.command()
def measure(
    release: ReleaseFolder,
    scores: Annotated[
        list[Path],
        option(
            "Scores of experts' answers, .jsonl or .csv; repeatable.", metavar="FILE"
        ),
    ],
    domain: Annotated[
        str | None,
        option(
            "Domain of lines without one. (default: routed by RELEASE)", metavar="NAME"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        option("Also write the table to FILE, for experts.toml.", metavar="FILE"),
    ] = None,
    sign: Annotated[
        bool, option("Add the table to the release and sign it again.", "--sign")
    ] = False,
    key_file: KeyFile = None,
    key: Key = None,
    json: Json = False,
) -> None:
    """Add up the scores of experts by domain, and show the table.

    A line has `prompt`, `expert` and `score` (0 to 1), or `scores` of several experts, and
    optionally `domain`. See docs/application/gateway.md. Use text that the experts were not trained
    on.
    """
    router = Router.load(release, key=key)
    table = quality_of(_domain_scores(router, scores, domain), router.domains)
    if out is not None:
        save_quality(table, out)
        step("wrote", str(out), "set `table` in experts.toml to it")
    if sign:
        signed = sign_quality(release, table, signing_identity(key_file, make=False))
        step(
            "release",
            str(release),
            signed[:12],
            f"quality of {len(table.experts)} experts",
        )
    _show(table, _best(table), json)


def _domain_scores(
    router: Router, files: Sequence[Path], domain: str | None
) -> Iterator[DomainScore]:
    """Every score of these files, with the domain that its line names, or that all have, or that it
    is routed to.
    """
    lines = [line for path in files for line in read_scores(path)]
    if domain is not None:
        lines = [line._replace(domain=line.domain or domain) for line in lines]
    for unknown in {line.domain for line in lines if line.domain} - set(router.domains):
        raise InputError(
            f"the release has no domain {unknown!r}; it has {', '.join(router.domains)}"
        )
    asked = list({line.prompt: None for line in lines if not line.domain})
    routed = dict(
        zip(
            asked, (decision.best for decision in router.route_many(asked)), strict=True
        )
    )
    if asked:
        step("routed", f"{len(asked):,} prompts", "to the domains of the release")
    for line in lines:
        for expert, score in line.scores.items():
            yield DomainScore(line.domain or routed[line.prompt], expert, score)


@experts.command("show")
def show_quality(
    release: ReleaseFolder,
    experts: Annotated[
        Path | None,
        option(
            "experts.toml with the experts, their costs, mu and the table.",
            metavar="FILE",
        ),
    ] = None,
    key: Key = None,
    json: Json = False,
) -> None:
    """Show the quality of each expert in each domain, and the chosen experts."""
    router = Router.load(release, key=key)
    if experts is None:
        if router.quality is None:
            raise InputError(
                "this release has no expert scores; measure them with `ridgeway"
                " experts measure`"
            )
        _show(router.quality, _best(router.quality), json)
        return
    file, beside = read_experts(experts)
    file.check(router, beside)
    table = file.measured(beside or router.quality)
    if table is None:
        raise InputError(
            f"no expert of {experts} has scores; measure them with `ridgeway experts"
            " measure`"
        )
    chooser = ExpertChooser(file, router.domains, table)
    chosen = {}
    for domain in router.domains:
        chances = {name: float(name == domain) for name in router.domains}
        choice = chooser.choose(Decision(domain, 1.0, chances, False, domain, 0))
        assert choice is not None
        chosen[domain] = choice.expert
    _show(table.of_domains(router.domains), chosen, json)


def _best(table: QualityTable) -> dict[str, str]:
    return {
        domain: table.experts[index]
        for domain, index in zip(
            table.domains, table.expected.argmax(axis=1).tolist(), strict=True
        )
    }


def _show(table: QualityTable, chosen: dict[str, str], json: bool) -> None:
    """chosen: by domain, whom a prompt goes to that is surely of it."""
    overall = dict(zip(table.experts, table.overall.tolist(), strict=True))
    single = max(overall, key=lambda name: overall[name])
    routed = table.expected[
        range(len(table.domains)),
        [table.experts.index(chosen[name]) for name in table.domains],
    ]
    facts = {
        **table.to_json(),
        "quality": table.expected.tolist(),
        "overall": overall,
        "best_single": single,
        "chosen": chosen,
        "of_chosen": float(routed.mean()),
        "quality_unit": "share",
    }
    cells = zip(table.expected.tolist(), table.counts.tolist(), strict=True)
    rows = []
    for domain, (qualities, counts) in zip(table.domains, cells, strict=True):
        scored = zip(qualities, counts, strict=True)
        shares = (f"{100 * value:.1f} % ({count:,})" for value, count in scored)
        rows.append([domain, *shares, chosen[domain]])
    means = (f"{100 * value:.1f} %" for value in overall.values())
    rows.append(["mean over domains", *means, ""])
    gaps = int((table.counts == 0).sum())
    show(
        facts,
        TextTable(
            ["domain", *table.experts, "chosen"],
            rows,
            "Expected quality (number of scores)",
        ),
        f"Best single expert: {single}, {100 * overall[single]:.1f} %. With the chosen"
        f" expert of each domain: {100 * float(routed.mean()):.1f} %, if the router"
        " were always right.",
        f"{gaps} of {table.counts.size} cells have no scores: they are estimated from"
        " the domain's mean and the expert's lead."
        if gaps
        else None,
        json=json,
    )
