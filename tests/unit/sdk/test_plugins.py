"""Commands of the parts: found by entry points, imported only when called."""

from importlib.metadata import EntryPoint
from typing import Annotated

import pytest
import typer

from planaria.cli import plugins
from planaria.errors import PlanariaError


def greet(name: str, loud: Annotated[bool, typer.Option()] = False, times: int = 1) -> None:
    if times == 0:
        raise typer.Exit(3)
    print(f"hello {name}{'!' * loud}")


group = typer.Typer(rich_markup_mode=None)
group.command()(greet)


def install(monkeypatch: pytest.MonkeyPatch, **points: str) -> typer.Typer:
    found = [EntryPoint(name=n, value=v, group=plugins.GROUP) for n, v in points.items()]
    monkeypatch.setattr(plugins, "entry_points", lambda group: found)
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    plugins.register(app)
    return app


def run(app: typer.Typer, *arguments: str) -> object:
    return app(args=list(arguments), standalone_mode=False)


@pytest.mark.parametrize("value", [f"{__name__}:greet", f"{__name__}:group"])
def test_a_command_gets_its_own_arguments_in_order(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    app = install(monkeypatch, plan=value)
    run(app, "plan", "--loud", "--times", "2", "you")
    assert capsys.readouterr().out == "hello you!\n"


def test_help_is_the_commands_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(install(monkeypatch, plan=f"{__name__}:greet"), "plan", "--help")
    out = capsys.readouterr().out
    assert "planaria plan" in out
    assert "--loud" in out


def test_its_exit_status_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(install(monkeypatch, plan=f"{__name__}:greet"), "plan", "--times", "0", "x") == 3


def test_wrong_usage_of_it_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(typer.TyperException, match="No such option: --nope") as caught:
        run(install(monkeypatch, plan=f"{__name__}:greet"), "plan", "x", "--nope")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("points", [{}, {"plan": "no_such_module:plan"}])
def test_an_absent_part_names_the_pip_command(
    monkeypatch: pytest.MonkeyPatch, points: dict[str, str]
) -> None:
    with pytest.raises(PlanariaError) as caught:
        run(install(monkeypatch, **points), "plan", "--nodes", "3")
    assert str(caught.value) == "`planaria plan` needs the planner: pip install 'planaria[planner]'"


def test_commands_of_other_packages_are_added(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(install(monkeypatch, greet=f"{__name__}:greet"), "greet", "you")
    assert capsys.readouterr().out == "hello you\n"
