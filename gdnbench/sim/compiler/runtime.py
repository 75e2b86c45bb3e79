# SPDX-License-Identifier: Apache-2.0
"""The native runtime, as LLVM IR: dispatcher, address translation, exits and faults. It is the same for every
kernel."""

from __future__ import annotations

import re
from functools import cache

from gdnbench.sim.compiler.address_translation import locators
from gdnbench.sim.compiler.dispatch import TABLES, dispatcher, exit_early, run_partly
from gdnbench.sim.compiler.emit import Helper, Library
from gdnbench.sim.compiler.layout import HEADER, SKIP_COUNT, SKIP_LANES, load_field

DECLARATIONS = {
    "@llvm.vector.reduce.umin.v32i32": "declare i32 @llvm.vector.reduce.umin.v32i32(<32 x i32>)",
    "@llvm.ctpop.i32": "declare i32 @llvm.ctpop.i32(i32)",
    "@llvm.cttz.i32": "declare i32 @llvm.cttz.i32(i32, i1)",
    "@llvm.usub.sat.i64": "declare i64 @llvm.usub.sat.i64(i64, i64)",
    "@llvm.masked.store.v32i64.p0": "declare void @llvm.masked.store.v32i64.p0(<32 x i64>, ptr, <32 x i1>)",
    "@llvm.masked.store.v32i32.p0": "declare void @llvm.masked.store.v32i32.p0(<32 x i32>, ptr, <32 x i1>)",
    "@llvm.masked.store.v32i16.p0": "declare void @llvm.masked.store.v32i16.p0(<32 x i16>, ptr, <32 x i1>)",
    "@llvm.masked.store.v32i8.p0": "declare void @llvm.masked.store.v32i8.p0(<32 x i8>, ptr, <32 x i1>)",
}


@cache
def _functions(clustered: bool) -> dict[str, Helper]:
    texts = (
        count_bytes(),
        record_fault(),
        record_skip(),
        exit_early(),
        run_partly(),
        *locators(clustered=clustered),
        dispatcher(),
    )
    return {_DEFINED(one)[0]: Helper(one, _declarations(one), frozenset(_CALLED(one))) for one in texts}


def _declarations(text: str) -> dict[str, str]:
    named = set(_NAMED(text))
    return {name: declared for name, declared in {**DECLARATIONS, **TABLES}.items() if name in named}


def new_library(*, clustered: bool = False) -> Library:
    """A library with the functions of the runtime, for launches with clusters or without."""
    return Library(helpers=dict(_functions(clustered)))


_DEFINED = re.compile(r"^define (?:internal )?\w+ @(\w+)\(", re.MULTILINE).findall
_CALLED = re.compile(r"call \w+ @(\w+)\(").findall
_NAMED = re.compile(r"@[\w.]+").findall


def count_bytes() -> str:
    """`count_bytes(state, counter, lanes, size)`: adds `size` bytes for each lane to a byte counter."""
    return (
        "define internal void @count_bytes(ptr %state, i64 %counter, i32 %lanes, i64 %size) noinline #0 {\n"
        + load_field("traffic", "traffic", "ptr", 8)
        + """  %place = getelementptr i8, ptr %traffic, i64 %counter
  %count = call i32 @llvm.ctpop.i32(i32 %lanes)
  %long = zext i32 %count to i64
  %bytes = mul i64 %long, %size
  %old = load i64, ptr %place, align 8
  %new = add i64 %old, %bytes
  store i64 %new, ptr %place, align 8
  ret void
}
"""
    )


def record_skip() -> str:
    """`record_skip(state, record, lanes, addresses)`: counts a skipped fault in the record of its
    instruction (`SKIP_BYTES`), which keeps the lanes and addresses of the first."""
    arguments = "ptr %state, i64 %at, i32 %lanes, <32 x i64> %where"
    return f"""define internal void @record_skip({arguments}) noinline cold #0 {{
  %flag = getelementptr i8, ptr %state, i64 {HEADER["skipped"]}
  store i32 1, ptr %flag, align 4
  %record = getelementptr i8, ptr %state, i64 %at
  %lanes.p = getelementptr i8, ptr %record, i64 {SKIP_LANES}
  %count.p = getelementptr i8, ptr %record, i64 {SKIP_COUNT}
  %count = load i64, ptr %count.p, align 8
  %more = add i64 %count, 1
  store i64 %more, ptr %count.p, align 8
  %first = icmp eq i64 %count, 0
  br i1 %first, label %keep, label %done
keep:
  store <32 x i64> %where, ptr %record, align 64
  store i32 %lanes, ptr %lanes.p, align 4
  br label %done
done:
  ret void
}}
"""


def record_fault() -> str:
    """`record_fault(state, code, pc, lanes, addresses)`; Python writes the message."""

    def put(name: str, kind: str, value: str, align: int) -> str:
        return (
            f"  %{name} = getelementptr i8, ptr %state, i64 {HEADER[name]}\n"
            f"  store {kind} {value}, ptr %{name}, align {align}\n"
        )

    return (
        "define internal void @record_fault(ptr %state, i32 %code, i32 %pc, i32 %lanes, <32 x i64> %where)"
        " noinline cold #0 {\n"
        + put("fault_code", "i32", "%code", 4)
        + put("fault_pc", "i32", "%pc", 4)
        + put("fault_lanes", "i32", "%lanes", 4)
        + put("fault_address", "<32 x i64>", "%where", 64)
        + "  ret void\n}\n"
    )
