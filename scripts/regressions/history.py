"""The commits of the repository, in order: the regressions that are to be found, and plausible others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from regressions import inverse_by_newton
from regressions.package import PACKAGE

Files = dict[str, str]


@dataclass(frozen=True, slots=True)
class Edit:
    """A commit: `replaced` has (path, old text, new text), each old text being there once; `added` whole
    files. `tag`: what the commit is known by."""

    subject: str
    replaced: tuple[tuple[str, str, str], ...] = ()
    added: Files = field(default_factory=dict)
    tag: str = ""
    change: Callable[[Files], None] | None = None

    def apply(self, files: Files) -> None:
        """ValueError where a text that is to be replaced is not there, or there twice."""
        for path, old, new in self.replaced:
            if (count := files[path].count(old)) != 1:
                raise ValueError(f"{self.subject}: {old!r} is {count} times in {path}, not once")
            files[path] = files[path].replace(old, new)
        files.update(self.added)
        if self.change is not None:
            self.change(files)


GOOD = "v1.0"
INVERSE, BETA, TAIL, BARRIER = "inverse", "beta", "tail", "barrier"
"""Tags of the commits that are to be found."""
BEFORE_BARRIER = "v1.1"
"""The last release whose results do not depend on the schedule."""
BAD = "v1.2"


def _in(module: str, old: str, new: str) -> tuple[str, str, str]:
    return f"{PACKAGE}/{module}.py", old, new


def _readme(text: str) -> Files:
    return {"README.md": f"# served_kernels\n{text}\n"}


HISTORY = (
    Edit("Say what is served", added=_readme("Gated DeltaNet kernels of a server: prefill and decode.")),
    Edit(
        "Rows of a fragment: the lane's first",
        (
            _in(
                "triangle",
                "return ROWS_OF_WARP * warp + lane // 4 + 8 * half",
                "return lane // 4 + 8 * half + ROWS_OF_WARP * warp",
            ),
        ),
    ),
    Edit("Notes on chunks", added={"notes/chunks.md": "A chunk has 64 tokens. The last may have fewer.\n"}),
    Edit(
        "decode: say which gates it takes",
        (
            _in(
                "decode",
                "Updates `state` in place and returns o.",
                "Gates in log. Updates `state`, returns o.",
            ),
        ),
    ),
    Edit("A smoke test", added={"tests/test_import.py": "def test_import():\n    import served_kernels\n"}),
    Edit(
        "inverse: one name for a fragment's places",
        change=lambda files: inverse_by_newton.rename(files, "_place", "_place_in_block"),
    ),
    Edit("Who to ask", added={"OWNERS": "kernels@example.org\n"}),
    Edit(
        "inverse: diagonal blocks on tensor cores",
        change=inverse_by_newton.introduce,
        tag="newton",
    ),
    Edit("Notes on the inverse", added={"notes/inverse.md": "Newton-Schulz squares its residual.\n"}),
    Edit(
        "chunk_uw: warps of a group get a shorter name",  # and one that was forgotten
        (_in("chunk_uw", "GROUP_WARPS = CHUNK // ROWS_OF_WARP\n", "WARPS = CHUNK // ROWS_OF_WARP\n"),),
        tag="broken",
    ),
    Edit("Ignore caches", added={".gitignore": "__pycache__/\n"}),
    Edit(
        "chunk_uw: the name that was forgotten",
        (_in("chunk_uw", "WARPS = CHUNK // ROWS_OF_WARP\n", "GROUP_WARPS = CHUNK // ROWS_OF_WARP\n"),),
        tag="mended",
    ),
    Edit("Notes on decode", added={"notes/decode.md": "One token a call.\n"}),
    Edit(
        "chunk_uw: turns are of items",
        (
            _in(
                "chunk_uw",
                "# One turn more than there are items: each multiplies",
                "# There is one turn more than there are items: each multiplies",
            ),
        ),
    ),
    Edit("Notes on gates", added={"notes/gates.md": "A gate is the log of a decay, at most 0.\n"}),
    Edit(
        "inverse: three rounds do for blocks of 16",
        (_in("inverse", "cutlass.range_constexpr(4)", "cutlass.range_constexpr(3)"),),
        tag=INVERSE,
    ),
    Edit("Notes on speed", added={"notes/speed.md": "The inverse takes fewer products than it did.\n"}),
    Edit(
        "triangle: columns before rows",
        (
            _in(
                "triangle",
                "return 8 * n + 2 * (lane % 4) + j",
                "return 2 * (lane % 4) + 8 * n + j",
            ),
        ),
    ),
    Edit("README: how to test", added=_readme("Gated DeltaNet kernels of a server. `pytest` tests them.")),
    Edit(
        "decode: gates in the dtype of activations",
        (_in("decode", "beta = beta.float()", "beta = beta.to(v.dtype).float()"),),
        tag=BETA,
    ),
    Edit("Notes on states", added={"notes/states.md": "A state is kept in fp32.\n"}),
    Edit(
        "chunk_output: who reads a tile",
        (
            _in(
                "chunk_output",
                "The plan's buffers of tiles in shared memory",
                "The plan's tiles in shared memory",
            ),
        ),
    ),
    Edit(
        "chunk_uw: a tail of values is multiplied by a beta of 0 and need not be cleared",
        (_in("chunk_uw", "for s_tile in (shared.k, shared.v):", "for s_tile in (shared.k,):"),),
        tag=TAIL,
    ),
    Edit("Notes on tails", added={"notes/tails.md": "Behind the end of a sequence beta is 0.\n"}),
    Edit(
        "decode: outputs by name",
        (_in("decode", '"""What the server calls for a step of decode."""', '"""A step of decode."""'),),
    ),
    Edit("README: releases", added=_readme("Kernels of a server. Releases are tags."), tag=BEFORE_BARRIER),
    Edit(
        "chunk_state: who scans",
        (
            _in(
                "chunk_state",
                '"""S to where it is wanted, nowhere without any."""',
                '"""S to where it is wanted."""',
            ),
        ),
    ),
    Edit(
        "chunk_state: a store has been read by the time its stage is written again",
        (_in("chunk_state", "        cute.arch.cp_async_bulk_wait_group(0, read=True)\n", ""),),
        tag=BARRIER,
    ),
    Edit("Notes on stores", added={"notes/stores.md": "h and V_new leave by TMA.\n"}),
    Edit(
        "chunk_state: where a scan begins",
        (_in("chunk_state", '"""S as it was given, 0 without any."""', '"""S as it was given, else 0."""'),),
    ),
    Edit("README: who uses it", added=_readme("Kernels of a server, for its own models."), tag=BAD),
)
