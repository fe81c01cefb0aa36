"""A run, or a comparison of runs, on one page, which needs no other file and no network."""

from __future__ import annotations

from pathlib import Path

from structmax.plots import comparison_page, run_page

__all__ = ["html"]


def html(folder: Path) -> str:
    """The page of a run, or of a comparison, from the files in its folder. Nothing is written.

    A run has `config.json`, `origin.json`, `metrics.jsonl`, `summary.json` and `structures.json`; one that has not
    ended may lack all but the first. A comparison has `compare.json`, which names the folders of its runs.

    Args:
        folder: of the run or the comparison.

    Returns:
        The page's text.

    Examples:
        >>> import tempfile
        >>> from structmax.plots import report
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "config.json").write_text('{"seed": 0}')
        >>> report.html(folder).splitlines()[0]
        '<!doctype html>'
    """
    if (folder / "compare.json").exists():
        return comparison_page.html(folder)
    if (folder / "config.json").exists():
        return run_page.html(folder)
    raise FileNotFoundError(
        f"{folder} should be the folder of a run, with config.json, or of a comparison, with compare.json, but has "
        "neither. Runs are in <folder>/<recipe>/<name>."
    )
