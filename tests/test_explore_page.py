"""The page in Chromium: drags, keys and links, and the numbers it draws are the library's."""

import json
import threading
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pytest
import torch
from chromium import Browser, in_browser

import structmax
from structmax import omega
from structmax.explore.kinds import KINDS
from structmax.explore.server import Server
from structmax.explore.warming import warm

pytestmark = in_browser
# The newest state is answered, and drawn.
DRAWN = "document.getElementById('answers').ariaBusy === 'false'"
GRID = """(name) => [...document.querySelectorAll(`figure[data-name=${name}] .grid`)[0].children]
    .filter((cell) => cell.classList.contains("cell")).map((cell) => cell.textContent)"""
SCORES = "[...document.querySelectorAll('#scores [role=slider]')]"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    warm("dependencies")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path) as page:
        yield page
        assert page.messages == []


def written(value: float) -> str:
    """A probability as the page writes it."""
    if value == 0:
        return ""
    if value > 1 - 1e-9:
        return "1"
    # JavaScript rounds halves up
    digits = Decimal(value).quantize(Decimal("0.01"), ROUND_HALF_UP)
    return "<.01" if value < 0.005 else ">.99" if value >= 0.995 else str(digits)[1:]


def shown(browser: Browser, name: str) -> list[str]:
    return browser.run(f"({GRID})({json.dumps(name)})")


def scores_of(browser: Browser, words: int) -> torch.Tensor:
    """The library's scores of what the page shows: heads by words, without the diagonal."""
    values = iter(browser.run(f"{SCORES}.map((cell) => Number(cell.ariaValueNow))"))
    scores = torch.zeros(words + 1, words + 1, dtype=torch.float64)
    for head in range(words + 1):
        for word in range(1, words + 1):
            if head != word:
                scores[head, word] = next(values)
    assert next(values, None) is None
    return scores


def expected(scores: torch.Tensor, temperature: float, alpha: float) -> dict[str, list[str]]:
    trees = structmax.ProjectiveTree(single_root=True)
    points: dict[str, Any] = {
        "argmax": structmax.argmax(scores, trees),
        "marginals": structmax.marginals(scores / temperature, trees),
        "sparsemap": structmax.sparsemap(scores, trees, temperature=temperature).marginals,
        "smoothed": structmax.smoothed_marginals(scores, trees, omega.LocalTsallis(alpha, temperature)),
    }
    return {name: [written(value) for value in point[:, 1:].flatten().tolist()] for name, point in points.items()}


def assert_drawn(browser: Browser, words: int = 7, temperature: float = 1.0, alpha: float = 1.5) -> None:
    """The page shows what the library says of its scores, once it has its answer."""
    browser.until(DRAWN)
    wanted = expected(scores_of(browser, words), temperature, alpha)
    assert {name: shown(browser, name) for name in wanted} == wanted


def test_a_drag_changes_the_answers(server: Server, browser: Browser) -> None:
    browser.open(server.url)
    browser.until(DRAWN)
    assert_drawn(browser)
    before = shown(browser, "argmax")
    # root to she, by eight
    browser.drag(f"{SCORES}[0]", 320)
    browser.until(f"{SCORES}[0].textContent === '7.9'")
    assert_drawn(browser)
    assert shown(browser, "argmax") != before
    browser.until("Number(document.getElementById('latency').dataset.milliseconds) > 0")


def test_keys_change_scores_and_the_target(server: Server, browser: Browser) -> None:
    browser.open(server.url)
    browser.until(DRAWN)
    browser.run(f"{SCORES}[0].focus()")
    for key in ("ArrowUp", "ArrowUp", "ArrowRight", "ArrowDown", "Enter"):
        browser.press(key)
    browser.until(f"{SCORES}[0].textContent === '0.1' && {SCORES}[1].textContent === '2.6'")
    assert_drawn(browser)
    # the target has the part on which Enter was pressed, and is a whole tree
    browser.until(f"{SCORES}[1].classList.contains('gold')")
    browser.until(f"{SCORES}.filter((cell) => cell.classList.contains('gold')).length === 7")
    assert browser.run(f"document.activeElement === {SCORES}[1]")
    assert browser.run(f"{SCORES}.filter((cell) => cell.tabIndex === 0).length") == 1


def test_a_link_keeps_the_state(server: Server, browser: Browser) -> None:
    browser.open(server.url)
    browser.until(DRAWN)
    browser.drag(f"{SCORES}[3]", -40)
    browser.run("(() => { const dial = document.getElementById('temperature'); dial.value = Math.log(2);"
                " dial.dispatchEvent(new Event('input')) })()")  # fmt: skip
    # what is clicked must not be drawn again meanwhile
    browser.until(DRAWN)
    browser.click("document.querySelector('#samples .card')")
    browser.until("location.hash.includes('temperature=2&') && location.hash.includes('wanted=')")
    assert_drawn(browser, temperature=2.0)
    link, drawn = browser.run("location.href"), {name: shown(browser, name) for name in ("marginals", "sparsemap")}
    scores, target = (
        browser.run(f"{SCORES}.map((cell) => cell.textContent)"),
        browser.run("document.getElementById('target').dataset.words"),
    )
    browser.open("about:blank")
    browser.open(link)
    browser.until(DRAWN)
    assert browser.run("location.href") == link
    assert browser.run(f"{SCORES}.map((cell) => cell.textContent)") == scores
    assert {name: shown(browser, name) for name in drawn} == drawn
    assert browser.run("document.getElementById('target').dataset.words") == target
    assert browser.run("document.querySelector('#temperature + output').value") == "2.00"


def test_a_step_of_descent_goes_towards_the_target(server: Server, browser: Browser) -> None:
    browser.open(server.url)
    browser.until(DRAWN)
    loss = "Number(document.querySelector('figure[data-name=exact] .fact').textContent.match(/loss ([\\d.]+)/)[1])"
    before = browser.run(loss)
    browser.click("document.querySelector('figure[data-name=straight_through] > button')")
    browser.until(f"{loss} < {before}")
    assert_drawn(browser)


def test_a_finger_drags_sideways(server: Server, browser: Browser) -> None:
    browser.call("Emulation.setTouchEmulationEnabled", enabled=True)
    browser.open(server.url)
    browser.until(DRAWN)
    x, y = browser.middle(f"{SCORES}[0]")
    browser.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
    for right in (20, 40, 60, 80):
        browser.call("Input.dispatchTouchEvent", type="touchMove", touchPoints=[{"x": x + right, "y": y + 5}])
    browser.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    browser.until(f"{SCORES}[0].textContent === '1.9'")
    assert_drawn(browser)


@pytest.mark.parametrize("width", [390, 1280])
def test_every_structure_fits_the_screen(server: Server, tmp_path: Path, width: int) -> None:
    with Browser(tmp_path, width, 800, dark=width == 390) as browser:
        browser.open(server.url)
        browser.until(DRAWN)
        for name, kind in KINDS.items():
            browser.click(f"document.querySelector('#kinds input[value={name}]')")
            browser.until(f"document.getElementById('about').textContent === {json.dumps(kind.about)}")
            first = kind.rows.example.split()[0]
            browser.until(
                f"[...document.querySelectorAll('#scores .row')].some((row) => row.textContent === {json.dumps(first)})"
            )
            assert browser.run("document.documentElement.scrollWidth") == width
            assert browser.run("document.getElementById('complaint').textContent") == ""
        assert browser.messages == []


def test_words_are_data(server: Server, browser: Browser) -> None:
    browser.open(server.url)
    browser.until(DRAWN)
    markup = "<img/src=x/onerror=x>"
    browser.run(f"(() => {{ const e = document.getElementById('rows'); e.value = '{markup} &amp; b'; "
                "e.dispatchEvent(new Event('input')) })()")  # fmt: skip
    browser.until(f"document.getElementById('target').dataset.words.includes({json.dumps(markup)})")
    assert browser.run("document.querySelectorAll('img').length") == 0
    assert browser.run(
        f"[...document.querySelectorAll('#target text')].some((e) => e.textContent === {json.dumps(markup)})"
    )
    assert_drawn(browser, words=3)


def test_too_many_words_get_a_sentence(server: Server, browser: Browser) -> None:
    browser.open(server.url)
    browser.until(DRAWN)
    browser.run("(() => { const e = document.getElementById('rows'); e.value = 'a '.repeat(13);"
                " e.dispatchEvent(new Event('input')) })()")  # fmt: skip
    browser.until("document.getElementById('complaint').textContent === 'Sentence: 1 to 12 words.'")
    assert_drawn(browser)


def test_a_broken_link_gets_a_sentence(server: Server, tmp_path: Path) -> None:
    with Browser(tmp_path) as browser:
        browser.open(f"{server.url}#kind=chain&rows=a+b&columns=x&scores=1,oops")
        browser.until("document.getElementById('complaint').textContent.startsWith('`scores` should be')")
        # the browser itself tells of the status 400
        assert all("400" in message for message in browser.messages)
