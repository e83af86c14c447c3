"""Whatever is sent: an answer that keeps the contract or a 4xx in the contract's form, and the server lives on."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jevcompat.client import Response, parse_json
from jevcompat.validate import validate_error_shape, validate_success, validate_validation_error
from systemone.harness import Served, serving

from observer_core.decision.load import open_model
from observer_core.rundir import RunDirectory
from observer_serving.systemone.card import ModelCard

QUICK = settings(max_examples=50, deadline=None)

texts = st.text(st.characters(codec="utf-8"), max_size=30)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)
present = values.filter(lambda value: value is not None)
nouls = st.fixed_dictionaries(
    {"type": st.just("noul")},
    optional={
        "instructions": values,
        "criteria": st.none() | st.fixed_dictionaries({}, optional={"true": values, "false": values}),
    },
)
choices = st.fixed_dictionaries(
    {"type": st.just("choice"), "criteria": st.dictionaries(texts, values, min_size=1, max_size=12)},
    optional={"instructions": values, "extra": values},
)
scores = st.fixed_dictionaries(
    {"type": st.just("score"), "criteria": st.lists(present, min_size=1, max_size=10)},
    optional={"instructions": values},
)
questions = st.dictionaries(texts.filter(bool), nouls | choices | scores, min_size=1, max_size=5)
requests = st.fixed_dictionaries(
    {"model": st.just("jev-latest"), "state": present, "questions": questions}, optional={"x_extra": values}
)


@pytest.fixture(scope="module", params=["long_laya", "kev"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    run: RunDirectory = request.getfixturevalue(request.param)
    with serving(open_model(run), ModelCard.of(run)) as server:
        yield server


def seen(answer: httpx.Response) -> Response:
    data, error, nonfinite = parse_json(answer.content)
    return Response(answer.status_code, dict(answer.headers), answer.content, 0.0, data, error, nonfinite)


def keeps_the_contract(request: Any, answer: httpx.Response) -> None:
    if answer.status_code == 200:
        assert validate_success(request, seen(answer)) == []
    elif answer.status_code == 422:
        assert validate_validation_error(seen(answer)) == []
    else:
        assert 400 <= answer.status_code < 500
        assert validate_error_shape(seen(answer)) == []


@QUICK
@given(request=requests)
def test_every_well_formed_request_is_answered(served: Served, request: dict[str, Any]):
    answer = served.post(request)
    assert answer.status_code == 200, answer.text
    keeps_the_contract(request, answer)


@QUICK
@given(request=requests, data=st.data())
def test_a_request_with_something_else_in_one_place_is_answered_or_refused(
    served: Served, request: dict[str, Any], data: st.DataObject
):
    path = data.draw(st.sampled_from([*_paths(request)]))
    *way, last = path
    inside: Any = request
    for step in way:
        inside = inside[step]
    inside[last] = data.draw(values)
    keeps_the_contract(request, served.post(request))


@QUICK
@given(
    data=st.binary(max_size=200), encoding=st.sampled_from(["", "gzip", "zstd", "deflate", "br", "gzip, zstd", "\xe9"])
)
def test_bytes_of_any_kind_are_refused(served: Served, data: bytes, encoding: str):
    answer = served.post(content=data, headers={"content-encoding": encoding.encode("latin-1")})
    assert 400 <= answer.status_code < 500
    keeps_the_contract({}, answer)


@QUICK
@given(request=requests, data=st.data())
def test_a_request_cut_off_or_garbled_is_refused_or_answered(
    served: Served, request: dict[str, Any], data: st.DataObject
):
    text = bytearray(json.dumps(request, ensure_ascii=data.draw(st.booleans())).encode())
    at = data.draw(st.integers(0, len(text) - 1))
    if data.draw(st.booleans()):
        del text[at:]
    else:
        text[at] = data.draw(st.integers(0, 255))
    answer = served.post(content=bytes(text))
    try:
        sent = json.loads(bytes(text))
    except ValueError:
        sent = {}
    keeps_the_contract(sent, answer)


def _paths(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places in a request, from the outside in."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, child in children for path in [(*way, key), *_paths(child, (*way, key))]]
