"""Typed errors: each names what was wrong, where, and what to do."""

from __future__ import annotations


class OpgaugeError(Exception):
    """Root of every error that opgauge raises on purpose."""


class ModelError(OpgaugeError):
    """The model or the case is not legal ONNX: the case is invalid, whoever runs it."""


class UnknownOperatorError(ModelError):
    """No lowering for this operator, opset or attribute."""


class ShapeError(ModelError):
    """Shapes that the operator does not allow."""


class DtypeError(ModelError):
    """Element types that the operator does not allow."""


class ParameterError(ModelError):
    """A quantization parameter that nobody can honour: NaN, zero, infinite or wrongly sized."""


class UnsupportedError(OpgaugeError):
    """A legal case that this backend refuses; the message says what is missing."""


class BackendUnavailableError(OpgaugeError):
    """The backend cannot be loaded on this machine; the message says what to install."""


class CaseError(OpgaugeError):
    """A case id or a saved case that cannot be read."""


class BaselineError(OpgaugeError):
    """A baseline file that cannot be read or contradicts itself."""
