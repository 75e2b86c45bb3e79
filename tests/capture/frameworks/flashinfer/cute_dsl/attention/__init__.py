# SPDX-License-Identifier: Apache-2.0
from .wrappers.batch_hca import cute_dsl_hca_decode as cute_dsl_hca_decode
