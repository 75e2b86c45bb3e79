# SPDX-License-Identifier: Apache-2.0
from sglang.kernels.ops.attention.fla.pool import over_pool, over_pool_raw


class CuteDSLGDNKernel:
    def decode(self, q, k, v, a, b, *, A_log, dt_bias, ssm_states, cache_indices, query_start_loc, **kwargs):
        rows = (q, k, v, a, b, A_log, dt_bias, None)
        return over_pool_raw(*rows, ssm_states, query_start_loc, cache_indices, normalise=True)

    def extend(self, q, k, v, g, beta, *, ssm_states, cache_indices, query_start_loc, **kwargs):
        rows = (q, k, v, g[0], beta[0], None)
        return over_pool(*rows, ssm_states, query_start_loc, cache_indices, normalise=True), None, None
