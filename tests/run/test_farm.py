"""The farm: every task once, results in order, each computed by a worker that is alone; the first failure ends all."""

import pytest
from run import crews

from worldsize.errors import DataError
from worldsize.run.farm import farm


def test_every_task_is_done_once_and_results_keep_the_order_of_the_tasks():
    heard = []
    tasks = [{"number": number} for number in range(9)]
    results = farm(crews.squared, tasks, workers=3, on_done=lambda place, result: heard.append(place))
    assert [result["square"] for result in results] == [number * number for number in range(9)]
    assert sorted(heard) == list(range(9))
    assert {(result["size"], result["threads"]) for result in results} == {(1, 1)}


def test_more_workers_than_tasks_are_not_started_and_no_task_needs_none():
    assert len({result["by"] for result in farm(crews.squared, [{"number": 3}], workers=4)}) == 1
    assert farm(crews.squared, [], workers=4) == []


def test_a_task_that_fails_ends_the_farm_with_its_error():
    with pytest.raises(DataError, match="task 2 cannot be"):
        farm(crews.fail_at, [{"number": number, "bad": 2} for number in range(5)], workers=2)
