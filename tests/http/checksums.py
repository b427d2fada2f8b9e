"""Bodies by chunks with checksums behind them, as current S3 clients send them, also cut and forged; what is stored is compared.

usage: checksums.py URL CERTIFICATE MOUNT, with the key alone on a line of standard input. Prints what is wrong, and exits
with 1 then.
"""

import base64
import hashlib
import os
import ssl
import sys
import urllib.request
import zlib

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from boto3.s3.transfer import TransferConfig

from s3_client import s3_client

url, certificate, mount = sys.argv[1:]
key = sys.stdin.readline().strip()
bad = []
trusted = ssl.create_default_context(cafile=certificate)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted))
credentials = Credentials(key.split(".")[0], key)
body = b"123456789"
# The check values of the CRC catalogue, and of FIPS 180.
SUMS = {
    "crc32": "y/Q5Jg==",
    "crc32c": "4waSgw==",
    "crc64nvme": "rosUhgp5mIg=",
    "sha1": base64.b64encode(hashlib.sha1(body).digest()).decode(),
    "sha256": base64.b64encode(hashlib.sha256(body).digest()).decode(),
}


def check(what, holds):
    if not holds:
        bad.append(what)


class Signer(S3SigV4Auth):
    """Signs a head for a body of a kind."""

    kind = "UNSIGNED-PAYLOAD"

    def payload(self, request):
        return self.kind


def ask(method, path, headers=(), kind="UNSIGNED-PAYLOAD", bodies=lambda sign: b""):
    """Status, headers and body of an answer. `bodies` makes a body with what signs a piece of it."""
    request = AWSRequest(method=method, url=f"{url}/{path}", headers=dict(headers), data=b"")
    signer = Signer(credentials, "s3", "us-east-1")
    signer.kind = kind
    signer.add_auth(request)
    last = [request.headers["Authorization"].split("Signature=")[1]]

    def sign(what, *pieces):
        lines = [f"AWS4-HMAC-SHA256-{what}", request.context["timestamp"], signer.credential_scope(request), last[0]]
        lines += [hashlib.sha256(piece).hexdigest() for piece in pieces]
        last[0] = signer.signature("\n".join(lines), request)
        return last[0]

    sent = urllib.request.Request(f"{url}/{path}", data=bodies(sign), headers=dict(request.headers), method=method)
    try:
        answer = opener.open(sent)
    except urllib.error.HTTPError as error:
        answer = error
    return answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.read()


def unsigned(trailer, chunks=(body[:4], body[4:]), end=True):
    def make(sign):
        text = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
        return text + (b"0\r\n" + trailer + b"\r\n" if end else b"")

    return make


def signed(trailer, wrong=False):
    def make(sign):
        text = b""
        for chunk in (body[:4], body[4:], b""):
            signature = sign("PAYLOAD", b"", chunk).encode()
            text += b"%x;chunk-signature=%s\r\n%s" % (len(chunk), signature, chunk + b"\r\n" if chunk else b"")
        signature = "0" * 64 if wrong else sign("TRAILER", trailer.replace(b"\r\n", b"\n"))
        return text + trailer + b"x-amz-trailer-signature:%s\r\n\r\n" % signature.encode()

    return make


UNSIGNED, SIGNED = "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"


def put(name, kind, make, announced=None, len_said=len(body)):
    headers = {"Content-Encoding": "aws-chunked", "X-Amz-Decoded-Content-Length": str(len_said)}
    if announced:
        headers["X-Amz-Trailer"] = f"x-amz-checksum-{announced}"
    return ask("PUT", f"sums/{name}", headers, kind, make)


def stored(name):
    try:
        with open(f"{mount}/sums/{name}", "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


check("a bucket", ask("PUT", "sums")[0] == 200)
for kind, sum in SUMS.items():
    trailer = f"x-amz-checksum-{kind}:{sum}\r\n".encode()
    other = f"x-amz-checksum-{kind}:{base64.b64encode(bytes(len(base64.b64decode(sum)))).decode()}\r\n".encode()
    for how, make in ((UNSIGNED, unsigned), (SIGNED, signed)):
        name = f"{kind}-{make.__name__}"
        status, headers, _ = put(name, how, make(trailer), kind)
        check(f"{name} is put: {status}", status == 200 and headers.get(f"x-amz-checksum-{kind}") == sum)
        check(f"{name} is stored", stored(name) == body)
        _, headers, _ = ask("HEAD", f"sums/{name}", {"x-amz-checksum-mode": "ENABLED"})
        check(f"{name} is answered", headers.get(f"x-amz-checksum-{kind}") == sum)
        check(f"{name} is of all bytes", headers.get("x-amz-checksum-type") == "FULL_OBJECT")
        _, headers, _ = ask("HEAD", f"sums/{name}")
        check(f"{name} is only answered to who asks", f"x-amz-checksum-{kind}" not in headers)
        status, _, text = put(f"{name}-bad", how, make(other), kind)
        check(f"another {name} is refused: {status}", status == 400 and b"<Code>BadDigest</Code>" in text)
        check(f"another {name} stores nothing", stored(f"{name}-bad") is None)
    status, headers, _ = ask("PUT", f"sums/{kind}", {f"x-amz-checksum-{kind}": sum}, bodies=lambda _: body)
    check(f"{kind} in front: {status}", status == 200 and headers.get(f"x-amz-checksum-{kind}") == sum)
    status, _, text = ask("PUT", f"sums/{kind}-x", {f"x-amz-checksum-{kind}": sum}, bodies=lambda _: b"other")
    check(f"a wrong {kind} in front: {status}", status == 400 and b"BadDigest" in text and stored(f"{kind}-x") is None)
    status, _, text = ask("PUT", f"sums/{kind}-x", {f"x-amz-checksum-{kind}": "AAA"}, bodies=lambda _: body)
    check(f"{kind} that is none: {status}", status == 400 and b"InvalidRequest" in text)

# What is cut or forged stores nothing.
trailer = f"x-amz-checksum-crc32:{SUMS['crc32']}\r\n".encode()
for what, arguments, expected in (
    ("no trailer", (UNSIGNED, unsigned(b""), "crc32"), b"MalformedTrailerError"),
    ("another trailer", (UNSIGNED, unsigned(b"x-amz-checksum-sha1:x\r\n"), "crc32"), b"MalformedTrailerError"),
    ("a trailer twice", (UNSIGNED, unsigned(trailer + trailer), "crc32"), b"MalformedTrailerError"),
    ("trailers of any length", (UNSIGNED, unsigned(b"x: " + b"y" * 5000 + b"\r\n"), "crc32"), b""),
    ("a line of any length", (UNSIGNED, lambda _: b"0" * 5000, "crc32"), b""),
    ("no last chunk", (UNSIGNED, unsigned(trailer, end=False), "crc32"), b""),
    ("too few bytes", (UNSIGNED, unsigned(trailer), "crc32", 10), b""),
    ("too many bytes", (UNSIGNED, unsigned(trailer), "crc32", 8), b""),
    ("nothing announced", (UNSIGNED, unsigned(trailer)), b"InvalidRequest"),
    ("an unknown one announced", (UNSIGNED, unsigned(trailer), "md4"), b"InvalidRequest"),
    ("a forged signature", (SIGNED, signed(trailer, wrong=True), "crc32"), b"SignatureDoesNotMatch"),
    ("no signatures", (SIGNED, unsigned(trailer), "crc32"), b""),
):
    status, _, text = put("forged", *arguments)
    check(f"{what}: {status} {text[:300]}", 400 <= status < 500 and expected in text and stored("forged") is None)

status, _, text = ask("PUT", "sums/forged", kind=hashlib.sha256(b"other").hexdigest(), bodies=lambda _: body)
check(f"another digest in the signature: {status} {text}", status == 400 and b"XAmzContentSHA256Mismatch" in text)
check("which stores nothing", stored("forged") is None)

# With the defaults of boto3.
client = s3_client(url, certificate, key)
large = os.urandom(13_000_001)
client.put_object(Bucket="sums", Key="large", Body=large, ChecksumAlgorithm="CRC32")
got = client.get_object(Bucket="sums", Key="large", ChecksumMode="ENABLED")
check("a checksum that boto3 compares", got["Body"].read() == large)
check("which is that", got.get("ChecksumCRC32") == base64.b64encode(zlib.crc32(large).to_bytes(4, "big")).decode())
got = client.get_object(Bucket="sums", Key="large", ChecksumMode="ENABLED", Range="bytes=1-5")
check("a range has none", got["Body"].read() == large[1:6] and "ChecksumCRC32" not in got)
client.copy_object(Bucket="sums", Key="copy", CopySource={"Bucket": "sums", "Key": "large"})
copied = client.head_object(Bucket="sums", Key="copy", ChecksumMode="ENABLED")
check("a copy has that of its source", copied.get("ChecksumCRC32") == client.head_object(
    Bucket="sums", Key="large", ChecksumMode="ENABLED")["ChecksumCRC32"])
with open(f"{mount}/sums/copy", "r+b") as file:
    file.write(b"changed")
check("until it is changed", "ChecksumCRC32" not in client.head_object(Bucket="sums", Key="copy", ChecksumMode="ENABLED"))

path = "/dev/shm/bivouac-sums"
with open(path, "wb") as file:
    file.write(large)
parts = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20, max_concurrency=4)
client.upload_file(path, "sums", "parts", Config=parts, ExtraArgs={"ChecksumAlgorithm": "SHA256"})
os.remove(path)
check("parts with checksums", stored("parts") == large)
pieces = [hashlib.sha256(large[at:at + (5 << 20)]).digest() for at in range(0, len(large), 5 << 20)]
whole = base64.b64encode(hashlib.sha256(b"".join(pieces)).digest()).decode() + "-3"
head = client.head_object(Bucket="sums", Key="parts", ChecksumMode="ENABLED")
check(f"the checksum of parts: {head.get('ChecksumSHA256')}", head.get("ChecksumSHA256") == whole)
check("parts are read", client.get_object(Bucket="sums", Key="parts", ChecksumMode="ENABLED")["Body"].read() == large)

# Names that XML cannot say.
for name in ("a\x01b", "a\rb", "a b+c%&<ä"):
    with open(f"{mount}/sums/named-{name}", "wb") as file:
        file.write(body)
for version in ("", "list-type=2&"):
    _, _, text = ask("GET", f"sums?{version}prefix=named-")
    check(f"a list without them: {text}", text.count(b"<Key>") == 1 and "<Key>named-a b+c%&amp;&lt;ä</Key>".encode() in text)
    _, _, text = ask("GET", f"sums?encoding-type=url&{version}prefix=named-")
    check(f"a list that encodes them: {text}", text.count(b"<Key>") == 3 and b"<Key>named-a%01b</Key>" in text)
    check("which says so", b"<EncodingType>url</EncodingType>" in text and b"<Key>named-a%20b%2Bc%25%26%3C%C3%A4</Key>" in text)
    check("what cannot be said is refused", ask("GET", f"sums?{version}prefix=%01")[0] == 400)
pages = client.get_paginator("list_objects_v2").paginate(Bucket="sums", Prefix="named-", PaginationConfig={"PageSize": 1})
names = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
check(f"boto3 lists them by pages: {names}", names == ["named-a\x01b", "named-a\rb", "named-a b+c%&<ä"])
for name in names:
    check(f"and gets {name!r}", client.get_object(Bucket="sums", Key=name)["Body"].read() == body)

for what in bad:
    print(f"checksums: {what}")
sys.exit(1 if bad else 0)
