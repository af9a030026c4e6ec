"""docs/errors.md has every message as it is really printed."""

import error_messages
import pytest


@pytest.mark.slow
def test_the_table_of_error_messages_is_what_is_printed():
    assert error_messages.DOCUMENT.read_text(encoding="utf-8") == error_messages.document(), (
        "write it anew: PYTHONPATH=. python tests/error_messages.py"
    )
