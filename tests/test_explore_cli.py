"""`structmax explore` prepares kernels, says where the page is, opens it, and ends with Ctrl-C."""

import pytest

pytest.importorskip("typer")

from typer.testing import CliRunner

from structmax.cli import explore
from structmax.cli.app import app
from structmax.explore.kinds import KINDS
from structmax.explore.server import Server


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was prepared and opened; the server ends as soon as it should answer."""
    seen: list[str] = []

    def interrupted(server: Server) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(explore, "warm", seen.append)
    monkeypatch.setattr(explore.webbrowser, "open", seen.append)
    monkeypatch.setattr(Server, "serve_forever", interrupted)
    return seen


def test_it_says_where_the_page_is_and_opens_it(seen: list[str]) -> None:
    result = CliRunner().invoke(app, ["explore", "--port", "0"])
    assert result.exit_code == 0
    *kinds, url = seen
    assert kinds == list(KINDS)
    assert url.startswith("http://127.0.0.1:")
    assert f"Explore: {url}" in result.output
    assert "Preparing kernels" in result.output
    assert result.output.endswith("Ended.\n")


def test_the_browser_may_stay_closed(seen: list[str]) -> None:
    assert CliRunner().invoke(app, ["explore", "--port", "0", "--no-open"]).exit_code == 0
    assert seen == list(KINDS)


def test_a_port_that_is_taken_is_a_usage_error(seen: list[str]) -> None:
    with Server() as other:
        result = CliRunner().invoke(app, ["explore", "--port", str(other.server_port)])
    assert result.exit_code == 2
    assert seen == []
    assert f"--port should be free, but {other.server_port} is not" in " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize("port", ["70000", "-1"])
def test_a_port_is_a_number_that_ports_have(seen: list[str], port: str) -> None:
    assert CliRunner().invoke(app, ["explore", "--port", port]).exit_code == 2
    assert seen == []
