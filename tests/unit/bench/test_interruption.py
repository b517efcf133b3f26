"""A signal that asks a measurement to stop is heard wherever it falls, once, and leaves the process as it was."""

import ctypes
import signal
import sys
import threading
from collections.abc import Callable

import pytest

from headrace.bench.interruption import interruptible

HEARD_WITHIN_S = 10.0
ENDS: dict[signal.Signals, type[BaseException]] = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: SystemExit}


def plainly(ask: Callable[[], None]) -> None:
    ask()


def in_a_callback_of_c(ask: Callable[[], None]) -> None:
    ctypes.CFUNCTYPE(None)(ask)()


def in_a_finaliser(ask: Callable[[], None]) -> None:
    class Ends:
        def __del__(self) -> None:
            ask()

    Ends()


def in_two_callbacks(ask: Callable[[], None]) -> None:
    """The second time too it cannot be raised where it falls."""

    def asked_again() -> None:
        ask()
        threading.Event().wait(HEARD_WITHIN_S)

    in_a_callback_of_c(ask)
    in_a_callback_of_c(asked_again)


def measured(strike: Callable[[], None]) -> None:
    with interruptible() as interruption, interruption.heeded():
        strike()
        threading.Event().wait(HEARD_WITHIN_S)
        pytest.fail("nobody heard of it")


@pytest.mark.parametrize("asked", ENDS)
@pytest.mark.parametrize("fall", [plainly, in_a_callback_of_c, in_a_finaliser, in_two_callbacks])
def test_it_breaks_the_measurement_off(
    asked: signal.Signals, fall: Callable[[Callable[[], None]], None], capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), sys.unraisablehook
    with pytest.raises(ENDS[asked]) as raised:
        measured(lambda: fall(lambda: signal.raise_signal(asked)))
    assert raised.value.args == ((128 + asked,) if asked == signal.SIGTERM else ())
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), sys.unraisablehook) == before
    assert capfd.readouterr() == ("", "")


def test_what_it_did_not_raise_is_for_whoever_heard_it_before(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: heard.append(lost.exc_value))

    def fails() -> None:
        raise ValueError("its own")

    with interruptible() as interruption, interruption.heeded():
        in_a_callback_of_c(fails)
    assert [str(error) for error in heard] == ["its own"]


def test_a_measurement_that_ends_before_it_is_raised_again_ends_the_command() -> None:
    """And the signal, which was to come once more, does not come to those that listen after it."""
    came: list[int] = []
    threads = threading.enumerate()
    former = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        with pytest.raises(SystemExit), interruptible() as interruption, interruption.heeded():
            in_a_callback_of_c(lambda: signal.raise_signal(signal.SIGTERM))
        assert (threading.enumerate(), came) == (threads, [])
    finally:
        signal.signal(signal.SIGTERM, former)
