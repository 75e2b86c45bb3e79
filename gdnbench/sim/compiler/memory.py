# SPDX-License-Identifier: Apache-2.0
"""ld, st, cvta, isspacep: translates and checks addresses, then moves the lanes' bytes."""

from __future__ import annotations

from gdnbench.sim.compiler import lanes
from gdnbench.sim.compiler.access_log import log_access
from gdnbench.sim.compiler.emit import I1, I32, I64, Code, Library, Value, const, lanes_of
from gdnbench.sim.compiler.exits import FaultCode
from gdnbench.sim.compiler.translator import Translate, Translator
from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.machine.engine_interface import CLUSTER_STRIDE, SHARED_BASE, WINDOW_SIZE, WINDOWS
from gdnbench.sim.ptx.forms import Access
from gdnbench.sim.ptx.ir import Address, Instruction, Operand, Sink, Symbol, Vector
from gdnbench.sim.ptx.literals import width_of

SPACES = {
    "shared": "shared",
    "shared::cta": "shared",
    "shared::cluster": "cluster",
    "global": "global",
    "local": "local",
    "param": "param",
    "param::entry": "param",
    "const": "global",
}

FAULTS = {
    "shared": FaultCode.SHARED,
    "cluster": FaultCode.CLUSTER,
    "global": FaultCode.GLOBAL,
    "local": FaultCode.LOCAL,
    "param": FaultCode.PARAM,
    "generic": FaultCode.GLOBAL,
}


def space_of(ins: Instruction) -> str:
    """The instruction's state space; generic if it names none."""
    return SPACES.get(ins.choice(*SPACES), "generic")


def space_in(t: Translator, ins: Instruction) -> str:
    """The same in the launch that is compiled for: without clusters shared::cluster is the CTA's own window
    (PTX ISA 5.1.8)."""
    space = space_of(ins)
    return "shared" if space == "cluster" and not t.program.clustered else space


def locate(t: Translator, ins: Instruction, space: str, address: Value, width: int, access: int = 0) -> Value:
    """Check an access of `width` bytes in the active lanes and return its host addresses. An instruction that
    writes may not access the parameters, which a generic address can name. If the launch goes on after
    faults, the lanes out of bounds are no longer active. `access` is the number of the access among those of
    the instruction."""
    code = t.code
    if t.program.keep_going and width > 1:
        crooked = code.comparei("icmp ne", code.opi("and", code.resize(address, I64), width - 1), 0)
        t.fault(code.op("and", crooked, t.active), FAULTS[space], ins, address)
    out = t.scratch(256)
    arguments = [t.state, code.mask_bits(t.active), code.resize(address, I64), const("i64", width), out]
    if space in ("global", "generic"):
        arguments.append(const("i64", t.program.site(ins, access)))
    bad = code.call(f"locate_{space}", "i32", *arguments)
    if space == "generic" and ins.form.access is not Access.READ:
        shift = WINDOW_SIZE.bit_length() - 1
        window = code.opi("lshr", code.resize(address, I64), shift)
        parameters = code.comparei("icmp eq", window, WINDOWS["param"] >> shift)
        bad = code.op("or", bad, code.mask_bits(code.op("and", parameters, t.active)))
    if t.program.keep_going:
        t.skip(bad, FAULTS[space], ins, access, address)
    else:
        t.fault(code.bits(bad, I1), FAULTS[space], ins, address)
    return code.load(I64, out, 64)


def log_located_access(t: Translator, ins: Instruction, space: str, address: Value) -> None:
    """Log a checked access by the address that `ins` computed, generic if it names no space."""
    if space in ("local", "param"):
        return
    log_access(t, ins, address)


def _at_once(t: Translator, ins: Instruction, space: str) -> bool:
    """Whether one helper can check and move: a fault ends the launch, and it may read wherever it can."""
    return not t.program.keep_going and (space != "generic" or ins.form.access is Access.READ)


def _move(
    t: Translator, ins: Instruction, space: str, address: Value, shape: tuple[int, int], rows: Value
) -> None:
    """Check an access of `shape`, (bytes of an element, elements), and move it between memory and `rows`."""
    code, (size, count) = t.code, shape
    stem = "fetch" if ins.form.access is Access.READ else "put"
    name = f"{stem}_{space}_{size}_{count}" + "_narrow" * (address.type == I32)
    code.library.helper(
        name, lambda name, library: _define_move(name, library, stem, space, (size, count), address.type)
    )
    site = t.program.site(ins) if space in ("global", "generic") else 0
    faulted = code.call(
        name,
        "i1",
        t.state,
        code.mask_bits(t.active),
        address,
        const("i64", site),
        const("i32", ins.pc),
        rows,
    )
    t.fault_if(faulted)


def _define_move(
    name: str, library: Library, stem: str, space: str, shape: tuple[int, int], given: str
) -> str:
    """`i1 name(state, mask, address, site, pc, rows)`: true if it recorded a fault and moved nothing. `given`
    is the type of the address."""
    size, count = shape
    mover = (lanes.gather_helper if stem == "fetch" else lanes.scatter_helper)(library, size, count)
    code = Code(library)
    state, mask = Value("ptr", "%state"), Value("i32", "%mask")
    code.start_block("entry")
    address = code.resize(Value(given, "%address"), I64)
    out = code.value("ptr", f"alloca {I64}, align 64")
    arguments = [state, mask, address, const("i64", size * count), out]
    if space in ("global", "generic"):
        arguments.append(Value("i64", "%site"))
    bad = code.call(f"locate_{space}", "i32", *arguments)
    code.branch(code.comparei("icmp ne", bad, 0), "fault", "legal")
    code.start_block("fault")
    code.call_void("record_fault", state, const("i32", FAULTS[space]), Value("i32", "%pc"), bad, address)
    code.line("ret i1 true")
    code.start_block("legal")
    code.call_void(mover, code.load(I64, out, 64), mask, Value("ptr", "%rows"))
    code.line("ret i1 false")
    head = (
        f"define internal i1 @{name}(ptr %state, i32 %mask, {given} %address, i64 %site, i32 %pc, ptr %rows)"
    )
    return f"{head} noinline #0 {{\n{code.text()}\n}}\n"


def read_rows(t: Translator, hosts: Value, size: int, count: int) -> list[Value]:
    """`count` elements of `size` bytes from each active lane's host address."""
    code = t.code
    rows = t.scratch(32 * size * count)
    helper = lanes.gather_helper(code.library, size, count)
    code.call_void(helper, hosts, code.mask_bits(t.active), rows)
    return _load_rows(t, rows, size, count)


def _load_rows(t: Translator, rows: Value, size: int, count: int) -> list[Value]:
    code = t.code
    kind = lanes_of(f"i{size * 8}")
    align = min(64, 32 * size)
    return [code.load(kind, code.offset(rows, row * 32 * size), align) for row in range(count)]


def zero_elsewhere(t: Translator, rows: list[Value]) -> list[Value]:
    """`rows`, zero in the lanes whose fault was skipped."""
    if not t.program.keep_going:
        return rows
    return [t.code.select(t.active, row, const(row.type, 0)) for row in rows]


def write_rows(t: Translator, hosts: Value, rows: list[Value], size: int) -> None:
    """The inverse of `read_rows`."""
    code = t.code
    area = _store_rows(t, rows, size)
    code.call_void(lanes.scatter_helper(code.library, size, len(rows)), hosts, code.mask_bits(t.active), area)


def _store_rows(t: Translator, rows: list[Value], size: int) -> Value:
    code = t.code
    area = t.scratch(32 * size * len(rows))
    for row, value in enumerate(rows):
        code.store(value, code.offset(area, row * 32 * size), min(64, 32 * size))
    return area


def count_access(t: Translator, space: str, address: Value | None, size: int, *, load: bool) -> None:
    """Count an access under its state space; generic addresses lane by lane."""

    def path(name: str) -> str:
        return f"{name} to registers" if load else f"registers to {name}"

    if space != "generic":
        t.count_traffic(path("shared" if space == "cluster" else space), size)
        return
    assert address is not None
    code = t.code
    shift = WINDOW_SIZE.bit_length() - 1
    window = code.opi("lshr", code.resize(address, I64), shift)
    rest = const(I1, 1)
    for name in ("shared", "local", "param"):
        here = code.comparei("icmp eq", window, WINDOWS[name] >> shift)
        t.count_traffic(path(name), size, here)
        rest = code.op("and", rest, code.not_(here))
    t.count_traffic(path("global"), size, rest)


def _elements(operand: Operand) -> tuple[Operand, ...]:
    return operand.elements if isinstance(operand, Vector) else (operand,)


def _shape(ins: Instruction) -> tuple[int, int, int]:
    """(bytes of an element, elements, bytes of all)."""
    size = width_of(ins.types[-1]) // 8
    return size, ins.vec, size * ins.vec


def load(t: Translator, ins: Instruction) -> None:
    """`ld`: zero- or sign-extended into a wider register (PTX ISA, "ld")."""
    size, count, width = _shape(ins)
    space = space_in(t, ins)
    dests = _elements(ins.dests[0])
    if len(dests) != count:
        raise UnsupportedError(f"{ins.name} of {len(dests)} registers")
    signed = ins.types[-1].startswith("s")
    source = ins.sources[0]
    address: Value | None = None
    fixed = _fixed_param(t, source) if space == "param" else None
    if fixed is not None and fixed % width == 0 and 0 <= fixed <= t.param_bytes() - width:
        values = _load_param(t, fixed, size, count)
    else:
        address = t.address(ins, source, wide=False)
        everyone = t.active
        if _at_once(t, ins, space):
            rows = t.scratch(32 * width)
            _move(t, ins, space, address, (size, count), rows)
            log_located_access(t, ins, space, address)
            values = _load_rows(t, rows, size, count)
        else:
            hosts = locate(t, ins, space, address, width)
            log_located_access(t, ins, space, address)
            values = zero_elsewhere(t, read_rows(t, hosts, size, count))
        t.active = everyone
    count_access(t, space, address, width, load=True)
    for dest, value in zip(dests, values, strict=True):
        if not isinstance(dest, Sink):
            t.write(dest, value, signed=signed)


def _fixed_param(t: Translator, source: Operand) -> int | None:
    """The constant offset of an access to a parameter that it names, or None. The offset may be anywhere."""
    if (
        isinstance(source, Address)
        and isinstance(source.base, Symbol)
        and source.base.variable.space == "param"
    ):
        return source.base.variable.offset + source.base.offset + source.offset
    return None


def _load_param(t: Translator, offset: int, size: int, count: int) -> list[Value]:
    code = t.code
    base = code.load("ptr", t.header("param"), 8)
    kind = f"i{size * 8}"
    return [code.splat(code.load(kind, code.offset(base, offset + i * size), size)) for i in range(count)]


def store(t: Translator, ins: Instruction) -> None:
    """`st`: stores the low bits of a wider register."""
    size, count, width = _shape(ins)
    space = space_in(t, ins)
    target, source = ins.sources[0], ins.sources[1]
    if space == "param":
        raise UnsupportedError(ins.name)
    parts = _elements(source)
    if len(parts) != count:
        raise UnsupportedError(f"{ins.name} of {len(parts)} registers")
    values = [t.read(part, size * 8) for part in parts]
    address = t.address(ins, target, wide=False)
    if _at_once(t, ins, space):
        _move(t, ins, space, address, (size, count), _store_rows(t, values, size))
        log_located_access(t, ins, space, address)
    else:
        hosts = locate(t, ins, space, address, width)
        log_located_access(t, ins, space, address)
        write_rows(t, hosts, values, size)
    count_access(t, space, address, width, load=False)


def cvta(t: Translator, ins: Instruction) -> None:
    """Converts between a state space's addresses and generic ones: adds or subtracts the window's base."""
    space = "const" if ins.has("const") else space_of(ins)
    base = WINDOWS["shared" if space == "cluster" else space]
    value = t.read(ins.sources[0], 64)
    if base:
        value = t.code.opi("sub" if ins.has("to") else "add", value, base)
    t.write(ins.dests[0], value)


def isspacep(t: Translator, ins: Instruction) -> None:
    """Whether a generic address is in a window; an address in no window is global."""
    code = t.code
    if ins.has("const"):
        raise UnsupportedError(ins.name)
    shift = WINDOW_SIZE.bit_length() - 1
    window = code.opi("lshr", t.read(ins.sources[0], 64), shift)

    def inside(space: str) -> Value:
        return code.comparei("icmp eq", window, WINDOWS[space] >> shift)

    space = space_of(ins)
    if space == "shared" and t.program.clustered:  # of this CTA
        first = code.load("i64", t.header("shared_first"), 8)
        start = code.splat(code.opi("add", first, WINDOWS["shared"] - SHARED_BASE))
        offset = code.op("sub", t.read(ins.sources[0], 64), start)
        t.write(ins.dests[0], code.comparei("icmp ult", offset, CLUSTER_STRIDE))
        return
    space = "shared" if space == "cluster" else space
    if space == "global":
        some = code.op("or", code.op("or", inside("shared"), inside("local")), inside("param"))
        t.write(ins.dests[0], code.not_(some))
    else:
        t.write(ins.dests[0], inside(space))


_RANK_SHIFT = CLUSTER_STRIDE.bit_length() - 1
_RANK_BITS = 0xFF << _RANK_SHIFT


def mapa(t: Translator, ins: Instruction) -> None:
    """The address in another CTA of the cluster: the rank replaces that of the address."""
    code, bits = t.code, width_of(ins.types[0])
    address, rank = t.read(ins.sources[0], bits), t.read(ins.sources[1], 32)
    kept = code.opi("and", address, ~_RANK_BITS)
    moved = code.opi("and", code.opi("shl", code.resize(rank, kept.type), _RANK_SHIFT), _RANK_BITS)
    t.write(ins.dests[0], code.op("or", kept, moved))


def getctarank(t: Translator, ins: Instruction) -> None:
    code, bits = t.code, width_of(ins.types[0])
    address = code.opi("lshr", t.read(ins.sources[0], bits), _RANK_SHIFT)
    t.write(ins.dests[0], code.resize(code.opi("and", address, _RANK_BITS >> _RANK_SHIFT), I32))


TABLE: dict[str, Translate] = {
    "ld": load,
    "ldu": load,
    "st": store,
    "cvta": cvta,
    "isspacep": isspacep,
    "mapa": mapa,
    "getctarank": getctarank,
}
