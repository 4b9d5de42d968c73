"""Schedule: an AsyncSchedule for threads. Its iteration crosses to the loop for each page, and not for each record."""

from __future__ import annotations

from collections import deque

from tinymq.client.admin.schedule import AsyncSchedule, ScheduledDescription
from tinymq.client.facade.generated.schedule import ScheduleCalls
from tinymq.client.facade.loop_thread import LoopThread


class Schedule(ScheduleCalls):
    """The delayed records of a topic that are not delivered yet. Made by admin.scheduled(). Iterate over it.

        for scheduled in mq.admin.scheduled("orders"):
            print(scheduled.partition, scheduled.schedule_id, scheduled.deliver_at)

    By partition, and in each by schedule id, which is the order in which they were sent. Each leader is asked for its
    next 1,000 when the iteration gets there, so a record that ends meanwhile may be left out. Single steps:

        schedule = mq.admin.scheduled("orders", partition=0)
        while page := schedule.page():
            print(schedule.topic, schedule.partition, len(page))
    """

    def __init__(self, loop_thread: LoopThread, asynchronous: AsyncSchedule) -> None:
        super().__init__(loop_thread, asynchronous)
        self._page: deque[ScheduledDescription] = deque()

    def __next__(self) -> ScheduledDescription:
        if not self._page:
            self._page.extend(self.page())
        if not self._page:
            raise StopIteration
        return self._page.popleft()
