"""Composition: a trained model for serving: unsharded, its tables in a precision of choice, as one program."""

from app.serving.model import collections, in_precision, load, unsharded
from app.serving.program import Program, export, program_of, random_inputs, save, uses_fbgemm

__all__ = ["Program", "collections", "export", "in_precision", "load", "program_of", "random_inputs", "save",
           "unsharded", "uses_fbgemm"]  # fmt: skip
