"""Take pictures of pages of the built site in headless Chromium: narrow and wide, light and dark.

    python -m sphinx docs SITE
    python docs/pictures.py SITE PICTURES [PAGE ...]

A page is a file of the site without its suffix, such as `guide/speed`. The script also fails if a page can be moved
sideways as a whole, which means that something on it is too wide. It needs Chromium, and no package.
"""

import argparse
import base64
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

PAGES = ("index", "guide/start", "guide/traced", "guide/speed", "guide/export", "reference")
WIDTHS = (1280, 390)
SCHEMES = ("light", "dark")
# Without these, Chromium looks for other hosts when it starts.
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--allow-file-access-from-files",
    "--remote-debugging-pipe",
]


class Browser:
    """Chromium, spoken to by its DevTools protocol through two pipes, which it has as the descriptors 3 and 4."""

    def __init__(self, program, profile):
        """Start the program with an empty profile, and open a page."""
        (commands, self._commands), (self._answers, answers) = os.pipe(), os.pipe()

        def hand_over():
            # The descriptors may be 3 and 4 themselves, so they are moved out of the way first.
            first, second = os.dup(commands), os.dup(answers)
            os.dup2(first, 3)
            os.dup2(second, 4)

        self._process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}"],
            close_fds=False,
            preexec_fn=hand_over,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._numbers, self._rest, self._session = itertools.count(1), b"", None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.ask("Page.enable")

    def ask(self, method, **params):
        """Send a command, and return its result."""
        message = {"id": next(self._numbers), "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != message["id"]:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def wait_for(self, event):
        """Wait until the page reports an event."""
        while self._next().get("method") != event:
            pass

    def _next(self):
        while b"\0" not in self._rest:
            if not (read := os.read(self._answers, 1 << 20)):
                raise RuntimeError("Chromium has ended")
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def close(self):
        """End Chromium."""
        self._process.terminate()
        self._process.wait()


def picture(browser, url, width, scheme):
    """Return a picture of a page, as PNG, and by how many pixels the page is too wide. A long page is cut off."""
    media = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.ask("Emulation.setEmulatedMedia", features=media)
    browser.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
    browser.ask("Page.navigate", url=url)
    browser.wait_for("Page.loadEventFired")
    measure = "document.documentElement.scrollWidth"
    wide = browser.ask("Runtime.evaluate", expression=measure)["result"]["value"] - width
    height = browser.ask("Runtime.evaluate", expression="document.documentElement.scrollHeight")["result"]["value"]
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, 6000), "scale": 1}
    taken = browser.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
    return base64.b64decode(taken["data"]), wide


def main():
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=pathlib.Path)
    parser.add_argument("pictures", type=pathlib.Path)
    parser.add_argument("pages", nargs="*", default=PAGES)
    found = parser.parse_args()
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if not program:
        sys.exit("docs/pictures.py needs Chromium on PATH")
    found.pictures.mkdir(parents=True, exist_ok=True)
    too_wide = []
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(program, profile)
        try:
            for page, width, scheme in itertools.product(found.pages, WIDTHS, SCHEMES):
                taken, wide = picture(browser, (found.site / f"{page}.html").resolve().as_uri(), width, scheme)
                name = f"{page.replace('/', '-')}-{width}-{scheme}.png"
                (found.pictures / name).write_bytes(taken)
                if wide > 0:
                    too_wide.append(f"{name}: {wide} pixels too wide")
        finally:
            browser.close()
    sys.exit("\n".join(too_wide) or 0)


if __name__ == "__main__":
    main()
