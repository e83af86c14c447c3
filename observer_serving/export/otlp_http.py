"""Kept traces to any OTLP/HTTP back end; to a Phoenix also annotations, and a look whether they really arrived."""

import gzip
import logging
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from observer_core.errors import InputError
from observer_serving.export import phoenix as phoenix_rules
from observer_serving.export.answer import Answer, Verdict, judge, unreachable
from observer_serving.export.item import OnOutcome
from observer_serving.export.queue import CHECK, NOTE, SPANS, Entry
from observer_serving.export.queued import ExportOptions, QueuedExporter

log = logging.getLogger(__name__)

_NOTES_PER_REQUEST = 100
_CHECKS_PER_ROUND = 50
_CHECK_EVERY_S = 2.0
_CHECK_FOR_S = 120.0
"""How long a Phoenix may take to show what it has accepted; then the spans are sent again (it ignores those it has)."""


class OtlpHttpExporter(QueuedExporter):
    """One back end (see `QueuedExporter`).

    Args:
        endpoint: the URL of the OTLP/HTTP traces route; without a path, `/v1/traces` is meant.
        project: Phoenix's project, sent as its header; the spans themselves are not changed.
        phoenix: whether it is a Phoenix; `None` means yes if there is a project, else as its answers' headers say.
        annotate: whether a Phoenix also gets the annotation `observer.p_wrong` on each trace.
        read_back: whether a trace counts as exported only once Phoenix shows all its spans (needs the project).
        ca: the authority that signed the back end's certificate, where the system does not know it.
    """

    def __init__(
        self,
        name: str,
        endpoint: str,
        folder: Path,
        *,
        project: str | None = None,
        headers: Mapping[str, str] | None = None,
        phoenix: bool | None = None,
        annotate: bool = True,
        read_back: bool = False,
        ca: Path | None = None,
        options: ExportOptions = ExportOptions(),
        on_outcome: OnOutcome | None = None,
    ) -> None:
        super().__init__(name, folder, options=options, on_outcome=on_outcome)
        self._endpoint = _traces_url(endpoint)
        self._phoenix = phoenix if phoenix is not None or project is None else True
        base = phoenix_rules.base_url(self._endpoint)
        self._annotations_url = f"{base}/v1/trace_annotations" if annotate and base is not None else None
        self._spans_url = (
            f"{base}/v1/projects/{quote(project, safe='')}/spans" if read_back and base and project else None
        )
        own = {phoenix_rules.PROJECT_HEADER: project} if project is not None else {}
        verify = ssl.create_default_context(cafile=str(ca)) if ca is not None else True
        self._client = httpx.Client(timeout=options.timeout_s, headers=dict(headers or {}) | own, verify=verify)
        self._notes_not_before = self._checks_not_before = 0.0
        self._notes_failed = 0
        self._sent_at: dict[str, float] = {}  # item → when it was sent, while it waits to be seen

    # -- sending

    def _prepare(self, body: bytes) -> bytes:
        if self._phoenix:
            body, repaired = phoenix_rules.repair_times(body)
            self._stats.repaired_spans += repaired
        return gzip.compress(body, compresslevel=4, mtime=0)

    def _post(self, prepared: bytes) -> Answer:
        return self._request(prepared, encoding="gzip")

    def _post_nothing(self) -> Answer:
        return self._request(b"", encoding="identity")

    def _request(self, content: bytes, *, encoding: str) -> Answer:
        headers = {"content-type": "application/x-protobuf", "content-encoding": encoding}
        try:
            response = self._client.post(self._endpoint, content=content, headers=headers)
        except httpx.HTTPError as error:
            return unreachable(error, self._endpoint)
        if self._phoenix is None:
            self._phoenix = phoenix_rules.VERSION_HEADER in response.headers or None
        return judge(response)

    def _close(self) -> None:
        self._client.close()

    # -- after sending

    def _accepted(self, entry: Entry, header: dict[str, Any]) -> None:
        if self._spans_url is None:
            self._arrived(entry, header)
        else:
            self._queue.move(entry, CHECK)
            self._sent_at[entry.path.stem] = time.monotonic()

    def _arrived(self, entry: Entry, header: dict[str, Any]) -> None:
        self._finished(entry, header)
        decision = header["decision"]
        annotates = self._phoenix and self._annotations_url is not None
        if annotates and decision is not None and phoenix_rules.annotation(decision) is not None:
            self._queue.move(entry, NOTE)
        else:
            self._queue.done(entry)

    def _more_work(self) -> bool:
        return self._annotate() | self._read_back()

    def _more_due(self) -> float:
        return min(self._notes_not_before, self._checks_not_before)

    def _read_back(self) -> bool:
        """Look whether what was sent is there; whether anything was found or sent again."""
        now = time.monotonic()
        if self._spans_url is None or now < self._checks_not_before:
            return False
        self._checks_not_before = now + _CHECK_EVERY_S
        progress = False
        for entry in self._queue.waiting(CHECK, _CHECKS_PER_ROUND):
            header, _ = entry.read()
            found = self._spans_there(header["trace_id"])
            if found is None:
                return progress
            sent_at = self._sent_at.setdefault(entry.path.stem, now)
            if found >= min(entry.spans, phoenix_rules.PAGE):
                self._stats.read_back += 1
                self._arrived(entry, header)
            elif now - sent_at > _CHECK_FOR_S:
                log.warning("exporter %s: trace %s did not arrive; sending it again", self.name, header["trace_id"])
                self._stats.retries += 1
                self._queue.move(entry, SPANS)
            else:
                continue
            self._sent_at.pop(entry.path.stem, None)
            progress = True
        return progress

    def _spans_there(self, trace_id: str) -> int | None:
        """How many spans of a trace Phoenix shows; `None` when it does not say."""
        params = {"trace_id": trace_id, "limit": phoenix_rules.PAGE}
        try:
            answer = self._client.get(self._spans_url or "", params=params)
        except httpx.HTTPError as error:
            self._stats.last_error = str(unreachable(error, self._spans_url or ""))
            return None
        if answer.status_code == 404:  # no such project yet
            return 0
        if not answer.is_success:
            self._stats.last_error = str(judge(answer))
            return None
        return len(answer.json()["data"])

    def _annotate(self) -> bool:
        """Post the annotations of sent traces; whether any was posted. Spans never wait for annotations."""
        if self._annotations_url is None or time.monotonic() < self._notes_not_before:
            return False
        entries = self._queue.waiting(NOTE, _NOTES_PER_REQUEST)
        if not entries:
            return False
        rows = [phoenix_rules.annotation(entry.read()[0]["decision"]) for entry in entries]
        try:
            answer = judge(self._client.post(self._annotations_url, json={"data": rows}))
        except httpx.HTTPError as error:
            answer = unreachable(error, self._annotations_url)
        if answer.verdict is Verdict.ACCEPTED:
            self._notes_failed = 0
            self._stats.annotations += len(entries)
        elif answer.verdict is Verdict.REFUSED or answer.status == 404:
            log.error("exporter %s: %d annotations are refused, %s", self.name, len(entries), answer)
            self._stats.annotations_refused += len(entries)
        else:
            self._stats.last_error = str(answer)
            self._notes_not_before = time.monotonic() + self._delay(self._notes_failed)
            self._notes_failed += 1
            return False
        for entry in entries:
            self._queue.done(entry)
        return True


def _traces_url(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InputError(
            f"the endpoint {endpoint!r} is no http:// or https:// URL; give that of an OTLP/HTTP traces route"
        )
    return endpoint.rstrip("/") + "/v1/traces" if parts.path in ("", "/") else endpoint
