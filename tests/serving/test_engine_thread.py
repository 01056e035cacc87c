"""The engine thread: jobs in their order, one last one, and then no more."""

from __future__ import annotations

import gc
import threading
import weakref

from pybatcher.serving.engine_thread import EngineThread


def test_jobs_run_in_order_on_one_other_thread() -> None:
    ran: list[tuple[int, threading.Thread]] = []
    thread = EngineThread("pybatcher-engine")
    for number in range(5):
        thread.run(lambda number=number: ran.append((number, threading.current_thread())))
    thread.stop(lambda: ran.append((5, threading.current_thread())))
    thread.stop(lambda: ran.append((6, threading.current_thread())))
    thread.join(20)
    assert [number for number, _ in ran] == [0, 1, 2, 3, 4, 5]
    assert len({thread for _, thread in ran}) == 1
    assert ran[0][1] is not threading.current_thread()
    assert ran[0][1].daemon


def test_it_may_join_itself() -> None:
    thread = EngineThread("pybatcher-engine")
    thread.stop(lambda: thread.join(60))
    thread.join(20)


def test_it_keeps_nothing_of_a_job_that_is_done() -> None:
    class Load:
        pass

    load, done = Load(), threading.Event()
    gone = weakref.ref(load)
    thread = EngineThread("pybatcher-engine")
    thread.run(lambda load=load: None)
    del load
    thread.run(done.set)
    assert done.wait(20)
    gc.collect()
    assert gone() is None
    thread.stop(lambda: None)
    thread.join(20)
