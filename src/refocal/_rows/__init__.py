"""Scores of rows and their labels, every value checked once: what metrics, temperatures and choices share."""

from refocal._rows.checked import (
    HALF_SUM_TOLERANCE as HALF_SUM_TOLERANCE,
    SUM_TOLERANCE as SUM_TOLERANCE,
    RowOptions as RowOptions,
    check_target as check_target,
    check_task as check_task,
    checked_rows as checked_rows,
    checked_scores as checked_scores,
    checked_target as checked_target,
    logit_rows as logit_rows,
)
from refocal._rows.scores import (
    Booleans as Booleans,
    Floats as Floats,
    Integers as Integers,
    Rows as Rows,
    Scores as Scores,
    Target as Target,
    Task as Task,
    confidence_of as confidence_of,
    slices as slices,
)
from refocal._rows.tables import (
    label_array as label_array,
    same_order as same_order,
    score_array as score_array,
)
