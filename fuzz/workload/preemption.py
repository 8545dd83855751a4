"""Who gives way: to a request of a higher priority, and when memory runs out.

Preemption. When the head of the queue cannot enter, running requests of a lower priority are
retracted if that lets it in: the lowest priority first, of these the one admitted last, and no more of
them than it takes. It is decided before anybody is retracted; where not even all of them would do,
nobody is. Requests of an equal or higher priority never give way.

No livelock. A request that was retracted is not preempted again before it has made a new token since it
was admitted again (`Running.may_give_way`). So a request is preempted at most once more than it has
output tokens, and whoever preempts has a higher priority; hence the highest priority is never
preempted, and the work that preemption repeats is bounded for each request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from bandscope.fuzz.workload.entries import Running


def order_of_giving_way(running: Iterable[Running]) -> list[Running]:
    """The lowest priority first, then the one admitted last."""
    return sorted(running, key=lambda run: (run.request.priority, -run.number))


def choose_victims(
    running: Sequence[Running],
    priority: int,
    admits_beside: Callable[[list[Running]], bool],
    least: int = 0,
) -> list[Running]:
    """Who has to be retracted, in this order, so that a request of `priority` enters; nobody when
    that does not help. `admits_beside(rest)`: would it enter beside these? At least `least` have to
    go in any case (the running requests are as many as may run)."""
    may_go = order_of_giving_way(
        run for run in running if run.request.priority < priority and run.may_give_way
    )

    def enough(count: int) -> bool:
        gone = set(map(id, may_go[:count]))
        return admits_beside([run for run in running if id(run) not in gone])

    if len(may_go) < max(1, least) or not enough(len(may_go)):
        return []
    # Not quite monotone: who stays is prefilled in other steps. So what is found is what was asked.
    low, high = max(1, least) - 1, len(may_go)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return may_go[:high]
