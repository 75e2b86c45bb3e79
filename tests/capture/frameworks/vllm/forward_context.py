# SPDX-License-Identifier: Apache-2.0
"""What the running step is, as layers ask for it."""

from contextlib import contextmanager
from types import SimpleNamespace

_running = SimpleNamespace(attn_metadata=None)


def get_forward_context():
    return _running


@contextmanager
def set_forward_context(attn_metadata):
    _running.attn_metadata = attn_metadata
    try:
        yield
    finally:
        _running.attn_metadata = None
