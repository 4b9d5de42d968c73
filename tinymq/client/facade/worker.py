"""Worker: an AsyncWorker for threads. Jobs that are here already are taken, and settled, in the calling thread."""

from __future__ import annotations

from tinymq.client.common.argument_checks import check_count, check_wait
from tinymq.client.common.one_thread import OneThread
from tinymq.client.facade.generated.worker import WorkerCalls
from tinymq.client.facade.loop_thread import LoopThread
from tinymq.client.work.job import Job
from tinymq.client.work.worker import WorkerCore


class Worker(WorkerCalls):
    """Takes records of one topic as a worker of a queue group. Made by Client.worker(); attached by the first use. One
    thread at a time takes jobs; any thread settles them.

        with mq.worker("emails", group="mailer") as worker:
            for job in worker:
                send(job.value)
                job.ack()

    An exception that leaves the `with` block nacks the jobs in hand, with its traceback.

    Single steps:

        worker = mq.worker("emails", group="mailer", group_settings={"retry_ms": [10_000, 60_000]})
        worker.open()
        for job in worker.poll(timeout=5.0, max_records=10):
            job.ack()
        worker.flush()
        worker.stop()
        worker.close()
    """

    def __init__(self, loop_thread: LoopThread, asynchronous: WorkerCore) -> None:
        super().__init__(loop_thread, asynchronous)
        self._take_one = asynchronous.take_one
        self._one_thread = OneThread("worker")

    def __next__(self) -> Job:
        """The next job. Waits for it without a limit; ends after `stop`."""
        with self._one_thread:
            while (job := self._take_one()) is None:
                if not self._loop_thread.run(self._async.arrival(None)):
                    raise StopIteration
            return job

    def poll(self, timeout: float | None = None, max_records: int = 500, *, start: bool = True) -> list[Job]:
        """Take up to `max_records` jobs: at once if there are any, else after up to `timeout` seconds ([] then).

        A crash counts as a failed delivery of all jobs that were taken. With `start=False` it counts only for those
        that the application has begun by `job.start()`, and the others can be given back by `job.release()`.
        """
        check_wait(timeout)
        check_count("max_records", max_records, 1)
        with self._one_thread:
            found = self._async.take(max_records, start=start)
            return found or self._loop_thread.run(self._async.poll(timeout, max_records, start=start))
