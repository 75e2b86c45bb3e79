"""Which PTX instructions there are, how each is spelled and who executes it.

Spelling only: a suffix that is not listed for an opcode is refused at parse time, and so are two of which one
would have to be ignored: an engine meets no suffix that nobody thought of. PTX ISA 9.2, chapter 9, is the
source of the tables; opcodes outside them are refused by name. Suffixes in `HINTS` change speed, never
results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto


class Owner(Enum):
    """Who executes an instruction: the engine itself, or the machine through `Cta.issue`."""

    ENGINE = auto()
    MACHINE = auto()


@dataclass(frozen=True, slots=True)
class Form:
    """How an opcode is spelled. `dests`: number of destination operands; None means that the first operand is
    one if it is a register or `_` (mbarrier.arrive returns its state or nothing)."""

    owner: Owner
    dests: int | None
    mods: frozenset[str]


def _set(*texts: str) -> frozenset[str]:
    return frozenset(token for text in texts for token in text.split())


TYPES = _set(
    """b8 b16 b32 b64 b128 u8 u16 u32 u64 s8 s16 s32 s64 f16 f16x2 bf16 bf16x2 tf32 f32 f32x2 f64 pred
    u16x2 s16x2 u8x4 s8x4 e4m3 e5m2 e2m3 e3m2 e2m1 e4m3x2 e5m2x2 e2m3x2 e3m2x2 e2m1x2 ue8m0x2
    e4m3x4 e5m2x4 e2m3x4 e3m2x4 e2m1x4"""
)

VECTORS = {"v2": 2, "v4": 4, "v8": 8}

# Cache and eviction advice, and the collector buffer of the tensor core.
HINTS = _set(
    """L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate L2::cache_hint
    L2::evict_normal L2::evict_first L2::evict_last L2::64B L2::128B L2::256B level::eviction_priority
    collector::a::discard collector::a::lastuse collector::a::fill collector::a::use"""
)

_ROUND = "rn rz rm rp"
_ROUND_INT = "rni rzi rmi rpi"
_ORDER = "weak relaxed acquire release acq_rel volatile mmio"
_SCOPE = "cta cluster gpu sys"
_SPACES = "global shared shared::cta shared::cluster local param param::entry const"
_COMPARE = "eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan"
_LOGICAL = "and or xor"


def _engine(dests: int | None, *mods: str) -> Form:
    return Form(Owner.ENGINE, dests, _set(*mods))


def _machine(dests: int | None, *mods: str) -> Form:
    return Form(Owner.MACHINE, dests, _set(*mods))


_MEMORY = (_ORDER, _SCOPE, _SPACES, "nc unified", " ".join(sorted(HINTS)))
_ATOMIC = (
    _ORDER,
    _SCOPE,
    _SPACES,
    "add min max inc dec and or xor exch cas noftz L2::cache_hint",
)
_MATRIX_SHAPES = "m16n8k4 m16n8k8 m16n8k16 m16n8k32 m16n8k64 m8n8k4 m8n8k16"
_TMEM_SHAPES = "16x64b 16x128b 16x256b 32x32b 16x32bx2 x1 x2 x4 x8 x16 x32 x64 x128"
_BULK = (
    "shared::cta shared::cluster global mbarrier::complete_tx::bytes bulk_group L2::cache_hint "
    "multicast::cluster cp_mask ignore_oob"
)
_TENSOR = (
    _BULK
    + " 1d 2d 3d 4d 5d tile tile::gather4 tile::scatter4 im2col im2col::w im2col::w::128 im2col_no_offs "
    "cta_group::1 cta_group::2"
)
_BARRIER_SPACES = "shared shared::cta shared::cluster"
_TCGEN = "sync aligned cta_group::1 cta_group::2"
# K of a dense wgmma is 32 bytes, so its number of elements tells the types apart; a single bit has K 256.
_WGMMA_SHAPES = " ".join(f"m64n{n}k{k}" for n in range(8, 257, 8) for k in (8, 16, 32, 256))
_KINDS = "kind::f16 kind::tf32 kind::f8f6f4 kind::i8 kind::mxf8f6f4 kind::mxf4 kind::mxf4nvf4"

FORMS: dict[str, Form] = {
    # Integer arithmetic
    "add": _engine(1, _ROUND, "ftz sat cc"),
    "addc": _engine(1, "cc"),
    "sub": _engine(1, _ROUND, "ftz sat cc"),
    "subc": _engine(1, "cc"),
    "mul": _engine(1, _ROUND, "lo hi wide ftz sat"),
    "mul24": _engine(1, "lo hi"),
    "mad": _engine(1, _ROUND, "lo hi wide ftz sat cc"),
    "madc": _engine(1, "lo hi cc"),
    "mad24": _engine(1, "lo hi sat"),
    "sad": _engine(1),
    "div": _engine(1, _ROUND, "full approx ftz"),
    "rem": _engine(1),
    "abs": _engine(1, "ftz"),
    "neg": _engine(1, "ftz"),
    "min": _engine(1, "ftz NaN xorsign abs relu"),
    "max": _engine(1, "ftz NaN xorsign abs relu"),
    "popc": _engine(1),
    "clz": _engine(1),
    "bfind": _engine(1, "shiftamt"),
    "fns": _engine(1),
    "brev": _engine(1),
    "bfe": _engine(1),
    "bfi": _engine(1),
    "szext": _engine(1, "clamp wrap"),
    "bmsk": _engine(1, "clamp wrap"),
    "dp4a": _engine(1),
    "dp2a": _engine(1, "lo hi"),
    # Floating point
    "fma": _engine(1, _ROUND, "ftz sat relu oob"),
    "rcp": _engine(1, _ROUND, "approx ftz"),
    "sqrt": _engine(1, _ROUND, "approx ftz"),
    "rsqrt": _engine(1, "approx ftz"),
    "sin": _engine(1, "approx ftz"),
    "cos": _engine(1, "approx ftz"),
    "lg2": _engine(1, "approx ftz"),
    "ex2": _engine(1, "approx ftz"),
    "tanh": _engine(1, "approx"),
    "copysign": _engine(1),
    "testp": _engine(1, "finite infinite number notanumber normal subnormal"),
    # Comparison, selection, logic, movement
    "set": _engine(1, _COMPARE, _LOGICAL, "ftz"),
    "setp": _engine(1, _COMPARE, _LOGICAL, "ftz"),
    "selp": _engine(1),
    "slct": _engine(1, "ftz"),
    "and": _engine(1),
    "or": _engine(1),
    "xor": _engine(1),
    "not": _engine(1),
    "cnot": _engine(1),
    "lop3": _engine(1, "and or"),
    "shf": _engine(1, "l r clamp wrap"),
    "shl": _engine(1),
    "shr": _engine(1),
    "mov": _engine(1),
    "prmt": _engine(1, "f4e b4e rc8 ecl ecr rc16"),
    "cvt": _engine(1, _ROUND, _ROUND_INT, "rna rs ftz sat satfinite relu scaled::n2::ue8m0"),
    "cvt.pack": _engine(1, "sat"),
    "cvta": _engine(1, "to", _SPACES),
    "isspacep": _engine(1, _SPACES),
    # Memory
    "ld": _engine(1, *_MEMORY),
    "ldu": _engine(1, "global"),
    "st": _engine(0, *_MEMORY),
    "atom": _engine(1, *_ATOMIC),
    "red": _engine(0, *_ATOMIC),
    "ldmatrix": _engine(
        1, "sync aligned m8n8 m16n16 m8n16 x1 x2 x4 trans shared shared::cta b8x16.b6x16_p32"
    ),
    "stmatrix": _engine(0, "sync aligned m8n8 m16n8 x1 x2 x4 trans shared shared::cta"),
    "movmatrix": _engine(1, "sync aligned m8n8 trans"),
    "mma": _engine(1, "sync aligned row col satfinite xor and popc", _MATRIX_SHAPES),
    # Warp
    "shfl": _engine(1, "sync up down bfly idx"),
    "vote": _engine(1, "sync all any uni ballot"),
    "match": _engine(1, "sync any all"),
    "redux": _engine(1, "sync add min max and or xor abs NaN"),
    "elect": _engine(1, "sync"),
    "activemask": _engine(1),
    "bar.warp.sync": _engine(0),
    # Control
    "bra": _engine(0, "uni"),
    "ret": _engine(0, "uni"),
    "exit": _engine(0),
    "trap": _engine(0),
    "brkpt": _engine(0),
    # CTA barriers and fences
    "bar.sync": _machine(0),
    "bar.arrive": _machine(0),
    "bar.red": _machine(1, "popc and or"),
    "bar.cta.sync": _machine(0),
    "bar.cta.arrive": _machine(0),
    "bar.cta.red": _machine(1, "popc and or"),
    "barrier.sync": _machine(0, "aligned"),
    "barrier.arrive": _machine(0, "aligned"),
    "barrier.red": _machine(1, "aligned popc and or"),
    "barrier.cta.sync": _machine(0, "aligned"),
    "barrier.cta.arrive": _machine(0, "aligned"),
    "barrier.cta.red": _machine(1, "aligned popc and or"),
    "barrier.cluster.arrive": _machine(0, "aligned release relaxed"),
    "barrier.cluster.wait": _machine(0, "aligned acquire"),
    "membar": _machine(0, "cta gl sys"),
    "membar.proxy": _machine(0, "alias async async.global async.shared::cta async.shared::cluster"),
    "fence": _machine(
        0, "sc acq_rel acquire release sync_restrict::shared::cta sync_restrict::shared::cluster", _SCOPE
    ),
    "fence.mbarrier_init": _machine(0, "release cluster"),
    "fence.proxy.alias": _machine(0),
    "fence.proxy.async": _machine(0, "global shared::cta shared::cluster"),
    "fence.proxy.async::generic": _machine(
        0, "acquire release sync_restrict::shared::cta sync_restrict::shared::cluster", _SCOPE
    ),
    "fence.proxy.tensormap::generic": _machine(0, "acquire release", _SCOPE),
    # Asynchronous barriers
    "mbarrier.init": _machine(0, _BARRIER_SPACES),
    "mbarrier.inval": _machine(0, _BARRIER_SPACES),
    "mbarrier.arrive": _machine(None, _BARRIER_SPACES, _SCOPE, "noComplete release relaxed"),
    "mbarrier.arrive.expect_tx": _machine(None, _BARRIER_SPACES, _SCOPE, "release relaxed"),
    "mbarrier.arrive_drop": _machine(None, _BARRIER_SPACES, _SCOPE, "noComplete release relaxed"),
    "mbarrier.arrive_drop.expect_tx": _machine(None, _BARRIER_SPACES, _SCOPE, "release relaxed"),
    "mbarrier.expect_tx": _machine(0, _BARRIER_SPACES, _SCOPE, "relaxed"),
    "mbarrier.complete_tx": _machine(0, _BARRIER_SPACES, _SCOPE, "relaxed"),
    "mbarrier.test_wait": _machine(1, _BARRIER_SPACES, _SCOPE, "parity acquire relaxed"),
    "mbarrier.try_wait": _machine(1, _BARRIER_SPACES, _SCOPE, "parity acquire relaxed"),
    "mbarrier.pending_count": _machine(1),
    # Asynchronous copies
    "cp.async": _machine(0, "ca cg shared shared::cta global L2::cache_hint L2::64B L2::128B L2::256B"),
    "cp.async.commit_group": _machine(0),
    "cp.async.wait_group": _machine(0),
    "cp.async.wait_all": _machine(0),
    "cp.async.mbarrier.arrive": _machine(0, "noinc", _BARRIER_SPACES),
    "cp.async.bulk": _machine(0, _BULK),
    "cp.async.bulk.tensor": _machine(0, _TENSOR),
    "cp.async.bulk.prefetch": _machine(0, "L2 global L2::cache_hint"),
    "cp.async.bulk.prefetch.tensor": _machine(0, "L2", _TENSOR),
    "cp.async.bulk.commit_group": _machine(0),
    "cp.async.bulk.wait_group": _machine(0, "read"),
    "cp.reduce.async.bulk": _machine(0, _BULK, "add min max inc dec and or xor noftz"),
    "cp.reduce.async.bulk.tensor": _machine(0, _TENSOR, "add min max inc dec and or xor"),
    "st.async": _machine(0, "weak release gpu sys mmio global shared::cluster mbarrier::complete_tx::bytes"),
    "red.async": _machine(
        0, "relaxed cluster add min max inc dec and or xor shared::cluster mbarrier::complete_tx::bytes"
    ),
    "prefetch": _machine(0, "global local L1 L2 tensormap param const L2::evict_last L2::evict_normal"),
    "prefetchu": _machine(0, "L1"),
    "applypriority": _machine(0, "global L2::evict_normal"),
    "discard": _machine(0, "global L2"),
    # Tensor maps edited by the kernel
    "tensormap.replace": _machine(
        0,
        "tile global_address rank box_dim global_dim global_stride element_stride elemtype interleave_layout "
        "swizzle_mode swizzle_atomicity fill_mode global shared::cta b1024",
    ),
    "tensormap.cp_fenceproxy": _machine(
        0, "global shared::cta tensormap::generic release sync aligned", _SCOPE
    ),
    # Fifth-generation tensor core
    "tcgen05.alloc": _machine(0, _TCGEN, "shared::cta"),
    "tcgen05.dealloc": _machine(0, _TCGEN),
    "tcgen05.relinquish_alloc_permit": _machine(0, _TCGEN),
    "tcgen05.ld": _machine(1, "sync aligned pack::16b", _TMEM_SHAPES),
    "tcgen05.ld.red": _machine(1, "sync aligned min max abs NaN", _TMEM_SHAPES),
    "tcgen05.st": _machine(0, "sync aligned unpack::16b", _TMEM_SHAPES),
    "tcgen05.wait::ld": _machine(0, "sync aligned"),
    "tcgen05.wait::st": _machine(0, "sync aligned"),
    "tcgen05.cp": _machine(
        0,
        "cta_group::1 cta_group::2 128x256b 4x256b 128x128b 64x128b 32x128b warpx2::02_13 warpx2::01_23 "
        "warpx4 b8x16 b6x16_p32 b4x16_p64",
    ),
    "tcgen05.shift": _machine(0, "cta_group::1 cta_group::2 down"),
    "tcgen05.mma": _machine(
        0,
        _KINDS,
        "cta_group::1 cta_group::2 ashift",
        "block_scale scale_vec::1X scale_vec::2X scale_vec::4X block16 block32",
        " ".join(hint for hint in sorted(HINTS) if hint.startswith("collector")),
    ),
    "tcgen05.mma.ws": _machine(0, _KINDS, "cta_group::1"),
    "tcgen05.mma.sp": _machine(0, _KINDS, "cta_group::1 cta_group::2 block_scale"),
    "tcgen05.commit": _machine(
        0, "cta_group::1 cta_group::2 mbarrier::arrive::one shared::cluster multicast::cluster"
    ),
    "tcgen05.fence::before_thread_sync": _machine(0),
    "tcgen05.fence::after_thread_sync": _machine(0),
    # Warpgroup products
    "wgmma.mma_async": _machine(1, "sync aligned satfinite and popc", _WGMMA_SHAPES),
    "wgmma.fence": _machine(0, "sync aligned"),
    "wgmma.commit_group": _machine(0, "sync aligned"),
    "wgmma.wait_group": _machine(0, "sync aligned"),
    # Launch and scheduling
    "griddepcontrol.wait": _machine(0),
    "griddepcontrol.launch_dependents": _machine(0),
    "setmaxnreg.inc": _machine(0, "sync aligned"),
    "setmaxnreg.dec": _machine(0, "sync aligned"),
    "nanosleep": _machine(0),
    # Known, not modelled: no handler takes them, so they are refused by name when they are executed.
    "mapa": _machine(1, "shared::cluster"),
    "getctarank": _machine(1, "shared::cluster"),
    "clusterlaunchcontrol.try_cancel": _machine(
        0, "async shared::cta mbarrier::complete_tx::bytes multicast::cluster::all"
    ),
    "clusterlaunchcontrol.query_cancel": _machine(
        1, "is_canceled get_first_ctaid get_first_ctaid::x get_first_ctaid::y get_first_ctaid::z"
    ),
    "multimem.ld_reduce": _machine(1, *_ATOMIC),
    "multimem.st": _machine(0, *_ATOMIC),
    "multimem.red": _machine(0, *_ATOMIC),
}

# Suffixes of which an instruction takes one: two rounding modes, or two scopes, mean nothing.
_ALTERNATIVES = tuple(
    map(
        _set,
        (
            f"{_ROUND} {_ROUND_INT} rna rs approx full",
            f"{_COMPARE} wide",  # lo and hi are also halves of a product
            "add min max inc dec and or xor exch cas",
            "weak relaxed acquire release acq_rel volatile sc",
            f"{_SCOPE} gl",
            "l r",
            "sat relu",
            "clamp wrap",
            "f4e b4e rc8 ecl ecr rc16",
            "finite infinite number notanumber normal subnormal",
            "up down bfly idx",
            "all any uni ballot",
            "ca cg",
            _MATRIX_SHAPES,
            _WGMMA_SHAPES,
            "m8n8 m16n16 m8n16 m16n8",
            "x1 x2 x4 x8 x16 x32 x64 x128",
            "16x64b 16x128b 16x256b 32x32b 16x32bx2",
            "128x256b 4x256b 128x128b 64x128b 32x128b",
            "warpx2::02_13 warpx2::01_23 warpx4",
            "b6x16_p32 b4x16_p64",
            "cta_group::1 cta_group::2",
            _KINDS,
            "1d 2d 3d 4d 5d",
            "tile tile::gather4 tile::scatter4 im2col im2col::w im2col::w::128 im2col_no_offs",
        ),
    )
)
# Engines know one state space in an access; copies of the machine name two.
_ONE_SPACE = _set(_SPACES)

_VECTOR_OPS = _set("ld ldu st atom red st.async red.async multimem.ld_reduce multimem.st multimem.red")

# The types of opcodes that have one, or none, and that no executor looks at. Others judge by themselves.
_MOVED = _set("b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64")
_LOADED = _MOVED | _set("b8 u8 s8 b128")
_ONE_TYPE: dict[str, frozenset[str]] = {
    "mov": _MOVED | _set("pred b128"),
    "selp": _MOVED,
    "ld": _LOADED,
    "ldu": _LOADED,
    "st": _LOADED,
    "bar.red": _set("pred u32"),
    "bar.cta.red": _set("pred u32"),
    "barrier.red": _set("pred u32"),
    "barrier.cta.red": _set("pred u32"),
    "mbarrier": _set("b64"),
    "cp.async.mbarrier.arrive": _set("b64"),
    "cp.reduce.async.bulk": _set("f16 bf16 b32 u32 s32 b64 u64 s64 f32 f64"),
    "st.async": _LOADED,
    "red.async": _set("u32 s32 b32 u64 s64 b64"),
    "tcgen05.alloc": _set("b32"),
    "tcgen05.dealloc": _set("b32"),
    "tcgen05.ld": _set("b32"),
    "tcgen05.ld.red": _set("f32 u32 s32"),
    "tcgen05.st": _set("b32"),
    "tcgen05.commit": _set("b64"),
    "setmaxnreg": _set("u32"),
    "nanosleep": _set("u32"),
    "tensormap.replace": _set("b32 b64"),
}
# What `set` may compare for a result of each type (PTX ISA 9.7.6 and 9.7.7, "set"; ptxas 13.0 takes these
# and no others for sm_90a). A bf16 result has no .ftz.
_COMPARED = _set("b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64")
_SET: dict[str, frozenset[str]] = {
    **dict.fromkeys(("u16", "s16"), _set("f16 bf16")),
    **dict.fromkeys(("u32", "s32"), _COMPARED | _set("f16 bf16 f16x2 bf16x2")),
    "f32": _COMPARED,
    "f16": _COMPARED | _set("f16"),
    "bf16": _COMPARED | _set("f16 bf16"),
    "f16x2": _set("f16x2"),
    "bf16x2": _set("bf16x2"),
}
_NO_TYPE = _set(
    """bra ret exit trap brkpt elect bar.warp.sync bar barrier membar fence cp.async cp.async.bulk
    cp.reduce.async.bulk.tensor prefetch prefetchu applypriority discard tcgen05 griddepcontrol
    tensormap.cp_fenceproxy wgmma.fence wgmma.commit_group wgmma.wait_group"""
)


def _rule(op: str) -> frozenset[str] | None:
    """The types of which `op` takes one, none if empty; None if its executor judges. An opcode shares the
    rule of the longest part of its name that has one."""
    while op:
        if op in _ONE_TYPE:
            return _ONE_TYPE[op]
        if op in _NO_TYPE:
            return frozenset()
        op = op.rpartition(".")[0]
    return None


def contradiction(op: str, types: Sequence[str], mods: Sequence[str], vectors: Sequence[str]) -> str | None:
    """What is wrong with known suffixes of `op` together: the one that would have to be ignored; None if
    nothing is."""
    for index, mod in enumerate(mods):
        if mod in mods[:index]:
            return f"{mod} twice"
    groups = (*_ALTERNATIVES, _ONE_SPACE) if owner(op) is Owner.ENGINE else _ALTERNATIVES
    for group in groups:
        chosen = [mod for mod in mods if mod in group]
        if len(chosen) > 1:
            return " and .".join(chosen)
    if len(vectors) > 1 or (vectors and op not in _VECTOR_OPS):
        return " and .".join(vectors)
    allowed = _rule(op)
    if op == "slct" and types and types[0] not in _MOVED:
        return types[0]
    if op == "set" and len(types) == 2 and types[0] in _SET:
        wrong_pair = types[1] not in _SET[types[0]] or ("ftz" in mods and types[0].startswith("bf16"))
        return " of .".join(types) if wrong_pair else None
    if allowed is None:
        return None
    wrong = [name for name in types if name not in allowed]
    if wrong or len(types) > 1:
        return " and .".join(wrong or types)
    return None if types or not allowed else ""


# Families that one generation of machines has and no other: ptxas refuses them for any other target.
_TARGETS = {
    "wgmma": _set("sm_90a"),
    "tcgen05": _set("sm_100a sm_100f sm_101a sm_101f sm_103a sm_103f sm_110a sm_110f"),
}


def foreign(op: str, target: str) -> bool:
    """Whether a module for `target` cannot have `op` (PTX ISA, "Target ISA Notes")."""
    return target not in _TARGETS.get(op.partition(".")[0], (target,))


def lacking(op: str, mods: Sequence[str]) -> str | None:
    """The first suffix that `op` may not go without: all that know `.sync` and `.aligned` demand both.
    ptxas takes a wgmma without `.aligned`; the ISA's syntax does not."""
    needed = [name for name in ("sync", "aligned") if name not in mods]
    return needed[0] if needed and {"sync", "aligned"} <= FORMS[op].mods else None


# Opcodes with so many spellings that listing them would say nothing: their suffixes are kept unchecked, and
# they have no handler either.
REFUSED_PREFIXES = ("wgmma.mma_async.sp",)


def owner(op: str) -> Owner:
    """Who executes `op`, a key of `FORMS`."""
    return FORMS[op].owner if op in FORMS else Owner.MACHINE


def split(opcode: str) -> tuple[str, tuple[str, ...]]:
    """An opcode as spelled -> (its longest known base, "" if unknown; the suffixes that follow)."""
    tokens = opcode.split(".")
    for length in range(len(tokens), 0, -1):
        base = ".".join(tokens[:length])
        if base in FORMS or base in REFUSED_PREFIXES:
            return base, tuple(tokens[length:])
    return "", tuple(tokens)
