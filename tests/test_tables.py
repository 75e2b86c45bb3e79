# SPDX-License-Identifier: Apache-2.0
"""Tables of text: in their own width, and made to fit one."""

from __future__ import annotations

import pytest

from gdnbench.tables import End, Fit, Style, Styled, cell_width, shortened, text_table, wrapped

HEADERS = ("#", "op", "layer", "sizes", "error", "verdict")
RIGHT = ("#", "error")
ROWS = (
    (0, "gdn_prefill", "model.layers.10.linear_attn", "T=265 H=2 K=128 Hv=4", 1.5e-3, "pass"),
    (11, "gdn_decode", "model.layers.2.linear_attn", "B=3 S=1", 2, Styled("FAIL", Style.BAD)),
)


def test_as_wide_as_it_is() -> None:
    assert text_table(HEADERS, ROWS, RIGHT) == (
        " #  op           layer                        sizes                  error  verdict\n"
        " 0  gdn_prefill  model.layers.10.linear_attn  T=265 H=2 K=128 Hv=4  0.0015  pass\n"
        "11  gdn_decode   model.layers.2.linear_attn   B=3 S=1                    2  FAIL"
    )


def test_it_narrows_step_by_step() -> None:
    fit = Fit(wrap=("sizes",), drop=("op",), cut={"layer": End.LAST})
    assert text_table(HEADERS, ROWS, RIGHT, fit=fit, width=80) == (
        " #  op           layer                        sizes             error  verdict\n"
        " 0  gdn_prefill  model.layers.10.linear_attn  T=265 H=2 K=128  0.0015  pass\n"
        "                                              Hv=4\n"
        "11  gdn_decode   model.layers.2.linear_attn   B=3 S=1               2  FAIL"
    )
    dropped = text_table(HEADERS, ROWS, RIGHT, fit=fit, width=70).split("\n")
    assert dropped[0] == " #  layer                        sizes             error  verdict"
    assert dropped[-1] == "not shown at 70 columns: op"
    cut = text_table(HEADERS, ROWS, RIGHT, fit=fit, width=60).split("\n")
    assert cut[1] == " 0  …layers.10.linear_attn  T=265 H=2 K=128  0.0015  pass"
    assert cut[3].startswith("11  ….layers.2.linear_attn  B=3 S=1")


def test_what_nothing_narrows_goes_on_in_a_second_table_with_the_names_of_the_rows() -> None:
    row = (3, "torch", 12345, 67890, 24680)
    text = text_table(("record", "kernel", "a", "b", "c"), [row], ("record", "a", "b", "c"), width=29)
    assert text == (
        "record  kernel      a      b\n"
        "     3  torch   12345  67890\n"
        "\n"
        "record  kernel      c\n"
        "     3  torch   24680"
    )


@pytest.mark.parametrize("width", [*range(30, 90, 7)])
def test_no_width_loses_a_figure(width: int) -> None:
    fit = Fit(wrap=("sizes",), drop=("op",), cut={"layer": End.LAST})
    text = text_table(HEADERS, ROWS, RIGHT, fit=fit, width=width)
    assert max(map(cell_width, text.split("\n"))) <= width
    for figure in ("0.0015", "T=265", "K=128", "Hv=4", "B=3", "pass", "FAIL"):
        assert figure in text


def test_a_colour_is_around_the_text_and_takes_no_room() -> None:
    painted = text_table(
        ("n", "v"), [(1, Styled("x", Style.BAD)), (100, "yy")], ("n",), paint="[{0}|{1}]".format
    )
    assert painted == "  n  v\n  1  [x|Style.BAD]\n100  yy"


def test_wide_characters_take_two_columns() -> None:
    assert [cell_width(text) for text in ("漢字", "é", "e\u0301", "ab")] == [4, 1, 1, 2]
    assert text_table(("a", "b"), [("漢字", 1), ("abc", 2)]) == "a     b\n漢字  1\nabc   2"
    assert shortened("漢字漢字", 5) == "漢字…"
    assert shortened("漢字漢字", 6, End.LAST, "...") == "...字"


def test_cells_do_nothing_to_a_terminal() -> None:
    assert "\x1b" not in text_table(("a\x1b[2J",), [("b\nc\x1b",)], width=20, fit=Fit(wrap=("a\\x1b[2J",)))


def test_a_sentence_is_broken_at_spaces() -> None:
    assert wrapped("one two three", 8, "  ") == ["one two", "  three"]
    assert wrapped("  one two three", 9, "    ") == ["  one two", "    three"]
    assert wrapped("path/that/is/longer x", 10) == ["path/that/is/longer", "x"]
