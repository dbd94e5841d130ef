"""Fixtures that every test may use, the order of a run, and its quick form. No test touches the
user's cache or keys.

`pytest --quick` leaves out what the markers in LEFT_OUT name and what is NOT_COLLECTED, and tries
few parameters of a test and few examples of a law. `pytest --long` tries seeds and examples that an
ordinary run leaves out.
"""

from __future__ import annotations

import fcntl
import gc
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache, partial
from itertools import count, groupby
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from ridgeway.common.base.files import without_syncing
from ridgeway.common.privacy import public_prior
from ridgeway.common.privacy.public_prior import Whitening
from ridgeway.common.text import sentence_encoder
from ridgeway.common.text.encoder_files import find_encoder
from ridgeway.common.text.sentence_encoder import UseEncoder, find_use
from ridgeway.common.text.table_encoder import TableEncoder
from tests.support.commands import Workshop, home_variables, workshop
from tests.support.masked_session import small_neighbourhoods
from tests.support.tiny import tiny_encoder

LEFT_OUT = ("deployment", "browser", "slow")
"""Markers of tests that a quick run does without."""
NOT_COLLECTED = {
    Path(__file__).parent / name
    for name in (
        "end_to_end",
        "simulations",
        "test_distribution.py",
        "client/sums/test_ray_engine.py",
        "common/base/test_torch_threads.py",
        "common/text/test_encoder_sources.py",
        "common/text/test_sentence_transformer.py",
        "coordinator/solving/test_gpu_solve.py",
        "laws/test_gpu_laws.py",
    )
}
"""What a quick run does without: whole commands, federations, experiments, and all that imports
torch.
"""
LONGEST = (
    "end_to_end/test_deployment.py",
    "end_to_end/test_first_steps.py",
    "end_to_end/test_serve_page_modes.py",
    "client/sums/test_ray_engine.py",
    "end_to_end/test_flower_app.py",
    "end_to_end/test_accuracy.py",
    "end_to_end/test_serve_page_live.py",
    "serving/test_schemas.py",
    "serving/test_connections.py",
    "laws/test_gpu_laws.py",
    "end_to_end/test_serving.py",
    "simulations/bench/test_bench_serving.py",
    "simulations/bench/test_bench.py",
    "coordinator/round/test_rounds_under_faults.py",
    "coordinator/deploy/test_fleet_proxy.py",
    "end_to_end/test_serve_page.py",
    "client/round/test_session_store.py",
)
"""The files that take longest, longest first: what begins late is short, so that workers end
together.
"""
EXAMPLES = {"quick": 10, "usual": 50, "long": 200}
"""How many examples of a law a run tries, by its profile."""
QUICK_CASES = 3
"""A quick run tries so many of a test's parameters: the first, the last, and one between."""
MAX_WORKERS = 4
WAITING_WORKERS = 1
"""Workers beyond the cores: some tests wait longer than they compute."""

MEMORY = Path("/dev/shm")
MIN_MEMORY_BYTES = 4 << 30


def _keep_folders_in_memory() -> None:
    """Where there is room for all that tests write, and programs may run there: disks are slow."""
    if not os.access(MEMORY, os.W_OK):
        return
    about = os.statvfs(MEMORY)
    if (
        about.f_bavail * about.f_frsize >= MIN_MEMORY_BYTES
        and not about.f_flag & os.ST_NOEXEC
    ):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


_keep_folders_in_memory()

for _profile, _examples in EXAMPLES.items():
    settings.register_profile(
        _profile,
        max_examples=_examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help="leave out what takes long; few examples of each law",
    )
    parser.addoption(
        "--long",
        action="store_true",
        help="try all seeds, and all examples of each law",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Before any law is imported, so that it tries as many examples as the run asks for."""
    chosen = [name for name in ("quick", "long") if config.getoption(name)]
    settings.load_profile(chosen[0] if chosen else "usual")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """As many workers as cores, up to a limit, and those for what waits."""
    return min(os.cpu_count() or 1, MAX_WORKERS) + WAITING_WORKERS


def pytest_sessionstart() -> None:
    """What is imported and collected stays until the end: nobody looks for garbage in it, then or
    later.
    """
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return (
        True if config.getoption("quick") and collection_path in NOT_COLLECTED else None
    )


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Files that take long begin first; a quick run leaves out tests, and any but a long one
    seeds.
    """
    files = [list(file) for _, file in groupby(items, lambda item: item.path)]
    ordered = [item for file in sorted(files, key=_rank) for item in file]
    quick = config.getoption("quick")
    left_out = (
        *(LEFT_OUT if quick else ()),
        *(() if config.getoption("long") else ("long",)),
    )
    items[:] = [
        item
        for item in ordered
        if not any(item.get_closest_marker(name) for name in left_out)
    ]
    kept = set(_few_cases(items) if quick else items)
    items[:] = [item for item in items if item in kept]
    config.hook.pytest_deselected(items=[item for item in ordered if item not in kept])


def _few_cases(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        tests[item.nodeid.partition("[")[0]].append(item)
    for cases in tests.values():
        yield from (
            cases[(len(cases) - 1) * index // (QUICK_CASES - 1)]
            for index in range(QUICK_CASES)
        )


def _rank(file: list[pytest.Item]) -> int:
    """The place of a file's tests in the order of a run."""
    name = file[0].path.relative_to(Path(__file__).parent).as_posix()
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


@pytest.fixture(scope="session")
def long_run(pytestconfig: pytest.Config) -> bool:
    """Whether all is to be tried, however long it takes."""
    return bool(pytestconfig.getoption("long"))


@pytest.fixture(scope="session", autouse=True)
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Iterator[Path]]:
    """Folders for caches and keys, made by whoever writes there: one for fixtures that many tests
    share, then one for each test. They lie in one folder, since pytest looks through all that it
    has made before it makes another.
    """
    folder = tmp_path_factory.mktemp("homes")
    homes = (folder / str(number) for number in count())
    with (
        pytest.MonkeyPatch.context() as patch,
        without_syncing(),
    ):  # no test cuts the power
        _live_in(next(homes), patch)
        yield homes


@pytest.fixture(autouse=True)
def _close_logs() -> Iterator[None]:
    """Holders keep their logs open until their process ends; here one process is that of thousands
    of holders.
    """
    yield
    loggers = logging.root.manager.loggerDict
    for name in [name for name in loggers if name.startswith("ridgeway.holder.")]:
        logger = loggers.pop(name)
        for handler in logger.handlers if isinstance(logger, logging.Logger) else ():
            handler.close()


@pytest.fixture(autouse=True)
def _own_folders(_homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a cache, a configuration and a record of spending of its own."""
    _live_in(next(_homes), monkeypatch)


def _live_in(home: Path, patch: pytest.MonkeyPatch) -> None:
    for name, folder in home_variables(home).items():
        patch.setenv(name, folder)


@pytest.fixture(params=["everybody", "neighbours"])
def dealing(request: pytest.FixtureRequest) -> Iterator[str]:
    """Whom members deal their secrets to: everybody, or as in a large cohort four others, who lock
    sums.

    In a cohort of five these are all others, so that the same attacks are possible;
    test_large_cohorts.py has fewer.
    """
    with small_neighbourhoods(4, 2) if request.param == "neighbours" else nullcontext():
        yield request.param


@pytest.fixture(scope="session")
def encoder() -> TableEncoder:
    """A small encoder made on the spot."""
    return tiny_encoder()


def _made_once(
    factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]
) -> Path:
    """The folder of this name, filled by whichever worker comes first; the others wait for it."""
    base = factory.getbasetemp()
    run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, ready = run / f"once-{name}", run / f"once-{name}.ready"
    with (run / f"once-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            ready.touch()
    return folder


@pytest.fixture(scope="session")
def use_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the default encoder, converted from the installed wheel once for all workers of
    a test run.
    """
    return _made_once(tmp_path_factory, "use", partial(_found, "use"))


@pytest.fixture(scope="session")
def sentences_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the sentence encoder alone."""
    return _made_once(tmp_path_factory, "sentences", _use)


@pytest.fixture(scope="session")
def smollm2_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with SmolLM2's table."""
    return _made_once(tmp_path_factory, "smollm2", partial(_found, "smollm2"))


@pytest.fixture(scope="session")
def sentences(sentences_cache: Path) -> UseEncoder:
    """The sentence encoder."""
    return _use(sentences_cache)


@pytest.fixture(scope="session")
def _kept_priors() -> Callable[[UseEncoder], Whitening]:
    return cache(public_prior._of_sentences)


@pytest.fixture(scope="module")
def private_sentences(
    sentences: UseEncoder, _kept_priors: Callable[[UseEncoder], Whitening]
) -> Iterator[None]:
    """Private rounds in this process: all parties find the sentence encoder, which is loaded once,
    and its part of a prior is made once.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentence_encoder, "find_use", lambda: sentences)
        patch.setattr(public_prior, "_of_sentences", _kept_priors)
        yield


@pytest.fixture(scope="session")
def use(use_cache: Path) -> TableEncoder:
    """The default encoder's table."""
    return _found("use", use_cache)


@pytest.fixture(scope="session")
def smollm2(smollm2_cache: Path) -> TableEncoder:
    """The published method's encoder."""
    return _found("smollm2", smollm2_cache)


def _use(cache: Path) -> UseEncoder:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RIDGEWAY_CACHE", str(cache))
        return find_use()


def _found(source: str, cache: Path) -> TableEncoder:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RIDGEWAY_CACHE", str(cache))
        return find_encoder(source)


@pytest.fixture(scope="module")
def module_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the tests of a module share."""
    return tmp_path_factory.mktemp("module")


@pytest.fixture(scope="module")
def shop(module_path: Path) -> Workshop:
    """All that commands need, made once for a module."""
    return workshop(module_path / "workshop")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real corpora beside the project; tests that measure on them are skipped where they are
    absent.
    """
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the corpora in ../shared/data are not on this machine")
    return folder


@pytest.fixture
def cascade(
    tmp_path: Path,
    sentences: UseEncoder,
    sentences_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A small release in which a sentence encoder decides where the table is unsure; the encoder is
    in the cache.
    """
    from tests.support.serving import CASCADE_DOMAINS, cascade_release

    monkeypatch.setenv("RIDGEWAY_CACHE", str(sentences_cache))
    cascade_release(tmp_path / "cascade", CASCADE_DOMAINS, sentences)
    return tmp_path / "cascade"


@pytest.fixture
def no_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without the sentence encoder's wheel, and without what was converted from it."""
    monkeypatch.setenv("RIDGEWAY_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(
        "ridgeway.common.text.sentence_source.file_of_wheel", lambda wheel, end: None
    )
