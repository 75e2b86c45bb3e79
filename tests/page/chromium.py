# SPDX-License-Identifier: Apache-2.0
"""Headless Chromium by its DevTools protocol over a pipe, with nothing but Python's own modules.

    with Chromium.start(executable) as browser:
        browser.open(path)
        browser.evaluate("document.title")

The protocol is JSON, a message ended by NUL, on file descriptors 3 and 4 of the browser. Only what the page
of `gdnbench report` needs is here: https://chromedevtools.github.io/devtools-protocol/ names the methods.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 120.0
"""How long an answer may take, on a machine that is busy with other things."""

_OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # a container's root; it opens our own file alone
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--force-device-scale-factor=1",
    "--remote-debugging-pipe",
    "about:blank",
)

# What Input.dispatchKeyEvent wants besides the name of a key.
_KEY_CODES = {"Tab": 9, "Enter": 13, " ": 32, "PageUp": 33, "PageDown": 34, "End": 35, "Home": 36}
_KEY_CODES |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


def find() -> str | None:
    """What GDNBENCH_CHROMIUM names, else a Chromium on the path; None without either."""
    named = os.environ.get("GDNBENCH_CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """A browser with one tab. `requests`: addresses that pages asked for; `errors`: what scripts did not
    catch, or the console was told as an error."""

    def __init__(self, process: subprocess.Popen[bytes], reads: int, writes: int) -> None:
        self._process, self._reads, self._writes = process, reads, writes
        self._number = 0
        self._rest = b""
        self._session: str | None = None
        self._loaded = False
        self.requests: list[str] = []
        self.errors: list[str] = []

    @classmethod
    @contextmanager
    def start(cls, executable: str) -> Iterator[Self]:
        """Ends the browser, and all that it started, in the end."""
        to_browser, writes = os.pipe()
        reads, from_browser = os.pipe()
        with tempfile.TemporaryDirectory(prefix="gdnbench-chromium-", ignore_cleanup_errors=True) as profile:
            # A shell puts the pipes where the browser looks for them: 3 and 4 may be taken in this process.
            command = f'exec 3<&{to_browser} 4>&{from_browser}; exec "$@"'
            process = subprocess.Popen(
                ["bash", "-c", command, "chromium", executable, f"--user-data-dir={profile}", *_OPTIONS],
                pass_fds=(to_browser, from_browser),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            os.close(to_browser)
            os.close(from_browser)
            try:
                browser = cls(process, reads, writes)
                browser._attach()
                yield browser
            finally:
                os.close(writes)
                os.close(reads)
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _attach(self) -> None:
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Result of a protocol's method; RuntimeError if it fails, TimeoutError without an answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        while (answer := self._next(method)).get("id") != self._number:
            self._hear(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _next(self, awaited: str) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._reads], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                raise TimeoutError(f"the browser did not answer {awaited} in {SECONDS:.0f} s")
            read = os.read(self._reads, 1 << 20)
            if not read:
                raise RuntimeError(f"the browser ended before it answered {awaited}")
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _hear(self, event: dict[str, Any]) -> None:
        what, about = event.get("method"), event.get("params", {})
        if what == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif what == "Runtime.exceptionThrown":
            details = about["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif what == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.errors.append(about["entry"]["text"])
        elif what == "Page.loadEventFired":
            self._loaded = True

    def open(self, path: Path) -> None:
        """Load a file and wait until it is; what earlier pages did is forgotten."""
        self.requests.clear()
        self.errors.clear()
        self._loaded = False
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self._loaded:
            self._hear(self._next("load"))

    def evaluate(self, expression: str) -> Any:
        """The value of JavaScript, awaited; RuntimeError with its exception if it throws."""
        found = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"].get("description", expression))
        return found["result"].get("value")

    def until(self, expression: str) -> Any:
        """The value of JavaScript as soon as it is neither false nor nothing; TimeoutError if it never is."""
        deadline = time.monotonic() + SECONDS
        while not (found := self.evaluate(expression)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{expression} was still {found!r} after {SECONDS:.0f} s")
            time.sleep(0.02)
        return found

    def press(self, *keys: str) -> None:
        """Keys by their DOM names, as a person would press them."""
        for key in keys:
            text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
            about = {"key": key, "code": key, "windowsVirtualKeyCode": _KEY_CODES.get(key, 0), "text": text}
            self.call("Input.dispatchKeyEvent", type="keyDown", **about)
            self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def click(self, x: float, y: float) -> None:
        """At CSS pixels of the view."""
        for what in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=what, x=x, y=y, button="left", clickCount=1)

    def view(self, width: int, height: int, *, phone: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )

    def media(self, name: str = "", **features: str) -> None:
        """`media("print")`, `media(prefers_color_scheme="dark")`; all others as they were at first."""
        values = [{"name": key.replace("_", "-"), "value": value} for key, value in features.items()]
        self.call("Emulation.setEmulatedMedia", media=name, features=values)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """A PNG of the view, or of the whole page."""
        found = self.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole)
        )
        path.write_bytes(base64.b64decode(found["data"]))

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def pdf(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"]))
