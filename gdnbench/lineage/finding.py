# SPDX-License-Identifier: Apache-2.0
"""What a check of accesses finds: a break of a chain, or why nothing can be known."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gdnbench.lineage.table import Access


class Break(StrEnum):
    """How a chain breaks; docs/lineage.md has an example of each."""

    NEVER_WRITTEN = "never-written"
    OVERWRITTEN = "overwritten"
    OLDER_VERSION = "older-version"
    WRITTEN_TWICE = "written-twice"
    POSITION_GAP = "position-gap"
    POSITION_OVERLAP = "position-overlap"
    ACCEPTED_COUNT = "accepted-count"
    REJECTED_DRAFT = "rejected-draft"
    PADDING = "padding"
    WRONG_PREFIX = "wrong-prefix"
    SHARED_SLOT = "shared-slot"
    STALE_PAGE = "stale-page"
    UNEXPLAINED = "unexplained"


class Unknown(StrEnum):
    """Why a read is neither right nor wrong."""

    NO_REQUEST = "no request is claimed"
    NO_POSITION = "no position is claimed"
    NO_DIGEST = "no comparable digest is recorded"
    CALLS_MISSING = "calls are missing between the write and the read"
    FIRST_SEEN = "no record has the write"
    FROM_ELSEWHERE = "the request may have resumed from a state that no record wrote"
    NO_PREFIX = "perhaps a prefix hit, and prefix hashes are missing"
    NO_CLAIMS = "the write is of a call without claims"
    SEVERAL_SEQUENCES = "several sequences of one call have this request"
    SAME_NAME = "several layers have this name"
    COMMON_CONTENT = "states at several positions have this content"
    NOT_CLASSIFIED = "past the first breaks of its chain"


@dataclass(frozen=True, slots=True)
class Finding:
    """A break. `damage`: the access that did it, `found`: the access that shows it, which may be the same.
    `own`: the write whose content the reader should have found, `source`: the one whose content it found."""

    kind: Break
    layer: str
    chain: str
    damage: Access
    found: Access
    own: Access | None = None
    source: Access | None = None
