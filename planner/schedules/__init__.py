"""Pipeline schedules: records of the orders in which a stage runs its chunks' microbatches.

In come numbers of stages, chunks and microbatches, out come orders of slots (`orders.py`) and how
much is alive at once in them (`counting.py`). `catalogue.py` lists all schedules: read it first,
then `record.py`, which says what a record holds and what follows from it.
"""

from millrace.planner.schedules.catalogue import (
    MICROBATCHES_MAX,
    PLAIN,
    SCHEDULES,
    schedule_of,
    schedule_order,
    stage_of,
)
from millrace.planner.schedules.orders import Order, Slot
from millrace.planner.schedules.record import Schedule

__all__ = [
    "MICROBATCHES_MAX",
    "PLAIN",
    "SCHEDULES",
    "Order",
    "Schedule",
    "Slot",
    "schedule_of",
    "schedule_order",
    "stage_of",
]
