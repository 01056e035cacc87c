"""On whose behalf a call is, from a client's opts to the scheduler."""

from __future__ import annotations

import pytest

from pybatcher import InvalidRequestError
from pybatcher.calls.call import Call, CallOptions
from pybatcher.sidecar.protocol.codecs import METHODS
from pybatcher.sidecar.protocol.tenant import connection_tenant, with_tenant
from pybatcher.sidecar.protocol.wire_calls import read_call, write_call


def said(tenant: str) -> CallOptions:
    return CallOptions(priority=0, timeout=None, namespace=None, tenant=tenant)


def test_a_call_is_its_connections_where_it_does_not_say_otherwise() -> None:
    own = connection_tenant(3)
    assert with_tenant(said(""), own).tenant == own
    assert with_tenant(said(""), own) != with_tenant(said(""), connection_tenant(4))
    named = with_tenant(said("app"), own)
    assert named == with_tenant(said("app"), connection_tenant(4))
    assert with_tenant(said(own), connection_tenant(4)).tenant != own


def test_a_worker_takes_the_fronts_word_for_it() -> None:
    assert with_tenant(said("connection 3"), "").tenant == "connection 3"
    assert with_tenant(said(""), "").tenant == ""


def test_it_travels_in_the_opts() -> None:
    call = read_call(["Once", {"tenant": "app"}], is_chat=False).call
    assert call.tenant == "app"
    assert write_call(call, id=None, stream=False) == ["Once", {"tenant": "app"}]
    assert read_call(["Once"], is_chat=False).call.tenant is None
    for method, params in (("score", ["Once", ["a"]]), ("embed", [["Once"]])):
        codec = METHODS[method]
        question, _ = codec.read([*params, {"tenant": "app"}])
        assert question.tenant == "app"
        assert codec.write(question) == [*params, {"tenant": "app"}]


def test_what_is_no_name_is_refused() -> None:
    assert write_call(Call(content="Once", tenant=None), id=None, stream=False) == ["Once"]
    with pytest.raises(InvalidRequestError, match="tenant is 3"):
        write_call(Call(content="Once", tenant=3), id=None, stream=False)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="tenant is 3"):
        read_call(["Once", {"tenant": 3}], is_chat=False)
    with pytest.raises(InvalidRequestError, match="at most 1024"):
        with_tenant(said("x" * 1025), connection_tenant(1))
    longest = [with_tenant(said(one * 1024), connection_tenant(1)).tenant for one in "xy"]
    assert len(set(longest)) == 2
    assert max(map(len, longest)) <= 1024, "the worker takes names that the front has made"
