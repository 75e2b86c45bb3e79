"""The native runtime beside the dispatcher, as LLVM IR: address translation, exits and faults."""

from __future__ import annotations

import re

from gdnbench.sim.compiler.address_translation import locators
from gdnbench.sim.compiler.dispatch import exit_early
from gdnbench.sim.compiler.layout import HEADER, SKIP_COUNT, SKIP_LANES

DECLARATIONS = {
    "@llvm.vector.reduce.umin.v32i32": "declare i32 @llvm.vector.reduce.umin.v32i32(<32 x i32>)",
    "@llvm.ctpop.i32": "declare i32 @llvm.ctpop.i32(i32)",
    "@llvm.cttz.i32": "declare i32 @llvm.cttz.i32(i32, i1)",
    "@llvm.usub.sat.i64": "declare i64 @llvm.usub.sat.i64(i64, i64)",
}


def support(text: str) -> list[str]:
    """The functions of this runtime that `text` calls, directly or through each other. A kernel without the
    others compiles in about half the time."""
    functions = {_DEFINED(one)[0]: one for one in (record_fault(), record_skip(), exit_early(), *locators())}
    found, pending = [], [text]
    while pending:
        names = set(_CALLED(pending.pop()))
        for name in [name for name in functions if name in names]:
            pending.append(functions.pop(name))
            found.append(pending[-1])
    return found


_DEFINED = re.compile(r"^define internal \w+ @(\w+)\(", re.MULTILINE).findall
_CALLED = re.compile(r"call \w+ @(\w+)\(").findall


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
