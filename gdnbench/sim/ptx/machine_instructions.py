# SPDX-License-Identifier: Apache-2.0
"""The rows of the instructions that the machine executes, grouped by their properties; `forms` explains the
notation. If the machine has no handler for an opcode, it refuses the instruction by name when a warp executes
it."""

from __future__ import annotations

from gdnbench.sim.ptx.forms import OTHER, Access, Effect, Owner, Sync, Traits, Until

MACHINE = Owner.MACHINE
_ASYNC = Effect.FILL | Effect.DRAIN | Effect.PRODUCT
_TMEM = Effect.TMEM_READ | Effect.TMEM_WRITE
_SHARED_WRITES = Effect.WRITE_SHARED | Effect.FILL
_GLOBAL = Effect.READ_GLOBAL | Effect.WRITE_GLOBAL
_COPIES = _SHARED_WRITES | Effect.READ_SHARED | _ASYNC | Effect.WRITE_GLOBAL | Effect.HAND_ON

TABLE: dict[Traits, str] = {
    # Functions of the CUDA driver; the parser makes the opcode from the function's name (`functions`).
    Traits("driver call", MACHINE): """
    call.vprintf       {.uni}  [format], [arguments]{, [result]}
    call.__assertfail  {.uni}  [message], [file], [line], [function], [charsize]
    """,
    # Barriers of threads; `bar` is `barrier.aligned` (9.7.13.1).
    Traits("CTA barrier", MACHINE, sync=Sync.BARRIER_WAIT, effects=Effect.HAND_ON, aligned=True): """
    bar.sync         a{, b}
    bar.cta.sync     a{, b}
    """,
    Traits("CTA barrier", MACHINE, sync=Sync.BARRIER_WAIT, effects=Effect.HAND_ON): """
    barrier.sync      {.aligned}  a{, b}
    barrier.cta.sync  {.aligned}  a{, b}
    """,
    Traits("CTA barrier", MACHINE, sync=Sync.BARRIER_ARRIVE, effects=Effect.HAND_ON, aligned=True): """
    bar.arrive       a, b
    bar.cta.arrive   a, b
    """,
    Traits("CTA barrier", MACHINE, sync=Sync.BARRIER_ARRIVE, effects=Effect.HAND_ON): """
    barrier.arrive      {.aligned}  a, b
    barrier.cta.arrive  {.aligned}  a, b
    """,
    Traits("CTA barrier", MACHINE, sync=Sync.BARRIER_REDUCE, effects=Effect.HAND_ON, aligned=True): """
    bar.red      .popc.u32  d, a{, b}, c
    bar.red      .{and,or}.pred  p, a{, b}, c
    bar.cta.red  .popc.u32  d, a{, b}, c
    bar.cta.red  .{and,or}.pred  p, a{, b}, c
    """,
    Traits("CTA barrier", MACHINE, sync=Sync.BARRIER_REDUCE, effects=Effect.HAND_ON): """
    barrier.red      .popc{.aligned}.u32  d, a{, b}, c
    barrier.red      .{and,or}{.aligned}.pred  p, a{, b}, c
    barrier.cta.red  .popc{.aligned}.u32  d, a{, b}, c
    barrier.cta.red  .{and,or}{.aligned}.pred  p, a{, b}, c
    """,
    Traits("CTA barrier", MACHINE, sync=Sync.CLUSTER_ARRIVE, effects=Effect.HAND_ON): """
    barrier.cluster.arrive  {.release,.relaxed}{.aligned}
    """,
    Traits("CTA barrier", MACHINE, sync=Sync.CLUSTER_WAIT): """
    barrier.cluster.wait  {.acquire}{.aligned}
    """,
    Traits("fence", MACHINE, sync=Sync.FENCE, effects=Effect.HAND_ON): """
    membar  .{cta,gl,sys}
    fence   {.sc,.acq_rel,.acquire,.release}.scope
    fence   .acquire.sync_restrict::shared::cluster.cluster
    fence   .release.sync_restrict::shared::cta.cluster
    """,
    Traits("fence", MACHINE, sync=Sync.FENCE, orders=_ASYNC | Effect.HAND_ON): """
    fence.proxy.async   {.global,.shared::cta,.shared::cluster}
    fence.proxy.async::generic  .acquire.sync_restrict::shared::cluster.cluster
    fence.proxy.async::generic  .release.sync_restrict::shared::cta.cluster
    fence.proxy.tensormap::generic  .release.scope
    fence.proxy.tensormap::generic  .acquire.scope  [a], size
    """,
    Traits("fence", MACHINE, sync=Sync.FENCE, orders=Effect.SIGNAL | Effect.HAND_ON): """
    fence.mbarrier_init .release.cluster
    """,
    Traits("fence", MACHINE, sync=Sync.FENCE): """
    membar.proxy        .{alias,async}
    fence.proxy.alias
    """,
    Traits("mbarrier", MACHINE, sync=Sync.INIT, effects=Effect.WRITE_SHARED): """
    mbarrier.init   {.sspace}.b64  [a], count
    """,
    Traits("mbarrier", MACHINE, sync=Sync.INVALIDATE, effects=Effect.WRITE_SHARED): """
    mbarrier.inval  {.sspace}.b64  [a]
    """,
    Traits("mbarrier", MACHINE, sync=Sync.ARRIVE, effects=Effect.HAND_ON): """
    mbarrier.arrive       {.noComplete}{.release,.relaxed}{.scope}{.sspace}.b64  {d,} [a]{, count}
    mbarrier.arrive_drop  {.noComplete}{.release,.relaxed}{.scope}{.sspace}.b64  {d,} [a]{, count}
    """,
    Traits("mbarrier", MACHINE, sync=Sync.ARRIVE_EXPECT, effects=Effect.HAND_ON): """
    mbarrier.arrive.expect_tx  {.release,.relaxed}{.scope}{.sspace}.b64  {d,} [a], txCount
    mbarrier.arrive_drop.expect_tx  {.release,.relaxed}{.scope}{.sspace}.b64  {d,} [a], txCount
    """,
    Traits("mbarrier", MACHINE, sync=Sync.EXPECT, effects=Effect.WRITE_SHARED): """
    mbarrier.expect_tx    {.relaxed}{.scope}{.sspace}.b64  [a], txCount
    """,
    Traits("mbarrier", MACHINE, sync=Sync.COMPLETE, effects=Effect.WRITE_SHARED): """
    mbarrier.complete_tx  {.relaxed}{.scope}{.sspace}.b64  [a], txCount
    """,
    Traits("mbarrier", MACHINE, sync=Sync.POLL): """
    mbarrier.test_wait  {.parity}{.acquire,.relaxed}{.scope}{.sspace}.b64  p, [a], phase
    mbarrier.try_wait  {.parity}{.acquire,.relaxed}{.scope}{.sspace}.b64  p, [a], phase{, suspendTimeHint}
    """,
    Traits("mbarrier", MACHINE): """
    mbarrier.pending_count  .b64  d, state
    """,
    Traits("cp.async", MACHINE, effects=Effect.READ_GLOBAL | Effect.WRITE_SHARED, until=Until.COPY_GROUP): """
    cp.async  .{ca,cg}{.shared,.shared::cta}{.global}{.level::cache_hint}{.L2::64B,.L2::128B,.L2::256B} \
        [dst], [src], cp-size{, src-size}{.level::cache_hint, cache-policy}
    """,
    Traits(
        "cp.async",
        MACHINE,
        sync=Sync.COMMIT,
        effects=Effect.SIGNAL,
        commits=Until.COPY_GROUP,
        until=Until.MBARRIER,
    ): """
    cp.async.mbarrier.arrive  {.noinc}{.sspace}.b64  [a]
    """,
    Traits("cp.async", MACHINE, sync=Sync.COMMIT, commits=Until.COPY_GROUP): """
    cp.async.commit_group
    """,
    Traits("bulk copy", MACHINE, sync=Sync.COMMIT, commits=Until.BULK_GROUP): """
    cp.async.bulk.commit_group
    """,
    Traits("cp.async", MACHINE, sync=Sync.WAIT, ends=Until.COPY_GROUP, orders=_COPIES): """
    cp.async.wait_all
    """,
    Traits("cp.async", MACHINE, sync=Sync.WAIT_GROUP, ends=Until.COPY_GROUP, orders=_COPIES): """
    cp.async.wait_group  n
    """,
    Traits(
        "bulk copy",
        MACHINE,
        sync=Sync.WAIT_GROUP,
        ends=Until.BULK_GROUP,
        orders=_SHARED_WRITES | _GLOBAL | Effect.DRAIN | Effect.HAND_ON,
    ): """
    cp.async.bulk.wait_group  n
    """,
    Traits(
        "bulk copy",
        MACHINE,
        sync=Sync.WAIT_GROUP,
        ends=Until.BULK_GROUP,
        orders=_SHARED_WRITES | Effect.HAND_ON,
    ): """
    cp.async.bulk.wait_group  .read  n
    """,
    Traits("bulk copy", MACHINE, bulk=True): """
    cp.async.bulk  .dst.global.completion_mechanism{.multicast}{.level::cache_hint} \
        [dst], [src], size, [mbar]{.multicast, ctaMask}{.level::cache_hint, cache-policy}
    cp.async.bulk  .dst.global.completion_mechanism.ignore_oob{.level::cache_hint} \
        [dst], [src], size, left, right, [mbar]{.level::cache_hint, cache-policy}
    cp.async.bulk  .shared::cluster.shared::cta.completion_mechanism  [dst], [src], size, [mbar]
    cp.async.bulk  .global.shared::cta.bulk_group{.level::cache_hint}{.cp_mask} \
        [dst], [src], size{.level::cache_hint, cache-policy}{.cp_mask, byteMask}
    """,
    Traits("bulk copy", MACHINE, bulk=True, reduces=True): """
    cp.reduce.async.bulk \
        .shared::cluster.shared::cta.completion_mechanism.{add,inc,dec,min,max}.{s32,u32,s64,u64} \
        [dst], [src], size, [mbar]
    cp.reduce.async.bulk  .shared::cluster.shared::cta.completion_mechanism.{and,or,xor}.b32 \
        [dst], [src], size, [mbar]
    cp.reduce.async.bulk  .global.shared::cta.bulk_group{.level::cache_hint}.op.reduced \
        [dst], [src], size{.level::cache_hint, cache-policy}
    cp.reduce.async.bulk  .global.shared::cta.bulk_group{.level::cache_hint}.add.noftz.{f16,bf16} \
        [dst], [src], size{.level::cache_hint, cache-policy}
    """,
    Traits("TMA", MACHINE, bulk=True): """
    cp.async.bulk.tensor \
        .dim.dst.global{.tilemode}.completion_mechanism{.multicast}{.cta_group}{.level::cache_hint} \
        [dst], [map, coordinates], [mbar]{.multicast, ctaMask}{.level::cache_hint, cache-policy}
    cp.async.bulk.tensor \
        .dim.dst.global.im2colmode.completion_mechanism{.multicast}{.cta_group}{.level::cache_hint} \
        [dst], [map, coordinates], [mbar]{, im2colInfo}{.multicast, ctaMask}{.level::cache_hint, cache-policy}
    cp.async.bulk.tensor  .dim.global.shared::cta{.storemode}.bulk_group{.level::cache_hint} \
        [map, coordinates], [src]{.level::cache_hint, cache-policy}
    """,
    Traits("TMA", MACHINE, bulk=True, reduces=True): """
    cp.reduce.async.bulk.tensor  .dim.global.shared::cta.op{.reducemode}.bulk_group{.level::cache_hint} \
        [map, coordinates], [src]{.level::cache_hint, cache-policy}
    """,
    Traits("bulk copy", MACHINE): """
    cp.async.bulk.prefetch  .L2.global{.level::cache_hint}  [src], size{.level::cache_hint, cache-policy}
    cp.async.bulk.prefetch.tensor  .dim.L2.global{.loadmode}{.level::cache_hint} \
        [map, coordinates]{, im2colInfo}{.level::cache_hint, cache-policy}
    """,
    Traits("bulk copy", MACHINE, effects=Effect.FILL | Effect.SIGNAL, until=Until.MBARRIER): """
    st.async  {.weak}{.shared::cluster}.completion_mechanism{.vec}.asynctype  [a], b, [mbar]
    st.async   {.mmio}.release.{gpu,sys}{.global}.loaded  [a], b
    red.async  {.relaxed}{.cluster}.op{.shared::cluster}.completion_mechanism.redtype  [a], b, [mbar]
    """,
    Traits(OTHER, MACHINE): """
    prefetch   {.global,.local}.{L1,L2}  [a]
    prefetch   .global.{L2::evict_last,L2::evict_normal}  [a]
    prefetch   {.const,.param}.tensormap  [a]
    prefetchu  .L1  [a]
    applypriority  {.global}.L2::evict_normal  [a], size
    griddepcontrol.wait
    griddepcontrol.launch_dependents
    setmaxnreg.inc  .sync.aligned.u32  imm-reg-count
    setmaxnreg.dec  .sync.aligned.u32  imm-reg-count
    nanosleep  .u32  t
    createpolicy.fractional  .policy{.L2::evict_first,.L2::evict_unchanged}.b64  d{, fraction}
    clusterlaunchcontrol.query_cancel  .is_canceled.pred.b128  p, try_cancel_response
    clusterlaunchcontrol.query_cancel  .get_first_ctaid{.v4}.b32.b128  d, try_cancel_response
    clusterlaunchcontrol.query_cancel  .first_ctaid.b32.b128  d, try_cancel_response
    """,
    Traits(OTHER, MACHINE, effects=Effect.WRITE_GLOBAL): """
    discard  {.global}.L2  [a], size
    """,
    Traits(OTHER, MACHINE, effects=Effect.WRITE_SHARED | Effect.WRITE_GLOBAL): """
    tensormap.replace  .tile.field{.global,.shared::cta}.b1024.{b32,b64}  [a], new_val
    tensormap.replace  .tile.ordfield{.global,.shared::cta}.b1024.{b32,b64}  [a], ord, new_val
    """,
    Traits(OTHER, MACHINE, effects=Effect.READ_SHARED | Effect.WRITE_GLOBAL | Effect.HAND_ON): """
    tensormap.cp_fenceproxy  .global.shared::cta.tensormap::generic.release.scope.sync.aligned \
        [dst], [src], size
    """,
    Traits("tcgen05, other", MACHINE, effects=Effect.WRITE_SHARED): """
    tcgen05.alloc    .cta_group.sync.aligned{.shared::cta}.b32  [dst], nCols
    """,
    Traits("tcgen05, other", MACHINE, effects=Effect.TMEM_WRITE): """
    tcgen05.dealloc  .cta_group.sync.aligned.b32  taddr, nCols
    """,
    Traits("tcgen05, other", MACHINE): """
    tcgen05.relinquish_alloc_permit  .cta_group.sync.aligned
    """,
    Traits("TMEM load and store", MACHINE, effects=Effect.TMEM_READ, until=Until.TENSOR_LOAD): """
    tcgen05.ld      .sync.aligned.tshape.num{.pack::16b}.b32  r, [taddr]{.16x32bx2, immHalfSplitoff}
    tcgen05.ld.red  .sync.aligned.{32x32b,16x32bx2}.rednum.{min,max}{.abs}{.NaN}.f32 \
        r, d, [taddr]{.16x32bx2, immHalfSplitoff}
    tcgen05.ld.red  .sync.aligned.{32x32b,16x32bx2}.rednum.{min,max}.{u32,s32} \
        r, d, [taddr]{.16x32bx2, immHalfSplitoff}
    """,
    Traits("TMEM load and store", MACHINE, effects=Effect.TMEM_WRITE, until=Until.TENSOR_STORE): """
    tcgen05.st  .sync.aligned.tshape.num{.unpack::16b}.b32  [taddr]{.16x32bx2, immHalfSplitoff}, b
    """,
    Traits(
        "tcgen05, other",
        MACHINE,
        sync=Sync.WAIT,
        ends=Until.TENSOR_STORE,
        orders=_TMEM | Effect.SIGNAL | Effect.HAND_ON,
    ): """
    tcgen05.wait::st  .sync.aligned
    """,
    Traits(
        "tcgen05, other",
        MACHINE,
        sync=Sync.WAIT,
        ends=Until.TENSOR_LOAD,
        orders=Effect.TMEM_WRITE | Effect.HAND_ON,
    ): """
    tcgen05.wait::ld  .sync.aligned
    """,
    Traits(
        "tcgen05, other", MACHINE, effects=Effect.TMEM_WRITE | Effect.PRODUCT, until=Until.TENSOR_COMMIT
    ): """
    tcgen05.cp  .cta_group.{128x256b,4x256b,128x128b}{.b8x16.srcfmt}  [taddr], s-desc
    tcgen05.cp  .cta_group.64x128b.{warpx2::02_13,warpx2::01_23}{.b8x16.srcfmt}  [taddr], s-desc
    tcgen05.cp  .cta_group.32x128b.warpx4{.b8x16.srcfmt}  [taddr], s-desc
    """,
    Traits("tcgen05, other", MACHINE, effects=Effect.TMEM_WRITE, until=Until.TENSOR_COMMIT): """
    tcgen05.shift  .cta_group.down  [taddr]
    """,
    Traits("tcgen05.mma", MACHINE, effects=Effect.PRODUCT | _TMEM, until=Until.TENSOR_COMMIT): """
    tcgen05.mma  .cta_group.kind{.collector} \
        [d-tmem], a-desc, b-desc, idesc{, disable-output-lane}, enable-input-d{, scale-input-d}
    tcgen05.mma  .cta_group.kind{.ashift}{.collector} \
        [d-tmem], [a-tmem], b-desc, idesc{, disable-output-lane}, enable-input-d{, scale-input-d}
    tcgen05.mma  .cta_group.mxkind.block_scale{.scale}{.collector} \
        [d-tmem], a-desc, b-desc, idesc, [scale-A], [scale-B], enable-input-d
    tcgen05.mma  .cta_group.mxkind.block_scale{.scale}{.collector} \
        [d-tmem], [a-tmem], b-desc, idesc, [scale-A], [scale-B], enable-input-d
    tcgen05.mma.ws  .cta_group::1.kind{.bcollector} \
        [d-tmem], a-desc, b-desc, idesc, enable-input-d{, zero-column-mask-desc}
    tcgen05.mma.ws  .cta_group::1.kind{.bcollector} \
        [d-tmem], [a-tmem], b-desc, idesc, enable-input-d{, zero-column-mask-desc}
    tcgen05.mma.sp  .cta_group.{kind,mxkind}{.block_scale} \
        [d-tmem], a-desc, b-desc, [sp-meta], idesc{, b5}{, b6}, enable-input-d{, scale-input-d}
    tcgen05.mma.sp  .cta_group.{kind,mxkind}{.block_scale} \
        [d-tmem], [a-tmem], b-desc, [sp-meta], idesc{, b5}{, b6}, enable-input-d{, scale-input-d}
    """,
    Traits(
        "tcgen05, other",
        MACHINE,
        sync=Sync.COMMIT,
        effects=Effect.SIGNAL,
        commits=Until.TENSOR_COMMIT,
        until=Until.MBARRIER,
    ): """
    tcgen05.commit  .cta_group.mbarrier::arrive::one{.shared::cluster}{.multicast}.b64 \
        [mbar]{.multicast, ctaMask}
    """,
    Traits("tcgen05, other", MACHINE, sync=Sync.FENCE, orders=_TMEM): """
    tcgen05.fence::after_thread_sync
    """,
    Traits("tcgen05, other", MACHINE, sync=Sync.FENCE, orders=Effect.HAND_ON): """
    tcgen05.fence::before_thread_sync
    """,
    Traits("wgmma.mma_async", MACHINE, effects=Effect.PRODUCT, until=Until.WGMMA_GROUP): """
    wgmma.mma_async  .sync.aligned.wgmma.{f16,f32}.float.float \
        d, a, b-desc, scale-d, imm-scale-a, imm-scale-b{, imm-trans-a}{, imm-trans-b}
    wgmma.mma_async  .sync.aligned.wgmma{.satfinite}.s32.{u8,s8}.{u8,s8}  d, a, b-desc, scale-d
    wgmma.mma_async  .sync.aligned.wgmma.and.popc.s32.b1.b1  d, a, b-desc, scale-d
    """,
    Traits("wgmma, other", MACHINE, sync=Sync.FENCE, orders=Effect.PRODUCT): """
    wgmma.fence  .sync.aligned
    """,
    Traits("wgmma, other", MACHINE, sync=Sync.COMMIT, commits=Until.WGMMA_GROUP): """
    wgmma.commit_group  .sync.aligned
    """,
    Traits(
        "wgmma, other",
        MACHINE,
        sync=Sync.WAIT_GROUP,
        ends=Until.WGMMA_GROUP,
        orders=_SHARED_WRITES | Effect.HAND_ON,
    ): """
    wgmma.wait_group  .sync.aligned  n
    """,
    Traits("wgmma.mma_async", MACHINE): """
    wgmma.mma_async.sp  .sync.aligned.sparse{.satfinite}.{f16,f32,s32}.factor.factor \
        d, a, b-desc, sp-meta, sp-sel, scale-d{, i}{, j}{, k}{, l}
    """,
    Traits(OTHER, MACHINE, effects=Effect.FILL | Effect.SIGNAL, until=Until.MBARRIER): """
    clusterlaunchcontrol.try_cancel \
        .async{.shared::cta}.completion_mechanism{.multicast::cluster::all}.b128 \
        [a], [mbar]
    """,
    Traits(OTHER, MACHINE, access=Access.UPDATE): """
    multimem.ld_reduce  {.sem}{.scope}{.global}.op{.vec}.multi  d, [a]
    """,
    Traits(OTHER, MACHINE, access=Access.WRITE): """
    multimem.st   {.sem}{.scope}{.global}{.vec}.multi  [a], b
    multimem.red  {.sem}{.scope}{.global}.op{.vec}.multi  [a], b
    """,
}
