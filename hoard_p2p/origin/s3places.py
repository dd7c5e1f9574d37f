"""Which host is asked for a bucket, and when another is to be asked instead. Pure.

A redirect is followed only to where the same owner's servers are: nobody else gets a question that was signed here.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from hoard_p2p.origin.s3failures import is_moved
from hoard_p2p.origin.s3xml import Complaint

_DNS_NAME = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_REGION = re.compile(r"[a-z0-9-]{1,62}")
_AWS = (".amazonaws.com", ".amazonaws.com.cn")


class Base(NamedTuple):
    """Who is asked: `scheme` http or https; `host` with its port unless that is the scheme's own."""

    scheme: str
    host: str


class Endpoint(NamedTuple):
    """A server, and how a bucket is named to it: `virtual`, in the host's name, or in the path. `exact`: the host of
    the bucket itself, after a redirect."""

    scheme: str
    host: str
    folder: str
    region: str
    virtual: bool
    exact: str = ""

    def base(self, bucket: str) -> Base:
        return Base(self.scheme, self.exact or (f"{bucket}.{self.host}" if self.virtual else self.host))

    def path(self, bucket: str, key: bytes | None) -> bytes:
        """Not quoted; None: of the bucket itself."""
        start = self.folder.encode() + (b"" if self.virtual else b"/" + bucket.encode())
        return start + b"/" + key if key is not None else start or b"/"


def endpoint_of(bucket: str, endpoint: str, region: str, style: str) -> Endpoint:
    """`style`: `path`, `virtual`, or empty: in the host's name with AWS, in the path with others."""
    parts = urlsplit(endpoint)
    virtual = style == "virtual" or (not style and is_aws(parts.netloc) and bool(_DNS_NAME.fullmatch(bucket)))
    return Endpoint(parts.scheme, parts.netloc, parts.path.rstrip("/"), region, virtual)


def is_aws(host: str) -> bool:
    return host.endswith(_AWS)


def elsewhere(endpoint: Endpoint, status: int, headers: Mapping[str, str], complaint: Complaint) -> Endpoint | None:
    """Where to ask after that answer; None: it is the answer."""
    if not is_moved(status, complaint):
        return None
    region = headers.get("x-amz-bucket-region") or complaint.region
    if region and region != endpoint.region and _REGION.fullmatch(region):
        host = endpoint.host
        if is_aws(host) and ".dualstack." not in host and "fips" not in host:
            host = f"s3.{region}.amazonaws.com" + (".cn" if host.endswith(".cn") else "")
        return endpoint._replace(region=region, host=host, exact="")
    to = urlsplit(headers.get("location", ""))
    if to.netloc and to.netloc != endpoint.exact and is_aws(to.netloc) and is_aws(endpoint.host) and endpoint.virtual:
        return endpoint._replace(exact=to.netloc) if to.scheme == endpoint.scheme else None
    return None
