# SPDX-License-Identifier: Apache-2.0
"""Virtual environments in the user's cache directory, named by their contents and layered over an
interpreter.

An environment has the packages that differ and sees those of the interpreter below. It is used only once a
file that is written last says that it is complete; until then a lock is held.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from blake3 import blake3

from gdnbench.artifact_cache import NoHomeError, cache_home
from gdnbench.bisect.env.requirements import plain_name
from gdnbench.bisect.interpreter import Interpreter
from gdnbench.errors import CannotRunError

FOLDER, WHOLE = "environments", "whole.json"

# How pip says that it could not ask an index, whatever it concludes from that.
_OFFLINE = (
    "Retrying (Retry(",
    "ConnectionError",
    "Temporary failure in name resolution",
    "Max retries exceeded",
)
_OWN_ERROR = "ERROR: Exception:"
# How pip says that the machine refused it something, such as room on the disk.
_REFUSED = ("due to an OSError", _OWN_ERROR)
# Processed last, so that what the environment installs is found first.
_LAYER = "zzz_gdnbench_layer.pth"


class DoesNotInstall(Exception):
    """The reason in one line of pip."""


@dataclass(frozen=True, slots=True, order=True)
class Package:
    """A package that pip would install, and the file it would install it from."""

    name: str
    version: str
    source: str


class Environments:
    """Environments over the interpreter `base`. `options` are pip's options that say where to look for
    packages."""

    def __init__(self, base: Interpreter, options: Sequence[str]) -> None:
        self._base, self._options = base, tuple(options)
        self._resolved: dict[tuple[str, ...], tuple[Package, ...]] = {}
        try:
            self._folder = cache_home() / FOLDER
        except NoHomeError as error:
            raise CannotRunError(str(error)) from None

    def resolve(self, requirements: Sequence[str]) -> tuple[Package, ...]:
        """The packages that pip would add to the base for `requirements`. DoesNotInstall if there is no
        solution, CannotRunError without pip or an index."""
        wanted = tuple(requirements)
        if wanted not in self._resolved:
            self._resolved[wanted] = self._ask_pip(wanted) if wanted else ()
        return self._resolved[wanted]

    def versions(self, name: str) -> list[str]:
        """The versions that the index has for this interpreter, without pre-releases."""
        out = self._pip("index", "versions", *self._options, name)
        for line in out.splitlines():
            head, _, rest = line.partition(":")
            if head.strip() == "Available versions":
                return [one.strip() for one in rest.split(",")]
        raise DoesNotInstall(f"pip lists no versions of {name}")

    def python(self, packages: Sequence[Package]) -> str:
        """The interpreter of an environment with these packages, which is made if it does not exist."""
        key = self._key(packages)
        folder, python = self._folder / key, self._folder / key / "bin" / "python"
        with self._locked(key) as lock:
            if not (folder / WHOLE).exists():
                shutil.rmtree(folder, ignore_errors=True)
                try:
                    self._make(folder, packages, lock)
                except BaseException:
                    shutil.rmtree(folder, ignore_errors=True)
                    raise
        return str(python)

    def _key(self, packages: Sequence[Package]) -> str:
        base = [self._base.python, self._base.version, self._base.platform, list(self._base.sites)]
        text = json.dumps([base, [asdict(one) for one in sorted(packages)]], sort_keys=True)
        return blake3(text.encode()).hexdigest()[:24]

    @contextmanager
    def _locked(self, key: str) -> Iterator[int]:
        """Takes the lock and yields its file descriptor. Child processes that inherit it keep the lock if
        this process is killed."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = (self._folder / f"{key}.lock").open("w")
        except OSError as error:
            raise CannotRunError(f"{self._folder} cannot be written: {error.strerror}") from None
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield lock.fileno()

    def _make(self, folder: Path, packages: Sequence[Package], lock: int) -> None:
        done = subprocess.run(
            # -P: the current folder may be a store with a `venv.py` or a `pip.py` in it.
            [self._base.python, "-P", "-m", "venv", "--without-pip", str(folder)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            pass_fds=(lock,),
        )
        if done.returncode:
            raise CannotRunError(f"{self._base.python} makes no virtual environment: {_last(done.stderr)}")
        site = next(path for path in folder.glob("lib/python*/site-packages"))
        layer = "".join(f"import site; site.addsitedir({path!r})\n" for path in self._base.sites)
        (site / _LAYER).write_text(layer, encoding="utf-8")
        if packages:
            wanted = [f"{one.name}=={one.version}" for one in packages]
            # One process, which no other Python has to be started for; the folder is that Python's own.
            self._pip("install", "--no-deps", "--target", str(site), *self._options, *wanted, lock=lock)
        with (folder / WHOLE).open("w", encoding="utf-8") as file:
            json.dump([asdict(one) for one in packages], file, indent=2)
            file.flush()
            os.fsync(file.fileno())

    def _ask_pip(self, wanted: Sequence[str]) -> tuple[Package, ...]:
        with tempfile.TemporaryDirectory(prefix="gdnbench-resolve-") as place:
            report = Path(place) / "report.json"
            self._pip("install", "--dry-run", "--report", str(report), *self._options, *wanted)
            found = json.loads(report.read_text(encoding="utf-8"))["install"]
        packages = []
        for one in found:
            info, about = one["download_info"], one["metadata"]
            source = info.get("archive_info", {}).get("hash") or info["url"]
            packages.append(Package(plain_name(about["name"]), about["version"], source))
        return tuple(sorted(packages))

    def _pip(self, *arguments: str, lock: int | None = None) -> str:
        """stdout of pip, which inherits the `lock`. DoesNotInstall, CannotRunError."""
        command = [self._base.python, "-P", "-m", "pip", "--no-input", "--disable-pip-version-check"]
        done = subprocess.run(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            pass_fds=() if lock is None else (lock,),
        )
        if done.returncode == 0:
            return done.stdout
        if "No module named pip" in done.stderr:
            raise CannotRunError(f"{self._base.python} has no pip; python -m ensurepip installs it")
        if any(sign in done.stderr for sign in _OFFLINE):
            raise CannotRunError(f"pip cannot reach its package index: {_last(done.stderr)}")
        if any(sign in done.stderr for sign in _REFUSED):
            raise CannotRunError(f"pip cannot install here: {_last(done.stderr)}")
        raise DoesNotInstall(_last(done.stderr))


def _last(text: str) -> str:
    """The first error of pip, which is what it stumbled over, else its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.upper().startswith("ERROR:") and line != _OWN_ERROR]
    return (errors or lines[-1:] or ["it said nothing"])[0].removeprefix("ERROR:").strip()
