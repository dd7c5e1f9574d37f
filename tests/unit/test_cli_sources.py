"""What SOURCE means, and what options and environment add to it."""

import pytest

from hoard_p2p.cli.sources import S3Options, check_no_s3, origin_url, source_path
from hoard_p2p.errors import BadRequest


@pytest.mark.parametrize("source", ["/data/set", "file:///data/set"])
def test_a_path_or_file_url_is_a_directory(source: str) -> None:
    assert str(source_path(source)) == "/data/set"


@pytest.mark.parametrize("source", ["s3://bucket/set", "gs://bucket/set", "https://host/set"])
def test_other_urls_are_origins(source: str) -> None:
    assert source_path(source) is None


@pytest.mark.parametrize(
    ("source", "meant"), [("s3:/bucket/set", "s3://bucket/set"), ("S3:bucket/set", "s3://bucket/set")]
)
def test_what_is_nearly_a_url_is_no_path(source: str, meant: str) -> None:
    with pytest.raises(BadRequest, match=f"write {meant}"):
        source_path(source)


def test_endpoint_and_region_come_from_the_environment_and_credentials_do_not() -> None:
    environ = {
        "AWS_ENDPOINT_URL": "http://minio:9000/",
        "AWS_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "AKIA",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
    url = origin_url("s3://bucket/set", S3Options(), environ)
    assert url == "s3://bucket/set/?endpoint=http://minio:9000&region=eu-central-1"


def test_options_win_over_the_url_and_the_url_over_the_environment() -> None:
    environ = {"AWS_ENDPOINT_URL": "http://other", "AWS_ENDPOINT_URL_S3": "http://third", "AWS_DEFAULT_REGION": "r1"}
    assert "third" in origin_url("s3://bkt/p", S3Options(), environ)
    assert "fourth" in origin_url("s3://bkt/p?endpoint=http://fourth", S3Options(), environ)
    told = origin_url("s3://bkt/p?endpoint=http://fourth&region=r2", S3Options("http://fifth", "r3"), environ)
    assert told == "s3://bkt/p/?endpoint=http://fifth&region=r3"
    assert origin_url("s3://bkt/p", S3Options(), {**environ, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}) == (
        "s3://bkt/p/?region=r1"
    )


def test_flags_are_part_of_the_url() -> None:
    assert origin_url("s3://bkt/", S3Options(anonymous=True, requester_pays=True), {}) == (
        "s3://bkt/?requester_pays=1&anonymous=1"
    )


def test_options_of_s3_beside_anything_else_are_refused() -> None:
    with pytest.raises(BadRequest, match="--region is for s3"):
        origin_url("gs://bkt/p", S3Options(region="r"), {})
    with pytest.raises(BadRequest, match="--anonymous is for s3"):
        check_no_s3(S3Options(anonymous=True), "/data")
    check_no_s3(S3Options(), "/data")
    assert origin_url("gs://bkt/p", S3Options(), {"AWS_ENDPOINT_URL": "http://m"}) == "gs://bkt/p"
