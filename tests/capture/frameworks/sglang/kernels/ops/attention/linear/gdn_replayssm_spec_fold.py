# SPDX-License-Identifier: Apache-2.0
"""Accepted drafts of a ring into states. What it computes does not matter."""


def commit_gdn_replayssm_fold_all_layers(states):
    states += 1


def commit_gdn_replayssm_fold_after_verify(states):
    commit_gdn_replayssm_fold_all_layers(states)
