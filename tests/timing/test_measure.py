"""What is timed is what was judged."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from gdnbench.ops import operation
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from gdnbench.timing.measure import KernelFailed, PreparedWrong, Session
from gdnbench.timing.options import TimingOptions
from gdnbench.timing.seam import Cache, Form, Mode

KERNELS = Path(__file__).with_name("hostile_kernels.py")


def test_a_prepared_launch_that_leaves_other_outputs_is_not_timed(tmp_path: Path) -> None:
    call = synthesise("gdn_decode", batch=2, heads=(1, 2), head_dim=(16, 16), slots=4)
    with StoreWriter(tmp_path / "store.zarr", kind="synth", durable=False) as writer:
        writer.write("0", [draft("gdn_decode", call)])
    options = TimingOptions(Mode(Cache.WARM, Form.PLAIN), seconds=0.2, busy=True)
    session = Session("cpu", options, lambda position: contextlib.nullcontext())
    honest, idle = f"{KERNELS}:honest", f"{KERNELS}:idle"
    with Store.open(tmp_path / "store.zarr") as store:
        record = store.records[0]
        assert session.judge(record, idle, lambda: None).outcome is Outcome.PASS  # its function is right
        timed = session.time(record, operation("gdn_decode"), [honest])
        assert len(timed.kernels[0].samples) > 0
        with pytest.raises(
            KernelFailed, match="the launch that it prepared fails where its function"
        ) as caught:
            session.time(record, operation("gdn_decode"), [honest, idle])
    assert caught.value.kernel == idle
    assert isinstance(caught.value.error, PreparedWrong)
