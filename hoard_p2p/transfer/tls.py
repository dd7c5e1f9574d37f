"""Encryption between nodes: mutual TLS 1.3, whose authority is derived from the cluster's key.

Every holder of the key makes the same authority from it, byte for byte, and signs a certificate of its own with it at
each start; so there is nothing to hand out, to store or to renew. Needs the extra `hoard-p2p[encrypt]`.
"""

import os
import ssl
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hoard_p2p.errors import BadRequest
from hoard_p2p.transfer.keys import ClusterKey, KeyRing, Tls

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.x509 import Certificate, KeyUsage

_CONTEXT = "hoard 2026-11-30 certificate authority v1"
_BEGIN, _END = datetime(2020, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC)
"""Certificates last as long as their key: clocks must not matter, and rotating the key is what ends them."""


def make_tls(ring: KeyRing) -> Tls:
    """Contexts that sign with the first key and trust all. Raises BadRequest where the library is missing."""
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise BadRequest("--encrypt needs a library; install it with: pip install cryptography") from error
    authorities = "".join(_pem(_authority(key)) for key in ring.keys)
    certificate = _leaf_pem(ring)
    return Tls(
        server=_context(ssl.PROTOCOL_TLS_SERVER, authorities, certificate),
        client=_context(ssl.PROTOCOL_TLS_CLIENT, authorities, certificate),
    )


def _context(role: int, authorities: str, certificate: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(role)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # nodes have no names; sessions tell their ids
    context.verify_mode = ssl.CERT_REQUIRED
    context.options |= ssl.OP_NO_TICKET  # each connection proves itself anew
    context.load_verify_locations(cadata=authorities)
    _load(context, certificate)
    return context


def _load(context: ssl.SSLContext, certificate: bytes) -> None:
    """OpenSSL takes a certificate's key from a file only: one that never has a name on any disk."""
    fd = os.memfd_create("hoard-certificate", os.MFD_CLOEXEC)
    with open(fd, "wb") as file:
        file.write(certificate)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{fd}")


def _leaf_pem(ring: KeyRing) -> bytes:
    """A fresh private key, and its certificate by the authority of the first key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    mine = Ed25519PrivateKey.generate()
    certificate = _certificate(ring.keys[0], mine.public_key(), ring.me.hex(), is_authority=False)
    told = mine.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return told + _pem(certificate).encode()


def _authority(key: ClusterKey) -> "Certificate":
    """The same for all who have the key: Ed25519 signatures and everything signed are determined by it."""
    return _certificate(key, _signer(key).public_key(), _authority_name(key), is_authority=True)


def _authority_name(key: ClusterKey) -> str:
    return f"hoard cluster {key.fingerprint.hex()}"


def _signer(key: ClusterKey) -> "Ed25519PrivateKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(key.derive(_CONTEXT))


def _certificate(key: ClusterKey, subject: "Ed25519PublicKey", name: str, *, is_authority: bool) -> "Certificate":
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    signer = _signer(key)
    issuer_key = x509.SubjectKeyIdentifier.from_public_key(signer.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(_authority_name(key)))
        .public_key(subject)
        .serial_number(1 if is_authority else x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True)
        .add_extension(_usage(is_authority), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(subject), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key), critical=False)
        .sign(signer, None)
    )


def _usage(is_authority: bool) -> "KeyUsage":
    from cryptography.x509 import KeyUsage

    return KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: "Certificate") -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM).decode()
