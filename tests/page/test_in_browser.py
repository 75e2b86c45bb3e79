# SPDX-License-Identifier: Apache-2.0
"""The page as a person meets it, in headless Chromium."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from gdnbench.report.runs import Run

Open = Callable[[Sequence[Run]], Any]


def text(browser: Any, selector: str) -> str:
    found: str = browser.evaluate(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''")
    return found


def texts(browser: Any, selector: str) -> list[str]:
    found: list[str] = browser.evaluate(
        f"Array.from(document.querySelectorAll({json.dumps(selector)}), (one) => one.textContent)"
    )
    return found


def focus(browser: Any, selector: str) -> None:
    browser.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")


def cell(browser: Any) -> str:
    return text(browser, ".detail .cell")


@pytest.fixture
def records(made: Any, wrong: Any, right: dict[str, Any]) -> list[dict[str, Any]]:
    """One that fails, one that crashed, one that could not run, and forty that pass."""
    crashed = {**right, "number": 1, "key": "k/1", "outcome": "crash", "reason": "signal 11", "tensors": []}
    cannot = {**right, "number": 2, "key": "k/2", "outcome": "unsupported", "reason": "no", "tensors": []}
    passing = [{**right, "number": 100 + i, "key": f"k/{i}", "layer": f"model.layers.{i}"} for i in range(40)]
    return [*passing, cannot, crashed, wrong[0]]


def test_verdicts_are_counted_and_failures_stand_first(made: Any, opened: Open, records: Any) -> None:
    browser = opened([made.run(records)])
    assert texts(browser, ".outcomes .badge") == [
        "✗ 1 crash",
        "✗ 1 numeric mismatch",
        "\N{EN DASH} 1 unsupported",
        "✓ 40 pass",
    ]
    rows = texts(browser, ".row .first")
    assert [row.split("#")[1].split()[0][:3] for row in rows[:3]] == ["329", "1", "2"]
    assert text(browser, ".records [role=status]") == "43 records"
    assert "Record 3 " in text(browser, ".detail h2")
    assert browser.evaluate("document.querySelectorAll('.row').length") < 30  # of 43: the rest is not made
    assert browser.errors == []


def test_the_list_is_filtered(made: Any, opened: Open, records: Any) -> None:
    browser = opened([made.run(records)])
    focus(browser, "input[type=search]")
    browser.type("layers.7")
    assert text(browser, ".records [role=status]") == "1 of 43 records"
    held = records[7]["tensors"][0]["held"][0]
    ratio = f"{held['error'] / held['limit']:.2g} \N{MULTIPLICATION SIGN} limit"
    assert texts(browser, ".row .first") == [f"✓ pass#107{ratio}"]
    assert texts(browser, ".row .second") == ["gdn_prefill model.layers.7 step 0 "]
    browser.evaluate("document.querySelector('input[type=search]').value = ''; ")
    browser.type(" ")
    browser.evaluate("document.querySelectorAll('.choice input')[3].click()")  # passes
    assert text(browser, ".records [role=status]") == "3 of 43 records"


def test_the_worst_cell_is_where_numpy_finds_it(made: Any, opened: Open, wrong: Any) -> None:
    record, x, y = wrong
    browser = opened([made.run([record])])
    worst = np.unravel_index(np.abs(x - y).argmax(), x.shape)
    at = [int(index) for index in worst]
    assert f"furthest off at[{at[0]}, {at[1]}, {at[2]}] (T {at[0]}, Hv {at[1]}, V {at[2]})" in cell(browser)
    assert cell(browser).startswith("sequence 1, chunk 0, head 2 · rows 200 to 263")
    for value in (x[worst], y[worst]):
        assert f"{np.float32(value):.9g}"[:10] in cell(browser)
    limit = record["tensors"][0]["held"][0]["limit"]
    assert f"limit {limit:.3g}: over" in cell(browser)


def test_what_is_wrongly_not_finite_is_worse_than_any_error(made: Any, opened: Open) -> None:
    x, y, torchs = made.drawn(9, (200, 70), 4, 8)
    x[140, 1, 3] += 0.5
    x[240, 3, 6] = np.nan
    browser = opened([made.run([made.record(0, [made.tensor(x, y, torchs, (200, 70))])])])
    assert cell(browser).startswith("sequence 1, chunk 0, head 3 ·")
    assert "wrongly not finite1 elements" in cell(browser)


def test_where_torch_is_exact_rounding_is_what_an_error_is_a_part_of(made: Any, opened: Open) -> None:
    """1e-6 beside an exact torch is far below what rounding to bfloat16 may cost, 2**-8 of values of size 1:
    ten times torch's error in another cell is worse."""
    x, y, torchs = made.drawn(10, (200, 70), 4, 8)
    torchs[:64, 0] = y[:64, 0]
    x[:64, 0] = y[:64, 0] + 1e-6
    x[64:128, 3] = y[64:128, 3] + 10 * (torchs - y)[64:128, 3]
    browser = opened([made.run([made.record(0, [made.tensor(x, y, torchs, (200, 70))])])])
    assert cell(browser).startswith("sequence 0, chunk 1, head 3 ·")


def test_a_click_names_the_cell_under_it(made: Any, opened: Open, wrong: Any) -> None:
    record, x, y = wrong
    browser = opened([made.run([record])])
    spot = browser.evaluate(
        """(() => { const canvas = document.querySelector(".detail canvas");
        canvas.scrollIntoView({ behavior: "instant", block: "center" });
        const { left, top } = canvas.getBoundingClientRect();
        return [left + 56 + canvas.cellWidth * 2.5, top + canvas.cellHeight * 1.5]; })()"""
    )
    browser.click(*spot)
    assert cell(browser).startswith("sequence 0, chunk 2, head 1 · rows 128 to 191")
    part = np.abs(x - y)[128:192, 1]
    token, dim = np.unravel_index(part.argmax(), part.shape)
    assert f"[{128 + token}, 1, {dim}]" in cell(browser)


def test_the_heatmap_is_walked_with_keys(made: Any, opened: Open, wrong: Any) -> None:
    browser = opened([made.run([wrong[0]])])
    focus(browser, ".detail canvas")
    for keys, place in (
        (["Home"], "sequence 0, chunk 0, head 2"),
        (["ArrowRight", "ArrowRight", "ArrowUp"], "sequence 0, chunk 2, head 1"),
        (["ArrowUp", "ArrowUp"], "sequence 0, chunk 2, head 0"),  # the edge holds
        (["End", "ArrowRight"], "sequence 1, chunk 1, head 0"),
        (["w"], "sequence 1, chunk 0, head 2"),
        (["Enter"], "sequence 1, chunk 0, head 2"),
    ):
        browser.press(*keys)
        assert cell(browser).startswith(f"{place} ·"), keys
    assert browser.evaluate("document.activeElement.tagName") == "CANVAS"


def test_everything_is_reached_with_the_keyboard(made: Any, opened: Open, records: Any) -> None:
    browser = opened([made.run(records)])
    reached = set()
    for _ in range(40):
        browser.press("Tab")
        reached.add(
            browser.evaluate(
                """(() => { const one = document.activeElement, style = getComputedStyle(one);
                return `${one.tagName} ${one.type ?? one.getAttribute("role") ?? ""} `
                  + (one.matches(":focus-visible") && style.outlineStyle !== "none"); })()"""
            )
        )
    for wanted in (
        "INPUT search",
        "INPUT checkbox",
        "SELECT select-one",
        "DIV listbox",
        "CANVAS application",
    ):
        assert f"{wanted} true" in reached, reached
    assert not any(one.endswith("false") and not one.startswith("BODY") for one in reached)
    focus(browser, ".list")
    browser.press("ArrowDown", "Enter")
    browser.until("document.querySelector('.detail h2').textContent.includes('Record 1 ')")
    assert text(browser, ".detail .reasons") == "signal 11"
    active = browser.evaluate("document.querySelector('.list').getAttribute('aria-activedescendant')")
    assert text(browser, f"#{active} b") == "#1"


def test_the_command_is_there_and_copied(made: Any, opened: Open, wrong: Any) -> None:
    browser = opened([made.run([wrong[0]])])
    command = "gdnbench replay run.zarr 3 --kernel mine.py:kernel --against reference --on sim"
    assert text(browser, ".detail .again code") == command
    browser.evaluate(
        "Object.defineProperty(navigator, 'clipboard', { value: {"
        " writeText: async (text) => { window.copied = text; } } })"
    )
    browser.evaluate("document.querySelector('.detail .again .copy').click()")
    assert browser.until("window.copied") == command
    assert browser.until("document.querySelector('.detail .again [aria-live]').textContent") == " copied"


def test_a_permalink_opens_the_same_record_of_a_later_run(
    made: Any, opened: Open, records: Any, right: dict[str, Any]
) -> None:
    browser = opened([made.run(records)])
    focus(browser, "input[type=search]")
    browser.type("layers.7")
    browser.evaluate("document.querySelector('.row').click()")
    browser.until("document.querySelector('.detail h2').textContent.includes('Record 107 ')")
    link = browser.evaluate("document.querySelector('.detail .permalink a').href")
    assert link.endswith("report.html#gdn_prefill/model.layers.7/0")
    assert link == browser.evaluate("location.href")  # what the address bar has can be copied too
    # The same call of another run: of another number, and elsewhere in the list.
    later = [{**one, "number": 50 - number} for number, one in enumerate(records[:9])]
    browser = opened([made.run(later)])
    browser.evaluate("location.hash = '#gdn_prefill/model.layers.7/0'")
    browser.until("document.querySelector('.detail h2').textContent.includes('Record 43 ')")
    browser.evaluate("location.hash = '#gdn_prefill/model.layers.99/0'")
    browser.until("document.querySelector('.detail [role=alert]') !== null")
    assert text(browser, ".detail") == "This report has no record gdn_prefill/model.layers.99/0."
    assert browser.errors == []


def test_permalinks_of_equal_calls_have_their_keys_and_those_of_several_runs_the_run(
    made: Any, opened: Open, right: dict[str, Any], hostile: str
) -> None:
    twice = [{**right, "number": n, "key": f"a-17-{n}/0", "layer": hostile} for n in (4, 5)]
    browser = opened([made.run(twice, "b/mon.zarr"), made.run([{**twice[1], "number": 9}], "b/tue.zarr")])
    links = {}
    for row in range(3):
        browser.evaluate(f"document.querySelectorAll('.row')[{row}].click()")
        browser.until(f"document.querySelectorAll('.row')[{row}].ariaSelected == 'true'")
        browser.until(
            f"document.querySelector('.detail article')?.dataset.place === "
            f"document.querySelectorAll('.row')[{row}].id.slice(4)"
        )
        links[text(browser, ".detail h2").split()[1]] = browser.evaluate(
            "document.querySelector('.detail .permalink a').hash"
        )
    assert [links[number].partition("/0")[2] for number in ("4", "5", "9")] == [
        "/a-17-4%2F0@b%2Fmon.zarr",
        "/a-17-5%2F0@b%2Fmon.zarr",
        "@b%2Ftue.zarr",
    ]
    for number, link in links.items():
        browser.evaluate(f"location.hash = {json.dumps(link)}")
        browser.until(f"document.querySelector('.detail h2').textContent.includes('Record {number} ')")
    assert browser.evaluate("window.hit ?? null") is None


@pytest.mark.parametrize("width", [320, 500, 1000])
def test_no_table_is_clipped(made: Any, opened: Open, full: Any, steps: Any, width: int) -> None:
    runs = [made.run([full, *steps]), made.run([full], "some/other/folder/of/results/tuesday.zarr")]
    browser = opened(runs)
    browser.view(width, 800)
    browser.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    browser.evaluate("new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))")
    clipped = browser.evaluate(
        "Array.from(document.querySelectorAll('#page > :not(.paper) .wide')).filter((one) =>"
        " one.clientWidth > 0 && one.scrollWidth > one.clientWidth).map((one) => one.ariaLabel)"
    )
    assert clipped == []
    cells = browser.evaluate("document.querySelector('[aria-label=Errors] tbody tr').textContent")
    assert cells.startswith("okernel")
    first = "getComputedStyle(document.querySelector('[aria-label=Errors] td'), '::before').content"
    assert (browser.evaluate(first) == '"side"') == (width == 320)  # columns are named where they do not fit


def test_the_title_is_the_kernels_name(made: Any, opened: Open, right: dict[str, Any]) -> None:
    browser = opened([made.run([right], header={**made.HEADER, "kernel": "some/folder/mine.py:kernel"})])
    assert browser.evaluate("document.title") == "mine.py:kernel - gdnbench report"
    assert text(browser, "h1") == "mine.py:kernel"
    assert text(browser, "header h2") == "some/folder/mine.py:kernel on sim against reference"


def test_all_parts_of_a_record(made: Any, opened: Open, full: dict[str, Any]) -> None:
    browser = opened([made.run([full])])
    shown = text(browser, ".detail")
    for wanted in (
        "added",
        "inherited",
        "kernel.py:1021",
        "kernel.py:1035",
        "PTX 21: ld.shared.b32 %r21, [%r1];",
        "CTA 0,1,0, warp 4 (mma): writes",
        "12 such pairs of 2 places in 3 CTAs",
        "torch ÷ mine",
        "1.08 to 1.12",
        "intervals of 99 %",
        "median 11",
        "NVIDIA B200",
        "gate g, log decay",
        "min -3.5, max -0.01",
        "cold cache",
        "Where the kernel failed" + full["error"]["traceback"],
        "What the kernel printed" + full["printed"],
    ):
        assert wanted in shown, wanted
    assert "cannot be shown" not in shown
    assert "[object" not in shown
    assert shown.index("error: race") < shown.index(
        "note: race"
    )  # what fails first, in whatever order it came
    browser.evaluate("document.querySelectorAll('.detail details').forEach((one) => { one.open = true; })")
    browser.until("document.querySelectorAll('.detail details table').length >= 6")
    stages = browser.evaluate(
        "Array.from(document.querySelectorAll('.detail table')).find((one) => one.caption.textContent"
        ".startsWith('RMS error of each stage')).rows[2].textContent"
    )
    assert stages == "Aiinverse0.040.0010.052"
    first = browser.evaluate("document.querySelector('.heatmap tbody tr').textContent")
    assert first.startswith("sequence 1, chunk 0, head 2") and "[231, 2, 5]" in first  # noqa: PT018


def test_decode_steps_open_their_records(made: Any, opened: Open, steps: Any) -> None:
    browser = opened([made.run(steps)])
    labels = browser.evaluate(
        "Array.from(document.querySelectorAll('.layer'), (one) => one.querySelectorAll('button').length)"
    )
    assert labels == [12] * 6
    button = "document.querySelectorAll('.layer')[5].querySelectorAll('button')[11]"
    error = steps[71]["tensors"][0]["errors"]["rms_ratio"]
    assert browser.evaluate(f"{button}.title") == f"model.layers.5, step 11: {error:.3g}, failed"
    browser.evaluate("document.querySelectorAll('.layer')[2].querySelectorAll('button')[4].click()")
    browser.until(
        "document.querySelector('.detail h2').textContent.includes('Record 126 ')"
    )  # 100 + 6 * 4 + 2


def test_two_runs_stand_side_by_side(made: Any, opened: Open, wrong: Any, right: dict[str, Any]) -> None:
    fixed = {**right, "key": wrong[0]["key"], "number": 3}
    provenance = {"git": {"sha": "c" * 40}, "packages": {"torch": "2.12.0"}}
    browser = opened(
        [made.run([wrong[0]], "bad.zarr"), made.run([fixed], "good.zarr", provenance=provenance)]
    )
    assert text(browser, ".others").startswith("✓ pass in good.zarr")
    browser.evaluate("document.querySelector('.others button').click()")
    browser.until("document.querySelector('.detail .what').textContent.includes('good.zarr')")
    rows = texts(browser, "main > section .wide tr")
    assert "captured: run.zarrreplayed: bad.zarrreplayed: good.zarr" in rows
    assert "≠ packages torch2.11.02.13.02.12.0" in rows


def test_hostile_values_are_shown_and_do_nothing(
    made: Any, opened: Open, wrong: Any, full: dict[str, Any], hostile: str
) -> None:
    tensor = {**wrong[0]["tensors"][0], "tensor": hostile, "reasons": [hostile], "passed": False}
    finding = {**full["findings"][0], "message": hostile, "kind": hostile, "file": hostile, "ptx": hostile}
    record = {
        **full,
        "layer": hostile,
        "op": hostile,
        "reason": hostile,
        "notes": [hostile],
        "faults": [hostile],
        "tensors": [tensor],
        "findings": [finding],
        "key": hostile,
        "capture": [{"name": hostile, "label": hostile, "values": {hostile: hostile}, "unit": hostile}],
        "waterfall": [{**full["waterfall"][0], "stage": hostile}],
        "printed": hostile,
        "error": {"traceback": hostile},
    }
    header = {**made.HEADER, "store": hostile, "kernel": hostile}
    browser = opened([made.run([record], hostile, header=header, provenance={hostile: hostile})])
    browser.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert browser.evaluate("window.hit ?? null") is None
    assert browser.errors == []
    assert len(browser.requests) == 1
    assert browser.evaluate("document.querySelectorAll('#page img, #page script').length") == 0
    shown = text(browser, "#page")
    assert "<img src=x onerror=window.hit=1>\\u202eab\\u0000'" in shown
    assert not {"\u202e", "\0"} & set(shown)
    assert "cannot be shown" not in shown


def test_nothing_is_asked_of_a_network_and_the_policy_holds(
    made: Any, opened: Open, right: dict[str, Any]
) -> None:
    browser = opened([made.run([right])])
    assert [one.split(":")[0] for one in browser.requests] == ["file"]
    browser.evaluate(
        "const made = document.createElement('script'); made.textContent = 'window.hit = 2';"
        " document.body.append(made)"
    )
    assert browser.evaluate("window.hit ?? null") is None  # the policy, not luck


@pytest.mark.parametrize("width", [320, 768])
def test_a_phone_scrolls_down_only(
    made: Any, opened: Open, full: Any, steps: Any, hostile: str, width: int
) -> None:
    long = {**full, "number": 5, "layer": hostile + "x" * 300, "key": "k/5"}
    browser = opened([made.run([long, full, *steps], "y" * 200)])
    browser.view(width, 700, phone=True)
    browser.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    browser.evaluate("new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    small = browser.evaluate(
        "Array.from(document.querySelectorAll('svg text'), (one) => one.getBoundingClientRect())"
        ".filter((box) => box.height > 0 && box.height < 9).length"
    )
    assert small == 0  # charts are drawn anew, not shrunk


def test_paper_shows_failures_in_light_colours(made: Any, opened: Open, records: Any) -> None:
    browser = opened([made.run(records)])
    browser.media("print", prefers_color_scheme="dark")
    shown = "getComputedStyle(document.querySelector({})).display"
    assert browser.evaluate(shown.format("'.paper'")) == "block"
    assert browser.evaluate(shown.format("'.columns'")) == "none"
    assert [one.split(" gdn")[0] for one in texts(browser, ".paper .record h2")] == [
        "Record 3",
        "Record 1",
        "Record 2",
    ]
    assert "limit" in text(browser, ".paper .record .cell")
    assert len(texts(browser, ".paper > .wide tbody tr")) == 43
    assert (
        browser.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    )
    assert browser.evaluate("getComputedStyle(document.documentElement).color") == "rgb(27, 30, 35)"


def test_dark_and_still_where_they_are_asked_for(made: Any, opened: Open, right: dict[str, Any]) -> None:
    browser = opened([made.run([right])])
    behaviour = "getComputedStyle(document.documentElement).scrollBehavior"
    browser.media(prefers_color_scheme="dark", prefers_reduced_motion="no-preference")
    assert browser.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(21, 24, 28)"
    assert browser.evaluate(behaviour) == "smooth"
    browser.media(prefers_reduced_motion="reduce")
    assert browser.evaluate(behaviour) == "auto"


def test_a_damaged_grid_breaks_its_own_part_alone(made: Any, opened: Open, wrong: Any) -> None:
    tensor = wrong[0]["tensors"][0]
    short = base64.b64encode(bytes(8)).decode()
    record = {**wrong[0], "tensors": [{**tensor, "grid": {**tensor["grid"], "rms": short}}]}
    browser = opened([made.run([record])])
    assert "This part cannot be shown: its grid has 2 values of rms in 24 cells" in text(browser, ".detail")
    assert "elements by how far they are off" in text(browser, ".detail")
    assert browser.errors == []


def test_a_record_that_cannot_be_shown_keeps_no_other_from_paper(made: Any, opened: Open, wrong: Any) -> None:
    record = wrong[0]
    damaged = {**record, "number": 1, "faults": -1}  # the page alone goes through them: a tensor has a reason
    browser = opened([made.run([damaged, record])])  # waits for paper, which comes last
    assert "This record cannot be shown: " in text(browser, ".paper > .notice")
    assert [one.split(" gdn")[0] for one in texts(browser, ".paper .record h2")] == ["Record 3"]
    assert browser.errors == []


def test_ugly_numbers(made: Any, opened: Open) -> None:
    x, y, _ = made.drawn(1, (64,), 2, 4)
    x[3] = np.nan
    tensor = made.tensor(x, y, y, (64,), held=[{"what": "largest", "error": "nan", "limit": "inf"}])
    tensor = {**tensor, "errors": {**tensor["errors"], "max_abs": "inf", "rms_ratio": "nan"}}
    nothing = {name: "" for name, value in tensor["grid"].items() if isinstance(value, str)}
    grid = {**tensor["grid"], **nothing, "regions": [], "heads": 0}
    empty = {**tensor, "grid": grid, "ulp_histogram": [], "held": []}
    records = [made.record(0, [tensor]), made.record(1, [empty]), made.record(2, [])]
    browser = opened([made.run(records)])
    for number in range(3):
        focus(browser, ".list")
        browser.press("Home", *["ArrowDown"] * number, "Enter")
        browser.until(
            f"document.querySelectorAll('.list [aria-selected=true]')[0]?.ariaPosInSet == {number + 1}"
        )
        assert "cannot be shown" not in text(browser, ".detail")
    assert browser.errors == []


def test_a_run_of_nothing_opens(made: Any, opened: Open) -> None:
    browser = opened([made.run([], expected=4)])
    assert "interrupted: 4 records were to be replayed" in text(browser, "header")
    assert browser.errors == []


def test_thousands_of_records_make_a_few_rows(made: Any, opened: Open, right: dict[str, Any]) -> None:
    bare = {**right, "tensors": []}
    browser = opened([made.run([{**bare, "number": number, "key": str(number)} for number in range(3000)])])
    focus(browser, ".list")
    browser.press("End", "Enter")
    browser.until("document.querySelector('.detail h2').textContent.includes('Record 2999 ')")
    assert browser.evaluate("document.querySelectorAll('.row').length") < 40
