# SPDX-License-Identifier: Apache-2.0
"""What worker processes print: passed on as it is, and kept as plain text of bounded length."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from gdnbench.workers.printed import KEPT_BYTES, PrintedOutput


@pytest.fixture
def output() -> Iterator[PrintedOutput]:
    made = PrintedOutput()
    yield made
    made.close()


def test_text_is_taken_once_without_what_steers_a_terminal(
    output: PrintedOutput, capfd: pytest.CaptureFixture[str]
) -> None:
    raw = b"\x1b[1;31mred\x1b[0m and \x1b]0;a title\x07plain\r\n1 of 2\r2 of 2\nd\xc3\xa9j\xc3\xa0 \xff\n"
    os.write(output.fileno(), raw)
    assert output.take() == "red and plain\n2 of 2\nd\u00e9j\u00e0 \ufffd\n"
    assert output.take() == ""
    os.write(output.fileno(), b"the next record\n")
    assert output.take() == "the next record\n"
    passed_on = capfd.readouterr().err  # as it is, but for the byte that pytest cannot read
    assert passed_on == raw.decode(errors="replace") + "the next record\n"


def test_of_much_output_the_beginning_and_the_end_are_kept(
    output: PrintedOutput, capfd: pytest.CaptureFixture[str]
) -> None:
    """More than a pipe holds, which is 64 KiB on Linux: a worker that prints it is not held up."""
    lines = [f"line {number}" for number in range(40_000)]
    text = "\n".join(lines) + "\n"
    with os.fdopen(os.dup(output.fileno()), "w") as sink:
        sink.write(text)
    found = output.take()
    head, said, tail = found.partition(f"\n... {len(text) - 2 * KEPT_BYTES} bytes are left out ...\n")
    assert said
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) == len(tail) == KEPT_BYTES
    assert capfd.readouterr().err == text
