"""Opens every page of the built site in Chromium, as wide as a phone and as a screen: `python docs/check_site.py`.

It finds pages that scroll sideways, formulas that do not fit, pictures that are missing, requests that fail or ask
another host, anything said to the console, and pages of the reference that are too tall.
"""

import argparse
import functools
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

WIDTHS = (390, 1280)
TALLEST = 15_000
# For a page, when the browser hangs: far above what a busy machine needs.
SECONDS = 60
# The site's folder under its address, for the pages whose links begin with a slash.
NAME = "structmax"
# One frame shows the pages one by one; the console says which page it is that speaks.
DRIVER = """<!doctype html><link rel="icon" href="data:,"><iframe style="border: 0" height="900"></iframe><script>
const frame = document.querySelector("iframe");
const rest = (ms) => new Promise((done) => setTimeout(done, ms));
const name = (element) => `<${element.localName} class="${element.getAttribute("class") ?? ""}">`;
const inside = (element) => element.parentElement && (
  getComputedStyle(element.parentElement).overflowX !== "visible" && element.parentElement.localName !== "html"
  || inside(element.parentElement));
async function look(page) {
  console.log(`PAGE ${page}`);
  frame.width = WIDTHS[0];
  const loaded = new Promise((done) => { frame.onload = done; });
  frame.src = page;
  await loaded;
  const shown = frame.contentDocument;
  const broken = [];
  for (const image of shown.images) {
    image.loading = "eager";
    await image.decode().catch(() => broken.push(image.getAttribute("src")));
  }
  const sizes = [];
  for (const width of WIDTHS) {
    frame.width = width;
    await rest(100);
    const { scrollWidth, scrollHeight } = shown.documentElement;
    const beyond = (element) => element.getBoundingClientRect().right > width + 1 && !inside(element);
    sizes.push({
      width, scrollWidth, scrollHeight,
      widest: scrollWidth > width ? [...shown.body.querySelectorAll("*")].filter(beyond).slice(-1).map(name) : [],
      formulas: [...shown.querySelectorAll(".math")].filter((each) => each.scrollWidth > each.clientWidth)
        .map((each) => each.textContent.trim()),
    });
  }
  const failed = frame.contentWindow.performance.getEntriesByType("resource")
    .filter(({ name, responseStatus }) => responseStatus !== 200 || new URL(name).origin !== location.origin)
    .map(({ name, responseStatus }) => `${name} (${responseStatus || "no answer"})`);
  return { page, broken, failed, sizes };
}
(async () => {
  const looks = [];
  for (const page of PAGES) await look(page).then((seen) => looks.push(seen), (error) => console.error(String(error)));
  await rest(100);
  await fetch("/looks", { method: "POST", body: JSON.stringify(looks) });
})();
</script>"""


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder, and takes what the driver has seen."""

    looks: list[dict[str, Any]]
    seen: threading.Event

    def do_POST(self) -> None:
        type(self).looks = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        self.seen.set()

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: the driver notices what was not found."""


def headless(chromium: str, profile: Path) -> list[str]:
    """The command that opens a page without a window, asks for nothing else, and logs what is said to the console."""
    quiet = "--no-first-run --disable-background-networking --disable-component-update --disable-sync --disable-quic"
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", *quiet.split()]
    return [*command, f"--user-data-dir={profile}", "--enable-logging=stderr", "--v=0"]


def browse(chromium: str, site: Path, pages: list[str]) -> tuple[list[dict[str, Any]], str]:
    """What the driver measured of each page, and what Chromium wrote to its log."""
    handler = type("ThisHandler", (Handler,), {"seen": threading.Event()})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, (Path(folder) / "log").open("w+") as log:
        (Path(folder) / NAME).symlink_to(site.resolve(), target_is_directory=True)
        lists = {"PAGES": json.dumps([f"/{NAME}/{page}" for page in pages]), "WIDTHS": json.dumps(WIDTHS)}
        (Path(folder) / "driver.html").write_text(re.sub("PAGES|WIDTHS", lambda word: lists[word[0]], DRIVER))
        server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=folder))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [*headless(chromium, Path(folder) / "profile"), "--window-size=1400,1000"]
        command += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
        browser = subprocess.Popen([*command, f"http://127.0.0.1:{server.server_port}/driver.html"], stderr=log)
        try:
            finished = handler.seen.wait(SECONDS * len(pages))
        finally:
            browser.terminate()
            browser.wait()
            server.shutdown()
            server.server_close()
        log.seek(0)
        said = log.read()
    if not finished:
        last = [line for line in said.splitlines() if "PAGE " in line][-1:]
        raise TimeoutError(f"each page should be seen within {SECONDS} s; the last one begun: {last}")
    return handler.looks, said


def spoken(said: str) -> list[str]:
    """What pages said to the console, each with its page in front."""
    page, found = "", []
    for message, source in re.findall(r'CONSOLE[^\]]*\] "(.*?)", source: (\S*)', said, re.DOTALL):
        if message.startswith("PAGE "):
            page = message.removeprefix(f"PAGE /{NAME}/")
        else:
            found.append(f"{page}: the console says {message!r} ({source})")
    return found


def faults(look: dict[str, Any]) -> list[str]:
    found = [f"the picture {source} is missing" for source in look["broken"]]
    found += [f"a request failed: {request}" for request in look["failed"]]
    for size in look["sizes"]:
        if size["scrollWidth"] > size["width"]:
            what = ", ".join(size["widest"])
            found.append(f"at {size['width']} px it is {size['scrollWidth']} px wide, because of {what or 'its body'}")
        found += [f"at {size['width']} px a formula does not fit: {formula}" for formula in size["formulas"]]
    if height(look) > TALLEST and page_of(look).startswith("reference/"):
        found.append(f"it is {height(look)} px tall, above {TALLEST}: make two pages of it")
    return [f"{page_of(look)}: {fault}" for fault in found]


def page_of(look: dict[str, Any]) -> str:
    return str(look["page"]).removeprefix(f"/{NAME}/")


def height(look: dict[str, Any]) -> int:
    return int(look["sizes"][-1]["scrollHeight"])


def check(chromium: str, site: Path) -> tuple[list[str], str]:
    """The faults of the site, and a line about it."""
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    if not pages:
        raise FileNotFoundError(f"{site} should be a built site, but has no page. Run `mkdocs build` first.")
    looks, said = browse(chromium, site, pages)
    found = spoken(said) + [fault for look in looks for fault in faults(look)]
    tallest = [max(some, key=height) for some in (looks, [x for x in looks if "reference/" in page_of(x)]) if some]
    heights = "; of the reference ".join(f"{page_of(look)}, {height(look)} px" for look in tallest)
    return found, f"{len(pages)} pages at {' and '.join(map(str, WIDTHS))} px; the tallest is {heights}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", nargs="?", type=Path, default=Path("site"), help="folder of the built site")
    parser.add_argument("--optional", action="store_true", help="where there is no chromium, be content")
    arguments = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        print("no chromium on PATH, so no page was opened: apt-get install chromium", file=sys.stderr)
        return 0 if arguments.optional else 1
    found, line = check(chromium, arguments.site)
    print(line)
    print("\n".join(found) or "no fault found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
