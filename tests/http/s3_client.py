"""The client of the S3 tests: boto3 with its defaults, whatever its version."""

import socket

import boto3
from botocore.config import Config

resolve = socket.getaddrinfo


def resolve_local(host, *arguments, **options):
    """Names below localhost lead here (RFC 6761), which not every libc knows."""
    return resolve("127.0.0.1" if str(host).endswith(".localhost") else host, *arguments, **options)


socket.getaddrinfo = resolve_local


def s3_client(url, certificate, key, style="path"):
    """For a server by its URL and certificate, with a key of the formation; buckets are named by `style`."""
    return boto3.client(
        "s3",
        endpoint_url=url,
        verify=certificate,
        region_name="us-east-1",
        aws_access_key_id=key.split(".")[0],
        aws_secret_access_key=key,
        config=Config(signature_version="s3v4", s3={"addressing_style": style}, proxies={}),
    )
