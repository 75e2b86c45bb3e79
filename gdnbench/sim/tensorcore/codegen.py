# SPDX-License-Identifier: Apache-2.0
"""LLVM IR for one product under one model: a function over whole matrices.

    void product(i64 m, i64 n, i64 c_step, i64 d_step, const A *a, const B *b, const C *c, D *d)

a[m][k] and b[n][k] are dense. The rows of c[m][n] are c_step elements apart, those of d[m][n] d_step. c may
be null, or equal d. The function allocates nothing but stack.

The function processes blocks of 64 rows, whose codes it decodes once, and 16 columns at a time, one per lane.
For each row and 16 columns, with all k unrolled, one fused sum is

    largest = max over k of (e_a + e_b), and e_c
    sum    += int(s_a * s_b * 2^(e_a + e_b - largest + fraction_bits))      for every k, and likewise C

with floats for the terms and i32 for the sum. The product of two significands and the power of two are exact
in a float. The conversion to int truncates toward zero, as the hardware truncates a term. Powers below 2^-63
are replaced by 2^-63: the term is below 1 and becomes 0 either way, and no subnormal occurs.

With `scaled` the function has two more arguments, `const int *row_scales, const int *column_scales`, and the
product of a row and a column is multiplied by 2^(row scale + column scale). Its terms keep their exponents;
those of C and D are relative to the scale.
"""

from __future__ import annotations

from llvmlite import ir

from gdnbench.sim.tensorcore.encoding import decode, encode, round_fp64, value_of, with_specials
from gdnbench.sim.tensorcore.formats import Format
from gdnbench.sim.tensorcore.lanes import (
    F32,
    I32,
    I64,
    LANES,
    POINTER,
    V_F32,
    V_F64,
    V_I1,
    V_I32,
    Value,
    constant,
    counted,
    element,
    floats,
    intrinsic,
    ints,
    load,
    power_of_two_f64,
    smax,
    splat,
    stack_array,
)
from gdnbench.sim.tensorcore.product import Model, Product, Rule, fused_sum_rule

ROWS = 64
ENTRY = "product"

# A partial sum of 16 products (of two numbers below 2) and C fits an i32 only for products of 8-bit formats;
# for 11-bit formats only 8 products fit. See `_Kernel.fixed_point_sum`.
_TERMS_PER_ACCUMULATOR = {8: 16, 16: 8, 32: 8}


def module_text(product: Product, model: Model, scaled: bool = False) -> str:
    """The module as text, its function named ENTRY."""
    return str(_Kernel(product, model, scaled).module)


class _Operand:
    """Scratch for the decoded codes of A or B: one array per field, [count], in the order of the codes."""

    def __init__(self, b: ir.IRBuilder, form: Format, count: int, name: str) -> None:
        self.form = form
        self.code_type = ir.IntType(8 * form.storage.itemsize)
        self.exponents = stack_array(b, I32, count, f"{name}.exponents")  # the codes before decoding
        self.significands = stack_array(b, F32, count, f"{name}.significands")
        self.kinds = stack_array(b, F32, count, f"{name}.kinds")

    def put_code(self, b: ir.IRBuilder, source: Value, source_index: Value, index: Value) -> None:
        code = load(b, self.code_type, source, source_index)
        b.store(
            b.zext(code, I32) if self.code_type.width < 32 else code, element(b, self.exponents, I32, index)
        )


class _Kernel:
    """Emits the function. The attributes are the values that all parts use."""

    def __init__(self, product: Product, model: Model, scaled: bool) -> None:
        self.product = product
        self.exact = model is Model.EXACT
        self.rule: Rule = fused_sum_rule(product)
        self.d_type = ir.IntType(8 * product.accumulator.storage.itemsize)
        self.v_d = ir.VectorType(self.d_type, LANES)
        self.module = ir.Module(ENTRY)
        pointers = [POINTER] * (6 if scaled else 4)
        function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), [I64] * 4 + pointers), ENTRY)
        self.m, self.n, self.c_step, self.d_step, *matrices = function.args
        self.a_codes, self.b_codes, self.c_codes, self.d_codes, *self.scales = matrices
        self.scale: Value | None = None  # of the current row and columns, in every lane its own
        self.builder = b = ir.IRBuilder(function.append_basic_block("entry"))
        self.a = _Operand(b, product.a, ROWS * product.k, "a")
        self.b = _Operand(b, product.b, LANES * product.k, "b")
        self.seen = b.alloca(V_I1, name="special")
        self.emit()
        b.ret_void()

    def emit(self) -> None:
        """The loops: rows, columns, rows of the block."""
        b, k = self.builder, self.product.k
        with counted(b, self.m, ROWS, "block") as block:
            rest = b.sub(self.m, block)
            rows = b.select(b.icmp_signed("<", rest, I64(ROWS)), rest, I64(ROWS))
            a_special = self.decode_rows(block, rows)
            with counted(b, self.n, LANES, "column") as column:
                columns = b.sub(self.n, column)  # may exceed LANES
                b_special = self.decode_columns(column, columns)
                special = b.or_(a_special, b_special)
                mask = self.lane_mask(columns)
                with counted(b, rows, 1, "row") as row:
                    if self.scales:
                        self.scale = self.load_scale(b.add(block, row), column, mask)
                    c = self.load_c(self.offset(self.c_step, block, row, column), mask)
                    base = b.mul(row, I64(k))
                    d = self.exact_product(base, c) if self.exact else self.hardware_product(base, c, special)
                    self.store_d(self.offset(self.d_step, block, row, column), mask, d)

    def offset(self, step: Value, block: Value, row: Value, column: Value) -> Value:
        """The index of an element of C or D whose rows are `step` elements apart."""
        b = self.builder
        return b.add(b.mul(b.add(block, row), step), column)

    # Operands.

    def decode_rows(self, block: Value, rows: Value) -> Value:
        """Decode A's rows in order; True if any element is Inf or NaN."""
        b, k = self.builder, self.product.k
        count = b.mul(rows, I64(k))
        start = b.mul(block, I64(k))
        # The last vector may extend past the rows. Those elements are never used but must be defined.
        padded = b.and_(b.add(count, I64(LANES - 1)), I64(-LANES))
        with counted(b, padded, LANES, "clear") as i:
            b.store(ints(0), element(b, self.a.exponents, I32, i), align=64)
        with counted(b, count, 1, "copy") as i:
            self.a.put_code(b, self.a_codes, b.add(start, i), i)
        return self.decode_scratch(self.a, padded)

    def decode_columns(self, column: Value, columns: Value) -> Value:
        """Decode 16 of B's rows, transposed to [k][lane]; lanes past the last column are zero."""
        b, k = self.builder, self.product.k
        for i in range(k):
            b.store(ints(0), element(b, self.b.exponents, I32, I64(i * LANES)), align=64)
        lanes = b.select(b.icmp_signed("<", columns, I64(LANES)), columns, I64(LANES))
        with counted(b, lanes, 1, "lane") as lane:
            start = b.mul(b.add(column, lane), I64(k))
            for i in range(k):
                self.b.put_code(b, self.b_codes, b.add(start, I64(i)), b.add(lane, I64(i * LANES)))
        return self.decode_scratch(self.b, I64(k * LANES))

    def decode_scratch(self, operand: _Operand, count: Value) -> Value:
        b = self.builder
        b.store(constant(V_I1, 0), self.seen)
        with counted(b, count, LANES, "decode") as i:
            codes = load(b, V_I32, operand.exponents, b.udiv(i, I64(LANES)))
            parts = decode(b, operand.form, codes, self.rule.widened and not self.exact)
            significand = value_of(b, parts) if self.exact else parts.significand
            b.store(parts.exponent, element(b, operand.exponents, I32, i), align=64)
            b.store(significand, element(b, operand.significands, F32, i), align=64)
            b.store(parts.kind, element(b, operand.kinds, F32, i), align=64)
            b.store(b.or_(b.load(self.seen, typ=V_I1), parts.special), self.seen)
        return b.icmp_signed(
            "!=", b.bitcast(b.load(self.seen, typ=V_I1), ir.IntType(LANES)), ir.IntType(LANES)(0)
        )

    def a_at(self, scratch: Value, type_: ir.Type, base: Value, k: int) -> Value:
        """A's element of this row and k, in every lane."""
        b = self.builder
        return splat(b, load(b, type_, scratch, b.add(base, I64(k))))

    def b_at(self, scratch: Value, type_: ir.Type, k: int) -> Value:
        return load(self.builder, type_, scratch, I64(k))

    # Accumulators.

    def lane_mask(self, columns: Value) -> Value:
        """The lanes that have a column."""
        b = self.builder
        left = b.trunc(b.select(b.icmp_signed("<", columns, I64(LANES)), columns, I64(LANES)), I32)
        lanes = ir.Constant(V_I32, [I32(i) for i in range(LANES)])
        return b.icmp_signed("<", lanes, splat(b, left))

    def load_scale(self, row: Value, column: Value, mask: Value) -> Value:
        """The exponents of the scale of a row and of its columns."""
        b = self.builder
        rows, columns = self.scales
        address = element(b, columns, I32, column)
        name = f"llvm.masked.load.v{LANES}i32.p0"
        loaded = intrinsic(b, name, V_I32, address, I32(4), mask, ints(0))
        return b.add(splat(b, load(b, I32, rows, row)), loaded)

    def load_c(self, offset: Value, mask: Value) -> Value:
        """C's codes as i32; zeros without a C."""
        b, bits = self.builder, self.d_type.width
        before = b.block
        present = b.icmp_unsigned("!=", b.ptrtoint(self.c_codes, I64), I64(0))
        with b.if_then(present):
            address = element(b, self.c_codes, self.d_type, offset)
            zeros = constant(self.v_d, 0)
            name = f"llvm.masked.load.v{LANES}i{bits}.p0"
            loaded = intrinsic(b, name, self.v_d, address, I32(bits // 8), mask, zeros)
            inside = b.block
        codes = b.phi(self.v_d)
        codes.add_incoming(zeros, before)
        codes.add_incoming(loaded, inside)
        return b.zext(codes, V_I32) if bits < 32 else codes

    def store_d(self, offset: Value, mask: Value, codes: Value) -> None:
        b, bits = self.builder, self.d_type.width
        narrow = b.trunc(codes, self.v_d) if bits < 32 else codes
        address = element(b, self.d_codes, self.d_type, offset)
        name = f"llvm.masked.store.v{LANES}i{bits}.p0"
        intrinsic(b, name, ir.VoidType(), narrow, address, I32(bits // 8), mask)

    # Models.

    def exact_product(self, base: Value, c: Value) -> Value:
        b = self.builder
        total = b.fpext(value_of(b, decode(b, self.product.accumulator, c, widened=False)), V_F64)
        for k in range(self.product.k):
            x = b.fpext(self.a_at(self.a.significands, F32, base, k), V_F64)
            y = b.fpext(self.b_at(self.b.significands, V_F32, k), V_F64)
            term = b.fmul(x, y)
            if self.scale is not None:
                term = b.fmul(term, power_of_two_f64(b, self.scale))
            total = b.fadd(total, term)
        return round_fp64(b, self.product.d, total)

    def hardware_product(self, base: Value, c: Value, special: Value) -> Value:
        total = c if self.rule.c_fused else ints(0)
        for ks in self.rule.sums:
            total = self.fused_sum(base, ks, total, special)
        return total if self.rule.c_fused else self.add(total, c)

    def fused_sum(self, base: Value, ks: tuple[int, ...], c: Value, special: Value) -> Value:
        """One fused sum, from codes of C to codes of D."""
        b = self.builder
        addend = decode(b, self.product.accumulator, c, widened=False)
        addend_exponent = addend.exponent
        if self.scale is not None:
            addend_exponent = b.sub(addend_exponent, self.scale)
        exponents = [
            b.add(self.a_at(self.a.exponents, I32, base, k), self.b_at(self.b.exponents, V_I32, k))
            for k in ks
        ]
        largest = addend_exponent
        for exponent in exponents:
            largest = smax(b, largest, exponent)
        magnitude, negative = self.fixed_point_sum(
            base, ks, exponents, largest, addend.significand, addend_exponent
        )
        unit = b.sub(largest, ints(self.rule.fraction_bits))
        if self.scale is not None:
            unit = b.add(unit, self.scale)
        bits = encode(b, self.product.d, magnitude, negative, unit, self.rule.cut)
        kind = self.sum_of_kinds(base, ks, b.select(addend.special, addend.kind, floats(0.0)), special)
        return with_specials(b, self.product.d, bits, kind)

    def fixed_point_sum(
        self,
        base: Value,
        ks: tuple[int, ...],
        exponents: list[Value],
        largest: Value,
        c: Value,
        c_exponent: Value,
    ) -> tuple[Value, Value]:
        """Magnitude (unsigned i32) and sign of the sum of all terms in units of 2^(largest - fraction_bits).

        A product is below 4 * 2^25, so 8 of them and C (below 2 * 2^25) fit an i32; two such accumulators
        are added in 33 bits: half of the sum gives the sign, and the magnitude, at most 16 * 2^27 * (1 -
        2^-11)^2 + 2^26, fits 32 bits unsigned. Products of 4-bit significands are at most 3.52 * 2^25: 16
        fit an i32, and 32 of them and C fit 32 bits unsigned.
        """
        b = self.builder
        offset = b.sub(ints(self.rule.fraction_bits + 127), largest)

        def term(significand: Value, exponent: Value) -> Value:
            field = smax(b, b.add(exponent, offset), ints(127 - 63))
            power = b.bitcast(b.shl(field, ints(23)), V_F32)
            return b.fptosi(b.fmul(significand, power), V_I32)

        most = _TERMS_PER_ACCUMULATOR[8 * self.product.a.storage.itemsize]
        sums: list[Value] = [term(c, c_exponent)]
        for i, (k, exponent) in enumerate(zip(ks, exponents, strict=True)):
            x = self.a_at(self.a.significands, F32, base, k)
            product = term(b.fmul(x, self.b_at(self.b.significands, V_F32, k)), exponent)
            if i // most == len(sums):
                sums.append(product)
            else:
                sums[-1] = b.add(sums[-1], product)
        if len(sums) == 1:
            (total,) = sums
            negative = b.icmp_signed("<", total, ints(0))
        else:
            x, y = sums
            total = b.add(x, y)
            carry = b.and_(b.and_(x, y), ints(1))
            half = b.add(b.add(b.ashr(x, ints(1)), b.ashr(y, ints(1))), carry)
            negative = b.icmp_signed("<", half, ints(0))
        return b.select(negative, b.neg(total), total), negative

    def sum_of_kinds(self, base: Value, ks: tuple[int, ...], c_kind: Value, special: Value) -> Value:
        """Inf or NaN if the exact sum is; computed only if an operand of these rows or columns is one."""
        b = self.builder
        before = b.block
        with b.if_then(special, likely=False):
            total = c_kind
            for k in ks:
                x = self.a_at(self.a.kinds, F32, base, k)
                total = b.fadd(total, b.fmul(x, self.b_at(self.b.kinds, V_F32, k)))
            inside = b.block
        kind = b.phi(V_F32)
        kind.add_incoming(c_kind, before)
        kind.add_incoming(total, inside)
        return kind

    def add(self, x: Value, y: Value) -> Value:
        """IEEE addition of accumulator codes, to nearest even."""
        b = self.builder
        if self.product.d == "f32":
            total = b.fadd(b.bitcast(x, V_F32), b.bitcast(y, V_F32))
            # In fp64 the sum would round twice. The widening afterwards is exact; it sets the one NaN.
            return round_fp64(b, "f32", b.fpext(total, V_F64))
        form = self.product.accumulator
        values = [b.fpext(value_of(b, decode(b, form, codes, widened=False)), V_F64) for codes in (x, y)]
        return round_fp64(b, "f16", b.fadd(*values))
