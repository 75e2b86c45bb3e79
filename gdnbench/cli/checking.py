"""What `sim` and `replay` share of `--check`: what is accepted, and what the file for it holds in vain."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from gdnbench.cli.console import print_note
from gdnbench.errors import BadInputError

if TYPE_CHECKING:
    from gdnbench.sim import Accepted, Finding

CHECK = "Detect races, missing fences and missing waits. Slower; uses one core."
ACCEPT = "With --check: accept the findings that this TOML file lists, each with a reason."
KEEP_GOING = (
    "Go on after a fault that can be skipped, such as an access out of bounds or tensor memory freed too"
    " early, as hardware most likely would. Results after a fault are not those of a correct run."
)
WRITE_ACCEPT = "With --check: write a template for --accept with one entry for each finding."
VERBOSE = "List each pair of instructions that was found, and accepted findings too."


def read_accepted(path: Path | None, template: Path | None, *, check: bool) -> Accepted | None:
    """What `--accept` names; BadInputError for it, or for the `template` of `--write-accept`, without
    `--check`."""
    if (path is not None or template is not None) and not check:
        raise BadInputError("--accept and --write-accept are about what the checker finds: give --check too")
    if path is None:
        return None
    from gdnbench.sim import Accepted

    return Accepted.read(path)


def print_unused(accepted: Accepted | None) -> None:
    """Entries that accepted nothing, on stderr."""
    for line in accepted.unused() if accepted is not None else ():
        print_note(f"gdnbench: {line}")


def write_template(path: Path, findings: Iterable[Finding]) -> None:
    """Write what `--write-accept` asks for."""
    from gdnbench.sim import acceptance_template

    try:
        path.write_text(acceptance_template(findings), encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise BadInputError(f"--write-accept {path}: {error.strerror or error}") from None
