"""Does a wrong result need what its process did before? It is asked again in a fresh one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from opgauge.reference_engine.types import FINDINGS, Record, Status

from .client import Client, Request, fewest
from .worker import clean

AFTER = "after"  # in the detail of a record: ids of the cases that it needs before it, none where it did not repeat


def settled(found: Record, client: Client, again: Callable[[Client], Record], search: bool = True) -> Record:
    """A wrong result as it stands where a fresh process gives one too; else *flaky*, with the cases that it needs.

    `again` checks the case that the client did last on it once more. `search` looks for those cases, by halving: a
    result that is right alone comes of state kept between calls (a cache whose key lacks what differs, memory that
    nobody wrote), and its line must bring that about.
    """
    before = client.before()
    if found.status is not Status.FAIL or not before:
        return found
    client.renew()
    alone = again(client)
    if alone.status in FINDINGS or alone.status is Status.UNAVAILABLE:
        return found
    if not search:
        return _flaky(found, (), f"after {len(before)} others in its process, right in a fresh one")

    def wrong(some: Sequence[Request]) -> bool:
        client.renew(some)
        return again(client).status is Status.FAIL

    needed = fewest(before, wrong)
    if not needed:
        return _flaky(found, (), f"once after {len(before)} others in its process, right in a fresh one and after them")
    these = needed[0].case if len(needed) == 1 else f"{len(needed)} others, first {needed[0].case}"
    return _flaky(found, needed, f"only after {these}, right in a fresh process")


def _flaky(found: Record, needed: Sequence[Request], when: str) -> Record:
    detail = {**found.detail, AFTER: [request.case for request in needed]}
    return replace(found, status=Status.FLAKY, message=clean(f"{when}: {found.message}"), detail=detail)
