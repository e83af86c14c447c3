"""Moments as people write them, and as decisions hold them."""

import pytest

from observer_serving.clock import as_rfc3339, rfc3339


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-31T12:00", "2026-01-31T12:00:00.000000Z"),
        ("2026-01-31T12:00Z", "2026-01-31T12:00:00.000000Z"),
        ("2026-01-31T12:00:05Z", "2026-01-31T12:00:05.000000Z"),
        ("2026-01-31T12:00:05.109Z", "2026-01-31T12:00:05.109000Z"),
        ("2026-01-31T12:00:05.123456Z", "2026-01-31T12:00:05.123456Z"),
        ("2026-01-31T12:00:05.1234560000Z", "2026-01-31T12:00:05.123456Z"),
        ("2026-01-31T12:00:05.123456789Z", "2026-01-31T12:00:05.123457Z"),
        ("2026-12-31T23:59:59.999999999Z", "2027-01-01T00:00:00.000000Z"),
    ],
)
def test_what_is_written_shorter_or_finer_compares_as_decisions_do(text: str, moment: str):
    assert as_rfc3339(text) == moment
    assert as_rfc3339(moment) == moment


def test_what_the_clock_writes_stays_as_it_is():
    assert as_rfc3339(rfc3339(1_700_000_000_123_456_000)) == rfc3339(1_700_000_000_123_456_000)


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "2026-01-31", "2026-02-30T12:00", "2026-01-31T24:00", "2026-01-31T12:00:00+02:00",
     "2026-01-31T12:00:00.Z", "２026-01-31T12:00", "9999-12-31T23:59:59.9999999Z", "0000-01-01T00:00"],
)  # fmt: skip
def test_what_is_no_moment_in_utc_is_told(text: str):
    with pytest.raises(ValueError, match="write 2026-01-31T12:00:00Z"):
        as_rfc3339(text)


def test_a_page_of_decisions_begins_and_ends_at_the_moment_asked_for(service):
    live = service(policy={"keep_threshold": 0.0})
    live.post_trace({"question": "q", "final_answer": "a"})
    (row,) = live.wait_for_decisions(1)
    minute, second = row["decided_at"][:16], row["decided_at"][:19]

    def found(**asked: str) -> int:
        return len(live.get("/v1/decisions", **asked)["decisions"])

    for form in (minute, f"{minute}Z", f"{second}Z", f"{second}.000Z", row["decided_at"]):
        assert found(since=form) == 1, form
    for form in (minute, f"{minute}Z", row["decided_at"]):
        assert found(until=form) == 0, form
    later = as_rfc3339(f"{row['decided_at'][:-1]}1Z")
    assert (found(since=later), found(until=later)) == (0, 1)
