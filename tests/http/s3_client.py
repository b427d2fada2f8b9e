"""The client of the S3 tests: boto3 with its defaults, whatever its version."""

import boto3
from botocore.config import Config


def s3_client(url, certificate, key):
    """For a server by its URL and certificate, with a key of the formation."""
    return boto3.client(
        "s3",
        endpoint_url=url,
        verify=certificate,
        region_name="us-east-1",
        aws_access_key_id=key.split(".")[0],
        aws_secret_access_key=key,
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}, proxies={}),
    )
