# SPDX-License-Identifier: Apache-2.0
"""What `sim` and `replay` share of `--check`: what is accepted, and what the file for it holds in vain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING

from gdnbench.cli.console import print_note
from gdnbench.errors import BadInputError
from gdnbench.whole_file import replace_message

if TYPE_CHECKING:
    from gdnbench.sim import Accepted, Finding
    from gdnbench.sim.delays import Launched

CHECK = "Detect races, missing fences and missing waits. Slower; uses one core."
ACCEPT = "With --check: accept the findings that this TOML file lists, each with a reason."
KEEP_GOING = (
    "Go on after a fault that can be skipped, such as an access out of bounds or tensor memory freed too"
    " early, as hardware most likely would. Results after a fault are not those of a correct run."
)
WRITE_ACCEPT = "With --check: write a template for --accept with one entry for each finding."
WRITE_BASELINE = (
    "With --check: write the findings under this --schedule to a file of known ones, for a later --baseline."
)
DELAYS = (
    "With --check: write delays for CUTracer, which make a GPU run the accesses of each finding in the wrong"
    " order, e.g. d.json. Needs ptxas and nvdisasm."
)
DELAYS_DUMP = (
    "With --delays: what CUTracer wrote of the kernel on a GPU to CUTRACER_DELAY_DUMP_PATH; its instructions"
    " are compared, and its checksum is taken."
)
VERBOSE = "List each pair of instructions that was found, and accepted findings too."


def read_accepted(path: Path | None, *written: Path | None, check: bool) -> Accepted | None:
    """What `--accept` names; BadInputError for it, or for a file to be `written` with what is found, without
    `--check`."""
    if any(one is not None for one in (path, *written)) and not check:
        raise BadInputError(
            "--accept, --write-accept and --write-baseline are about what the checker finds: give --check too"
        )
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

    _write("--write-accept", path, acceptance_template(findings))


def write_baseline(path: Path, records: Iterable[Iterable[Finding]]) -> None:
    """Write what `--write-baseline` asks for: the findings of each of `records`."""
    from gdnbench.sim import baseline, known_findings

    known = Counter[str]()
    for findings in records:
        known |= known_findings(findings)
    _write("--write-baseline", path, baseline(known))


def check_delays(path: Path | None, dump: Path | None, *, check: bool, time: bool) -> Launched | None:
    """What is to be called before each launch for `--delays`, None without it; BadInputError for options that
    do not go together. Raises UnsupportedError before anything runs where ptxas or nvdisasm is missing."""
    if path is None:
        if dump is not None:
            raise BadInputError("--delays-dump is about the file that --delays writes: give --delays too")
        return None
    if not check:
        raise BadInputError("--delays is about what the checker finds: give --check too")
    if time:
        raise BadInputError("--delays does not go with --time: run twice")
    from gdnbench.sim.delays import Launched, need_tools, read_dump

    need_tools()
    return Launched(None if dump is None else read_dump(dump))


def write_delays(path: Path, findings: Iterable[Finding], launched: Launched, machine: str | None) -> None:
    """Write what `--delays` asks for, and say on stderr which findings it has."""
    from gdnbench.sim.delays import configuration, delays_for, patterns

    findings = [one for one in findings if one.evidence is not None and one.accepted is None]
    found = delays_for(findings, launched, machine)
    for line, count in found.without.items():
        print_note(f"gdnbench: no delay for {count} of {line}")
    text = dumps(configuration(found, launched.dump), indent=2)
    _write("--delays", path, f"{text}\n")
    print_note(
        f"gdnbench: {path}: delays for {found.delayed} of {len(findings)} findings;"
        f" CUTRACER_DELAY_PATTERNS={patterns(found)}"
    )


def _write(option: str, path: Path, text: str) -> None:
    try:
        replace_message(path, text)
    except OSError as error:
        raise BadInputError(f"{option} {path}: {error.strerror or error}") from None
