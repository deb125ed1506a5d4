"""LLVM as the kernels here write it: vectors loaded, stored, spread, picked from.

A vector may be wider than the CPU's: LLVM splits it.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils

I32 = ir.IntType(32)


def data_of(context, builder, signature, args, n):
    return context.make_array(signature.args[n])(context, builder, args[n]).data


def row_within(builder, at, stride, r, last):
    """at + min(r, last) * stride"""
    row = last.type(r)
    row = builder.select(builder.icmp_signed("<", row, last), row, last)
    return builder.add(at, builder.mul(row, stride))


def load(builder, data, at, more, vector, align):
    place = builder.gep(data, [builder.add(at, at.type(more))])
    return builder.load(builder.bitcast(place, vector.as_pointer()), align=align)


def store(builder, value, data, at, more, align):
    place = builder.gep(data, [builder.add(at, at.type(more))])
    builder.store(value, builder.bitcast(place, value.type.as_pointer()), align=align)


def splat(builder, x, vector):
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), x, I32(0))
    return builder.shuffle_vector(one, one, mask([0] * vector.count))


def mask(numbers):
    return ir.Constant(ir.VectorType(I32, len(numbers)), numbers)


def call(builder, name, result, *args):
    function_type = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), args)
