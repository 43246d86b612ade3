"""A token is taken once, whoever asks, wherever and however often at the same instant."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fakeredis
import pytest

from pulsify.serve.claims import Claim, Claims, Overtaken, Spent, begin
from pulsify.serve.store import Folder, Keeper, Memory, Redis, Store, StoreFailed

FACTS = {"mark": 0, "sent": {}, "model": "m"}
STORES = ("memory", "folder", "folder without links", "redis")


@pytest.fixture(params=STORES)
def servers(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Claims, Claims]:
    """Two, with one store."""
    stores: tuple[Store, Store]
    if request.param == "memory":
        stores = (Memory(60),) * 2
    elif request.param == "redis":
        shared = fakeredis.FakeServer()
        stores = Redis(fakeredis.FakeRedis(server=shared), 60), Redis(fakeredis.FakeRedis(server=shared), 60)
    else:
        stores = Folder(tmp_path, 60), Folder(tmp_path, 60)
    if "without" in request.param:

        def link(*_: Any) -> None:
            raise OSError(errno.EPERM, "no links here")

        monkeypatch.setattr(os, "link", link)
    first, second = (Claims(Keeper(store, b"key"), 60) for store in stores)
    return first, second


def kept(claims: Claims) -> Claim:
    claim = begin()
    assert claims.keep(claim, FACTS, b"state")
    return claim


def all_at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    """What they give; an exception as itself."""
    out: list[Any] = [None] * len(calls)
    start = threading.Barrier(len(calls))

    def one(at: int, call: Callable[[], Any]) -> None:
        start.wait()
        try:
            out[at] = call()
        except Exception as error:
            out[at] = error

    threads = [threading.Thread(target=one, args=each) for each in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out


def spent(claims: Claims, token: str) -> bool:
    try:
        return not claims.find(token)
    except Spent:
        return True


def test_whoever_takes_a_token_has_the_stream(servers: tuple[Claims, Claims]) -> None:
    one, two = servers
    first = kept(one)
    assert [k.blob for k in two.find(first.token)] == [b"state"]
    second = two.take(first.token, FACTS, b"later")
    assert two.holds(second) and not one.holds(first)
    assert not one.keep(first, FACTS, b"too late")
    assert [k.blob for k in one.find(second.token)] == [b"later"]


def test_a_client_that_never_got_its_next_token_comes_again_until_it_has(servers: tuple[Claims, Claims]) -> None:
    one, two = servers
    first = kept(one)
    second = two.take(first.token, FACTS, b"")
    third = one.take(first.token, FACTS, b"")
    assert not two.holds(second) and one.holds(third)
    confirmed = one.confirm(third)
    assert confirmed is not None and one.holds(confirmed)
    assert spent(two, first.token) and spent(two, second.token) and not spent(two, third.token)
    with pytest.raises(Spent):
        two.take(first.token, FACTS, b"")
    fourth = two.take(third.token, FACTS, b"")
    assert two.holds(fourth) and not one.holds(confirmed)
    assert two.confirm(fourth) is not None
    assert one.confirm(kept(one)) is not None  # nothing came before it


def test_what_is_left_over_from_before_a_cut_takes_no_stream_away(servers: tuple[Claims, Claims]) -> None:
    """A server that stood still reads `open` of a connection that is long gone. Its client has the next token."""
    one, two = servers
    first = kept(one)
    second = two.take(first.token, FACTS, b"goes on")
    left_over = one.take(first.token, FACTS, b"")
    assert one.holds(left_over) and [k.blob for k in two.find(second.token)] == [b"goes on"]
    third = two.take(second.token, FACTS, b"goes on")
    assert two.holds(third) and not one.holds(left_over)
    assert spent(one, first.token) and spent(one, left_over.token) and not spent(one, second.token)


def test_who_is_overtaken_may_try_again(servers: tuple[Claims, Claims], monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = servers
    first, keep = kept(one), one.keep

    def late(*given: Any) -> bool:
        two.take(first.token, FACTS, b"")
        return keep(*given)

    monkeypatch.setattr(one, "keep", late)
    with pytest.raises(Overtaken):
        one.take(first.token, FACTS, b"")
    monkeypatch.undo()
    assert one.holds(one.take(first.token, FACTS, b""))


def test_one_of_many_that_come_at_the_same_instant_goes_on(servers: tuple[Claims, Claims]) -> None:
    """Each is told at once, or at its next look, that it is not the one."""
    first = kept(servers[0])
    calls = [partial(servers[i % 2].take, first.token, FACTS, b"") for i in range(12)]
    came = all_at_once(calls)
    assert all(isinstance(each, (Claim, Spent)) for each in came)
    claims = [each for each in came if isinstance(each, Claim)]
    assert sum(servers[0].holds(each) for each in claims) == 1
    assert len({each.token for each in claims}) == len({each.version for each in claims}) == len(claims)


def test_confirmed_or_taken_again_but_not_both(servers: tuple[Claims, Claims]) -> None:
    for _ in range(10):
        first = kept(servers[0])
        second = servers[0].take(first.token, FACTS, b"")
        confirmed, third = all_at_once(
            [partial(servers[0].confirm, second), partial(servers[1].take, first.token, FACTS, b"")]
        )
        assert (confirmed is None) == isinstance(third, Claim), (confirmed, third)


def test_tokens_that_nobody_gave_out(servers: tuple[Claims, Claims]) -> None:
    first, other = kept(servers[0]), begin()
    for token in ("", "x", other.token, f"{first.token}1", f"{first.stream}{other.token[16:]}", f"{'x' * 40}999999999"):
        assert spent(servers[1], token), token
    second = servers[0].take(first.token, FACTS, b"")
    with pytest.raises(Spent):
        servers[1].take(f"{first.stream}{other.token[16:-1]}1", FACTS, b"")
    assert servers[0].holds(second)


def test_a_store_that_anyone_may_write_to_takes_no_stream_away(tmp_path: Path) -> None:
    """Records are signed; one that is not holds up those who come back, and nobody else."""
    store = Memory(60)
    keeper = Keeper(store, b"key")
    claims = Claims(keeper, 60)
    first = kept(claims)
    store.put(keeper._name(f"{first.stream} 1", 0), b"garbage")
    assert claims.holds(first)
    with pytest.raises(StoreFailed):
        claims.take(first.token, FACTS, b"")


class Forgetful(Memory):
    """A store that has done what it was asked, and fails to say so."""

    silent = False

    def add(self, name: str, data: bytes) -> bool:
        added = super().add(name, data)
        if self.silent:
            self.silent = False
            raise StoreFailed("no answer")
        return added


def test_a_store_that_fails_to_answer_ends_no_stream() -> None:
    store = Forgetful(60)
    claims = Claims(Keeper(store, b"key"), 60)
    first = kept(claims)
    store.silent = True
    with pytest.raises(StoreFailed):
        claims.take(first.token, FACTS, b"")
    second = claims.take(first.token, FACTS, b"")  # the client comes again with what it has
    store.silent = True
    with pytest.raises(StoreFailed):
        claims.confirm(second)
    assert claims.holds(second) and claims.keep(second, FACTS, b"") and spent(claims, first.token)
    confirmed = claims.confirm(second)
    assert confirmed is not None and claims.holds(confirmed)
    third = claims.take(second.token, FACTS, b"")
    assert claims.holds(third) and not claims.holds(second) and not claims.holds(confirmed)


def test_records_are_kept_as_long_as_their_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    claims = Claims(Keeper(Memory(60), b"key"), 60)
    first = kept(claims)
    second = claims.take(first.token, FACTS, b"")
    for _ in range(20):
        now[0] += 20
        assert claims.keep(second, FACTS, b"")
    assert claims._record(second.stream, 1) is not None and spent(claims, first.token)


def test_who_comes_back_often_does_not_fill_the_store(servers: tuple[Claims, Claims]) -> None:
    """Snapshots of a token that counts no more are gone, those of the tokens that do are there."""
    one, two = servers
    before, claim, seen = None, kept(one), set[str]()
    for turn in range(12):
        other = sibling = (two, one)[turn % 2].take(claim.token, FACTS, b"state")
        seen |= {other.owner, claim.owner}
        if turn % 3 == 0:
            other = two.confirm(other) or other
        elif turn % 3 == 1:  # its client never got it
            other = one.take(claim.token, FACTS, b"state")
            seen.add(other.owner)
        before, claim = claim, other
        assert [k.blob for k in one.find(claim.token)] == [b"state"]
        valid = {claim.owner} if turn % 3 == 0 else {before.owner, sibling.owner, claim.owner}
        assert {owner for owner in seen if snapshots(one, owner)} == valid


def snapshots(claims: Claims, owner: str) -> bool:
    keeper = claims._keeper
    return any(keeper._store.get(keeper._called(owner, turn)) is not None for turn in range(3))


class Counting(Memory):
    """A store that counts what it is asked for."""

    asked = 0

    def get(self, name: str) -> bytes | None:
        self.asked += 1
        return super().get(name)


def test_a_token_of_long_ago_is_refused_at_once() -> None:
    store = Counting(60)
    claims = Claims(Keeper(store, b"key"), 60)
    first = claim = kept(claims)
    for _ in range(300):
        claim = claims.take(claim.token, FACTS, b"")
    store.asked = 0
    with pytest.raises(Spent):
        claims.find(first.token)
    assert store.asked < 10
