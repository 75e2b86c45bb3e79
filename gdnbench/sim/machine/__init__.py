# SPDX-License-Identifier: Apache-2.0
"""The machine: everything of an SM except registers, that is memories, barriers, copy engines, tensor cores
and the scheduler. By subject:

    interface to engines   engine_interface.py, operands.py; units.py maps each instruction to its module
    a launch               grid.py, cluster.py, cta.py, cta_pair.py, scheduler.py, processes.py (forked)
    limits of a launch     budget.py (threads, registers, shared memory), bounds.py (instructions, seconds)
    launch control         launch_control.py (try_cancel, query_cancel), launch_grants.py (who gets which)
    memories               memory.py (global, local, parameters), shared_memory.py, tmem.py
    asynchronous work      async_queue.py (operations in flight, schedules), footprint.py (bytes they access)
    barriers, fences       barriers.py and barrier_state.py (bar, barrier.cluster), mbarrier.py, fences.py
    cp.async               copies.py, copy_state.py
    bulk copies, st.async  bulk.py, bulk_groups.py, reduce.py
    TMA                    tma.py, tensormap.py, tensormap_edit.py, tensor_elements.py (4 and 6 bits, tf32)
    tcgen05                tcgen05.py (commit, fences), tcgen05_allocation.py, tcgen05_issue.py (checks)
      ld, st               tcgen05_access.py, tcgen05_fragment.py
      cp                   tcgen05_copy.py, tcgen05_elements.py (decompression)
      mma                  tcgen05_mma.py, tcgen05_plan.py (where matrices are), tcgen05_operand.py (in
                           shared memory), tcgen05_descriptor.py, tcgen05_zero_columns.py (.ws)
      mma.block_scale      tcgen05_scaled.py, tcgen05_scaled_descriptor.py, tcgen05_scale_vector.py
    wgmma                  wgmma.py, wgmma_form.py, wgmma_fragment.py, wgmma_state.py
    observers              observer.py (checker), recorder.py, counters.py (profile), keep_going.py (faults)
    calls of kernels       driver_calls.py (printf, assert)
"""
