# SPDX-License-Identifier: Apache-2.0
"""The rows of the instructions that the engines execute, grouped by their properties; `forms` explains the
notation."""

from __future__ import annotations

from gdnbench.sim.ptx.forms import Access, Effect, Flow, Sync, Traits

TABLE: dict[Traits, str] = {
    Traits("integer arithmetic"): """
    add   .{u16,u32,u64,s16,s32,s64,u16x2,s16x2}  d, a, b
    add   .sat.s32  d, a, b
    add   .cc.{u32,s32,u64,s64}  d, a, b
    addc  {.cc}.{u32,s32,u64,s64}  d, a, b
    sub   .{u16,u32,u64,s16,s32,s64,u16x2,s16x2}  d, a, b
    sub   .sat.s32  d, a, b
    sub   .cc.{u32,s32,u64,s64}  d, a, b
    subc  {.cc}.{u32,s32,u64,s64}  d, a, b
    mul   .{hi,lo}.int  d, a, b
    mul   .wide.{u16,u32,s16,s32}  d, a, b
    mul24 .{hi,lo}.{u32,s32}  d, a, b
    mad   .{hi,lo}.int  d, a, b, c
    mad   .wide.{u16,u32,s16,s32}  d, a, b, c:double
    mad   .hi.sat.s32  d, a, b, c
    mad   .{hi,lo}.cc.{u32,s32,u64,s64}  d, a, b, c
    madc  .{hi,lo}{.cc}.{u32,s32,u64,s64}  d, a, b, c
    mad24 .{hi,lo}.{u32,s32}  d, a, b, c
    mad24 .hi.sat.s32  d, a, b, c
    sad   .int  d, a, b, c
    div   .int  d, a, b
    rem   .int  d, a, b
    abs   .signed  d, a
    neg   .signed  d, a
    min   .{u16,u32,u64,s16,s64,u16x2}  d, a, b
    min   {.relu}.{s16x2,s32}  d, a, b
    max   .{u16,u32,u64,s16,s64,u16x2}  d, a, b
    max   {.relu}.{s16x2,s32}  d, a, b
    popc  .{b32,b64}  d, a
    clz   .{b32,b64}  d, a
    bfind {.shiftamt}.{u32,u64,s32,s64}  d, a
    fns   .b32  d, mask, base, offset
    brev  .{b32,b64}  d, a
    bfe   .{u32,u64,s32,s64}  d, a, b:32, c:32
    bfi   .{b32,b64}  d, a, b, c:32, e:32
    szext .{clamp,wrap}.{u32,s32}  d, a, b
    bmsk  .{clamp,wrap}.b32  d, a, b
    dp4a  .{u32,s32}.{u32,s32}  d, a, b, c
    dp2a  .{lo,hi}.{u32,s32}.{u32,s32}  d, a, b, c
    vabsdiff2 .u32.u32.u32{.add}  d, a, b, c
    vabsdiff4 .u32.u32.u32{.add}  d, a, b, c
    """,
    Traits("float arithmetic"): """
    add   {.rnd}{.ftz}{.sat}.f32  d, a, b
    add   {.rnd}{.ftz}.f32x2  d, a, b
    add   {.rnd}.f64  d, a, b
    add   {.rn}{.ftz}{.sat}.{f16,f16x2}  d, a, b
    add   {.rn}.{bf16,bf16x2}  d, a, b
    add   {.rnd}{.ftz}{.sat}.f32.{f16,bf16}  d, a, b:first
    sub   {.rnd}{.ftz}{.sat}.f32  d, a, b
    sub   {.rnd}{.ftz}.f32x2  d, a, b
    sub   {.rnd}.f64  d, a, b
    sub   {.rn}{.ftz}{.sat}.{f16,f16x2}  d, a, b
    sub   {.rn}.{bf16,bf16x2}  d, a, b
    sub   {.rnd}{.ftz}{.sat}.f32.{f16,bf16}  d, a, b:first
    mul   {.rnd}{.ftz}{.sat}.f32  d, a, b
    mul   {.rnd}{.ftz}.f32x2  d, a, b
    mul   {.rnd}.f64  d, a, b
    mul   {.rn}{.ftz}{.sat}.{f16,f16x2}  d, a, b
    mul   {.rn}.{bf16,bf16x2}  d, a, b
    fma   {.rnd}{.ftz}{.sat}.f32  d, a, b, c
    fma   {.rnd}{.ftz}.f32x2  d, a, b, c
    fma   .rnd.f64  d, a, b, c
    fma   {.rn}{.ftz}{.sat,.relu}.{f16,f16x2}  d, a, b, c
    fma   {.rn}{.relu}.{bf16,bf16x2}  d, a, b, c
    fma   {.rnd}{.ftz}{.sat}.f32.{f16,bf16}  d, a, b, c:first
    mad   {.rnd}{.ftz}{.sat}.f32  d, a, b, c
    mad   .rnd.f64  d, a, b, c
    div   .{approx,full}{.ftz}.f32  d, a, b
    div   .rnd{.ftz}.f32  d, a, b
    div   .rnd.f64  d, a, b
    abs   {.ftz}.{f32,f32x2,f16,f16x2}  d, a
    abs   .{f64,bf16,bf16x2}  d, a
    neg   {.ftz}.{f32,f32x2,f16,f16x2}  d, a
    neg   .{f64,bf16,bf16x2}  d, a
    min   {.ftz}{.NaN}{.xorsign.abs}.f32  d, a, b
    min   {.ftz}{.NaN}{.abs}.f32  d, a, b, c
    min   .f64  d, a, b
    min   {.ftz}{.NaN}{.xorsign.abs}.{f16,f16x2}  d, a, b
    min   {.NaN}{.xorsign.abs}.{bf16,bf16x2}  d, a, b
    max   {.ftz}{.NaN}{.xorsign.abs}.f32  d, a, b
    max   {.ftz}{.NaN}{.abs}.f32  d, a, b, c
    max   .f64  d, a, b
    max   {.ftz}{.NaN}{.xorsign.abs}.{f16,f16x2}  d, a, b
    max   {.NaN}{.xorsign.abs}.{bf16,bf16x2}  d, a, b
    copysign .{f32,f64}  d, a, b
    testp .{finite,infinite,number,notanumber,normal,subnormal}.{f32,f64}  p, a
    """,
    Traits("special functions"): """
    rcp   .approx{.ftz}.f32  d, a
    rcp   .rnd{.ftz}.f32  d, a
    rcp   .rnd.f64  d, a
    rcp   .approx.ftz.f64  d, a
    sqrt  .approx{.ftz}.f32  d, a
    sqrt  .rnd{.ftz}.f32  d, a
    sqrt  .rnd.f64  d, a
    rsqrt .approx{.ftz}.f32  d, a
    rsqrt .approx.f64  d, a
    sin   .approx{.ftz}.f32  d, a
    cos   .approx{.ftz}.f32  d, a
    lg2   .approx{.ftz}.f32  d, a
    ex2   .approx{.ftz}.f32  d, a
    ex2   .approx.{f16,f16x2}  d, a
    ex2   .approx.ftz.{bf16,bf16x2}  d, a
    tanh  .approx.{f32,f16,f16x2,bf16,bf16x2}  d, a
    """,
    Traits("compare and select"): """
    setp  .{eq,ne}{.bool}.bits  p{|q}, a, b{.bool, c}
    setp  .cmp{.bool}.signed  p{|q}, a, b{.bool, c}
    setp  .ucmp{.bool}.unsigned  p{|q}, a, b{.bool, c}
    setp  .fcmp{.bool}{.ftz}.{f32,f16,f16x2}  p{|q}, a, b{.bool, c}
    setp  .fcmp{.bool}.{f64,bf16,bf16x2}  p{|q}, a, b{.bool, c}
    set   .{eq,ne}{.bool}.{u32,s32,f32,f16,bf16}.bits  d, a, b{.bool, c}
    set   .cmp{.bool}.{u32,s32,f32,f16,bf16}.signed  d, a, b{.bool, c}
    set   .ucmp{.bool}.{u32,s32,f32,f16,bf16}.unsigned  d, a, b{.bool, c}
    set   .fcmp{.bool}{.ftz}.{u32,s32,f32,f16}.f32  d, a, b{.bool, c}
    set   .fcmp{.bool}.bf16.f32  d, a, b{.bool, c}
    set   .fcmp{.bool}.{u32,s32,f32,f16,bf16}.f64  d, a, b{.bool, c}
    set   .fcmp{.bool}{.ftz}.{u16,s16,u32,s32,f16}.f16  d, a, b{.bool, c}
    set   .fcmp{.bool}.bf16.f16  d, a, b{.bool, c}
    set   .fcmp{.bool}.{u16,s16,u32,s32,bf16}.bf16  d, a, b{.bool, c}
    set   .fcmp{.bool}{.ftz}.{u32,s32,f16x2}.f16x2  d, a, b{.bool, c}
    set   .fcmp{.bool}.{u32,s32,bf16x2}.bf16x2  d, a, b{.bool, c}
    slct  .moved.s32  d, a:first, b:first, c
    slct  {.ftz}.moved.f32  d, a:first, b:first, c
    """,
    Traits("logic and shifts"): """
    and   .{pred,b16,b32,b64}  d, a, b
    or    .{pred,b16,b32,b64}  d, a, b
    xor   .{pred,b16,b32,b64}  d, a, b
    not   .{pred,b16,b32,b64}  d, a
    cnot  .bits  d, a
    lop3  .b32  d, a, b, c, immLut:32
    shf   .{l,r}.{clamp,wrap}.b32  d, a, b, c:32
    shl   .bits  d, a, b:32
    shr   .{b16,b32,b64,u16,u32,u64,s16,s32,s64}  d, a, b:32
    """,
    Traits("convert"): """
    cvt   {.sat}.small.small  d, a
    cvt   .irnd{.sat}.small.{f16,bf16,f64}  d, a
    cvt   .irnd{.ftz}{.sat}.small.f32  d, a
    cvt   .rnd{.sat}.{f16,f64}.small  d, a
    cvt   .rnd{.ftz}{.sat}.f32.small  d, a
    cvt   .rnd.bf16.small  d, a
    cvt   {.rnd,.irnd}{.ftz}{.sat}.f32.f32  d, a
    cvt   {.rnd,.irnd}{.sat}.f64.f64  d, a
    cvt   {.rnd,.irnd}{.sat,.relu}.f16.f16  d, a
    cvt   {.rnd,.irnd}{.relu}.bf16.bf16  d, a
    cvt   {.rnd}{.ftz}{.sat}.f32.{f16,bf16}  d, a
    cvt   .rnd{.ftz}{.sat}.f32.f64  d, a
    cvt   {.rnd}{.sat}.f64.{f16,bf16}  d, a
    cvt   {.rnd}{.ftz}{.sat}.f64.f32  d, a
    cvt   .rnd{.ftz}{.sat}.f16.f32  d, a
    cvt   .rnd{.ftz}.bf16.f32  d, a
    cvt   .{rn,rz}{.relu}{.satfinite}.{f16,bf16}.f32  d, a
    cvt   .rnd{.sat,.relu}.f16.f64  d, a
    cvt   {.rnd}{.sat,.relu}.f16.bf16  d, a
    cvt   .rnd{.relu}.bf16.{f16,f64}  d, a
    cvt   .{rn,rz}{.relu}{.satfinite}.{f16x2,bf16x2}.f32  d, a, b
    cvt   .rna{.satfinite}.tf32.f32  d, a
    cvt   .{rn,rz}{.relu}{.satfinite}.tf32.f32  d, a
    cvt   .rn{.relu}.satfinite.{e4m3x2,e5m2x2,e2m3x2,e3m2x2,e2m1x2}.f32  d, a, b
    cvt   .rn{.relu}.satfinite.{e4m3x2,e5m2x2,e2m3x2,e3m2x2,e2m1x2}.{f16x2,bf16x2}  d, a
    cvt   .rn{.relu}.f16x2.{e4m3x2,e5m2x2,e2m3x2,e3m2x2,e2m1x2}  d, a
    cvt   .{rz,rp}{.satfinite}.ue8m0x2.f32  d, a, b
    cvt   .{rz,rp}{.satfinite}.ue8m0x2.bf16x2  d, a
    cvt   .rn.bf16x2.ue8m0x2  d, a
    """,
    Traits("move and address", moves=(0,), whole=True): """
    mov   .{pred,b16,b32,b64,u16,u32,u64,s16,s32,s64,f32,f64}  d, a
    mov   .vec.moved  d, a
    """,
    Traits("compare and select", moves=(0, 1), whole=True): """
    selp  .moved  d, a, b, c:1
    """,
    Traits("logic and shifts", moves=(0, 1)): """
    prmt  {.f4e,.b4e,.rc8,.ecl,.ecr,.rc16}.b32  d, a, b, c
    """,
    Traits("move and address"): """
    cvta  {.to}.space.u64  d, a
    isspacep .space  p, a
    mapa  {.shared::cluster}.{u32,u64}  d, a, b:32
    getctarank  {.shared::cluster}.{u32,u64}  d, a
    """,
    Traits("load and store", access=Access.READ): """
    ld  {.sem}{.mmio}{.scope}{.space}{.ldcop}{.nc}{.unified}{.hint}*{.vec}.loaded \
        d, [a]{.level::cache_hint, cache-policy}
    ldu   {.global}{.vec}.loaded  d, [a]
    """,
    Traits("load and store", access=Access.WRITE): """
    st  {.sem}{.mmio}{.scope}{.space}{.stcop}{.unified}{.hint}*{.vec}.loaded \
        [a], b{.level::cache_hint, cache-policy}
    """,
    Traits("atomic", access=Access.UPDATE): """
    atom  {.sem}{.mmio}{.scope}{.aspace}.{add,min,max}{.level::cache_hint}{.vec}.{u32,s32,u64,s64} \
        d, [a], b{.level::cache_hint, cache-policy}
    atom  {.sem}{.mmio}{.scope}{.aspace}.{inc,dec}{.level::cache_hint}{.vec}.u32 \
        d, [a], b{.level::cache_hint, cache-policy}
    atom  {.sem}{.mmio}{.scope}{.aspace}.{and,or,xor,exch}{.level::cache_hint}{.vec}.{b32,b64} \
        d, [a], b{.level::cache_hint, cache-policy}
    atom  {.sem}{.mmio}{.scope}{.aspace}.cas{.level::cache_hint}{.vec}.bits \
        d, [a], b, c{.level::cache_hint, cache-policy}
    atom  {.sem}{.mmio}{.scope}{.aspace}.add{.level::cache_hint}{.vec}.{f32,f64} \
        d, [a], b{.level::cache_hint, cache-policy}
    atom  {.sem}{.mmio}{.scope}{.aspace}.{add,min,max}.noftz{.level::cache_hint}{.vec}.half \
        d, [a], b{.level::cache_hint, cache-policy}
    """,
    Traits("atomic", access=Access.REDUCE): """
    red  {.sem}{.mmio}{.scope}{.aspace}.{add,min,max}{.level::cache_hint}{.vec}.{u32,s32,u64,s64} \
        [a], b{.level::cache_hint, cache-policy}
    red  {.sem}{.mmio}{.scope}{.aspace}.{inc,dec}{.level::cache_hint}{.vec}.u32 \
        [a], b{.level::cache_hint, cache-policy}
    red  {.sem}{.mmio}{.scope}{.aspace}.{and,or,xor}{.level::cache_hint}{.vec}.{b32,b64} \
        [a], b{.level::cache_hint, cache-policy}
    red  {.sem}{.mmio}{.scope}{.aspace}.add{.level::cache_hint}{.vec}.{f32,f64} \
        [a], b{.level::cache_hint, cache-policy}
    red  {.sem}{.mmio}{.scope}{.aspace}.{add,min,max}.noftz{.level::cache_hint}{.vec}.half \
        [a], b{.level::cache_hint, cache-policy}
    """,
    Traits("matrix load and store", access=Access.READ): """
    ldmatrix .sync.aligned.m8n8.{x1,x2,x4}{.trans}{.shared,.shared::cta}.b16  r, [p]
    """,
    Traits("matrix load and store", access=Access.WRITE): """
    stmatrix .sync.aligned.m8n8.{x1,x2,x4}{.trans}{.shared,.shared::cta}.b16  [p], r
    """,
    Traits("matrix load and store", access=Access.READ, fragment=True): """
    wmma.load .{a,b}.sync.aligned.{row,col}.wshape{.wspace}.{f16,bf16,s8,u8}  r, [p]{, stride:32}
    wmma.load .c.sync.aligned.{row,col}.wshape{.wspace}.{f16,f32,s32}  r, [p]{, stride:32}
    wmma.load .{a,b}.sync.aligned.{row,col}.m16n16k8{.wspace}.tf32  r, [p]{, stride:32}
    wmma.load .c.sync.aligned.{row,col}.m16n16k8{.wspace}.f32  r, [p]{, stride:32}
    wmma.load .{a,b,c}.sync.aligned.{row,col}.m8n8k4{.wspace}.f64  r, [p]{, stride:32}
    """,
    Traits("matrix load and store", access=Access.WRITE, fragment=True): """
    wmma.store .d.sync.aligned.{row,col}.wshape{.wspace}.{f16,f32,s32}  [p], r{, stride:32}
    wmma.store .d.sync.aligned.{row,col}.m16n16k8{.wspace}.f32  [p], r{, stride:32}
    wmma.store .d.sync.aligned.{row,col}.m8n8k4{.wspace}.f64  [p], r{, stride:32}
    """,
    Traits("matrix load and store"): """
    movmatrix .sync.aligned.m8n8.trans.b16  d, a
    """,
    Traits("mma.sync"): """
    mma   .sync.aligned.{m16n8k8,m16n8k16}.row.col.f16.f16.f16.f16  d, a, b, c
    mma   .sync.aligned.{m16n8k8,m16n8k16}.row.col.f32.f16.f16.f32  d, a, b, c
    mma   .sync.aligned.{m16n8k8,m16n8k16}.row.col.f32.bf16.bf16.f32  d, a, b, c
    mma   .sync.aligned.{m16n8k4,m16n8k8}.row.col.f32.tf32.tf32.f32  d, a, b, c
    mma   .sync.aligned.{m16n8k16,m16n8k32}.row.col.f16.{e4m3,e5m2}.{e4m3,e5m2}.f16  d, a, b, c
    mma   .sync.aligned.{m16n8k16,m16n8k32}.row.col.f32.{e4m3,e5m2}.{e4m3,e5m2}.f32  d, a, b, c
    mma   .sync.aligned.{m8n8k16,m16n8k16,m16n8k32}.row.col{.satfinite}.s32.{u8,s8}.{u8,s8}.s32  d, a, b, c
    mma   .sync.aligned.{m8n8k4,m16n8k4,m16n8k8,m16n8k16}.row.col{.rnd}.f64.f64.f64.f64  d, a, b, c
    wmma.mma .sync.aligned.row.row.wshape.{f16,f32}.{f16,f32}  d, a, b, c
    wmma.mma .sync.aligned.row.col.wshape.{f16,f32}.{f16,f32}  d, a, b, c
    wmma.mma .sync.aligned.col.col.wshape.{f16,f32}.{f16,f32}  d, a, b, c
    wmma.mma .sync.aligned.row.row.wshape.f32.bf16.bf16.f32  d, a, b, c
    wmma.mma .sync.aligned.row.col.wshape.f32.bf16.bf16.f32  d, a, b, c
    wmma.mma .sync.aligned.col.col.wshape.f32.bf16.bf16.f32  d, a, b, c
    wmma.mma .sync.aligned.row.row.m16n16k8.f32.tf32.tf32.f32  d, a, b, c
    wmma.mma .sync.aligned.row.col.m16n16k8.f32.tf32.tf32.f32  d, a, b, c
    wmma.mma .sync.aligned.col.col.m16n16k8.f32.tf32.tf32.f32  d, a, b, c
    wmma.mma .sync.aligned.row.row.m8n8k4{.rnd}.f64.f64.f64.f64  d, a, b, c
    wmma.mma .sync.aligned.row.col.m8n8k4{.rnd}.f64.f64.f64.f64  d, a, b, c
    wmma.mma .sync.aligned.col.col.m8n8k4{.rnd}.f64.f64.f64.f64  d, a, b, c
    wmma.mma .sync.aligned.row.row.wshape{.satfinite}.s32.s8.s8.s32  d, a, b, c
    wmma.mma .sync.aligned.row.col.wshape{.satfinite}.s32.s8.s8.s32  d, a, b, c
    wmma.mma .sync.aligned.col.col.wshape{.satfinite}.s32.s8.s8.s32  d, a, b, c
    wmma.mma .sync.aligned.row.row.wshape{.satfinite}.s32.u8.u8.s32  d, a, b, c
    wmma.mma .sync.aligned.row.col.wshape{.satfinite}.s32.u8.u8.s32  d, a, b, c
    wmma.mma .sync.aligned.col.col.wshape{.satfinite}.s32.u8.u8.s32  d, a, b, c
    """,
    Traits("warp collective", lanes_meet=True): """
    vote  .sync.{all,any,uni}.pred  d, a, membermask:32
    vote  .sync.ballot.b32  d, a:1, membermask
    match .sync.any.{b32,b64}  d, a, membermask:32
    match .sync.all.{b32,b64}  d{|p}, a, membermask:32
    redux .sync.{add,min,max}.{u32,s32}  d, a, membermask
    redux .sync.{and,or,xor}.b32  d, a, membermask
    redux .sync.{min,max}{.abs}{.NaN}.f32  d, a, membermask
    elect .sync  d|p, membermask
    """,
    Traits("warp collective", lanes_meet=True, sync=Sync.WARP_BARRIER, effects=Effect.HAND_ON): """
    bar.warp.sync  membermask
    """,
    Traits("warp collective", lanes_meet=True, moves=(0,), whole=True): """
    shfl  .sync.{up,down,bfly,idx}.b32  d{|p}, a, b, c, membermask
    """,
    Traits("warp collective"): """
    activemask .b32  d
    """,
    Traits("control", flow=Flow.BRANCH): """
    bra   {.uni}  target
    brx.idx {.uni}  index:32, tlist
    call  {.uni}  target
    """,
    Traits("control", flow=Flow.EXIT): """
    ret   {.uni}
    exit
    """,
    Traits("control", flow=Flow.TRAP): """
    trap
    """,
    Traits("control"): """
    brkpt
    """,
    # No engine executes these. An instruction that also fits a row above belongs to that row.
    Traits("integer arithmetic", executed=False): """
    vabsdiff2  .{u32,s32}.{u32,s32}.{u32,s32}{.sat,.add}  d, a, b, c
    vabsdiff4  .{u32,s32}.{u32,s32}.{u32,s32}{.sat,.add}  d, a, b, c
    """,
    Traits("float arithmetic", executed=False): """
    fma  .rn.oob{.relu}.half  d, a, b, c
    """,
    Traits("special functions", executed=False): """
    rsqrt  .approx.ftz.f64  d, a
    """,
    Traits("logic and shifts", executed=False): """
    lop3  .{and,or}.b32  d|p, a, b, c, immLut:32, q
    """,
    Traits("convert", executed=False): """
    cvt  .rs{.relu}{.satfinite}.{f16x2,bf16x2}.f32  d, a, b, rbits
    cvt  .rs{.relu}.satfinite.{e4m3x4,e5m2x4,e2m3x4,e3m2x4,e2m1x4}.f32  d, a, rbits
    cvt.pack  .sat.{u16,s16}.s32  d, a, b
    """,
    Traits("atomic", access=Access.UPDATE, executed=False): """
    atom  {.sem}{.mmio}{.scope}{.aspace}.exch{.level::cache_hint}.b128 \
        d, [a], b{.level::cache_hint, cache-policy}
    atom  {.sem}{.mmio}{.scope}{.aspace}.cas{.level::cache_hint}.b128 \
        d, [a], b, c{.level::cache_hint, cache-policy}
    """,
    Traits("matrix load and store", access=Access.READ, executed=False): """
    ldmatrix  .sync.aligned.m16n16.{x1,x2}.trans{.shared,.shared::cta}.b8  r, [p]
    """,
    Traits("matrix load and store", access=Access.WRITE, executed=False): """
    stmatrix  .sync.aligned.m16n8.{x1,x2,x4}.trans{.shared,.shared::cta}.b8  [p], r
    """,
    Traits("mma.sync", executed=False): """
    mma  .sync.aligned.{m16n8k8,m16n8k16}.row.col.{f16,f32}.f16.f16.{f16,f32}  d, a, b, c
    mma  .sync.aligned.m8n8k4{.row}{.col}.{f16,f32}.f16.f16.{f16,f32}  d, a, b, c
    mma  .sync.aligned.{m16n8k16,m16n8k32}.row.col.{f16,f32}.f8f6f4.f8f6f4.{f16,f32}  d, a, b, c
    """,
}
