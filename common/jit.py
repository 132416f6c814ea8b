"""Numba for the kernels: a cached `jit`, and intrinsics that NumPy lacks."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import event
from numba.extending import intrinsic

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
Int = int | np.int64  # either type in a kernel


def jit(function: FunctionT) -> FunctionT:
    """Compile a kernel at its first call, without the GIL, and cache it on disk if possible."""
    # Without the GIL, threads run kernels side by side; without the cache, each start would take seconds to compile.
    try:
        return njit(function, cache=True, nogil=True)
    except RuntimeError:  # no writable directory for the cache, as in a read-only image without a home
        return njit(function, nogil=True)


class _Notice(event.Listener):
    """Prints a line when numba first compiles a kernel; loading from its cache on disk does not count."""

    def __init__(self, text: str) -> None:
        """text: the line to print, once."""
        self._text: str | None = text

    def on_start(self, event: event.Event) -> None:
        """Print the line if this is the first compilation; numba calls this before each one."""
        if self._text is not None:
            print(self._text, file=sys.stderr, flush=True)
            self._text = None

    def on_end(self, event: event.Event) -> None:
        """Do nothing; numba requires the method."""


@contextmanager
def compile_notice(subject: str) -> Iterator[None]:
    """Log once on stderr that `subject` is being compiled, if the body compiles anything."""
    with event.install_listener("numba:compile", _Notice(f"compiling {subject} (once; the result is cached) ...")):
        yield


def _address(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any, number: int) -> Any:
    """Return the address of an element of argument `number`, an array, at the position that the next argument is."""
    array = context.make_array(signature.args[number])(context, builder, arguments[number])
    offset = context.cast(builder, arguments[number + 1], signature.args[number + 1], types.int64)
    return builder.gep(array.data, [offset])


@intrinsic
def load_u64(typing_context: Any, buffer: types.Array, position: types.Integer) -> Any:
    """Load eight bytes of a contiguous uint8 array from `position` as a little-endian uint64, without bounds check."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature, arguments, 0)
        word = builder.load(builder.bitcast(address, ir.IntType(64).as_pointer()))
        # Fields begin at any byte, so the load must not assume the alignment of its type.
        word.align = 1
        return word

    return types.uint64(buffer, position), codegen


@intrinsic
def count_trailing_zeros(typing_context: Any, word: types.Integer) -> Any:
    """Return the number of zero bits below the lowest set bit of a uint64; 64 for 0."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        # The constant 0 defines the result for a word without bits; otherwise LLVM leaves it undefined.
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), codegen


@intrinsic
def count_ones(typing_context: Any, word: types.Integer) -> Any:
    """Return the number of set bits of a uint64."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), codegen


@intrinsic
def match_64(typing_context: Any, buffer: types.Array, position: types.Integer, byte: types.Integer) -> Any:
    """Return a uint64 mask of the bytes that equal `byte`, among 64 of a contiguous uint8 array from `position`."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        # LLVM makes one instruction of 64 comparisons where the processor has it, and several elsewhere.
        vector = ir.VectorType(ir.IntType(8), 64)
        address = _address(context, builder, signature, arguments, 0)
        block = builder.load(builder.bitcast(address, vector.as_pointer()))
        block.align = 1
        byte = context.cast(builder, arguments[2], signature.args[2], types.uint8)
        # A vector of 64 copies of `byte`: it becomes element 0, which the shuffle puts everywhere.
        one = builder.insert_element(ir.Constant(vector, ir.Undefined), byte, ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), 64), [0] * 64)
        same = builder.icmp_unsigned("==", block, builder.shuffle_vector(one, one, zeros))
        return builder.bitcast(same, ir.IntType(64))

    return types.uint64(buffer, position, byte), codegen


@intrinsic
def copy_16(typing_context: Any, target: types.Array, at: Any, source: types.Array, position: Any) -> Any:
    """Copy 16 elements of a contiguous int32 array from `position` to `at` of another array, without bounds check."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(ir.IntType(32), 16).as_pointer()
        to, at = (builder.bitcast(_address(context, builder, signature, arguments, array), vector) for array in (0, 2))
        block = builder.load(at)
        # Bags begin at any number of a table, so nothing but the size of a number is known of their alignment.
        block.align = builder.store(block, to).align = 4
        return context.get_dummy_value()

    return types.void(target, at, source, position), codegen


@intrinsic
def prefetch(typing_context: Any, source: types.Array, position: types.Integer) -> Any:
    """Prefetch the cache line of an element that will be read soon."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        address = builder.bitcast(_address(context, builder, signature, arguments, 0), ir.IntType(8).as_pointer())
        flag = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, flag, flag, flag])
        function = builder.module.declare_intrinsic("llvm.prefetch", [address.type], kind)
        builder.call(function, [address, flag(0), flag(3), flag(1)])  # to read, to all caches, data
        return context.get_dummy_value()

    return types.void(source, position), codegen
