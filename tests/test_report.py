"""A report needs nothing but itself, says what its folder holds, and opens in a browser without complaint."""

import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from structmax.plots import report

CHROMIUM = shutil.which("chromium")
in_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH: apt-get install chromium")

CONFIG = {"encoder": "latent", "step": 0.5, "seed": 0, "bf16": False, "text": "<script>alert(1)</script>"}
SUMMARY = {
    "recipe": "listops",
    "name": "encoder=latent",
    "best": {"step": 20, "epoch": 2.0, "valid/accuracy": 0.875, "valid/loss": math.nan},
    "test": {"accuracy": 0.8125, "depth": 4.0},
    "meanings": {"depth": "how far down <it> goes", "width": "of nothing here"},
    "seconds": 3725.0,
    "device": "cpu",
    "parameters": 1234567,
    "changed": ["encoder"],
    "versions": {"torch": "2.13"},
    "memory": {"peak": 1.5},
    "notes": ["one", "two"],
}
ROWS = [
    {
        "step": 10 * i,
        "epoch": float(i),
        "seconds": 3.0 * i,
        "train/loss": 1 / i,
        "valid/loss": math.nan if i == 2 else 2 / i,
    }
    for i in (1, 2, 3)
]
DRAWINGS = [
    {
        "kind": "trees",
        "title": "An expression",
        "tokens": ["[MAX", "2", "9", "]"],
        "trees": {"gold": [[0, 1], [0, 2], [0, 3]], "induced": [[1, 2], [0, 2], [0, 3]]},
        "note": "predicted 9, gold 9",
    },
    {"kind": "matrix", "weights": [[0.25, 0.75]]},
]


class Page(HTMLParser):
    """Which elements a page has, and what it says; every element that is opened is closed."""

    VOID = ("meta", "link", "wbr")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def run_folder(folder: Path, **files: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if name == "metrics":
            (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in content))
        else:
            (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "run", config=CONFIG, summary=SUMMARY, metrics=ROWS, structures=DRAWINGS)


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    folder, runs = tmp_path / "comparison", {}
    for step in (0.5, 1.0):
        for seed in (0, 1):
            name = f"step={step},seed={seed}"
            config = {"step": step, "seed": seed}
            report.write(run_folder(folder / name, config=config, summary={**SUMMARY, "name": name}, metrics=ROWS))
            runs[name] = name
    runs["stopped"] = "stopped"
    accuracy = {"mean": 0.75, "std": 0.125, "values": [0.625, 0.875]}
    rows = [
        {"setting": {"step": 0.5}, "runs": 2, "metrics": {"accuracy": accuracy}, "seconds": 12.0, "error": None},
        {"setting": {"step": 1.0}, "runs": 1, "metrics": {"accuracy": {"mean": 0.5, "std": math.nan, "values": [0.5]}}},
        {"setting": {"step": 2.0}, "runs": 0, "metrics": {}, "seconds": None, "error": "the loss is <nan>"},
    ]
    compared = {"recipe": "listops", "over": {"step": [0.5, 1.0, 2.0]}, "seeds": 2, "rows": rows, "runs": runs}
    compared["meanings"] = {"accuracy": "of all that counts"}
    return run_folder(folder, compare=compared)


def read(folder: Path) -> str:
    path = report.write(folder)
    assert path == folder / "report.html"
    assert sorted(path.name for path in folder.glob("report*")) == ["report.html"]
    text = path.read_text()
    assert "http" not in text
    assert not re.search(r"(src|href)=\"(?!data:,\"|[^\":]*/report\.html\")|@import|url\(", text)
    return text


def test_a_run_tells_all_it_has(run: Path) -> None:
    text = read(run)
    page = Page(text)
    for words in ("encoder=latent", "on cpu", "1,234,567 parameters", "1 h 2 min", "0.8125", "test; validation 0.875"):
        assert words in page.words
    for words in ("An expression", "predicted 9, gold 9", "[MAX", "matrix", "2.13", "1.5", '["one", "two"]', "–"):
        assert words in page.words
    assert "how far down <it> goes" in page.words
    assert "of nothing here" not in page.words
    assert page.tags.count("svg") == 3
    assert page.tags.count("script") == 1
    assert "<script>alert(1)</script>" in page.words
    assert text.count('class="marked"') == 1
    assert page.attributes.count(("class", "node wrong")) == 1


@pytest.mark.parametrize(
    "files", [{}, {"metrics": []}, {"metrics": ROWS[:1], "structures": [], "summary": {}}], ids=len
)
def test_a_run_that_has_not_ended_has_a_page_too(tmp_path: Path, files: dict) -> None:
    page = Page(read(run_folder(tmp_path / "young", config={}, **files)))
    assert "not finished" in page.words
    assert "young" in page.words
    assert ("No metrics yet." in page.words) == (not files.get("metrics"))


def test_metrics_beyond_the_headlines_have_a_table(tmp_path: Path) -> None:
    few, many = ({f"m{i}": i / 4 for i in range(count)} for count in (4, 5))
    assert "<table" not in read(run_folder(tmp_path, config={}, summary={"best": few, "test": few}))
    assert read(run_folder(tmp_path, config={}, summary={"best": few, "test": many})).count("<tr>") == 6


def test_without_a_test_the_validation_heads_the_page(tmp_path: Path) -> None:
    page = Page(read(run_folder(tmp_path, config={}, summary={"best": {"valid/accuracy": 0.5}})))
    assert page.words.index("0.5") < page.words.index("Learning curves")


def test_a_comparison_tells_all_it_has(comparison: Path) -> None:
    page = Page(read(comparison))
    for words in (
        "of all that counts",
        "3 settings",
        "2 seeds each",
        "1 failed",
        "± 0.12",
        "0.75 ± 0.12",
        "the loss is <nan>",
        "12 s",
    ):
        assert words in page.words
    links = [value for name, value in page.attributes if name == "href" and value.endswith("report.html")]
    assert len(links) == 4
    assert "step%3D0.5%2Cseed%3D0/report.html" in links
    assert "stopped" in page.words
    curves = {value for name, value in page.attributes if name == "data-run"}
    assert curves == {f"step={step},seed={seed}" for step in (0.5, 1.0) for seed in (0, 1)}


def test_runs_of_a_setting_share_its_colour(comparison: Path) -> None:
    drawn = re.findall(r'--colour:(#\w+)" data-run="step=([\d.]+)', read(comparison))
    assert {step: {colour for colour, other in drawn if other == step} for _, step in drawn} == {
        "0.5": {"#3B5BDB"},
        "1.0": {"#E8590C"},
    }


def test_a_comparison_of_nothing_has_a_page(tmp_path: Path) -> None:
    page = Page(read(run_folder(tmp_path, compare={"over": {}, "rows": [], "runs": {}})))
    assert {"No runs yet.", "No metrics yet."} < set(page.words)


def test_a_folder_that_is_neither(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"with config.json, or of a comparison, with compare.json, but has neither"
    ):
        report.write(tmp_path)


def test_a_file_that_is_cut_off(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4')
    with pytest.raises(ValueError, match=r"metrics.jsonl:4: should be JSON"):
        report.write(run)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", [], r"config.json:1: should be an object of JSON, but is '\[\]'\. Remove the file"),
        ("structures.json", {}, r"structures.json:1: should be an array of JSON, but is '\{\}'"),
        ("structures.json", [3], r"structures.json: should be as a run writes it, but is not \(AttributeError"),
        ("structures.json", [{"kind": "graph"}], r"is not \(ValueError: `kind` of a drawing should be one of"),
        ("summary.json", {"seconds": "long"}, r"summary.json: should be as a run writes it, but is not \(TypeError"),
        ("summary.json", {"best": [3]}, r"summary.json: should be as a run writes it"),
        ("metrics.jsonl", [3], r"metrics.jsonl:1: should be an object of JSON, but is '\[3\]'"),
        ("metrics.jsonl", {"step": [], "loss": 1}, r"metrics.jsonl: should be as a run writes it, .* again, or remove"),
    ],
)
def test_a_file_of_another_shape(run: Path, name: str, content: object, words: str) -> None:
    (run / name).write_text(json.dumps(content))
    with pytest.raises(report.BadFile, match=words):
        report.write(run)


def test_a_comparison_of_another_shape(comparison: Path) -> None:
    compared = json.loads((comparison / "compare.json").read_text())
    run_folder(comparison, compare=compared | {"rows": [{"error": 3}]})
    with pytest.raises(report.BadFile, match=r"compare.json: should be as a run writes it.*'setting'"):
        report.write(comparison)
    run_folder(comparison, compare=compared)
    (comparison / "step=1.0,seed=1" / "metrics.jsonl").write_text("[]")
    with pytest.raises(report.BadFile, match=r"step=1.0,seed=1/metrics.jsonl:1: should be an object of JSON"):
        report.write(comparison)


def test_names_of_bytes_that_are_no_letters(run: Path, comparison: Path) -> None:
    """As Python reads such a path or argument."""
    odd = "a\udcff\0"
    page = Page(read(run_folder(run, config={"train_file": odd}, summary={**SUMMARY, "name": odd})))
    assert page.words.count("a��") >= 2
    compared = json.loads((comparison / "compare.json").read_text())
    (comparison / "step=0.5,seed=0").rename(comparison / "b\udcff")
    assert "b�" in Page(read(run_folder(comparison, compare=compared | {"runs": {"b\udcff": "b\udcff"}}))).words


def browse(page: Path, profile: Path) -> str:
    """The page as it is after its script ran. Anything it says to the console fails."""
    quiet = "--no-first-run --disable-background-networking --disable-component-update --disable-sync --disable-quic"
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", *quiet.split(), f"--user-data-dir={profile}"]
    command += ["--enable-logging=stderr", "--v=0", "--dump-dom", page.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "CONSOLE" not in shown.stderr
    return shown.stdout


@in_browser
def test_a_run_opens_in_a_browser(run: Path, tmp_path: Path) -> None:
    text = read(run)
    # A pointer over the first chart, where its last point is.
    point = """<script>
    const chart = document.querySelector("svg.curves");
    const box = chart.getBoundingClientRect();
    chart.dispatchEvent(new PointerEvent("pointermove", { clientX: box.right, clientY: box.bottom }));
    </script>"""
    (run / "hover.html").write_text(text.replace("</body>", f"{point}</body>"))
    shown = browse(run / "hover.html", tmp_path / "profile")
    assert re.search(r'<html[^>]*class="live"', shown)
    assert '<div class="told">epoch 3\ntrain 0.3333\nvalid 0.6667</div>' in shown
    assert shown.count('class="pointer"') == 2
    assert shown.count("<svg") == 3
    assert all(f">{token}</text>" in shown for token in DRAWINGS[0]["tokens"])


@in_browser
def test_a_comparison_is_sorted_in_a_browser(comparison: Path, tmp_path: Path) -> None:
    text = read(comparison)
    click = """<script>
    const button = [...document.querySelectorAll("th button")].find((head) => head.textContent === "accuracy");
    for (const times of [1, 2]) {
      button.click();
      const rows = [...document.querySelectorAll("tbody tr")].map((row) => row.cells[0].textContent);
      document.body.append(`${button.parentElement.ariaSort}: ${rows}. `);
    }
    </script>"""
    (comparison / "click.html").write_text(text.replace("</body>", f"{click}</body>"))
    shown = browse(comparison / "click.html", tmp_path / "profile")
    assert "descending: 0.5,1,2. ascending: 1,0.5,2." in shown
