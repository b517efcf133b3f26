"""Errors as people read them."""

from headrace.core.errors import Unavailable


def test_a_reason_that_is_a_sentence_ends_an_error_with_one_full_stop() -> None:
    assert (
        str(Unavailable("The link broke: it is gone..", remedy="Try again."))
        == "The link broke: it is gone. Try again."
    )
    assert Unavailable("Waiting...").message == "Waiting..."
