"""Request ids: a change that is asked for twice is made once."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.application.ports import Database, RequestRecord


def request_record(
    request_id: str, method: str, contents: Mapping[str, Any], resource_id: str
) -> RequestRecord:
    """Return what is kept of a request."""
    text = json.dumps(contents, sort_keys=True, separators=(",", ":"), default=str)
    return RequestRecord(
        request_id=request_id,
        method=method,
        fingerprint=hashlib.sha256(text.encode()).hexdigest(),
        resource_id=resource_id,
    )


async def made_before(database: Database, record: RequestRecord) -> str | None:
    """Return the resource that this request has changed before, or None.

    Raises:
        PlanariaError: REQUEST_ID_REUSED when the id was used for something else.
    """
    if not record.request_id:
        return None
    async with database.unit_of_work() as work:
        known = await work.requests.get(record.request_id)
    if known is None:
        return None
    if (known.method, known.fingerprint) != (record.method, record.fingerprint):
        raise PlanariaError(
            ErrorReason.REQUEST_ID_REUSED,
            f"request id {record.request_id} was used before for something else: use a new one",
            {"request_id": record.request_id},
        )
    return known.resource_id


async def remember(database: Database, record: RequestRecord) -> None:
    """Keep a request that has been carried out."""
    if not record.request_id:
        return
    async with database.unit_of_work() as work:
        await work.requests.add(record)
        await work.commit()
