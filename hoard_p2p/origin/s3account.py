"""How this node reaches S3: credentials, region and endpoint from where AWS's own tools take them (environment, files,
profiles, roles, instance metadata). The one door to boto3.

Secrets stay in here and in signatures. Temporary credentials are renewed before they expire.
"""

import threading
from dataclasses import dataclass
from typing import Any

from hoard_p2p.errors import OriginRefused
from hoard_p2p.origin.s3sign import Keys, Signer
from hoard_p2p.origin.s3url import S3Address
from hoard_p2p.printing import printable

ADVICE = (
    "give this node credentials where AWS tools look for them (AWS_PROFILE, ~/.aws, AWS_ACCESS_KEY_ID in its "
    "environment, a role), or publish with --anonymous if everybody may read it; other nodes can still be its readers"
)


@dataclass(frozen=True, slots=True)
class Reach:
    """Where to ask. `endpoint`: as in a URL, never empty; `default`: it is the one that AWS tools would take here;
    `ca_bundle`: of TLS, empty for the system's; `style`: as configured, may be empty."""

    endpoint: str
    region: str
    default: bool
    ca_bundle: str
    style: str


class Account:
    """Credentials for one address. Blocking (instance metadata may be asked); for any thread."""

    def __init__(self, address: S3Address) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._session: Any = None
        self._credentials: Any = None
        self._signer: Signer | None = None

    @property
    def source(self) -> str:
        """Where the credentials come from, in words: never what they are."""
        if self._address.anonymous:
            return "none (anonymous)"
        with self._lock:
            return str(getattr(self._found(), "method", "") or "unknown")

    def reach(self) -> Reach:
        """Raises OriginRefused if the configuration of AWS tools cannot be used."""
        address = self._address
        with self._lock:
            session = self._opened()
            try:
                told = {"endpoint_url": address.endpoint or None, "region_name": address.region or None}
                meta = session.client("s3", **told, aws_access_key_id="-", aws_secret_access_key="-").meta
                core = session._session
                bundle = core.get_config_variable("ca_bundle")
                style = (core.get_config_variable("s3") or {}).get("addressing_style") or ""
            except Exception as error:
                raise self._refusal(error) from error
        endpoint, region = str(meta.endpoint_url).rstrip("/"), str(meta.region_name or "us-east-1")
        return Reach(
            endpoint, "us-east-1" if region == "aws-global" else region, not address.endpoint, str(bundle or ""),
            str(style) if style in ("path", "virtual") else "",
        )  # fmt: skip

    def signer(self, region: str) -> Signer | None:
        """Signs with the credentials of now; None: requests are not signed. Raises OriginRefused."""
        if self._address.anonymous:
            return None
        with self._lock:
            found = self._found()
            try:
                frozen = found.get_frozen_credentials()
                keys = Keys(frozen.access_key, frozen.secret_key, frozen.token or "")
            except Exception as error:
                raise self._refusal(error) from error
            if self._signer is None or self._signer.region != region or self._signer.keys != keys:
                self._signer = Signer(keys, region)
            return self._signer

    def renew(self) -> bool:
        """After the server refused them: look for credentials anew. Whether there are others now."""
        with self._lock:
            before = self._signer.keys if self._signer else None
            self._session = self._credentials = self._signer = None
            try:
                frozen = self._found().get_frozen_credentials()
            except Exception:  # noqa: BLE001 - the refusal itself says what to do
                return False
            return before is None or before.access != frozen.access_key or before.token != (frozen.token or "")

    def _found(self) -> Any:
        if self._credentials is None:
            session = self._opened()
            try:
                self._credentials = session.get_credentials()
            except Exception as error:
                raise self._refusal(error) from error
            if self._credentials is None:
                raise OriginRefused(f"{self._address.url}: there are no AWS credentials on this node; {ADVICE}")
        return self._credentials

    def _opened(self) -> Any:
        if self._session is None:
            import boto3  # takes 0.3 s and 30 MB: only where S3 is used

            try:
                self._session = boto3.session.Session()
            except Exception as error:
                raise self._refusal(error) from error
        return self._session

    def _refusal(self, error: Exception) -> OriginRefused:
        return OriginRefused(
            f"{self._address.url}: AWS credentials of this node cannot be used: {printable(str(error)[:300])}; {ADVICE}"
        )
