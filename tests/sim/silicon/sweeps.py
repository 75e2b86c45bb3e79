# SPDX-License-Identifier: Apache-2.0
"""All 2^23 mantissas of an octave through one function: too many answers to store, so a digest of them is.

The H200 of the other recordings gave these. The tables of gdnbench/sim/special_function.py were derived from
the same answers.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from tests.sim.silicon.microkernel import Array, Buffer, MicroKernel, entry

COUNT = 1 << 23
GRID, BLOCK = 32, 256


@dataclass(frozen=True, slots=True)
class Sweep:
    """`first` is the octave's first number as f32 bits; `digest` is SHA-256 of the answers, little-endian."""

    spelling: str
    first: int
    digest: str

    @property
    def name(self) -> str:
        return f"{self.spelling} from {self.first:08x}"

    def kernel(self) -> MicroKernel:
        body = f"""
.reg .b32 %i, %block, %extent, %a, %d;
.reg .b64 %at;
.reg .pred %more;
mov.u32 %i, %tid.x;
mov.u32 %block, %ctaid.x;
mov.u32 %extent, %ntid.x;
mad.lo.s32 %i, %block, %extent, %i;
ld.param.b64 %at, [out];
mad.wide.u32 %at, %i, 4, %at;
NEXT:
add.u32 %a, %i, {self.first:#x};
{self.spelling} %d, %a;
st.global.b32 [%at], %d;
add.u32 %i, %i, {GRID * BLOCK};
add.u64 %at, %at, {4 * GRID * BLOCK};
setp.lt.u32 %more, %i, {COUNT};
@%more bra NEXT;
ret;
"""
        out = Buffer("out", np.zeros((1, COUNT), np.uint32), (self.name,))
        return MicroKernel("sweep", entry("sweep", ".param .b64 out", body), (out,), GRID, BLOCK)


def digest(answers: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(answers, "<u4").tobytes()).hexdigest()


def _sweeps(text: str) -> tuple[Sweep, ...]:
    rows = (line.split() for line in text.strip().splitlines())
    return tuple(Sweep(spelling, int(first, 16), digest) for spelling, first, digest in rows)


SWEEPS = _sweeps("""
cos.approx.ftz.f32   3f000000 a12368c2b39dc9a38e0b5d60821fd9a9194ad6f05dc4bb866d97fa473dacb9fc
cos.approx.ftz.f32   3f800000 13a14c8f7424d4e7a8748c42ed4b952d2cee51d9aa174c35de44ecc080185774
cos.approx.ftz.f32   40000000 665ec4bbfefb79aef7d33eb2c417b921dbbdf126677df3a3d9cdd51fa0d16396
cos.approx.ftz.f32   40800000 65b85d45f97d332fc8193147e38b88cf9f583d235c04462b4fb4ab7edc264c00
ex2.approx.ftz.f32   3e000000 c2ca36452c37bdecffd3be10f7507cb0d066319bac3660b70850d1e67bdf80b6
ex2.approx.ftz.f32   3f000000 ac81d74ed3b84eb18194bceedf3490cff18644507b5745e3a84d42efd13c0389
ex2.approx.ftz.f32   3f800000 cce5df10202dbfcde720ca547d147edb3e2a406a5fed189323f419177a72a1a5
ex2.approx.ftz.f32   40000000 f986d9bf61a56fe341e820ab180f1cc2d13524db5cc066cc42d6838dfacc7206
ex2.approx.ftz.f32   41800000 dc236b246a31626a3f088fe418d1ef9b7bc98b6f2e781fbf98bc267e82f4206e
ex2.approx.ftz.f32   bf800000 503d2238b9f4c00e8686f80a703dd13d365554f2887c7279a7b438f642aceab3
lg2.approx.ftz.f32   3f000000 883e42d8f751983063b4c93a966fba006f08c1e111d90fe20e0fee3dd67ddd22
lg2.approx.ftz.f32   3f800000 7fd9be9a924e40a0ee18ba20e7f5158135112947597c8dd86131d3d4d8f9dbfa
lg2.approx.ftz.f32   40000000 b3e28f2ca8595aa7f02dfd6b91c130e699c7606af5e111fa8176bf0cf43e669c
rcp.approx.ftz.f32   3f800000 c408381446132e07fa5581e930dc33fb790bea7ec4276ef3621e322df2492a55
rsqrt.approx.ftz.f32 3f800000 c733e1437c713cd7e87f4c7e52e9aab270b2107f274cda35309dc8586ad6ec22
rsqrt.approx.ftz.f32 40000000 fd7b866f4085a9e88ef6abdd9ba2726eb26708fb17d173619dac4405acb06bc0
sin.approx.ftz.f32   3f000000 3be3f7449e75df802fcefe87b9d9e551c66bd1c7433579551c84c81c394ac3de
sin.approx.ftz.f32   3f800000 3e8d758fb67738849aea282c0924674c1c804e8da5a0f0da017bbb49be7785f3
sin.approx.ftz.f32   40000000 5f885eb4c4a5f70ddf2227465e4672e04b65fe1b6077ccc9bd6d727ef61b2526
sin.approx.ftz.f32   40800000 49c1491bef45cf6a0b259989437552c5e2ac6971ba29d21e05dc658e0b54502f
sqrt.approx.ftz.f32  3f800000 dc6925bfdd56d604760414da31328a657d4585a92e6285b7106eea847b864ab1
sqrt.approx.ftz.f32  40000000 ffc55416e1586610267a0adf5b3a14983317cc4bfeac3272c865098345f56199
tanh.approx.f32      39000000 0585707b801e304379b18335d5ec13548ed6ded3ed6080205512296c773cecdf
tanh.approx.f32      39800000 8327b69c1d9f6dd9436297f61f67da95070b7930a702790d4299c7e8716c7b67
tanh.approx.f32      3a000000 c69619dbd9960b77e1767544323f1aa2051bc0a8e8d6872215c003c4cfc9e292
tanh.approx.f32      3a800000 509cb984102e4f06961db6a2ced7b6c11f4a3a670ee09e7471def5e345c7c4af
tanh.approx.f32      3b000000 72544dc6f334950ecea262c52808084dd712f676c99f7434ee21c09945963da2
tanh.approx.f32      3b800000 c4d5798237e100450422e9e8f405419fae95dfae9cbb4001bb593f6d9958c9db
tanh.approx.f32      3c000000 8ba2d750638919181117cfba38d82f1f01ceb5010819ca0710b1a89dc6ef27cf
tanh.approx.f32      3c800000 d13fb19862a1d8c1f828c5881ec02ad9abf5484aab2e714220024bfbaa5df382
tanh.approx.f32      3d000000 3dfb944668d904325138ba8cd7f6b5e278852f31182bd19558717e94a0a52278
tanh.approx.f32      3d800000 8c8ba5242e0eeb5218a361056d5d02173b042ba3dcd873ac52efc062d05a632f
tanh.approx.f32      3e000000 1031a8ba37a9208b6508c547f6251aff3010212805b65f96f622b1320fce0e49
tanh.approx.f32      3e800000 2c577f5630b538a5441f041d9772d8b444a194428fab10d1ea8b4fd41a3d7aa8
tanh.approx.f32      3f000000 f71a8ce9b5c6349f2eedcd087994310e660c0f0ebd20f81e7a06a35ab5d94ddc
tanh.approx.f32      3f800000 412dcb386a8e87e08473e44bfa0d748e43096699ef45d1eddad4af0c3bbac577
tanh.approx.f32      40000000 129668b8dd7bb295db288e7cfd38ce002c769f01e30e6959bddc6c120476f509
tanh.approx.f32      40800000 3da84a36b155f272e9b7121cbf1a936e9e94d3603d71a4e1658337d07605e54f
tanh.approx.f32      41000000 b7584839745397cae497c8be4d6972f17070d79a19f196b9c300d462c8c7b119
""")
