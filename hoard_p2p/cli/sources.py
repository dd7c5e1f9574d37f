"""What `SOURCE` of a command means: a directory, or the URL of an origin with what options and environment add."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hoard_p2p.errors import BadRequest
from hoard_p2p.origin.s3url import SCHEME, parse_endpoint, parse_s3

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://")
_MEANT = re.compile(r"(s3|gs|az|hf|https?|file):/*(?!/)", re.IGNORECASE)
"""What somebody writes who means a URL."""


@dataclass(frozen=True, slots=True)
class S3Options:
    """How an S3 store is to be asked, as a user wrote it."""

    endpoint: str | None = None
    region: str | None = None
    anonymous: bool = False
    requester_pays: bool = False

    @property
    def named(self) -> str:
        """The first option that was used, empty if none."""
        used = {
            "--endpoint-url": self.endpoint,
            "--region": self.region,
            "--anonymous": self.anonymous,
            "--request-payer": self.requester_pays,
        }
        return next((name for name, value in used.items() if value), "")


def source_path(source: str) -> Path | None:
    """The directory that SOURCE means; None if it is the URL of an origin. Raises BadRequest for what is
    nearly one."""
    scheme = _SCHEME.match(source)
    if scheme is None:
        if (meant := _MEANT.match(source)) and not Path(source).exists():
            raise BadRequest(f"{source} is no URL; write {meant[1].lower()}://{source[meant.end() :]}")
        return Path(source)
    return Path(source[len("file://") :]) if scheme[1] == "file" else None


def origin_url(source: str, options: S3Options, environ: Mapping[str, str]) -> str:
    """The URL as all nodes get it: with endpoint and region of the options, else of the environment that AWS's tools
    look at; never with credentials. Raises BadRequest."""
    if not source.startswith(SCHEME):
        if options.named:
            raise BadRequest(f"{options.named} is for s3:// sources, not for {source}")
        return source
    address = parse_s3(source)
    endpoint = parse_endpoint(options.endpoint) if options.endpoint else address.endpoint or _endpoint_of(environ)
    region = options.region or address.region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or ""
    told = replace(
        address,
        endpoint=endpoint,
        region=region,
        anonymous=address.anonymous or options.anonymous,
        requester_pays=address.requester_pays or options.requester_pays,
    )
    return parse_s3(told.url).url


def _endpoint_of(environ: Mapping[str, str]) -> str:
    if environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
        return ""
    return parse_endpoint(environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or "")


def check_no_s3(options: S3Options, source: str) -> None:
    """Raises BadRequest if an option of S3 stands beside a directory."""
    if options.named:
        raise BadRequest(f"{options.named} is for s3:// sources, not for the directory {source}")
