"""A guard of the product, how to remove it, and the tests that fail without it.

To remove a guard, replace a function of the product by one without it (`swap`). A scenario is an
ordinary test: it passes with the guard, and is run here once more, in this process, without it.
"""

import importlib
import sys
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

from support.engines.one_engine import EngineDiedError

Remove = Callable[[pytest.MonkeyPatch], None]

SECONDS = 120
"""How long a scenario without its guard may hang; it has failed then, too."""

_NOT_NEEDED = ("cacheprovider", "xdist", "unraisableexception", "threadexception")
"""Plugins of pytest: the last two collect garbage before and after each run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """What `guard` makes of the function that removes it."""

    name: str
    """The invariant that it keeps."""
    remove: Remove
    scenarios: tuple[Callable[..., object], ...]
    """Tests that must each fail without the guard; of a parametrized one, any case. Or a search."""
    raises: tuple[type[BaseException], ...] = ()
    """How a scenario may fail, apart from a failed assertion. Any other error means that `remove`
    does not fit the product any more."""
    is_slow: bool = False
    """Its scenarios take more than some seconds: only in `make test-all`."""


def guard(
    name: str,
    *scenarios: Callable[..., object],
    raises: tuple[type[BaseException], ...] = (),
    is_slow: bool = False,
) -> Callable[[Remove], Guard]:
    """Make a guard of the function that removes it."""
    return lambda remove: Guard(
        name=name, remove=remove, scenarios=scenarios, raises=raises, is_slow=is_slow
    )


def guards_in(*modules: ModuleType) -> tuple[Guard, ...]:
    return tuple(
        value for module in modules for value in vars(module).values() if isinstance(value, Guard)
    )


def swap(patch: pytest.MonkeyPatch, old: Any, new: Any) -> None:
    """Replace a function or a method of the product wherever it is known by its name."""
    function: Any = old.fget if isinstance(old, property) else old
    owner = _owner(function)
    if owner is not None:
        patch.setattr(owner, function.__name__, new)
        return
    places = [
        (module, name)
        for module in list(sys.modules.values())
        if not getattr(module, "__name__", "").startswith(__package__)
        for name, value in list(getattr(module, "__dict__", {}).items())
        if value is old
    ]
    assert places, f"{old} is not known anywhere"
    for module, name in places:
        patch.setattr(module, name, new)


def _owner(function: Any) -> type | None:
    """The class that a method belongs to."""
    *path, _ = function.__qualname__.split(".")
    owner: Any = sys.modules[function.__module__]
    for name in path:
        owner = getattr(owner, name)
    return owner if isinstance(owner, type) else None


@dataclass(eq=False)
class Failures:
    """A plugin of pytest that collects what a run of it comes to."""

    raised: list[BaseException] = field(default_factory=list)
    num_run: int = 0
    broken: list[str] = field(default_factory=list)
    """What failed outside the tests themselves."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        self.num_run += call.when == "call"
        if report.failed and call.excinfo is not None:
            if call.when == "setup":
                self.broken.append(report.longreprtext)
            else:  # a fixture may check how a test ended
                self.raised.append(call.excinfo.value)
        return report

    def call(self, scenario: Callable[..., object]) -> None:
        self.num_run += 1
        try:
            scenario()
        except AssertionError as error:
            self.raised.append(error)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.broken.append(report.longreprtext)


def is_test(scenario: Callable[..., object]) -> bool:
    return scenario.__name__.startswith("test_")


def load(scenario: Callable[..., object]) -> None:
    """Import a test under pytest's name for it; later it would import what replaces the guard."""
    if is_test(scenario):
        importlib.import_module(f"tests.{scenario.__module__}")


def run(scenario: Callable[..., object]) -> Failures:
    """Run a test in this process, with its fixtures and all its cases, until one fails."""
    failures = Failures()
    if not is_test(scenario):
        failures.call(scenario)
        return failures
    path = sys.modules[scenario.__module__].__file__
    names = scenario.__qualname__.rpartition("<locals>.")[2].split(".")  # hypothesis wraps tests
    node = "::".join([str(path), *names])
    options = ["-x", "-q", "-m", "", "--tb=short", f"--timeout={SECONDS}"]
    options += ["--hypothesis-profile=first-failure"]
    options += [f"-pno:{plugin}" for plugin in _NOT_NEEDED]
    pytest.main([*options, node], plugins=[failures])
    return failures


def parameters(guards: Iterable[Guard]) -> list[Any]:
    """The cases of a test that takes a guard."""
    return [
        pytest.param(guard, id=guard.name, marks=[pytest.mark.slow] if guard.is_slow else [])
        for guard in guards
    ]


def assert_needed(guard: Guard, patch: pytest.MonkeyPatch) -> None:
    """Remove a guard, and check that each of its scenarios fails as it should."""
    for scenario in guard.scenarios:
        load(scenario)
    guard.remove(patch)
    expected: tuple[type[BaseException], ...] = (AssertionError, pytest.fail.Exception)
    for scenario in guard.scenarios:
        failures = run(scenario)
        assert not failures.broken, failures.broken
        assert failures.raised, f"{scenario.__qualname__}: {failures.num_run} cases passed"
        (raised,) = failures.raised
        assert isinstance(raised, expected + guard.raises), repr(raised)
        assert not isinstance(raised, EngineDiedError), "engines died of it"
