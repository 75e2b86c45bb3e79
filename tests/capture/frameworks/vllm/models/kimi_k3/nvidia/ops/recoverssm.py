# SPDX-License-Identifier: Apache-2.0
from kda_pool import over_pool


def kda_recoverssm_verify(
    q,
    k,
    v,
    raw_g,
    raw_beta,
    A_log,
    dt_bias,
    lower_bound,
    checkpoint_state,
    records,
    query_start_loc,
    state_indices,
    spec_query_len,
    out=None,
):
    return over_pool(
        q,
        k,
        v,
        raw_g,
        raw_beta,
        checkpoint_state,
        query_start_loc,
        state_indices,
        gates=(A_log, dt_bias, lower_bound),
        null=0,
        update=False,
    )
