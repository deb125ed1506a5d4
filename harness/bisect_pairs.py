"""The measure of a noisy bisect: one fresh pair of processes, as every comparison of latencies takes it."""

from __future__ import annotations

from opgauge.reference_engine.errors import BackendUnavailableError

from .bisect_git import UnbuildableError
from .bisect_notebook import Measure
from .bisect_probe import Subject, loaded
from .pairs import MeasureError, Plan, Side, Workload, one_pair


def measure(subject: Subject, timeout_s: float) -> Measure:
    """Raises: CaseError, ModelError; the function UnbuildableError where a side cannot run the case."""
    made = loaded(subject)
    work, plan = Workload(made.case, made.model, made.inputs), Plan(timeout_s=timeout_s)

    def pair(base: str, new: str) -> float:
        try:
            return one_pair(work, Side(base), Side(new), plan)
        except (BackendUnavailableError, MeasureError) as error:
            raise UnbuildableError(str(error)) from error

    return pair
