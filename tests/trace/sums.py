# SPDX-License-Identifier: Apache-2.0
"""A kernel of a few lines of PTX, whose values anybody can tell, and the Python that it may be of."""

# Adds x[lane] to a sum, `rounds` times, the step i of it being i * x, and stores the sum. Lines are those of
# SOURCE.
PTX = """.version 8.7
.target sm_100a
.address_size 64
.file 1 "@FILE@"
.visible .entry sums(.param .u64 p_x, .param .u64 p_z, .param .u32 p_rounds)
{
    .reg .pred %p<2>;
    .reg .b32 %r<5>;
    .reg .f32 %f<5>;
    .reg .b64 %rd<6>;
    .loc 1 3 0
    ld.param.u64 %rd1, [p_x];
    ld.param.u64 %rd2, [p_z];
    ld.param.u32 %r1, [p_rounds];
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd3, %r2, 4;
    add.s64 %rd4, %rd1, %rd3;
    ld.global.f32 %f1, [%rd4];
    .loc 1 4 0
    mov.f32 %f2, 0f00000000;
    mov.u32 %r3, 0;
LOOP:
    .loc 1 6 0
    cvt.rn.f32.u32 %f3, %r3;
    fma.rn.f32 %f2, %f3, %f1, %f2;
    .loc 1 5 0
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p1, %r3, %r1;
    @%p1 bra LOOP;
    .loc 1 7 0
    add.s64 %rd5, %rd2, %rd3;
    st.global.f32 [%rd5], %f2;
    ret;
}
"""
SOURCE = """# The kernel that the PTX is of.
def sums(x, z, rounds):
    value = x[thread]
    total = 0.0
    for step in range(rounds):
        total = total + step * value
    z[thread] = total
"""
LANES = 32


def at(text: str) -> str:
    """The selection of the PTX line that has `text`, and of no other."""
    (number,) = [i for i, line in enumerate(PTX.splitlines(), 1) if text in line]
    return f"lines={number}-{number}"
