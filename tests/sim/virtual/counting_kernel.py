# SPDX-License-Identifier: Apache-2.0
"""A kernel in PTX for tests of the driver's interfaces."""

# x[i] += a for i < n; counts the threads that did so.
PTX = rb"""
.version 8.8
.target sm_100a
.address_size 64
.global .align 4 .u32 counter = 5;
.visible .entry add(.param .u64 x, .param .f32 a, .param .u32 n)
{
  .reg .pred %p;
  .reg .b32 %r<6>;
  .reg .f32 %f<3>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [x];
  ld.param.f32 %f1, [a];
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %p, %r5, %r1;
  @%p bra done;
  mul.wide.u32 %rd2, %r5, 4;
  add.s64 %rd3, %rd1, %rd2;
  ld.global.f32 %f2, [%rd3];
  add.f32 %f2, %f2, %f1;
  st.global.f32 [%rd3], %f2;
  atom.global.add.u32 %r0, [counter], 1;
done:
  ret;
}
"""
