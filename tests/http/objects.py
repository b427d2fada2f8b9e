"""Objects by boto3: put, got, listed, copied, removed, in parts and by links; compared each time.

usage: objects.py URL CERTIFICATE MOUNT, with the key alone on a line of standard input. Prints what is wrong, and exits
with 1 then.
"""

import hashlib
import os
import sys
import urllib.request
import ssl

from botocore.exceptions import ClientError
from boto3.s3.transfer import TransferConfig

from s3_client import s3_client

url, certificate, mount = sys.argv[1:]
key = sys.stdin.readline().strip()
bad = []


def check(what, holds):
    if not holds:
        bad.append(what)


def code(call, **arguments):
    """The error that a call ends with, or nothing."""
    try:
        call(**arguments)
    except ClientError as error:
        return error.response["Error"]["Code"]


client = s3_client(url, certificate, key)
small, large = b"small", os.urandom(13_000_001)
client.create_bucket(Bucket="boto")
client.put_object(Bucket="boto", Key="a/b", Body=small, Metadata={"who": "ada"}, ContentType="text/x-note")
with open(f"{mount}/boto/a/b", "rb") as file:
    check("an object is a file", file.read() == small)
got = client.get_object(Bucket="boto", Key="a/b")
check("its content", got["Body"].read() == small)
check("its metadata", got["Metadata"] == {"who": "ada"} and got["ContentType"] == "text/x-note")
check("its tag is an MD5", got["ETag"] == f'"{hashlib.md5(small).hexdigest()}"')
got = client.get_object(Bucket="boto", Key="a/b", Range="bytes=1-2")
check("a range", got["Body"].read() == small[1:3])
check("a wrong key", code(client.get_object, Bucket="boto", Key="a/none") == "NoSuchKey")

# In parts, several at a time.
with open("/dev/shm/bivouac-boto", "wb") as file:
    file.write(large)
parts = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20, max_concurrency=4)
client.upload_file("/dev/shm/bivouac-boto", "boto", "large", Config=parts)
with open(f"{mount}/boto/large", "rb") as file:
    check("parts are put together", file.read() == large)
os.remove("/dev/shm/bivouac-boto")
client.copy_object(Bucket="boto", Key="copy", CopySource={"Bucket": "boto", "Key": "large"})
check("a copy", client.get_object(Bucket="boto", Key="copy")["Body"].read() == large)

# Listings, page by page.
for number in range(25):
    client.put_object(Bucket="boto", Key=f"many/{number:02}", Body=str(number).encode())
pages = client.get_paginator("list_objects_v2").paginate(Bucket="boto", Prefix="many/", PaginationConfig={"PageSize": 7})
names = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
check("all keys in order", names == [f"many/{number:02}" for number in range(25)])
top = client.list_objects_v2(Bucket="boto", Delimiter="/")
check("prefixes", [prefix["Prefix"] for prefix in top["CommonPrefixes"]] == ["a/", "many/"])

client.put_object_tagging(Bucket="boto", Key="copy", Tagging={"TagSet": [{"Key": "k", "Value": "v"}]})
check("tags", client.get_object_tagging(Bucket="boto", Key="copy")["TagSet"] == [{"Key": "k", "Value": "v"}])

# A link is for what it was made for, without a key.
link = client.generate_presigned_url("get_object", Params={"Bucket": "boto", "Key": "a/b"}, ExpiresIn=60)
trusted = ssl.create_default_context(cafile=certificate)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted))
check("a link", opener.open(link).read() == small)
try:
    opener.open(link.replace("/a/b", "/large"))
    check("a link of something else", False)
except urllib.error.HTTPError as error:
    check("a link of something else", error.code == 403)

# Nor does a header that was added to it lead to something else.
client.create_bucket(Bucket="drop")
link = client.generate_presigned_url("put_object", Params={"Bucket": "drop", "Key": "in"}, ExpiresIn=60)
for name, value in [("x-amz-copy-source", "/boto/a/b"), ("x-amz-meta-who", "eve")]:
    try:
        opener.open(urllib.request.Request(link, b"", {name: value, "Content-Type": ""}, method="PUT"))
        check(f"a link with {name} added", False)
    except urllib.error.HTTPError as error:
        check(f"a link with {name} added", error.code == 403 and name.encode() in error.read())
check("what such a link leaves", code(client.head_object, Bucket="drop", Key="in") == "404")
client.delete_bucket(Bucket="drop")

# S640: a lock counts for what gets its name behind it, however long ago it was begun.
def lock(name):
    """Locks a file, or a name where it makes one; the way to end that."""
    body = b"<lockinfo xmlns='DAV:'><lockscope><exclusive/></lockscope><locktype><write/></locktype></lockinfo>"
    bearer = {"Authorization": f"Bearer {key}"}
    asked = urllib.request.Request(f"{url}/boto/{name}", body, bearer, method="LOCK")
    token = opener.open(asked).headers["Lock-Token"]
    return urllib.request.Request(asked.full_url, None, bearer | {"Lock-Token": token}, method="UNLOCK")


begun = client.create_multipart_upload(Bucket="boto", Key="shut")["UploadId"]
part = client.upload_part(Bucket="boto", Key="shut", UploadId=begun, PartNumber=1, Body=small)
end = lock("shut")
whole = {"Bucket": "boto", "Key": "shut", "UploadId": begun}
whole["MultipartUpload"] = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
check("parts in place of what is locked", code(client.complete_multipart_upload, **whole) is not None)
source = {"Bucket": "boto", "Key": "a/b"}
check("a copy in place of it", code(client.copy_object, Bucket="boto", Key="shut", CopySource=source) is not None)
check("what is locked is as it was", client.get_object(Bucket="boto", Key="shut")["Body"].read() == b"")
opener.open(end)
client.complete_multipart_upload(**whole)
check("behind the lock they are put", client.get_object(Bucket="boto", Key="shut")["Body"].read() == small)

everything = [entry["Key"] for entry in client.list_objects_v2(Bucket="boto")["Contents"]]
done = client.delete_objects(Bucket="boto", Delete={"Objects": [{"Key": name} for name in everything]})
check("all are removed", len(done["Deleted"]) == len(everything) and not done.get("Errors"))
client.delete_bucket(Bucket="boto")
check("nothing is left", not os.path.exists(f"{mount}/boto"))
for what in bad:
    print(f"boto3: {what}")
sys.exit(1 if bad else 0)
