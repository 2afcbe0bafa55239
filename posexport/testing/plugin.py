"""The pytest plugin: bundles as fixtures, a stored sample as a test, providers that must load. Imports pytest only.

``pytest --posexport-bundle DIR`` adds one test a bundle: its stored sample, on the CPU and on every provider of
``--posexport-require``. Tests get the bundle by the fixtures `posexport_bundle` and `posexport_session`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from posexport.run.session import Session

MARKER = "posexport_provider"
#: why a provider does not load, "" where it does; and sessions, which use does not change
_REASONS = pytest.StashKey[dict[str, str]]()
_SESSIONS = pytest.StashKey[dict[tuple[Path, str], "Session"]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--posexport-bundle`` and ``--posexport-require``, each repeatable."""
    group = parser.getgroup("posexport", "posexport: parity of ONNX bundles")
    group.addoption(
        "--posexport-bundle",
        action="append",
        default=[],
        metavar="DIR",
        help="check this bundle's stored sample, and give the bundle to the fixtures posexport_bundle and "
        "posexport_session (repeatable)",
    )
    group.addoption(
        "--posexport-require",
        action="append",
        default=[],
        metavar="PROVIDER",
        help="fail where this provider (cpu, cuda) does not load, where tests marked posexport_provider would be "
        "skipped, and check the samples on it too (repeatable)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(name): run on this provider (cpu, cuda); skipped with the reason where it does not load",
    )
    config.stash[_REASONS] = {}
    config.stash[_SESSIONS] = {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for a bundle once for every ``--posexport-bundle``."""
    if "posexport_bundle" in metafunc.fixturenames and (bundles := _bundles(metafunc.config)):
        metafunc.parametrize("posexport_bundle", bundles, indirect=True, ids=_names(bundles), scope="session")


@pytest.hookimpl(tryfirst=True)  # so that -k, -m and --deselect see them
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add a test of the stored sample for every bundle and provider."""
    bundles = _bundles(config)
    for bundle, name in zip(bundles, _names(bundles), strict=True):
        for provider in dict.fromkeys(["cpu", *config.getoption("posexport_require")]):
            nodeid = f"posexport[{name}-{provider}]"
            items.append(SampleItem.from_parent(session, name=nodeid, nodeid=nodeid, bundle=bundle, provider=provider))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test if its provider does not load, or fail it if the provider is required."""
    if (marker := item.get_closest_marker(MARKER)) is not None:
        _check_provider(item.config, _provider(marker))


class SampleItem(pytest.Item):
    """The test of one bundle's stored sample on one provider."""

    def __init__(self, *, bundle: Path, provider: str, **rest: Any) -> None:
        super().__init__(**rest)
        self.bundle = bundle
        self.provider = provider

    def setup(self) -> None:
        """Skip or fail where the provider does not load."""
        _check_provider(self.config, self.provider)

    def runtest(self) -> None:
        from posexport.testing.parity import assert_parity

        assert_parity(self.bundle, providers=[self.provider])

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The table of the proof, or the sentence that says why there is none; a traceback for a defect only."""
        from posexport.errors import PosexportError

        if isinstance(excinfo.value, AssertionError | PosexportError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """The bundle, and what of it is checked."""
        return self.bundle, None, f"{self.bundle}: stored sample on {self.provider}"


@pytest.fixture(scope="session")
def posexport_bundle(request: pytest.FixtureRequest) -> Path:
    """The directory of a bundle, for every ``--posexport-bundle`` in turn; without one the test is skipped."""
    bundle = getattr(request, "param", None)
    if bundle is None:
        pytest.skip("no bundle to test: run pytest with --posexport-bundle DIR")
    assert isinstance(bundle, Path)
    return bundle


@pytest.fixture
def posexport_session(posexport_bundle: Path, request: pytest.FixtureRequest) -> "Session":
    """The bundle opened by `posexport.load`, on the provider of the test's marker, else on the CPU.

    Opened once for all tests: use does not change a session.
    """
    import posexport

    marker = request.node.get_closest_marker(MARKER)
    provider = "cpu" if marker is None else _provider(marker)
    sessions = request.config.stash[_SESSIONS]
    if (posexport_bundle, provider) not in sessions:
        sessions[posexport_bundle, provider] = posexport.load(posexport_bundle, provider=provider)
    return sessions[posexport_bundle, provider]


def _bundles(config: pytest.Config) -> list[Path]:
    """The bundles of the command line, relative to where pytest was called."""
    return [config.invocation_params.dir / name for name in dict.fromkeys(config.getoption("posexport_bundle"))]


def _names(bundles: list[Path]) -> list[str]:
    """The names of the folders; whole paths if two have the same name."""
    names = [bundle.name for bundle in bundles]
    return names if len(set(names)) == len(names) else [str(bundle) for bundle in bundles]


def _provider(marker: pytest.Mark) -> str:
    if len(marker.args) != 1 or marker.kwargs or not isinstance(marker.args[0], str):
        pytest.fail(f'{MARKER} takes one provider, such as @pytest.mark.{MARKER}("cuda")', pytrace=False)
    return marker.args[0]


def _check_provider(config: pytest.Config, provider: str) -> None:
    """Nothing where ``provider`` loads; else a skip, or a failure where it is required or unknown."""
    from posexport.base.targets.providers import provider_named
    from posexport.errors import PosexportError
    from posexport.run.providers import check_loads

    reasons = config.stash[_REASONS]
    if provider not in reasons:
        try:
            provider_named(provider)
        except PosexportError as err:
            pytest.fail(str(err), pytrace=False)
        try:
            check_loads(provider)
            reasons[provider] = ""
        except PosexportError as err:
            reasons[provider] = str(err)
    if not (reason := reasons[provider]):
        return
    if provider in config.getoption("posexport_require"):
        pytest.fail(f"{provider} is required (--posexport-require) and does not load: {reason}", pytrace=False)
    pytest.skip(f"{provider} does not load: {reason}")
