"""How a stored run shows itself in a notebook: what was said of it, and its vital signs."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rlvitals.errors import RlvitalsError
from rlvitals.health.history import by_gravity
from rlvitals.render.notebook import SHOWN_VALUES, Sign, run_card
from rlvitals.render.numbers import number

if TYPE_CHECKING:
    from rlvitals.views.query import RunView

POINTS = 40


class ShownInNotebooks:
    """Gives a run its card."""

    def _repr_html_(self) -> str:
        from rlvitals.views.diagnosis import diagnose

        view = cast("RunView", self)
        try:
            step = "no rows yet" if view.last_step is None else f"step {number(view.last_step)}"
            about = [view.status, step, f"{number(view.rows)} rows", *filter(None, (view.algorithm, view.framework))]
            diagnosis = diagnose(view)
            signs = [_sign(view, name) for name in view.vital_signs[:SHOWN_VALUES]]
        except RlvitalsError as error:  # damaged since it was opened: still something to show
            return run_card(view.name, [str(error)], None, [], [])
        told = (diagnosis.verdict, diagnosis.reason)
        return run_card(view.name, about, told, signs, by_gravity(diagnosis.findings))


def _sign(view: RunView, name: str) -> Sign:
    from rlvitals.views.thinning import thin

    steps, values = view.series(name)
    few = thin(steps, values, steps, POINTS)
    course = [(x, y) for x, y in zip(few.x, few.y, strict=True) if x is not None and y is not None]
    return Sign(name, float(values[-1]) if len(values) else None, course)
