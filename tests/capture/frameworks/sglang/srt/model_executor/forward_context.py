# SPDX-License-Identifier: Apache-2.0
"""Which backend the running step has, as layers ask for it."""

from contextlib import contextmanager

_current = None


def has_forward_context():
    return _current is not None


def get_attn_backend():
    assert _current is not None
    return _current


@contextmanager
def forward_context(attn_backend):
    global _current
    _current = attn_backend
    try:
        yield
    finally:
        _current = None
