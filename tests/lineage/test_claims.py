# SPDX-License-Identifier: Apache-2.0
"""StoredClaims of a record, which a store may hold in any shape."""

from __future__ import annotations

from typing import Any

import pytest

from gdnbench.errors import StoreError
from gdnbench.lineage.claims import StoredClaims, claims_of
from tests.messages import wording


def test_claims_are_read() -> None:
    said = {
        "requests": ["a", None, 7],
        "positions": [3, None, 0],
        "padding": [1],
        "prefixes": ["00000000000000ff", None, None],
        "slots": [4, 0, 9],
    }
    expected = StoredClaims(("a", None, "7"), (3, -1, 0), frozenset({1}), (255, 0, 0), (4, 0, 9))
    assert claims_of({"lineage": said}, "record k/0") == expected
    assert claims_of({}, "record k/0") == StoredClaims()


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ([], wording("lineage.claims-no-object")),
        ({"requests": "abc"}, wording("lineage.claim-no-list")),
        ({"requests": [1.5]}, wording("lineage.claim-requests")),
        ({"requests": [True]}, wording("lineage.claim-requests")),
        ({"positions": [1 << 40]}, wording("lineage.claim-number")),
        ({"positions": [True]}, wording("lineage.claim-number")),
        ({"slots": ["\x1b[2J"]}, wording("lineage.claim-number")),
        ({"prefixes": ["xyz"]}, wording("lineage.claim-prefixes")),
    ],
)
def test_other_claims_are_refused(said: Any, sentence: str) -> None:
    with pytest.raises(StoreError, match=sentence):
        claims_of({"lineage": said}, "record k/0")
