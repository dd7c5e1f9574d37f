"""The pages on which web servers show what a folder holds: the names that such a page links to. Pure."""

from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import unquote_to_bytes, urljoin, urlsplit


class IndexPage:
    """Fed with a page piece by piece, so that a long one is never in memory as a whole."""

    def __init__(self, url: str) -> None:
        """`url`: where the page was found, ending in a slash."""
        self._base = urlsplit(url)
        self._url = url
        self._parser = _Links()
        self._seen: set[bytes] = set()

    def names(self, text: str) -> Iterator[bytes]:
        """The names of what lies directly in the folder, each once; those of folders end in a slash."""
        self._parser.feed(text)
        found, self._parser.found = self._parser.found, []
        for link in found:
            name = self._name(link)
            if name and name.rstrip(b"/") not in self._seen:
                self._seen.add(name.rstrip(b"/"))
                yield name

    def _name(self, link: str) -> bytes:
        """Empty for what lies elsewhere: the parent, other sites, other orders of the same page."""
        try:
            target = urlsplit(urljoin(self._url, link.strip()))
        except ValueError:
            return b""
        if (target.scheme, target.netloc) != (self._base.scheme, self._base.netloc) or target.query:
            return b""
        if not target.path.startswith(self._base.path):
            return b""
        rest = target.path[len(self._base.path) :]
        plain = rest.rstrip("/")
        name = unquote_to_bytes(plain)
        if not plain or "/" in plain or b"/" in name or b"\0" in name or name in (b".", b".."):
            return b""
        return name + (b"/" if rest.endswith("/") else b"")


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]
