import threading
from functools import partial
from queue import SimpleQueue

from runledger_runtime.shutdown import StopToken


def test_a_new_token_asks_nobody_to_stop():
    token = StopToken()

    assert not token.is_requested
    assert token.reason is None
    assert token.wait(0) is False


def test_only_the_first_request_counts():
    token = StopToken()

    token.request("first")
    token.request("second")

    assert token.is_requested
    assert token.reason == "first"
    assert token.wait(0) is True


def test_a_request_wakes_those_who_wait():
    token = StopToken()
    answers = SimpleQueue()
    thread = threading.Thread(target=lambda: answers.put(token.wait(None)))
    thread.start()

    token.request()

    assert answers.get(timeout=10) is True
    thread.join()


def test_callbacks_are_called_once_and_see_the_request():
    token = StopToken()
    seen = []
    token.add_callback(lambda: seen.append(token.is_requested))

    token.request()
    token.request()

    assert seen == [True]


def test_a_late_callback_is_called_at_once():
    token = StopToken()
    token.request()
    seen = []

    token.add_callback(lambda: seen.append("called"))

    assert seen == ["called"]


def test_a_callback_that_fails_does_not_stop_the_others(caplog):
    token = StopToken()
    seen = []
    token.add_callback(lambda: 1 / 0)
    token.add_callback(lambda: seen.append("called"))

    token.request()

    assert seen == ["called"]
    assert "a stop callback failed" in caplog.text


def test_callbacks_added_while_others_request_are_called_exactly_once():
    for _ in range(50):
        token = StopToken()
        calls: SimpleQueue[int] = SimpleQueue()
        requester = threading.Thread(target=token.request)
        requester.start()
        for number in range(20):
            token.add_callback(partial(calls.put, number))
        requester.join()

        assert sorted(calls.get(timeout=10) for _ in range(20)) == list(range(20))
        assert calls.empty()


def test_a_request_lets_handlers_go_on_and_an_abort_tells_them():
    token = StopToken()
    told = []
    token.add_callback(lambda: told.append("stop"))
    token.add_abort_callback(lambda: told.append("abort"))

    token.request("enough")
    assert told == ["stop"]
    assert not token.is_aborted
    token.abort()
    token.abort()

    assert told == ["stop", "abort"]
    assert token.is_aborted
    assert token.reason == "enough"


def test_an_abort_is_a_request_too():
    token = StopToken()
    told = []
    token.add_callback(lambda: told.append("stop"))
    token.add_abort_callback(lambda: told.append("abort"))

    token.abort("at once")
    token.add_abort_callback(lambda: told.append("late"))

    assert told == ["stop", "abort", "late"]
    assert token.is_requested
    assert token.reason == "at once"
