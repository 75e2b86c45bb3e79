# SPDX-License-Identifier: Apache-2.0
"""The options of `gdnbench sim FILE.ptx:entry` and `FILE.cu:kernel`."""

from __future__ import annotations

import typer

LAUNCH_PANEL = "Launch of a FILE.ptx or FILE.cu"

GRID = typer.Option(
    metavar="X[,Y[,Z]]",
    help="CTAs of the launch, e.g. 4 or 8,2. A/B is rounded up: 1000/256 is 4.",
    rich_help_panel=LAUNCH_PANEL,
)
BLOCK = typer.Option(
    metavar="X[,Y[,Z]]",
    help="Threads of a CTA, e.g. 256. Default: .reqntid of the PTX, if there is one.",
    rich_help_panel=LAUNCH_PANEL,
)
CLUSTER = typer.Option(
    metavar="X[,Y[,Z]]",
    help="CTAs of a cluster, at most 16, e.g. 2,1. Default: what the kernel requires, else 1.",
    rich_help_panel=LAUNCH_PANEL,
)
SHARED = typer.Option(
    metavar="BYTES", help="Dynamic shared memory of a CTA. Default: 0.", rich_help_panel=LAUNCH_PANEL
)
INCLUDE = typer.Option(
    "-I",
    "--include",
    metavar="DIR",
    help="FILE.cu: a folder of headers, before those of CUDA. Repeatable.",
    rich_help_panel=LAUNCH_PANEL,
)
DEFINE = typer.Option(
    "-D",
    "--define",
    metavar="NAME[=VALUE]",
    help="FILE.cu: define a macro, e.g. -D TILE=64. Repeatable.",
    rich_help_panel=LAUNCH_PANEL,
)
STD = typer.Option(help="FILE.cu: the C++ standard. Default: c++17.", rich_help_panel=LAUNCH_PANEL)
