"""One request to one mirror for what is missing of a file (RFC 9110: Range, If-Range, Content-Range)."""

import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from typing import Any

from data_prep.io.disk_space import Need, require_room
from data_prep.sources.discover import GZIP_MAGIC
from data_prep.sources.partial_file import Origin, Part

BLOCK_BYTES = 1 << 20
HEADERS = {"User-Agent": "clickwork"}  # some hosts turn urllib's own away


class WrongFile(Exception):
    """A mirror gave what is not the file; asking it again would not help."""


class Stopped(Exception):
    """Another file cannot be had, or the job was interrupted."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows them with the same method; urllib makes a GET of a HEAD."""

    def redirect_request(self, req: urllib.request.Request, *reply: Any) -> urllib.request.Request | None:
        moved = super().redirect_request(req, *reply)
        if moved is not None:
            moved.method = req.get_method()
        return moved


def open_url(asked: urllib.request.Request, timeout: float) -> Any:
    """The reply to a request, wherever it is redirected to."""
    return urllib.request.build_opener(_Redirects).open(asked, timeout=timeout)


def tell_size(urls: tuple[str, ...], timeout: float) -> int | None:
    """Bytes of a file, by the first mirror that says; None if none does."""
    for url in urls:
        try:
            asked = urllib.request.Request(url, headers=HEADERS, method="HEAD")
            with open_url(asked, timeout) as response:
                length = response.headers.get("Content-Length", "")
                if length.isdigit() and "text/html" not in response.headers.get("Content-Type", ""):
                    return int(length)
        except (OSError, HTTPException, ValueError):  # what ails the mirror is told when the file is asked for
            continue
    return None


class Transfer:
    """Fetches a file from its mirrors, one try at a time.

    Attributes:
        in_one_go: whether all that is at hand came in the last reply.

    Args:
        sum_known: whether the whole can be checked; else only bytes that surely belong together are put together.
        count: told how many bytes have come, less than none if some are given up.
        say: told what is asked for.
    """

    def __init__(
        self, part: Part, sum_known: bool, timeout: float,
        stop: threading.Event, count: Callable[[int], None], say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._part = part
        self._sum_known = sum_known
        self._timeout = timeout
        self._stop = stop
        self._count = count
        self.say = say
        self.in_one_go = False

    def fetch(self, url: str) -> bool:
        """Fetch what is missing, or all if what is there cannot be gone on with; whether it is whole is told.

        Returns:
            False: it came to an end, but nobody says that this is the file's.

        Raises:
            EOFError: it broke off, or what was at hand had to be given up: worth another try.
            WrongFile, UserError, Stopped, OSError, http.client.HTTPException
        """
        if self._stop.is_set():
            raise Stopped
        part, self.in_one_go = self._part, False
        origin = part.origin
        if origin is not None and origin.total == part.size and (origin.url is not None or self._sum_known):
            return True  # a job was killed when all had come
        have = part.size if self._sum_known or _vouches(origin, url) else 0
        headers = dict(HEADERS)
        if have:
            headers["Range"] = f"bytes={have}-"
            if origin is not None and origin.validator is not None and _vouches(origin, url):
                headers["If-Range"] = origin.validator
        self.say(f"fetching {url}" + (f" from byte {have:,}" if have else ""))
        try:
            response = open_url(urllib.request.Request(url, headers=headers), self._timeout)
        except urllib.error.HTTPError as error:
            if error.code != 416 or not have:
                raise
            error.close()
            return self._at_end(error.headers, origin)
        with response:
            return self._receive(url, response, have)

    def _at_end(self, headers: Any, origin: Origin | None) -> bool:
        """The mirror has no more than is at hand: that is all, or it is of another file."""
        _, size = _content_range(headers)
        if size != self._part.size:
            self.give_up()
            raise EOFError("what was at hand does not belong to this file; starting anew")
        return origin is not None and origin.total in (None, size)

    def _receive(self, url: str, response: HTTPResponse, have: int) -> bool:
        """Take in a reply."""
        part, origin = self._part, self._part.origin
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdigit() else None
        if response.status == 206:
            start, total = _content_range(response.headers)
            if start != have:
                raise EOFError("the mirror resumed at another byte than asked")
        told = Origin(url, response.headers.get("ETag"), response.headers.get("Last-Modified"), total)
        if response.status != 206 or not have:
            self._begin(told, response)
        elif origin is not None and origin.differs(told):
            self.give_up()
            raise EOFError("the file is another one than what was at hand belongs to; starting anew")
        else:
            total = origin.total if total is None and origin is not None else total
            if not _vouches(origin, url):
                part.mix(total)
        if total is not None:
            require_room([Need(part.place, total - part.size, "to fetch")])
        while block := response.read1(BLOCK_BYTES):  # what is there, so that a stall loses nothing
            part.append(block)
            self._count(len(block))
            if self._stop.is_set():
                raise Stopped
        if total is None:
            return getattr(response, "chunked", False)  # the last chunk says so, as http.client makes sure
        if part.size != total:
            raise EOFError(f"broke off at byte {part.size:,} of {total:,}")
        return True

    def _begin(self, told: Origin, response: HTTPResponse) -> None:
        """Start anew, unless the first bytes are no file of that kind: a login page does not cost what is at hand."""
        head = response.read(len(GZIP_MAGIC))
        if told.total == 0:
            raise WrongFile("an empty file")
        if head and self._part.path.name.endswith(".gz") and not GZIP_MAGIC.startswith(head):
            raise WrongFile("not gzip, though its name says so")
        self.give_up()
        self._part.begin(told)
        self.in_one_go = True
        self._part.append(head)
        self._count(len(head))

    def give_up(self) -> None:
        """Forget what is at hand."""
        self._count(-self._part.size)
        self._part.clear()


def _vouches(origin: Origin | None, url: str) -> bool:
    """Whether the server at `url` says which bytes belong to those at hand."""
    return origin is not None and origin.url == url and origin.validator is not None


def _content_range(headers: Any) -> tuple[int | None, int | None]:
    """First byte and size of the whole by a Content-Range, as far as it gives them."""
    match = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(?:(\d+)|\*)", headers.get("Content-Range", "").strip())
    first, size = match.groups() if match else (None, None)
    return None if first is None else int(first), None if size is None else int(size)
