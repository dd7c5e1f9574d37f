"""What a server's refusals mean: which are worth a retry, here or elsewhere, and what to do about the others. Pure.

Sources: AWS documentation, "Error responses" of S3; what SeaweedFS, MinIO and Ceph answer is a part of it.
"""

from hoard_p2p.errors import ObjectChanged, OriginBusy, OriginFailed, OriginRefused
from hoard_p2p.origin.s3xml import Complaint
from hoard_p2p.printing import printable

_BUSY = frozenset({
    "SlowDown", "TooManyRequests", "RequestLimitExceeded", "ServiceUnavailable", "Throttling", "ThrottlingException",
    "RequestThrottled", "BandwidthLimitExceeded", "RequestTimeout", "Busy",
})  # fmt: skip
_BUSY_STATUS = frozenset({408, 429, 503})
_GONE = frozenset({"NoSuchKey", "NoSuchVersion"})
_EXPIRED = frozenset({
    "ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId",
    "RequestExpired",
})  # fmt: skip
_MOVED = frozenset({"PermanentRedirect", "TemporaryRedirect", "Redirect", "AuthorizationHeaderMalformed",
                    "IllegalLocationConstraintException"})  # fmt: skip
_HOPELESS = {
    "NoSuchBucket": "there is no such bucket",
    "InvalidBucketName": "this is no name of a bucket",
    "InvalidObjectState": "it is archived: restore it first",
}
_REFUSED = {
    "RequestTimeTooSkewed": "the clock of this node is wrong: set it",
    "SignatureDoesNotMatch": "the secret key of this node does not belong to its access key",
    "AccessDenied": "the credentials of this node may not read it: allow s3:ListBucket and s3:GetObject",
    "InvalidAccessKeyId": "the server does not know the access key of this node",
    "AccountProblem": "the account of this node's credentials cannot be used",
}


def is_expired(complaint: Complaint) -> bool:
    """Whether other credentials may help."""
    return complaint.code in _EXPIRED


def is_moved(status: int, complaint: Complaint) -> bool:
    """Whether the bucket is in another region, or the server names another place."""
    return status in (301, 302, 307, 308) or complaint.code in _MOVED


def is_gone(status: int, complaint: Complaint) -> bool:
    return status == 404 and complaint.code in _GONE


def failure(name: str, status: int, complaint: Complaint) -> OriginFailed:
    """The error for an answer that gives no bytes; `name` is the object's or the origin's, for people."""
    code = complaint.code
    told = f"status {status}" + (f" {printable(code)}" if code else "")
    if code in _HOPELESS:
        return hopeless(f"{name}: {_HOPELESS[code]} ({told})")
    if status in _BUSY_STATUS or code in _BUSY:
        return OriginBusy(f"{name}: the server asks for less ({told})")
    if code in _EXPIRED and code not in _REFUSED:
        return OriginRefused(f"{name}: the credentials of this node have expired: renew them ({told})")
    if status in (401, 403) or code in _REFUSED:
        why = _REFUSED.get(code, "the server refuses this node")
        said = f": {printable(complaint.message)}" if complaint.message and code not in _REFUSED else ""
        return OriginRefused(f"{name}: {why} ({told}){said}")
    said = f": {printable(complaint.message)}" if complaint.message else ""
    return OriginFailed(f"{name}: an answer without the bytes asked for ({told}){said}")


def hopeless(message: str) -> OriginFailed:
    """A failure that no retry helps, here or elsewhere."""
    error = OriginFailed(message)
    error.again = False
    return error


def changed(name: str, listed: str, now: str) -> ObjectChanged:
    """`listed`, `now`: versions, or what there is instead."""
    return ObjectChanged(f"{name} has changed since it was listed: version {listed} then, {now} now; publish again")
