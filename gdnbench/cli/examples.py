# SPDX-License-Identifier: Apache-2.0
"""Examples of each command, its everyday options, and the page of docs/ that says more.

`--help` and docs/commands.md show the examples; tests hold them to the options there are.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Example:
    """`page`: as docs/ links to it. `lines`: as typed; a line that ends in a backslash goes on. `everyday`:
    the options that `--help` explains where a page of 40 lines cannot explain them all; None: all fit."""

    page: str
    lines: tuple[str, ...] = ()
    everyday: frozenset[str] | None = None

    @property
    def commands(self) -> list[str]:
        """The lines joined where they go on."""
        return "\n".join(self.lines).replace("\\\n", " ").splitlines()


SIM = "../gdnbench/sim/README.md"


def _everyday(names: str) -> frozenset[str]:
    """ "kernel on" -> {"--kernel", "--on"}."""
    return frozenset(f"--{name}" for name in names.split())


EXAMPLES = {
    "gdnbench": Example("tutorial.md", ("gdnbench replay run.zarr --kernel mine.py:kernel",), _everyday("")),
    "gdnbench capture": Example(
        "capture.md",
        (
            "gdnbench capture run.zarr --first 2 --layer 0-3 -- python serve.py --model qwen",
            "gdnbench capture run.zarr --on-nonfinite --around 2 --first 1 -- python serve.py --model qwen",
            "gdnbench capture run.zarr --on-mismatch 2 --every 64 -- python serve.py --model qwen",
            "gdnbench capture s3://bucket/run.zarr --every 16 -- python serve.py --model qwen",
            "gdnbench capture run.zarr --virtual sm_100a --sms 4 -- python their_script.py",
        ),
        everyday=_everyday("target layer first every when on-nonfinite max-bytes"),
    ),
    "gdnbench ls": Example(
        "store.md",
        ("gdnbench ls run.zarr --op gdn_prefill", "gdnbench ls run.zarr --rank tp1 --order step"),
    ),
    "gdnbench show": Example("store.md", ("gdnbench show run.zarr 3",)),
    "gdnbench lineage": Example(
        "lineage.md",
        (
            "gdnbench lineage run.zarr",
            "gdnbench lineage run.zarr --explain req-7 --layer '*.3.linear_attn'",
            "gdnbench lineage node0.zarr node1.zarr --junit results.xml",
        ),
    ),
    "gdnbench verify": Example(
        "store.md", ("gdnbench verify run.zarr", "gdnbench verify s3://bucket/run.zarr")
    ),
    "gdnbench prune": Example(
        "store.md",
        (
            "gdnbench prune run.zarr --older-than 7d --keep 0,17",
            "gdnbench prune run.zarr --op gdn_prefill --max-bytes 20GiB --yes",
        ),
    ),
    "gdnbench merge": Example("store.md", ("gdnbench merge run.zarr node0.zarr node1.zarr",)),
    "gdnbench export": Example(
        "store.md",
        ("gdnbench export run.zarr 3 --to safetensors", "gdnbench export run.zarr 3 --to npz -o three.npz"),
    ),
    "gdnbench share": Example(
        "share.md",
        (
            "gdnbench share run.zarr failing.zip 3",
            "gdnbench share run.zarr failing.zip 3 --hide rotation --kernel engine.kernels:prefill --on cuda",
        ),
    ),
    "gdnbench samples": Example(
        "../captures/README.md",
        ("gdnbench samples", "gdnbench samples here"),
    ),
    "gdnbench upload": Example("store.md", ("gdnbench upload run.zarr s3://bucket/run.zarr",)),
    "gdnbench replay": Example(
        "replay.md",
        (
            "gdnbench replay run.zarr 0,3-5 --kernel mine.py:kernel --save run1.zarr",
            "gdnbench replay run.zarr --kernel sm100 --on sim --stages --check",
            "gdnbench replay run.zarr --kernel cute --on sim --machine h200 --time",
            "gdnbench replay run.zarr --kernel sm100 --on cuda --workers 0",
        ),
        everyday=_everyday("kernel against on tol check save heatmap"),
    ),
    "gdnbench prove": Example(
        "prove.md",
        (
            "gdnbench prove my_kernels.py:prefill --op gdn_prefill",
            "gdnbench prove cute --op gdn_decode --on sim --only made,laws",
        ),
        everyday=_everyday("on only kernel-env machine json"),
    ),
    "gdnbench explore": Example(
        "replay.md",
        (
            "gdnbench explore run.zarr 3 --kernel sm100 --schedules 20 --shapes 5 --check",
            "gdnbench explore run.zarr 3 --kernel sm100 --sms 1,2,4,148",
        ),
        everyday=_everyday("kernel schedules shapes check tol stages json"),
    ),
    "gdnbench trace": Example(
        "trace.md",
        ('gdnbench trace run.zarr a.zarr 3 --kernel sm100 --select "cta=0 warp=4 class=load,store"',),
        everyday=_everyday("select limit kernel op check save"),
    ),
    "gdnbench suite": Example("ci.md", ("gdnbench suite suites/captures.toml --entry '*.sim' -o results",)),
    "gdnbench baseline update": Example(
        "ci.md",
        ("gdnbench baseline update suites/captures.toml results --reason 'gates are summed in fp32'",),
    ),
    "gdnbench baseline show": Example("ci.md", ("gdnbench baseline show suites/captures.toml --json",)),
    "gdnbench baseline history": Example("ci.md", ("gdnbench baseline history suites/captures.toml",)),
    "gdnbench diff": Example(
        "replay.md",
        (
            "gdnbench diff run1.zarr run2.zarr --tol 1e-2",
            "gdnbench diff run1.zarr run2.zarr --heatmap",
        ),
    ),
    "gdnbench report": Example("report.md", ("gdnbench report old.zarr new.zarr -o report.html",)),
    "gdnbench time": Example(
        "timing.md",
        ("gdnbench time run.zarr --kernel torch --kernel engine.kernels:prefill --on cuda",),
        everyday=_everyday("kernel on machine cache seconds json save compare"),
    ),
    "gdnbench sim": Example(
        SIM,
        (
            "gdnbench sim norm.py:norm 'f32[128,64]' 'f32[128,64]:nan' --check",
            "gdnbench sim --sms 4 --check -- python their_script.py",
            "gdnbench sim add.ptx:add --grid 4 --block 256 'f32[1000]' 'f32[1000]' 'f32[1000]:nan' 1000",
            "gdnbench sim sum.cu:'sum<float, 64>' --grid 16 --block 64 -I include 'f32[99]' 'f32[1]:0' 99",
        ),
        everyday=_everyday("grid block machine check profile time"),
    ),
    "gdnbench synth": Example(
        "operations.md",
        ("gdnbench synth run.zarr --op gdn_prefill --seqlens 63,500 --heads 2,4 --key-correlation 0.9",),
    ),
    "gdnbench compile": Example("prefill.md", ("gdnbench compile --arch sm_100a --heads 16 -o kernels",)),
    "gdnbench help": Example("shell.md", ("gdnbench help bisect commit", "gdnbench help replay --all")),
    "gdnbench doctor": Example("../README.md", ("gdnbench doctor",)),
    "gdnbench bisect input": Example(
        "bisect.md",
        ("gdnbench bisect input run.zarr 3 --kernel mine.py:kernel --out small.zarr --script repro.py",),
        everyday=_everyday("on k out script budget symptom"),
    ),
    "gdnbench bisect commit": Example(
        "bisect.md",
        (
            "gdnbench bisect commit run.zarr 0 --repo engine --path python --good v1.2 --bad main \\",
            "    --kernel engine.kernels.gdn:decode",
            "gdnbench bisect commit run.zarr 0 --repo engine --good v1.2 --bad main \\",
            "    --kernel engine.kernels.gdn:decode --on sim --machine h200 --time",
        ),
        everyday=_everyday("on repo path build time"),
    ),
    "gdnbench bisect env": Example(
        "bisect.md",
        (
            "gdnbench bisect env run.zarr --kernel mine.py:kernel \\",
            "    --good nvidia-cutlass-dsl==4.8.0 --bad nvidia-cutlass-dsl==4.8.1",
        ),
        everyday=_everyday("on tol python with symptom"),
    ),
    "gdnbench bisect instruction": Example(
        "bisect.md",
        (
            "gdnbench bisect instruction run.zarr 0 --good engine.prefill:prefill --good-path before \\",
            "    --bad engine.prefill:prefill --bad-path after",
        ),
    ),
    "gdnbench bisect stage": Example(
        "bisect.md",
        ("gdnbench bisect stage run.zarr --kernel sm100 --on sim",),
        everyday=_everyday("on tol carry machine symptom json"),
    ),
    "gdnbench bisect record": Example(
        "bisect.md",
        ("gdnbench bisect record run.zarr --kernel mine.py:kernel --layer 1 --carry",),
        everyday=_everyday("layer carry any on k tol symptom"),
    ),
}
