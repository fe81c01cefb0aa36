"""A report needs nothing but itself, says what its folder holds, and opens in a browser without complaint."""

import csv
import html
import io
import json
import math
import re
import runpy
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from structmax.plots import files, report, tables

CHROMIUM = shutil.which("chromium")
headless = runpy.run_path(str(Path(__file__).parent.parent / "docs" / "check_site.py"))["headless"]
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
    "better": {"accuracy": "higher", "loss": "lower"},
    "memory": {"peak": 1.5},
    "notes": ["one", "two"],
}
ORIGIN = {"command": "structmax run listops --text '<b>'", "started": "2026-11-18T12:20:35+01:00", "commit": "dd208d9"}
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
    return run_folder(
        tmp_path / "run", config=CONFIG, origin=ORIGIN, summary=SUMMARY, metrics=ROWS, structures=DRAWINGS
    )


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    folder, runs = tmp_path / "comparison", {}
    for step in (0.5, 1.0):
        for seed in (0, 1):
            name = f"step={step},seed={seed}"
            config = {"step": step, "seed": seed}
            run_folder(folder / name, config=config, summary={**SUMMARY, "name": name}, metrics=ROWS)
            (folder / name / "report.html").write_text(report.html(folder / name))
            runs[name] = name
    runs["stopped"] = "stopped"
    rows = [
        row_of({"step": 0.5}, accuracy=measured([0.625, 0.875], 1.5883, "best"), loss=measured([0.5, 0.7], 1.27)),
        row_of({"step": 1.0}, accuracy=measured([0.5, 0.75], 1.5883, "tied"), loss=measured([0.4], None)),
        row_of({"step": 2.0}, error="the loss is <nan>"),
    ]
    compared = {"recipe": "listops", "over": {"step": [0.5, 1.0, 2.0]}, "seeds": 2, "rows": rows, "runs": runs}
    compared |= {"best": "accuracy", "better": SUMMARY["better"], "meanings": {"accuracy": "of all that counts"}}
    compared |= {"settings": {"bf16": False}, "origin": ORIGIN}
    return run_folder(folder, compare=compared)


def measured(values: list[float], ci95: float | None, mark: str | None = None) -> dict:
    spread = {"mean": sum(values) / len(values), "std": 0.125, "ci95": ci95, "values": values}
    return spread | ({"mark": mark} if mark else {})


def row_of(setting: dict, error: str | None = None, **metrics: dict) -> dict:
    runs = max((len(one["values"]) for one in metrics.values()), default=0)
    return {"setting": setting, "runs": runs, "metrics": metrics, "seconds": 12.0 if runs else 0.0, "error": error}


def read(folder: Path) -> str:
    before = set(folder.iterdir())
    text = report.html(folder)
    assert set(folder.iterdir()) == before
    assert "http" not in text
    assert not re.search(r"(src|href)=\"(?!data:,\"|[^\":]*/report\.html\"|compare\.)|@import|url\(", text)
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
    assert "<title>listops: encoder=latent · structmax</title>" in text
    for words in (
        "structmax run listops --text '<b>'",
        "2026-11-18 12:20 UTC+01:00",
        "dd208d9",
        "accuracy ↑",
        "loss ↓",
    ):
        assert words in page.words
    assert {"↑ higher is better", "Orange in a tree: a span that “gold” does not have."} < set(page.words)
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
    text = read(comparison)
    page = Page(text)
    for words in (
        "listops: accuracy by step,",
        "of all that counts",
        "3 settings",
        "2 seeds each",
        "1 failed",
        "accuracy ↑",
        "loss ↓",
        "0.8 ",
        "± 1.6",
        "the loss is <nan>",
        "12 s",
        "± is half of the 95 % confidence interval of the mean over seeds (Student's t).",
        "Bold: the best of its column.",
        "≈: seeds cannot tell it from the best (Welch's t test, 5 %).",
        "Spread over seeds",
        "line: mean over the seeds that got so far",
        "Shared settings",
        "structmax run listops --text '<b>'",
    ):
        assert words in page.words, words
    assert "<title>listops: accuracy by step, 2 seeds · structmax</title>" in text
    # the best setting, and the best mean of the one metric that has one
    assert text.count("<b>") == 2
    assert text.count("≈</td>") == 1
    links = [value for name, value in page.attributes if name == "href" and value.endswith("report.html")]
    assert len(links) == 4
    assert "step%3D0.5%2Cseed%3D0/report.html" in links
    assert "stopped" in page.words
    curves = {value for name, value in page.attributes if name == "data-run"}
    assert curves == {"0.5", "1"}


def test_a_setting_has_a_colour(comparison: Path) -> None:
    drawn = set(re.findall(r'--colour:(#\w+)" data-run="([\d.]+)', read(comparison)))
    assert drawn == {("#3B5BDB", "0.5"), ("#E8590C", "1")}


def test_settings_that_differ_in_the_last_digit_are_not_taken_for_one(comparison: Path) -> None:
    compared = json.loads((comparison / "compare.json").read_text())
    steps = (0.123456, 0.123457)
    rows = [row_of({"step": step}, accuracy=measured([step], None)) for step in steps]
    for step in steps:
        run_folder(comparison / str(step), config={"step": step, "seed": 0}, metrics=ROWS)
    runs = {str(step): str(step) for step in steps}
    text = read(run_folder(comparison, compare=compared | {"rows": rows, "runs": runs, "seeds": 1}))
    assert {value for name, value in Page(text).attributes if name == "data-run"} == {"0.123456", "0.123457"}
    assert "0.123457</td>" in text


def test_one_seed_has_no_spread(comparison: Path) -> None:
    compared = json.loads((comparison / "compare.json").read_text())
    rows = [row_of({"step": step}, accuracy=measured([step], None)) for step in (0.5, 1.0)]
    runs = {name: name for name in ("step=0.5,seed=0", "step=1.0,seed=0")}
    text = read(run_folder(comparison, compare=compared | {"rows": rows, "runs": runs, "seeds": 1}))
    assert "listops: accuracy by step, 1 seed " in text
    for words in ("Spread over seeds", "±", "band", "confidence"):
        assert words not in text.partition("<body>")[2].partition("<script>")[0], words


def test_many_settings_stay_readable(comparison: Path) -> None:
    compared, names = json.loads((comparison / "compare.json").read_text()), [f"a{i}" for i in range(25)]
    rows = [row_of({"step": name}, accuracy=measured([0.5, 0.6], 0.2)) for name in names]
    for name in names:
        run_folder(comparison / name, config={"step": name}, metrics=ROWS)
    runs = {name: name for name in names}
    text = read(run_folder(comparison, compare=compared | {"rows": rows, "runs": runs}))
    legend = re.findall(r'<li class="setting"><i style="--colour:(#\w+)"></i>([^<]+)</li>', text)
    assert [name for _, name in legend] == [*names[:10], "15 others"]
    assert len({colour for colour, _ in legend}) == 11


def test_an_older_comparison_has_a_page(comparison: Path) -> None:
    compared = json.loads((comparison / "compare.json").read_text())
    for row in compared["rows"]:
        for one in row["metrics"].values():
            one.pop("ci95")
            one.pop("mark", None)
    old = {key: compared[key] for key in ("recipe", "over", "seeds", "rows", "runs")}
    words = Page(read(run_folder(comparison, compare=old))).words
    assert {"listops: results by step,", "0.75", "accuracy"} < set(words)


ODD = "a_b & 5 % of $x \\ <y>."


def test_tables_for_other_programs(comparison: Path) -> None:
    compared = json.loads((comparison / "compare.json").read_text())
    compared["rows"][0]["setting"] = {ODD: ODD}
    compared["rows"][1]["setting"] = {ODD: 'plain, "quoted"'}
    compared["rows"][2]["setting"] = {ODD: "failed"}
    compared["over"] = {ODD: []}
    read_back = list(csv.DictReader(io.StringIO(tables.as_csv(compared))))
    assert [row[ODD] for row in read_back] == [ODD, 'plain, "quoted"', "failed"]
    best, second, failed = read_back
    assert {key: float(best[f"accuracy_{key}"]) for key in ("mean", "std", "ci95", "n")} == {
        "mean": 0.75,
        "std": 0.125,
        "ci95": 1.5883,
        "n": 2,
    }
    assert (second["loss_mean"], second["loss_std"], second["loss_ci95"], second["loss_n"]) == ("0.4", "", "", "1")
    assert (failed["accuracy_mean"], failed["accuracy_n"], failed["error"]) == ("", "0", "the loss is <nan>")

    escaped = r"a\_b \& 5 \% of \$x \textbackslash{} \textless{}y\textgreater{}."
    lines = tables.as_latex(compared).splitlines()
    assert lines[2:] == [
        r"\begin{tabular}{lrr}",
        r"\toprule",
        rf"{escaped} & accuracy $\uparrow$ & loss $\downarrow$ \\",
        r"\midrule",
        rf"{escaped} & $\mathbf{{0.8 \pm 1.6}}$ & $0.6 \pm 1.3$ \\",
        r'plain, "quoted" & $0.6 \pm 1.6$ & $0.4$ \\',
        r"failed & -- & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    assert all(line.startswith("%") for line in lines[:2])


@pytest.mark.parametrize(
    ("mean", "ci95", "shown"),
    [
        (0.75812, 0.0123, ("0.758", "0.012")),
        (12345.678, 120.0, ("12,346", "120")),
        (0.5, 0.0, ("0.5", "0")),
        (1e-9, 2e-10, ("1e-09", "2e-10")),
        (0.5, math.nan, ("0.5", "")),
        (math.nan, math.nan, ("–", "")),
        (-math.inf, math.nan, ("-∞", "")),
        (None, None, ("–", "")),
    ],
)
def test_means_have_the_digits_of_their_interval(mean: float | None, ci95: float | None, shown: tuple) -> None:
    assert tables.estimate({"mean": mean, "ci95": ci95}) == shown


def test_files_of_a_comparison_are_linked(comparison: Path) -> None:
    assert "compare.csv" not in read(comparison)
    (comparison / "compare.csv").touch()
    assert '<a href="compare.csv" download>CSV</a>' in read(comparison)


def test_a_comparison_of_nothing_has_a_page(tmp_path: Path) -> None:
    page = Page(read(run_folder(tmp_path, compare={"over": {}, "rows": [], "runs": {}})))
    assert {"No runs yet.", "No metrics yet."} < set(page.words)


def test_a_folder_that_is_neither(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"with config.json, or of a comparison, with compare.json, but has neither"
    ):
        report.html(tmp_path)


def test_a_file_that_is_cut_off(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4')
    with pytest.raises(ValueError, match=r"metrics.jsonl:4: should be JSON"):
        report.html(run)


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
    with pytest.raises(files.BadFile, match=words):
        report.html(run)


def test_a_comparison_of_another_shape(comparison: Path) -> None:
    compared = json.loads((comparison / "compare.json").read_text())
    run_folder(comparison, compare=compared | {"rows": [{"error": 3}]})
    with pytest.raises(files.BadFile, match=r"compare.json: should be as a run writes it.*'setting'"):
        report.html(comparison)
    run_folder(comparison, compare=compared)
    (comparison / "step=1.0,seed=1" / "metrics.jsonl").write_text("[]")
    with pytest.raises(files.BadFile, match=r"step=1.0,seed=1/metrics.jsonl:1: should be an object of JSON"):
        report.html(comparison)


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
    command = [*headless(CHROMIUM, profile), "--dump-dom", page.as_uri()]
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
    const button = [...document.querySelectorAll("th button")].find((head) => head.textContent === "accuracy ↑");
    for (const times of [1, 2]) {
      button.click();
      const rows = [...document.querySelectorAll("tbody tr")].map((row) => row.cells[0].textContent);
      document.body.append(`${button.parentElement.ariaSort}: ${rows}. `);
    }
    </script>"""
    (comparison / "click.html").write_text(text.replace("</body>", f"{click}</body>"))
    shown = browse(comparison / "click.html", tmp_path / "profile")
    assert "descending: 0.5,1,2. ascending: 1,0.5,2." in shown


LONG = "a_very_long_name_of_a_setting_that_nobody_would_choose_but_a_sweep_does"


@in_browser
@pytest.mark.parametrize("kind", ["run", "comparison"])
def test_nothing_overflows_a_narrow_page(kind: str, run: Path, comparison: Path, tmp_path: Path) -> None:
    many = {f"{LONG}_{i}": i / 7 for i in range(9)}
    told = {"better": dict.fromkeys(many, "higher"), "meanings": dict.fromkeys(many, f"see {LONG}")}
    command = {**ORIGIN, "command": f"structmax run --{LONG}={LONG}"}
    if kind == "run":
        summary = SUMMARY | told | {"name": LONG, "best": many, "test": many}
        text = read(run_folder(run, config={LONG: LONG}, summary=summary, origin=command))
    else:
        metrics = {name: measured([value, value + 0.1], 0.2, "best") for name, value in many.items()}
        rows = [row_of({"step": f"{LONG}/{step}"}, **metrics) for step in range(12)]
        compared = json.loads((comparison / "compare.json").read_text()) | told | {"rows": rows, "origin": command}
        runs = {f"{LONG},seed={i}": f"{LONG},seed={i}" for i in range(12)}
        for i, name in enumerate(runs):
            run_folder(comparison / name, config={"step": f"{LONG}/{i}"}, metrics=ROWS, structures=DRAWINGS)
        text = read(run_folder(comparison, compare=compared | {"runs": runs, "best": LONG, "settings": {LONG: LONG}}))
    # what sticks out although nothing around it scrolls
    measure = """<script>
    const sticksOut = (element) => element.getBoundingClientRect().right > innerWidth + 0.5;
    const wide = [...document.querySelectorAll("body *:not(.wide *)")].filter(sticksOut);
    const names = wide.map((element) => `${element.tagName}.${element.className}`);
    parent.document.body.append(`${innerWidth} ${document.documentElement.scrollWidth} [${names}]`);
    </script>"""
    # in a frame, since windows have a least width
    inner = html.escape(text.replace("</body>", f"{measure}</body>"))
    frame = f'<!doctype html><iframe scrolling="no" style="width: 390px; border: 0" srcdoc="{inner}"></iframe>'
    (tmp_path / "narrow.html").write_text(frame)
    told = re.search(r"</iframe>(.*)", browse(tmp_path / "narrow.html", tmp_path / "profile"))
    assert told
    assert told[1].startswith("390 390 []"), told[1]
