"""Who may look into a fleet and change it, by which keys are set and which is shown."""

import pytest

from headrace.core.admin import Admin, same
from headrace.core.errors import Forbidden, Unauthenticated

OPEN, KEYED, ADMIN = Admin(), Admin(keyed=True), Admin("root", keyed=True)


def test_without_any_keys_everybody_may() -> None:
    for shown in ("", "anything"):
        OPEN.require_to_look(shown)
        OPEN.require_to_change(shown)


def test_a_key_of_whoever_may_ask_is_no_operators() -> None:
    KEYED.require_to_look("user")
    for shown in ("", "user"):
        with pytest.raises(Forbidden, match="none is set here"):
            KEYED.require_to_change(shown)


@pytest.mark.parametrize("admin", [ADMIN, Admin("root")])
def test_where_there_is_an_admin_key_it_is_needed(admin: Admin) -> None:
    for require in (admin.require_to_look, admin.require_to_change):
        require("root")
        with pytest.raises(Unauthenticated, match="no key was sent"):
            require("")
        for shown in ("user", "roo", "roots", "Root", "r\u00f6\u00f6t"):
            with pytest.raises(Forbidden, match="another"):
                require(shown)


def test_keys_are_not_shown() -> None:
    assert "root" not in repr(ADMIN)
    assert same("k", "k")
    assert not same("k", "")
