# SPDX-License-Identifier: Apache-2.0
"""The runner of models, whose model is what the batch of a test says."""


class ModelRunner:
    def __init__(self, is_draft_worker=False, **more):
        self.is_draft_worker = is_draft_worker
        for name, value in more.items():
            setattr(self, name, value)

    def forward(
        self,
        forward_batch,
        skip_attn_backend_init=None,
        pp_proxy_tensors=None,
        reinit_attn_backend=False,
        split_forward_count=1,
    ):
        return forward_batch.model(forward_batch)
