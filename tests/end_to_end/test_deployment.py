"""A federation that is deployed for real: processes on loopback, TLS, authentication, people who
come, go and fail; first in the clear, then under masks. What a wide encoder takes, the benchmark
`deployment` measures.

One story in the order of this file: each test begins where the one before has ended, since a
deployment takes a while to start. Run the file as a whole; after a test that failed the rest is
skipped.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest

from ridgeway.common.deploy.bundle import (
    _pack,
    installed_bundle,
    installed_sha256,
    source_files,
)
from ridgeway.common.masking.agreement import threshold_for
from ridgeway.coordinator.deploy.superlink import FOLDER_VARIABLE, SuperLinkClient
from tests.support.commands import Finished
from tests.support.deployment import (
    DEPLOYED,
    TEST,
    Copy,
    Deployment,
    Running,
    holding,
)
from tests.support.earlier_bundle import (
    CHANGED,
    EARLIER_SHA256,
    PROJECT_FILE,
    keep_earlier,
)
from tests.support.flower_parts import SMALL_BULK_BYTES
from tests.support.making import contents
from tests.support.tiny import tiny_encoder

pytestmark = DEPLOYED

FIRST = ("code", "law", "medicine")
DYING = "chess"
MASKED = (*FIRST, DYING)
WIDTH = 800
"""Sealed sums are larger than what travels in one piece."""
TRIANGLE_BYTES = (WIDTH + 1) * (WIDTH + 2) // 2 * 8
BOTH = "--accept-mode clear --accept-mode masked".split()
"""What owners accept."""
DEADLINE_S = 600.0
"""For each answer. Nobody waits so long: a SuperNode that was killed is given up as soon as its
heartbeat is missed.
"""
ANOTHER_BUNDLE = "1" * 64
TRACEBACK = "Traceback (most recent call last)"


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A coordinator that is up, just upgraded; three holders that are connected and have approved
    the code before the upgrade only; and somebody whom nobody has admitted.
    """
    with Deployment(tmp_path_factory.mktemp("town"), tiny_encoder(WIDTH)) as made:
        made.found("clear", wait=5.0, deadline=DEADLINE_S)
        keep_earlier(made.coordinator / "link")
        (made.coordinator / "changes.txt").write_text("one comment less\n")
        for name in ("code", "law"):
            made.settle(name, *BOTH)
            made.admit(name)
        up = made.start("up", "coordinator up", made.coordinator)
        made.settle("medicine", *BOTH)
        made.settle("chess", *BOTH)
        made.ready(*FIRST, "chess")
        made.wait_for("the coordinator is up", lambda: up.has_said("up"))
        made.start("stranger", "client join", made.holder("chess"))
        made.admit("medicine")
        for name in FIRST:
            made.change_holder(name, bundles=f'["{EARLIER_SHA256}"]')
        made.change(bundle=f'"{EARLIER_SHA256}"')
        made.join(*FIRST)
        yield made


# Another user of the operator's machine


PROOF = "proof.txt"
FOREIGN = f"""
import os
from pathlib import Path
from flwr.serverapp import ServerApp
folder = Path(os.environ["{FOLDER_VARIABLE}"]).parent
Path(os.environ["{TEST}"], "{PROOF}").write_bytes((folder / "coordinator.key").read_bytes())
app = ServerApp()
"""
"""A ServerApp that steals the coordinator's key as it is imported."""


@pytest.fixture(scope="module")
def strangers(
    town: Deployment, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, int]:
    """Runs that no command of the operator asked for: of foreign code, and of the approved bundle
    itself.
    """
    folder = tmp_path_factory.mktemp("stranger")
    port = SuperLinkClient(town.coordinator / "link").port
    shutil.copy(town.coordinator / "invite" / "ca.crt", folder)
    foreign = _pack(
        PROJECT_FILE
        | source_files()
        | {"ridgeway/coordinator/server_app.py": FOREIGN.encode()}
    )
    numbers = []
    for bundle in (foreign, installed_bundle()):
        facts = {"internal_port": port, "bundles": [hashlib.sha256(bundle).hexdigest()]}
        (folder / "link.json").write_text(json.dumps(facts))
        numbers.append(SuperLinkClient(folder).submit(bundle))
    return numbers[0], numbers[1]


def test_what_another_user_of_the_machine_submits_is_not_executed(
    town: Deployment, strangers: tuple[int, int]
) -> None:
    """Foreign code is not even unpacked; the approved bundle begins no round; honest rounds come
    after it.
    """
    log = town.coordinator / "link" / "logs" / "bundles.log"
    foreign, approved = strangers

    def said(words: str) -> bool:
        return log.exists() and words in log.read_text()

    town.wait_for(
        "the foreign code is refused",
        lambda: said(f"run {foreign}: refused, this machine has not approved"),
    )
    town.wait_for(
        "the run without an order ends",
        lambda: said(
            f"run {approved} was not ordered by this coordinator, so it does nothing"
        ),
    )
    assert not (town.folder / PROOF).exists()
    assert [
        path.name[-8:] for path in (town.coordinator / "link/flwr-home/apps").iterdir()
    ] == [installed_sha256()[:8]]
    assert town.ledger("opened") == []
    assert not list(town.coordinator.glob("progress/*"))


@dataclass(frozen=True, slots=True)
class Played:
    """A round's outcome, and the folders as they were before it."""

    finished: Finished
    before: Copy


@pytest.fixture(scope="module")
def first(
    town: Deployment,
    strangers: tuple[int, int],
    tmp_path_factory: pytest.TempPathFactory,
) -> Played:
    before = Copy(town, FIRST, tmp_path_factory.mktemp("before"))
    return Played(town.round().end(), before)


# Three holders, a round, a release


def test_a_round_ends_with_a_release_that_every_holder_has_and_routes_with(
    town: Deployment, first: Played
) -> None:
    """Exit code 0 and release 0001; holders list it, and it routes a prompt of each domain."""
    assert first.finished.code == 0, first.finished.stderr
    made = first.finished.json
    assert (made["number"], made["domains"]) == (1, list(FIRST))
    assert (made["absent"], made["refused"]) == ([], [])
    assert made["evaluation"]["accuracy"] == 100.0
    for name in FIRST:
        [received] = town.owner(name, "releases")
        assert (received["number"], received["release"], received["domains"]) == (
            1,
            made["release"],
            list(FIRST),
        )
    folder = received["folder"]
    for prompt, domain in (
        ("12, 345. 67", "code"),
        ("bad cafe had a", "law"),
        ("pot stop, run", "medicine"),
    ):
        assert town.do("route --json", folder, prompt).json["best"] == domain


def test_the_operator_sees_who_is_there_and_what_was_made(
    town: Deployment, first: Played
) -> None:
    """status, releases, show and verify agree with the round."""
    status = town.operator("status")
    assert (status["up"], status["round"]["outcome"], status["release"]) == (
        True,
        "released",
        1,
    )
    expected = {
        "online": True,
        "retired": False,
        "in_newest": True,
        "behind": False,
        "release": 1,
    }
    assert [
        {"name": member["name"], "domain": member["domain"]}
        for member in status["members"]
    ] == [{"name": name, "domain": name} for name in FIRST]
    assert all({**member, **expected} == member for member in status["members"])
    [release] = town.operator("releases")
    assert (release["number"], release["cause"]) == (1, "round 1")
    manifest = town.operator("releases", "0")
    assert (manifest["domains"], manifest["cohort"]) == (list(FIRST), {"holders": 3})
    verified = town.operator("verify")
    assert (verified["contributions"], verified["releases"]) == (3, 1)


def test_a_deployment_and_the_memory_engine_make_the_same_bytes(
    town: Deployment, first: Played
) -> None:
    """From the same folders, a round over the network and one in a single process sign the very
    same release.
    """
    assert first.before.release() == contents(town.coordinator / "releases" / "0001")


def test_a_holder_tells_all_that_has_left_it(town: Deployment, first: Played) -> None:
    """One answer to each question of the round, and nothing else."""
    for name in FIRST:
        status = town.owner(name, "status")
        kinds = [entry["kind"] for entry in status["sent"]]
        assert kinds == ["offer", "clear_statistics", "counted", "receipt"]
        assert (status["domain"], status["release"]) == (name, 1)


def test_someone_whom_nobody_admitted_is_refused_in_one_sentence(
    town: Deployment,
) -> None:
    """The SuperNode of an unknown key ends by itself, and says to hand over what the operator then
    admits.
    """
    refused = town.running["stranger"].end()
    *steps, sentence = refused.stderr.splitlines()
    assert refused.code != 0
    assert sentence.startswith(
        f"ridgeway: the coordinator at {town.address} does not know this holder's key"
    )
    assert f"hand {town.holder('chess') / 'holder.pub'} to its operator" in sentence
    assert [step.split()[1] for step in steps] == ["joining"]
    assert town.sent("chess", "offer") == 0


def test_two_federations_run_on_one_machine(
    town: Deployment, first: Played, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Another coordinator comes up beside the first, both answer at their gates and to their
    operators, and one that would take the port of another says so.
    """
    with Deployment(tmp_path_factory.mktemp("beside"), tiny_encoder(WIDTH)) as beside:
        beside.found("clear")
        beside.up()
        for deployment in (town, beside):
            context = ssl.create_default_context(
                cafile=str(deployment.coordinator / "link" / "ca.crt")
            )
            assert (
                httpx.get(
                    f"https://{deployment.address}/health", verify=context
                ).status_code
                == 200
            )
            assert deployment.operator("status")["up"] is True
        ports = {
            SuperLinkClient(deployment.coordinator / "link").port
            for deployment in (town, beside)
        }
        assert len(ports) == 2
        third = beside.folder / "third"
        beside.do(
            "coordinator init --mode clear --listen",
            *(town.address, third, *beside.encoder_option),
        )
        refused = beside.run("coordinator up", third)
        assert "cannot listen on" in refused.refusal


def test_a_round_runs_the_code_of_before_an_upgrade_as_long_as_the_settings_name_it(
    town: Deployment, first: Played
) -> None:
    """Nothing of the new bundle was unpacked by any holder; the operator reads what runs, and
    holders what waits.
    """
    obstacles = town.operator("status")["obstacles"]
    assert any(
        f"not the newest, {installed_sha256()[:12]}" in obstacle["words"]
        for obstacle in obstacles
    )
    assert (
        f"running the bundle {EARLIER_SHA256[:12]}, which coordinator.toml names"
        in first.finished.stderr
    )
    for name in FIRST:
        ran = [
            path.name[-8:] for path in (town.holder(name) / "flwr-home/apps").iterdir()
        ]
        assert ran == [EARLIER_SHA256[:8]]
        status = town.owner(name, "status")
        assert (status["bundles"], status["unapproved"]) == (
            [EARLIER_SHA256],
            [installed_sha256()],
        )
    assert "one comment less" in town.running["law"].said


def test_a_holder_sees_what_an_upgrade_changes_and_approves_it_with_one_command(
    town: Deployment, first: Played
) -> None:
    """The bundle is fetched, held against its hash and compared; the SuperNode takes the approval
    up as it runs.
    """
    shown = town.run("client bundle --json", town.holder("law"))
    assert (shown.code, shown.json["bundle"], shown.json["approved"]) == (
        2,
        installed_sha256(),
        False,
    )
    [change] = shown.json["changes"]
    assert (change["change"], change["name"], change["added"], change["removed"]) == (
        "changed",
        CHANGED,
        0,
        1,
    )
    for name in FIRST:
        town.run("client bundle", town.holder(name))
        approval = town.owner(name, "approve")
        assert approval == {"approved": installed_sha256(), "new": True}
        running = town.running[name]
        took_up = partial(running.has_said, "note", "from now on")
        town.wait_for(f"{name} takes it up", took_up)


# A fourth holder; one that does not trust the code; one that is away


@pytest.fixture(scope="module")
def second(town: Deployment, go_on: Callable[[], None]) -> tuple[Finished, Finished]:
    """A dry run and a round with a newcomer, while `medicine` is away and `chess` has approved some
    other code.

    The first three have counted in their epochs, which the operator accepts.
    """
    go_on()
    town.leave("medicine")
    town.settle("music", *BOTH)
    town.ready("music")
    town.admit("music")
    town.admit("chess")
    settings = town.holder("chess") / "client.toml"
    kept = settings.read_text()
    town.change_holder("chess", bundles=f'["{ANOTHER_BUNDLE}"]')
    town.join("music", "chess")
    town.change(bundle='"newest"')
    asked = town.run("coordinator round --json --dry-run", town.coordinator)
    accepted = [word for name in FIRST for word in ("--accept-unevaluated", name)]
    done = town.round(*accepted).end()
    town.leave("chess")
    settings.write_text(kept)
    return asked, done


def test_what_is_in_the_way_of_a_round_is_told_beforehand(
    town: Deployment, second: tuple[Finished, Finished]
) -> None:
    """Who is away, has not approved the code, or has counted before; what to do; and an exit code
    that says so.
    """
    asked, _ = second
    assert asked.code == 2, asked.stderr
    assert asked.json["released"] is False
    assert (
        "no holder of code, law, medicine evaluated the router" in asked.json["error"]
    )
    assert (
        "code, law has counted for another router; its owner must open the next epoch"
        in asked.json["error"]
    )
    steps = [line.split()[:3] for line in asked.stderr.splitlines()]
    assert ["absent", "medicine", "no"] in steps and [
        "refused",
        "chess",
        "bundle_refused",
    ] in steps
    assert "`ridgeway client approve DIR`" in asked.stderr
    assert "music" not in asked.json["error"]


def test_of_a_newcomer_and_the_others_only_the_newcomer_sends_statistics(
    town: Deployment, second: tuple[Finished, Finished]
) -> None:
    """Release 0002 has the fourth domain; the first three were not asked for their sums again, and
    count no more.
    """
    _, done = second
    assert done.code == 0, done.stderr
    assert (done.json["number"], done.json["domains"]) == (2, [*FIRST, "music"])
    for kind in ("clear_statistics", "counted"):
        assert {town.sent(name, kind) for name in (*FIRST, "music")} == {1}
    assert town.sent("medicine", "offer") == 1


def test_a_bundle_that_a_holder_has_not_approved_is_never_unpacked(
    town: Deployment, second: tuple[Finished, Finished]
) -> None:
    """The holder's log has the refusal; no app was installed, no code of it ran; the round names
    the holder.
    """
    chess = town.holder("chess")
    log = (chess / "logs" / "bundles.log").read_text()
    assert "refused, this machine has not approved the bundle" in log
    assert " approved bundle" not in log.replace("not approved", "")
    assert not list((chess / "flwr-home").glob("apps/*"))
    sent = town.do("client export --json", chess).json["sent"]
    assert {answer["kind"] for answer in sent} == {"refused_bundle"}
    assert "has not approved the bundle" in sent[0]["reason"]
    assert town.running["chess"].has_said("refused", "bundle")
    _, done = second
    assert {refusal["name"]: refusal["code"] for refusal in done.json["refused"]} == {
        **dict.fromkeys(("code", "law"), "already_counted"),
        "chess": "bundle_refused",
    }
    assert "`ridgeway client approve DIR`" in done.stderr
    assert "chess" not in done.json["domains"]


def test_certificates_are_renewed_while_everything_runs(
    town: Deployment, second: tuple[Finished, Finished]
) -> None:
    """The gate shows the new certificate soon, nobody restarts anything, and later joins and rounds
    go on under it.
    """
    host, _, port = town.address.rpartition(":")
    shown = ssl.get_server_certificate((host, int(port)))
    ends = town.operator("renew --authority")["certificates"]
    # its exit code tells of holders that are away while the link is started again
    status = town.run("coordinator status --json", town.coordinator).json
    assert {
        name: certificate["ends"][:10]
        for name, certificate in status["certificates"].items()
    } == {name: end[:10] for name, end in ends.items()}
    assert not [
        obstacle
        for obstacle in status["obstacles"]
        if "certificate" in obstacle["words"]
    ]

    def renewed() -> bool:
        try:
            return ssl.get_server_certificate((host, int(port))) != shown
        except OSError:  # it is started again just now
            return False

    town.wait_for("the gate shows the new certificate", renewed)
    town.wait_for(
        "code has the new authority",
        lambda: (town.holder("code") / "ca.crt").read_bytes() == _ca(town),
    )


def _ca(town: Deployment) -> bytes:
    return (town.coordinator / "link" / "ca.crt").read_bytes()


def test_a_retired_domain_is_gone_at_once(
    town: Deployment, second: tuple[Finished, Finished]
) -> None:
    """Release 0003 lacks the domain, without a round."""
    town.join("medicine")
    retired = town.operator("retire", "music")
    assert retired["release"]["number"] == 3
    newest = town.operator("releases")[-1]
    assert (newest["number"], newest["cause"], newest["domains"]) == (
        3,
        "retired music",
        list(FIRST),
    )
    assert len(town.ledger("opened")) == 2


def test_holders_that_lack_the_newest_release_get_it_without_a_round(
    town: Deployment, second: tuple[Finished, Finished]
) -> None:
    """The running coordinator hands it to all that are there, also to one that was away while
    others got theirs.
    """
    assert "medicine" in second[1].json["absent"]
    for name in FIRST:
        town.wait_for(f"{name} has release 0003", lambda: town.newest(name) == 3)  # noqa: B023
        town.wait_for("the ledger has it", lambda: _delivered(town, name) == 3)  # noqa: B023
    newest = town.owner("medicine", "releases")[-1]
    assert (newest["number"], newest["domains"]) == (3, list(FIRST))
    assert len(town.ledger("opened")) == 2
    assert town.sent("medicine", "offer") == 1
    town.leave("music")


def _delivered(town: Deployment, name: str) -> int:
    return max(
        int(entry.facts["number"])
        for entry in town.ledger("delivered")
        if entry.facts["name"] == name
    )


# Power cuts


@pytest.fixture(scope="module")
def cut(town: Deployment, go_on: Callable[[], None]) -> Finished:
    """A round in which `law` cannot read its epoch, and the coordinator is killed after it has
    accepted new sums.
    """
    go_on()
    town.grow("code", seed=1)
    epochs = town.holder("law") / "epochs"
    away = epochs.rename(epochs.with_name("away"))
    running = town.round(
        "--accept-unevaluated", "law", "--accept-unevaluated", "medicine"
    )
    town.wait_for(
        "new sums of code are accepted",
        lambda: town.reported(running, "received", "code"),
    )
    away.rename(epochs)
    town.kill("up")
    town.up()
    return running.end()


def test_a_coordinator_killed_in_mid_round_has_lost_nothing(
    town: Deployment, cut: Finished
) -> None:
    """What was accepted is kept, no half of a release is seen, and the operator reads in one
    sentence what to do.
    """
    assert cut.code != 0
    assert cut.stderr.splitlines()[-1].startswith("ridgeway: "), cut.stderr
    assert "Run the round again" in cut.stderr
    assert town.releases() == ["0001", "0002", "0003"]
    assert town.sent("code", "clear_statistics") == 2
    assert _verified(town) == 3


def test_a_holder_that_fails_tells_the_reason_to_its_own_log_only(
    town: Deployment, cut: Finished
) -> None:
    """The operator sees the name and a code; the holder finds the path and the whole story."""
    [refusal] = [line for line in cut.stderr.splitlines() if line.startswith("refused")]
    assert refusal.split()[1:3] == ["law", "failed"]
    log = (town.holder("law") / "logs" / "holder.log").read_text()
    assert str(town.holder("law") / "epochs") in log
    assert TRACEBACK in log


def _verified(town: Deployment) -> int:
    """The ledger and all releases hold; returns how many releases there are."""
    return int(town.operator("verify")["releases"])


@pytest.fixture(scope="module")
def third(
    town: Deployment,
    go_on: Callable[[], None],
    tmp_path_factory: pytest.TempPathFactory,
) -> Played:
    """The next round. Before it the coordinator and a holder have renewed the keys that they sign
    with, while all are connected.
    """
    go_on()
    town.grow("law", seed=2)
    town.ready("medicine")
    town.do("coordinator renew --signing-key", town.coordinator)
    town.do("client renew --identity", town.holder("code"))
    town.admit("code")
    before = Copy(town, FIRST, tmp_path_factory.mktemp("before-the-third"))
    return Played(town.round().end(), before)


def test_no_sums_are_asked_for_twice_after_a_round_that_was_cut(
    town: Deployment, third: Played
) -> None:
    """What was accepted before the power cut counts in the round after it, once."""
    assert third.finished.code == 0, third.finished.stderr
    assert third.finished.json["domains"] == list(FIRST)
    assert {town.sent(name, "clear_statistics") for name in FIRST} == {2}
    assert _verified(town) == 4


def test_renewed_keys_are_followed_by_all_who_pinned_the_old_ones(
    town: Deployment, third: Played
) -> None:
    """Without a restart: rounds go on, `status` and `verify` tell of it, and the old key verifies
    the new release.
    """
    status = town.owner("medicine", "status")
    handovers = {handover["whose"]: handover for handover in status["handovers"]}
    coordinator = handovers["the coordinator"]
    assert (status["coordinator"], coordinator["fork"]) == (coordinator["after"], False)
    assert f"to {coordinator['after'][:12]}" in town.running["medicine"].said
    assert town.do("client verify", town.holder("medicine")).code == 0
    assert town.do("client verify", town.holder("code")).code == 0
    newest = town.holder("medicine") / "releases" / "0004"
    for key in (coordinator["before"], coordinator["after"]):
        assert town.run("route", newest, "0123", "--key", key).code == 0
    assert town.run("route", newest, "0123", "--key", "1" * 64).code == 2


def test_after_a_power_cut_every_sum_is_counted_once(
    town: Deployment, third: Played
) -> None:
    """The release is, byte for byte, the one of an undisturbed round in memory over the same
    corpora.
    """
    assert contents(town.coordinator / "releases" / "0004") == third.before.release()


# Masks


@dataclass(frozen=True, slots=True)
class PlayedMasked(Played):
    """contributions: the files of sums before it."""

    contributions: frozenset[Path]


@pytest.fixture(scope="module")
def masked(
    town: Deployment,
    go_on: Callable[[], None],
    tmp_path_factory: pytest.TempPathFactory,
) -> PlayedMasked:
    """A masked round, after a fourth has joined and all have pinned each other and opened epochs. A
    member is killed after it has shared its secrets, and the SuperLink after it has passed on what
    opened the total. While the round waits for the member, others have sealed and nobody has
    signed; then another's process that starts its answers is killed.
    """
    go_on()
    town.confirm(*MASKED)
    town.change(mode='"masked"')
    town.accept(*MASKED)
    town.ready(*MASKED)
    town.join(DYING)
    assert threshold_for(len(MASKED)) == len(FIRST)
    contributions = frozenset((town.coordinator / "contributions").iterdir())
    before = Copy(town, FIRST, tmp_path_factory.mktemp("before-the-masked"))
    running = town.round()
    town.wait_for(
        "a member has shared its secrets", lambda: town.noted("shared", DYING)
    )
    town.kill(DYING)
    for name in ("code", "law"):
        sealed = partial(town.noted, "sealed", name)
        town.wait_for(f"what {name} has sealed is there", sealed)
    os.kill(town.answering("law")[0], signal.SIGKILL)
    town.wait_for("the total is opened", lambda: bool(town.ledger("totalled")))
    os.kill(town.process("flower-superlink"), signal.SIGKILL)
    return PlayedMasked(running.end(), before, contributions)


def test_a_member_killed_after_sharing_does_not_stop_the_round(
    town: Deployment, masked: PlayedMasked
) -> None:
    """It is named; its masks are taken off by the others' shares; the release is that of those who
    sent.
    """
    assert masked.finished.code == 0, masked.finished.stderr
    assert masked.finished.json["domains"] == list(FIRST)
    assert DYING in masked.finished.json["absent"]
    assert town.sent(DYING, "sealed_sums") == 0
    assert {town.sent(name, "revealed") for name in FIRST} == {2}


def test_a_superlink_killed_in_mid_round_is_started_again_and_the_round_goes_on(
    town: Deployment, masked: PlayedMasked
) -> None:
    """The supervisor says so; no SuperNode ended with it, nor with the authority that was renewed
    before.
    """
    assert (
        "superlink ended with code -9; it is started again" in town.running["up"].said
    )
    assert {town.running[name].said.count("connected to") for name in FIRST} == {1}
    assert _verified(town) == 5


def test_a_member_signs_and_opens_though_what_answers_for_it_was_killed(
    town: Deployment, masked: PlayedMasked
) -> None:
    """The process that starts answers comes back with a note to its holder. What it has sealed lies
    on its disk: the process that comes next signs for that, and for nothing else.
    """
    assert {town.sent(name, "confirmed") for name in FIRST} == {2}
    assert "superexec ended" not in town.running["code"].said
    assert (
        "superexec ended with code -9; it is started again" in town.running["law"].said
    )


def test_the_masked_release_is_that_of_the_survivors_byte_for_byte(
    town: Deployment, masked: PlayedMasked
) -> None:
    """As if they had run a round among themselves, in memory."""
    assert contents(town.coordinator / "releases" / "0005") == masked.before.release()


def test_the_coordinator_has_seen_a_total_and_nobodys_sums(
    town: Deployment, masked: PlayedMasked
) -> None:
    """A file of sums, larger than what travels in one piece, and one of counts about them; and
    nobody's own.
    """
    seen = set((town.coordinator / "contributions").iterdir()) - masked.contributions
    assert len(seen) == 2
    assert (
        max(path.stat().st_size for path in seen) >= TRIANGLE_BYTES > SMALL_BULK_BYTES
    )
    [kept] = town.ledger("totalled")
    assert [member["name"] for member in kept.facts["members"]] == list(FIRST)
    verified = town.operator("verify")
    assert (verified["contributions"], verified["totals"], verified["releases"]) == (
        3,
        1,
        5,
    )


def test_sessions_leave_nothing_behind_on_holders_machines(
    town: Deployment, masked: PlayedMasked
) -> None:
    """Once the release has come, the state of the session is gone."""
    assert [name for name in FIRST if (town.holder(name) / "session").exists()] == []


# The end


def test_nothing_private_has_reached_the_coordinator(town: Deployment) -> None:
    """No text, no path and no traceback of a holder stands in any file, log or database of the
    operator.
    """
    assert town.leaks() == []
    received = [path for path in town.coordinator.rglob("*") if path.suffix != ".log"]
    assert holding(received, [TRACEBACK.encode()]) == []


def test_when_all_have_left_no_process_is_left(town: Deployment) -> None:
    """Every command ends on SIGTERM with code 0, and takes along all that it has started."""
    for name in (*FIRST, "up"):
        stopped: Running = town.running[name]
        done = stopped.stop()
        assert done.code == 0, done.stderr
    assert town.processes() == {}
